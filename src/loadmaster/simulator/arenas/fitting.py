"""Blocks into an arena of a given capacity: a compiled depth-first search over canonical layouts.

Blocks are placed from the bottom up, each as low as what lies under it allows, so that every layout that fits has an
equal in which the offsets of successive blocks never fall (Moffitt, "MiniMalloc", ASPLOS 2023, which also gives the
pruning by gaps that a waiting block would fill and the split into parts that no waiting block joins). A layout is given
up as soon as what waits can no longer be stacked (`waiting`).
"""

from __future__ import annotations

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Floats, Ints, Truth, Whole
from loadmaster.simulator.arenas.scratch import FOUND, NONE, STOPPED, FitScratch
from loadmaster.simulator.arenas.waiting import FAR, all_stack, look, part, place, sort_waiting, stacks, undo


@part
def _choices(scratch: FitScratch, top: Whole) -> None:
    """Blocks that may come next, in order: not under the last one, and none that leaves a gap in which another fits;
    of blocks alike only the first."""
    size, twin, low, turn, offset = (
        scratch.blocks.size,
        scratch.blocks.twin,
        scratch.state.low,
        scratch.state.turn,
        scratch.state.offset,
    )
    frames, items, gap = scratch.frames, scratch.frames.items, FAR
    least, used = frames.least[top], frames.choices_end[top - 1]
    frames.choice[top] = used
    for at in range(frames.begin[top], frames.end[top]):
        gap = min(gap, low[items[at]] + size[items[at]])
    for at in range(frames.begin[top], frames.end[top]):
        block = items[at]
        if low[block] >= gap:
            break
        if low[block] < least or (low[block] == least and turn[block] < frames.least_turn[top]):
            continue
        if twin[block] >= 0 and offset[twin[block]] < 0:
            continue
        frames.choices[used] = block
        used += 1
    frames.choices_end[top] = used


@part
def _split(scratch: FitScratch, top: Whole, end: Whole, since: Whole, until: Whole, below: Whole) -> None:
    """What waits of the frame's part, items up to `end`, as parts that no waiting block joins; cuts may be new between
    sections since … until - 1 alone. Parts and items of the frame `below` are kept."""
    frames, first, cut = scratch.frames, scratch.blocks.first, scratch.state.cut
    begin, lowest, highest = frames.begin[top], frames.lowest[top], frames.highest[top]
    parts, items, used, number = frames.parts, frames.items, frames.items_end[below], frames.parts_end[below]
    frames.first_part[top] = frames.next_part[top] = number
    low_section, found = lowest, False
    for section in range(since, until):
        if section + 1 < until and cut[section] > 0:
            continue
        if section + 1 < until:
            found = True
        elif not found:
            break
        high_section = section + 1 if section + 1 < until else highest
        start = used
        for at in range(begin, end):
            if low_section <= first[items[at]] and first[items[at]] < high_section:
                items[used] = items[at]
                used += 1
        if used > start:
            parts[number, 0], parts[number, 1], parts[number, 2], parts[number, 3] = (
                start,
                used,
                low_section,
                high_section,
            )
            number += 1
        low_section = high_section
    if not found and end > begin:
        parts[number, 0], parts[number, 1], parts[number, 2], parts[number, 3] = begin, end, lowest, highest
        number += 1
    frames.parts_end[top], frames.items_end[top] = number, used


@part
def _comes_first(keys: Floats, items: Ints, begin: Whole, one: Whole, two: Whole) -> Truth:
    for row in range(3):
        if keys[row, one] != keys[row, two]:
            return keys[row, one] > keys[row, two]  # type: ignore[no-any-return]
    return items[begin + one] < items[begin + two]  # type: ignore[no-any-return]


@part
def _take_turns(scratch: FitScratch, begin: Whole, end: Whole, mark: Whole) -> Whole:
    """Gives the blocks of a part their turns by the rule, as their sections are now; returns the end of the trail."""
    first, last, total, turn = scratch.blocks.first, scratch.blocks.last, scratch.state.total, scratch.state.turn
    items, keys, order, other = scratch.frames.items, scratch.notes.keys, scratch.notes.order, scratch.notes.other
    count = end - begin
    for at in range(count):
        block, most = items[begin + at], total[first[items[begin + at]]]
        for section in range(first[block], last[block]):
            most = max(most, total[section])
        for row in range(3):
            keys[row, at] = scratch.rule.factor[row, block] * (most if row == scratch.rule.fullest else 1.0)
        order[at] = at
    width = 1
    while width < count:  # a merge sort, larger keys first
        for low in range(0, count, 2 * width):
            left, middle, high = low, min(low + width, count), min(low + 2 * width, count)
            right = middle
            for to in range(low, high):
                take_left = right == high
                if left < middle and right < high:
                    take_left = _comes_first(keys, items, begin, order[left], order[right])
                if take_left:
                    other[to] = order[left]
                    left += 1
                else:
                    other[to] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    for number in range(count):
        block = items[begin + order[number]]
        scratch.state.trail[mark], scratch.state.before[mark] = 2 * len(turn) + block, turn[block]
        mark += 1
        turn[block] = number
    return mark


