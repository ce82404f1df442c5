"""Blocks into an arena of a given capacity: a compiled depth-first search over canonical layouts.

Blocks are placed from the bottom up, each as low as what lies under it allows, so that every layout that fits has an
equal in which the offsets of successive blocks never fall (Moffitt, "MiniMalloc", ASPLOS 2023, which also gives the
pruning by gaps that a waiting block would fill and the split into parts that no waiting block joins). A section is a
largest set of blocks alive at one time. What waits in a section must be stacked, each block not under the lowest
place it has left: a single machine with release times, whose least end is found by going through them in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Truth, Whole

FOUND, NONE, STOPPED = 1, 0, -1  # a layout; there is none; the work given was not enough
FAR = np.iinfo(np.int64).max // 4


class Blocks(NamedTuple):
    """Blocks as the search sees them: what lives when, in sections.

    Attributes:
        size: [blocks] bytes.
        first: [blocks] first section.
        last: [blocks] first section after it.
        mates: blocks alive at some time together with block i.
        members: blocks of section i.
    """

    size: np.ndarray  # [blocks]
    first: np.ndarray  # [blocks]
    last: np.ndarray  # [blocks]
    mate_start: np.ndarray  # [blocks + 1]
    mates: np.ndarray
    member_start: np.ndarray  # [sections + 1]
    members: np.ndarray
    sections: int


def blocks_of(begin: Ints, end: Ints, nbytes: Ints) -> Blocks:
    """Lives that are half-open in any unit of time."""
    first, last, sections = _sections(begin, end)
    start, mates = _mates(first, last, sections)
    return Blocks(np.asarray(nbytes, np.int64), first, last, start, mates, *_members(first, last, sections), sections)


def _sections(begin: Ints, end: Ints) -> tuple[Ints, Ints, int]:
    """Sections end where the first of their blocks does."""
    times = np.concatenate([begin, end])
    is_end = np.repeat([0, 1], len(begin))
    order = np.lexsort((1 - is_end, times))  # what ends at an instant ends before anything begins
    ends = is_end[order]
    closes = np.zeros(len(order), np.int64)  # an end after a begin closes a section
    closes[1:] = (ends[1:] == 1) & (ends[:-1] == 0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(closes)
    count = len(begin)
    return number[:count], number[count:], int(closes.sum())


@compiled
def _mates(first: Ints, last: Ints, sections: Whole) -> tuple[Ints, Ints]:
    """Pairs of blocks with a section in common, block by block."""
    count = len(first)
    fill = np.zeros(sections + 1, np.int64)
    for block in range(count):
        fill[first[block] + 1] += 1
    for section in range(sections):
        fill[section + 1] += fill[section]
    starting, at = np.empty(count, np.int64), fill[:-1].copy()
    for block in range(count):
        starting[at[first[block]]] = block
        at[first[block]] += 1
    start = np.zeros(count + 1, np.int64)
    for turn in range(2):
        if turn == 1:
            for block in range(count):
                start[block + 1] += start[block]
            at = start[:-1].copy()
            mates = np.empty(start[count], np.int32)
        for block in range(count):
            for place in range(fill[first[block]], fill[last[block]]):
                other = starting[place]
                if other == block or (first[other] == first[block] and other < block):
                    continue
                if turn == 0:
                    start[block + 1] += 1
                    start[other + 1] += 1
                else:
                    mates[at[block]] = other
                    mates[at[other]] = block
                    at[block] += 1
                    at[other] += 1
    return start, mates


@compiled
def _members(first: Ints, last: Ints, sections: Whole) -> tuple[Ints, Ints]:
    start = np.zeros(sections + 1, np.int64)
    for block in range(len(first)):
        for section in range(first[block], last[block]):
            start[section + 1] += 1
    for section in range(sections):
        start[section + 1] += start[section]
    members, fill = np.empty(start[sections], np.int32), start[:-1].copy()
    for block in range(len(first)):
        for section in range(first[block], last[block]):
            members[fill[section]] = block
            fill[section] += 1
    return start, members


class Rule(NamedTuple):
    """By what blocks are put in turn: three keys, the larger first.

    Attributes:
        factor: [3, blocks] keys, or factors of the key that changes.
        fullest: the row that is multiplied by the bytes that wait in the fullest section of the block.
        anew: once more for each part that the blocks fall into, by what waits then.
    """

    factor: np.ndarray  # [3, blocks]
    fullest: int
    anew: bool


class State(NamedTuple):
    """Where the search stands.

    Attributes:
        offset: [blocks] or -1.
        low: [blocks] lowest place left.
        total: [sections] bytes that wait.
        cut: [sections] waiting blocks that are in this section and the next.
        height: [sections] scratch.
        base: [blocks] scratch.
        order: [blocks] scratch.
        turn: [blocks] who is tried first among blocks with the same lowest place.
        trail: what was changed: a block (its `low` before), blocks + one that was placed, 2 blocks + turn.
        hot: [1] the section in which what waits could not be stacked the last time.
    """

    offset: np.ndarray  # [blocks]
    low: np.ndarray  # [blocks]
    total: np.ndarray  # [sections]
    cut: np.ndarray  # [sections]
    height: np.ndarray  # [sections]
    base: np.ndarray  # [blocks]
    order: np.ndarray  # [blocks]
    turn: np.ndarray  # [blocks]
    trail: np.ndarray
    before: np.ndarray
    hot: np.ndarray  # [1]


@compiled
def make_state(blocks: Blocks) -> State:
    count = len(blocks.size)
    total, cut = np.zeros(blocks.sections, np.int64), np.zeros(blocks.sections, np.int64)
    for block in range(count):
        for section in range(blocks.first[block], blocks.last[block]):
            total[section] += blocks.size[block]
            if section + 1 < blocks.last[block]:
                cut[section] += 1
    changes = len(blocks.mates) + 33 * count
    return State(
        np.full(count, -1, np.int64),
        np.zeros(count, np.int64),
        total,
        cut,
        np.empty(blocks.sections, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.zeros(count, np.int64),
        np.empty(changes, np.int64),
        np.empty(changes, np.int64),
        np.zeros(1, np.int64),
    )


@compiled(inline="always")
def _place(blocks: Blocks, state: State, block: Whole, mark: Whole) -> tuple[Whole, bool]:
    """Puts the block at its lowest place; returns (the end of the trail, whether anything waits above it)."""
    size, first, last, mate_start, mates = blocks.size, blocks.first, blocks.last, blocks.mate_start, blocks.mates
    offset, low, total, cut, trail, before = state.offset, state.low, state.total, state.cut, state.trail, state.before
    top = low[block] + size[block]
    offset[block] = low[block]
    for section in range(first[block], last[block]):
        total[section] -= size[block]
        if section + 1 < last[block]:
            cut[section] -= 1
    above = False
    for at in range(mate_start[block], mate_start[block + 1]):
        mate = mates[at]
        if offset[mate] < 0:
            above = True
            if low[mate] < top:
                trail[mark], before[mark] = mate, low[mate]
                mark += 1
                low[mate] = top
    trail[mark] = len(size) + block
    return mark + 1, above


@compiled(inline="always")
def _undo(blocks: Blocks, state: State, mark: Whole, until: Whole) -> Whole:
    size, first, last = blocks.size, blocks.first, blocks.last
    offset, low, total, cut, trail, before = state.offset, state.low, state.total, state.cut, state.trail, state.before
    count, turn = len(size), state.turn
    while mark > until:
        mark -= 1
        block = trail[mark]
        if block < count:
            low[block] = before[mark]
            continue
        block -= count
        if block >= count:
            turn[block - count] = before[mark]
            continue
        offset[block] = -1
        for section in range(first[block], last[block]):
            total[section] += size[block]
            if section + 1 < last[block]:
                cut[section] += 1
    return mark


@compiled(inline="always")
def _sort(items: Ints, begin: Whole, end: Whole, low: Ints, turn: Ints, offset: Ints) -> Whole:
    """Waiting blocks first, by lowest place, then by turn; nearly sorted already. Returns where the waiting end."""
    for at in range(begin + 1, end):
        block = items[at]
        key = FAR if offset[block] >= 0 else low[block]
        here = at
        while here > begin:
            other = items[here - 1]
            other_key = FAR if offset[other] >= 0 else low[other]
            if other_key < key or (other_key == key and turn[other] < turn[block]):
                break
            items[here] = other
            here -= 1
        items[here] = block
    while end > begin and offset[items[end - 1]] >= 0:
        end -= 1
    return end


@compiled(inline="always")
def _base(blocks: Blocks, state: State, block: Whole, least: Whole, least_turn: Whole) -> Whole:
    """The lowest place that a waiting block can take: not under `least`; one that was passed over for another can only
    lie on a block that still waits."""
    low, offset = state.low, state.offset
    if low[block] > least or (low[block] == least and state.turn[block] >= least_turn):
        return low[block]  # type: ignore[no-any-return]
    under = FAR
    for at in range(blocks.mate_start[block], blocks.mate_start[block + 1]):
        mate = blocks.mates[at]
        if offset[mate] < 0:
            under = min(under, max(low[mate], least) + blocks.size[mate])
    return under


@compiled(inline="always")
def _fits_hot(blocks: Blocks, state: State, least: Whole, least_turn: Whole, capacity: Whole) -> Truth:
    """Whether what waits can be stacked in the section where that failed the last time: it often fails again."""
    size, offset, base, order, hot = blocks.size, state.offset, state.base, state.order, state.hot[0]
    count = 0
    for at in range(blocks.member_start[hot], blocks.member_start[hot + 1]):
        block = blocks.members[at]
        if offset[block] >= 0:
            continue
        base[block] = _base(blocks, state, block, least, least_turn)
        here = count
        while here > 0 and base[order[here - 1]] > base[block]:
            order[here] = order[here - 1]
            here -= 1
        order[here] = block
        count += 1
    top = np.int64(0)
    for at in range(count):
        top = max(top, base[order[at]]) + size[order[at]]
    return top <= capacity


@compiled(inline="always")
def _fits(
    blocks: Blocks,
    state: State,
    items: Ints,
    begin: Whole,
    end: Whole,
    least: Whole,
    least_turn: Whole,
    capacity: Whole,
) -> bool:
    """Whether what waits can be stacked in each section under the capacity."""
    size, first, last = blocks.size, blocks.first, blocks.last
    height, base, order = state.height, state.base, state.order
    # By the lowest place of each: those passed over go in among the others, which are in order already.
    count = 0
    for at in range(end - 1, begin - 1, -1):
        block = items[at]
        base[block] = _base(blocks, state, block, least, least_turn)
        if base[block] + size[block] > capacity:
            return False
        here = count  # order runs from the highest to the lowest
        while here > 0 and base[order[here - 1]] < base[block]:
            order[here] = order[here - 1]
            here -= 1
        order[here] = block
        count += 1
        for section in range(first[block], last[block]):
            height[section] = 0
    for at in range(count - 1, -1, -1):
        block = order[at]
        for section in range(first[block], last[block]):
            top = max(height[section], base[block]) + size[block]
            if top > capacity:
                state.hot[0] = section
                return False
            height[section] = top
    return True


@compiled(inline="always")
def _choices(
    blocks: Blocks,
    state: State,
    items: Ints,
    begin: Whole,
    end: Whole,
    least: Whole,
    least_turn: Whole,
    turn: Ints,
    twin: Ints,
    choices: Ints,
    used: Whole,
) -> Whole:
    """Blocks that may come next, in order: not under the last one, and none that leaves a gap in which another fits;
    of blocks alike only the first."""
    size, low, offset = blocks.size, state.low, state.offset
    gap = FAR
    for at in range(begin, end):
        gap = min(gap, low[items[at]] + size[items[at]])
    for at in range(begin, end):
        block = items[at]
        if low[block] >= gap:
            break
        if low[block] < least or (low[block] == least and turn[block] < least_turn):
            continue
        if twin[block] >= 0 and offset[twin[block]] < 0:
            continue
        choices[used] = block
        used += 1
    return used


@compiled(inline="always")
def _split(
    blocks: Blocks,
    state: State,
    items: Ints,
    begin: Whole,
    end: Whole,
    lowest: Whole,
    highest: Whole,
    since: Whole,
    until: Whole,
    parts: Ints,
    parts_used: Whole,
    items_used: Whole,
) -> tuple[Whole, Whole]:
    """The waiting blocks of a part, in sections lowest … highest - 1, as parts that none of them joins; cuts may be new
    between sections since … until - 1 alone. Returns (parts used, items used)."""
    low_section: Whole
    first, cut = blocks.first, state.cut
    low_section, found = np.int64(lowest), False
    for section in range(since, until):
        if section + 1 < until and cut[section] > 0:
            continue
        if section + 1 < until:
            found = True
        elif not found:
            break
        high_section = section + 1 if section + 1 < until else highest
        start = items_used
        for at in range(begin, end):
            if low_section <= first[items[at]] < high_section:
                items[items_used] = items[at]
                items_used += 1
        if items_used > start:
            parts[parts_used, 0], parts[parts_used, 1] = start, items_used
            parts[parts_used, 2], parts[parts_used, 3] = low_section, high_section
            parts_used += 1
        low_section = high_section
    if not found and end > begin:
        parts[parts_used, 0], parts[parts_used, 1] = begin, end
        parts[parts_used, 2], parts[parts_used, 3] = lowest, highest
        parts_used += 1
    return parts_used, items_used


@compiled
def _take_turns(blocks: Blocks, state: State, items: Ints, begin: Whole, end: Whole, rule: Rule, mark: Whole) -> Whole:
    """Gives the blocks of a part their turns by the rule, as their sections are now; returns the end of the trail."""
    size, first, last, total, turn = blocks.size, blocks.first, blocks.last, state.total, state.turn
    count = end - begin
    keys = np.empty((3, count))
    for at in range(count):
        block, most = items[begin + at], np.int64(0)
        for section in range(first[block], last[block]):
            most = max(most, total[section])
        for row in range(3):
            keys[row, at] = rule.factor[row, block] * (most if row == rule.fullest else 1.0)
    order = np.arange(count)
    # A merge sort by the three keys, larger first, then by block.
    other, width = np.empty(count, np.int64), 1
    while width < count:
        for low in range(0, count, 2 * width):
            left, right, middle, high = (
                low,
                min(low + width, count),
                min(low + width, count),
                min(low + 2 * width, count),
            )
            for to in range(low, high):
                take_left = right >= high
                if left < middle and right < high:
                    one, two = order[left], order[right]
                    take_left = items[begin + one] < items[begin + two]
                    for row in range(2, -1, -1):
                        if keys[row, one] != keys[row, two]:
                            take_left = keys[row, one] > keys[row, two]
                if take_left and left < middle:
                    other[to] = order[left]
                    left += 1
                else:
                    other[to] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    for place in range(count):
        block = items[begin + order[place]]
        state.trail[mark], state.before[mark] = 2 * len(size) + block, turn[block]
        mark += 1
        turn[block] = place
    return mark


@compiled
def fit(blocks: Blocks, state: State, rule: Rule, twin: Ints, capacity: Whole, work: Whole) -> tuple[Whole, Whole]:
    """(FOUND, NONE or STOPPED, work done); the layout is in state.offset.

    `twin`: a block just like it with a lower number, or -1; `work` counts blocks looked at.
    """
    above: Whole
    mark: Whole
    count = len(blocks.size)
    offset, low, turn = state.offset, state.low, state.turn
    # A frame is a choice among the waiting blocks of one part, items[begin:end].
    room = count + 2
    begin, end = np.zeros(room, np.int64), np.zeros(room, np.int64)
    lowest, highest = np.zeros(room, np.int64), np.zeros(room, np.int64)
    least, least_turn = np.zeros(room, np.int64), np.full(room, -1, np.int64)
    choice, choices_end = np.zeros(room, np.int64), np.zeros(room, np.int64)
    first_part, part, parts_end = np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64)
    items_end, mark_of, alone = np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room, np.bool_)
    items, choices = np.empty(64 * count + 64, np.int64), np.empty(64 * count + 64, np.int64)
    parts = np.empty((8 * count + 64, 4), np.int64)  # items begin, end; sections lowest, highest
    mark, done, top = np.int64(0), np.int64(count), 0
    for block in range(count):
        items[block] = block
    mark = _take_turns(blocks, state, items, 0, count, rule, mark)
    used = _sort(items, 0, count, low, turn, offset)
    if not _fits(blocks, state, items, 0, used, 0, -1, capacity):
        return NONE, done
    # The outermost frame chooses nothing; its parts are those of the whole.
    parts_end[0], items_end[0] = _split(
        blocks, state, items, 0, used, 0, blocks.sections, 0, blocks.sections, parts, 0, used
    )
    forward = True
    while True:
        if forward:  # into the next part that the choice on top has left, or it is all placed
            if part[top] == parts_end[top]:
                if top == 0:
                    return FOUND, done
                top -= 1
                continue
            here = part[top]
            part[top] += 1
            top += 1
            begin[top], end[top] = parts[here, 0], parts[here, 1]
            lowest[top], highest[top] = parts[here, 2], parts[here, 3]
            mark_of[top], alone[top] = mark, False
            least[top], least_turn[top] = least[top - 1], least_turn[top - 1]
            if rule.anew and parts_end[top - 1] - first_part[top - 1] > 1:  # one of several: turns of its own
                if mark + end[top] - begin[top] > len(state.trail) - len(blocks.mates) - count:
                    return STOPPED, done
                mark = _take_turns(blocks, state, items, begin[top], end[top], rule, mark)
                _sort(items, begin[top], end[top], low, turn, offset)
                least_turn[top] = -1
                mark_of[top] = mark
            choice[top] = choices_end[top - 1]
            if choice[top] + end[top] - begin[top] > len(choices):
                return STOPPED, done
            choices_end[top] = _choices(
                blocks, state, items, begin[top], end[top], least[top], least_turn[top], turn, twin, choices,
                choice[top],
            )  # fmt: skip
        # The next choice of the frame on top.
        forward = False
        mark = _undo(blocks, state, mark, mark_of[top])
        if top == 0:
            return NONE, done
        if done > work:
            return STOPPED, done
        if alone[top] or choice[top] == choices_end[top]:
            top -= 1
            continue
        block = choices[choice[top]]
        choice[top] += 1
        least[top], least_turn[top] = low[block], turn[block]
        mark, above = _place(blocks, state, block, mark)
        alone[top] = not above
        done += 1 + (end[top] - begin[top]) // 16
        if lowest[top] <= state.hot[0] < highest[top] and not _fits_hot(
            blocks, state, least[top], least_turn[top], capacity
        ):
            continue
        used = _sort(items, begin[top], end[top], low, turn, offset)
        done += end[top] - begin[top]
        if not _fits(blocks, state, items, begin[top], used, least[top], least_turn[top], capacity):
            continue
        if parts_end[top - 1] + count + 2 > len(parts) or items_end[top - 1] + used - begin[top] > len(items):
            return STOPPED, done
        part[top] = first_part[top] = parts_end[top - 1]
        parts_end[top], items_end[top] = _split(
            blocks, state, items, begin[top], used, lowest[top], highest[top], blocks.first[block], blocks.last[block],
            parts, part[top], items_end[top - 1],
        )  # fmt: skip
        forward = True
