"""Blocks into an arena of a given capacity: a compiled depth-first search over canonical layouts.

Blocks are placed from the bottom up, each as low as what lies under it allows, so that every layout that fits has an
equal in which the offsets of successive blocks never fall (Moffitt, "MiniMalloc", ASPLOS 2023, which also gives the
pruning by gaps that a waiting block would fill and the split into parts that no waiting block joins). A layout is given
up as soon as what waits can no longer be stacked (`waiting`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole
from loadmaster.simulator.arenas.sections import Blocks
from loadmaster.simulator.arenas.waiting import FAR, State, fits, fits_hot, place, sort_waiting, undo

FOUND, NONE, STOPPED = 1, 0, -1  # a layout; there is none; the work given was not enough


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
    for number in range(count):
        block = items[begin + order[number]]
        state.trail[mark], state.before[mark] = 2 * len(size) + block, turn[block]
        mark += 1
        turn[block] = number
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
    used = sort_waiting(items, 0, count, low, turn, offset)
    if not fits(blocks, state, items, 0, used, 0, -1, capacity):
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
                sort_waiting(items, begin[top], end[top], low, turn, offset)
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
        mark = undo(blocks, state, mark, mark_of[top])
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
        mark, above = place(blocks, state, block, mark)
        alone[top] = not above
        done += 1 + (end[top] - begin[top]) // 16
        if lowest[top] <= state.hot[0] < highest[top] and not fits_hot(
            blocks, state, least[top], least_turn[top], capacity
        ):
            continue
        used = sort_waiting(items, begin[top], end[top], low, turn, offset)
        done += end[top] - begin[top]
        if not fits(blocks, state, items, begin[top], used, least[top], least_turn[top], capacity):
            continue
        if parts_end[top - 1] + count + 2 > len(parts) or items_end[top - 1] + used - begin[top] > len(items):
            return STOPPED, done
        part[top] = first_part[top] = parts_end[top - 1]
        parts_end[top], items_end[top] = _split(
            blocks, state, items, begin[top], used, lowest[top], highest[top], blocks.first[block], blocks.last[block],
            parts, part[top], items_end[top - 1],
        )  # fmt: skip
        forward = True