@part
def _enter(scratch: FitScratch, top: Whole, mark: Whole) -> Whole:
    """Makes the frame `top` of the next part of the one below it; returns the end of the trail, or -1 where there is no
    room for it."""
    frames, parts, below = scratch.frames, scratch.frames.parts, top - 1
    here = frames.next_part[below]
    frames.next_part[below] += 1
    begin, end = parts[here, 0], parts[here, 1]
    frames.begin[top], frames.end[top] = begin, end
    frames.lowest[top], frames.highest[top] = parts[here, 2], parts[here, 3]
    frames.least[top], frames.least_turn[top] = frames.least[below], frames.least_turn[below]
    if scratch.rule.anew and frames.parts_end[below] - frames.first_part[below] > 1:  # one of several: turns of its own
        if mark + end - begin > scratch.turns_end:
            return -1
        mark = _take_turns(scratch, begin, end, mark)
        sort_waiting(scratch, begin, end)
        frames.least_turn[top] = -1
    if frames.choices_end[below] + end - begin > len(frames.choices):
        return -1
    frames.mark[top], frames.alone[top] = mark, 0
    _choices(scratch, top)
    return mark


@part
def _fails_where_it_did(scratch: FitScratch, top: Whole, block: Whole, looked_at: Whole) -> tuple[Truth, Whole]:
    """Whether the block cannot come next because of the section that failed last; then all choices after it are given
    up where they would fail there, too. `looked_at`: the frame whose blocks lie side by side, which is returned."""
    frames, hot = scratch.frames, scratch.state.hot[0]
    if hot < frames.lowest[top] or hot >= frames.highest[top]:
        return False, looked_at
    count, least, least_turn = frames.end[top] - frames.begin[top], frames.least[top], frames.least_turn[top]
    if looked_at != top:
        look(scratch, frames.begin[top], frames.end[top])
    if stacks(scratch, count, hot, block, least, least_turn):
        return False, top
    if not stacks(scratch, count, hot, -1, least, least_turn):
        frames.choice[top] = frames.choices_end[top]
    return True, top


@compiled(error_model="numpy", _nrt=False)
def fit(scratch: FitScratch) -> Whole:
    """FOUND, NONE or STOPPED; the layout is in state.offset, and in state.done the blocks looked at."""
    looked_at: Whole
    frames, low, turn, done = scratch.frames, scratch.state.low, scratch.state.turn, scratch.state.done
    first, last, items, count = (
        scratch.blocks.first,
        scratch.blocks.last,
        scratch.frames.items,
        len(scratch.blocks.size),
    )
    for block in range(count):
        items[block] = block
    # The outermost frame chooses nothing; its parts are those of the whole.
    mark = _take_turns(scratch, 0, count, 0)
    sort_waiting(scratch, 0, count)
    sections = len(scratch.state.total)
    frames.end[0], frames.items_end[0], frames.highest[0], frames.least_turn[0] = count, count, sections, -1
    done[0] = count
    if not all_stack(scratch, 0, count, 0, sections, 0, -1):
        return NONE
    _split(scratch, 0, count, 0, sections, 0)
    top, looked_at, forward = 0, -1, True
    while True:
        if forward:  # into the next part that the choice on top has left, or it is all placed
            if frames.next_part[top] == frames.parts_end[top]:
                if top == 0:
                    return FOUND
                top -= 1
                continue
            top, looked_at = top + 1, -1
            mark = _enter(scratch, top, mark)
            if mark < 0:
                return STOPPED
        # The next choice of the frame on top.
        forward = False
        mark = undo(scratch, mark, frames.mark[top])
        if top == 0:
            return NONE
        if done[0] > scratch.work or scratch.state.stop[0] != 0:
            return STOPPED
        if frames.alone[top] != 0 or frames.choice[top] == frames.choices_end[top]:
            top -= 1
            continue
        block = frames.choices[frames.choice[top]]
        frames.choice[top] += 1
        frames.least[top], frames.least_turn[top] = low[block], turn[block]
        waiting = frames.end[top] - frames.begin[top]
        done[0] += 1 + waiting // 16
        fails, looked_at = _fails_where_it_did(scratch, top, block, looked_at)
        if fails:
            continue
        mark, above = place(scratch, block, frames.begin[top], frames.end[top], mark)
        frames.alone[top] = 0 if above else 1
        end = sort_waiting(scratch, frames.begin[top], frames.end[top])
        done[0] += waiting
        if not all_stack(
            scratch,
            frames.begin[top],
            end,
            frames.lowest[top],
            frames.highest[top],
            frames.least[top],
            frames.least_turn[top],
        ):
            continue
        if frames.parts_end[top - 1] + count + 2 > len(frames.parts):
            return STOPPED
        if frames.items_end[top - 1] + end - frames.begin[top] > len(items):
            return STOPPED
        _split(scratch, top, end, first[block], last[block], top - 1)
        forward = True
