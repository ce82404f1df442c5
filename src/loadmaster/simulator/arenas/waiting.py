"""Which blocks wait while others are placed from the bottom up, and whether they can still be stacked.

What waits in a section must be stacked, each block not under the lowest place it has left: a single machine with
release times, whose least end is found by going through them in order. A block that was passed over for another can
only lie on a block that still waits: else it would have come first.

Most choices fail in the section in which the last one did. So that one is looked at before the block is placed
(`stacks`), and where it fails even if the block goes elsewhere, so do all choices after it.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Truth, Whole
from loadmaster.simulator.arenas.scratch import FitScratch

FAR = np.iinfo(np.int64).max // 4
part = compiled(error_model="numpy", _nrt=False, forceinline=True)


@part
def _insert(order: Ints, keys: Ints, count: Whole, item: Whole) -> None:
    """Into an order that is by key, after equals."""
    here = count
    while here > 0 and keys[order[here - 1]] > keys[item]:
        order[here] = order[here - 1]
        here -= 1
    order[here] = item


@part
def place(scratch: FitScratch, block: Whole, begin: Whole, end: Whole, mark: Whole) -> tuple[Whole, Truth]:
    """Puts one of items[begin:end] at its lowest place; returns (the end of the trail, whether others wait above)."""
    size, first, last, items = scratch.blocks.size, scratch.blocks.first, scratch.blocks.last, scratch.frames.items
    offset, low, total, cut = scratch.state.offset, scratch.state.low, scratch.state.total, scratch.state.cut
    trail, before = scratch.state.trail, scratch.state.before
    since, until, top = first[block], last[block], low[block] + size[block]
    offset[block] = low[block]
    for section in range(since, until):
        total[section] -= size[block]
    for section in range(since, until - 1):
        cut[section] -= 1
    above = False
    for at in range(begin, end):
        other = items[at]
        if first[other] < until and since < last[other] and other != block:
            above = True
            if low[other] < top:
                trail[mark], before[mark] = other, low[other]
                mark += 1
                low[other] = top
    trail[mark] = len(size) + block
    return mark + 1, above


@part
def undo(scratch: FitScratch, mark: Whole, until: Whole) -> Whole:
    size, first, last = scratch.blocks.size, scratch.blocks.first, scratch.blocks.last
    offset, low, turn, total, cut = (
        scratch.state.offset,
        scratch.state.low,
        scratch.state.turn,
        scratch.state.total,
        scratch.state.cut,
    )
    trail, before, count = scratch.state.trail, scratch.state.before, len(size)
    while mark > until:
        mark -= 1
        block = trail[mark]
        if block < count:
            low[block] = before[mark]
        elif block >= 2 * count:
            turn[block - 2 * count] = before[mark]
        else:
            block -= count
            offset[block] = -1
            for section in range(first[block], last[block]):
                total[section] += size[block]
            for section in range(first[block], last[block] - 1):
                cut[section] += 1
    return mark


@part
def sort_waiting(scratch: FitScratch, begin: Whole, end: Whole) -> Whole:
    """Waiting blocks first, by lowest place, then by turn; nearly sorted already. Returns where the waiting end."""
    items, low, turn, offset = scratch.frames.items, scratch.state.low, scratch.state.turn, scratch.state.offset
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


@part
def look(scratch: FitScratch, begin: Whole, end: Whole) -> None:
    """Lays the waiting blocks items[begin:end] side by side."""
    lineup, blocks, state, items = scratch.lineup, scratch.blocks, scratch.state, scratch.frames.items
    for at in range(end - begin):
        block = items[begin + at]
        lineup.block[at], lineup.first[at], lineup.last[at] = block, blocks.first[block], blocks.last[block]
        lineup.size[at], lineup.low[at], lineup.turn[at] = blocks.size[block], state.low[block], state.turn[block]


@part
def _stacked(scratch: FitScratch, count: Whole) -> Whole:
    """How high the first so many of `order` come, which are by their lowest place."""
    order, base, size, top = scratch.notes.order, scratch.lineup.base, scratch.lineup.size, np.int64(0)
    for at in range(count):
        top = max(top, base[order[at]]) + size[order[at]]
    return top


@part
def stacks(scratch: FitScratch, count: Whole, section: Whole, chosen: Whole, least: Whole, least_turn: Whole) -> Truth:
    """Whether what waits can be stacked in the section, of the `count` blocks side by side, where none comes before
    (least, least_turn) and the chosen one, unless it is -1, lies at its lowest place."""
    lineup, order, low, base = scratch.lineup, scratch.notes.order, scratch.lineup.low, scratch.lineup.base
    block, first, last, size, turn, height = (
        lineup.block,
        lineup.first,
        lineup.last,
        lineup.size,
        lineup.turn,
        lineup.height,
    )
    since, until, top = np.int64(0), np.int64(0), np.int64(0)
    if chosen >= 0:
        since, until = scratch.blocks.first[chosen], scratch.blocks.last[chosen]
        top = scratch.state.low[chosen] + scratch.blocks.size[chosen]
    # At first as if what was passed over could lie at `least`: most of what fails does so already.
    passed = scratch.notes.other
    waiting, overs = 0, 0
    for at in range(count):
        if first[at] <= section and section < last[at] and block[at] != chosen:
            here = max(low[at], top) if first[at] < until and since < last[at] else low[at]
            base[at] = max(here, least)
            _insert(order, base, waiting, at)
            waiting += 1
            if here < least or (here == least and turn[at] < least_turn):
                passed[overs] = at
                overs += 1
    if _stacked(scratch, waiting) > scratch.capacity:
        return False
    if overs == 0:
        return True
    for at in range(count):
        here = max(low[at], top) if (first[at] < until) & (since < last[at]) else low[at]
        height[at] = max(here, least) + size[at] if block[at] != chosen else FAR
    for number in range(overs):
        at = passed[number]
        under, own = FAR, height[at]
        height[at] = FAR
        for other in range(count):
            under = min(under, height[other] if (first[other] < last[at]) & (first[at] < last[other]) else FAR)
        base[at], height[at] = under, own
    for number in range(1, waiting):
        _insert(order, base, number, order[number])
    return _stacked(scratch, waiting) <= scratch.capacity


@part
def _passed_over(scratch: FitScratch, begin: Whole, end: Whole, least: Whole, least_turn: Whole) -> Whole:
    """Of items[begin:end], which are in order, the first that was not passed over."""
    items, low, turn = scratch.frames.items, scratch.state.low, scratch.state.turn
    while begin < end:
        block = items[begin]
        if low[block] > least or (low[block] == least and turn[block] >= least_turn):
            break
        begin += 1
    return begin


@part
def _lie_on_others(scratch: FitScratch, begin: Whole, middle: Whole, end: Whole, least: Whole) -> None:
    """The lowest places of items[begin:middle], which were passed over: each on another one that waits. They are put in
    that order."""
    size, first, last, low, items = (
        scratch.blocks.size,
        scratch.blocks.first,
        scratch.blocks.last,
        scratch.state.low,
        scratch.frames.items,
    )
    under, second, order, base = scratch.notes.under, scratch.notes.second, scratch.notes.order, scratch.notes.base
    for at in range(begin, end):
        block = items[at]
        height = max(low[block], least) + size[block]
        for section in range(first[block], last[block]):
            second[section] = min(second[section], max(under[section], height))
            under[section] = min(under[section], height)
    for at in range(begin, middle):
        block = items[at]
        own, lowest = least + size[block], FAR
        for section in range(first[block], last[block]):
            lowest = min(lowest, second[section] if under[section] == own else under[section])
        base[block] = lowest
        _insert(order, base, at - begin, block)


@part
def all_stack(
    scratch: FitScratch, begin: Whole, end: Whole, lowest: Whole, highest: Whole, least: Whole, least_turn: Whole
) -> Truth:
    """Whether what waits, items[begin:end] in order, can be stacked in each section of lowest … highest - 1."""
    size, first, last, low, items = (
        scratch.blocks.size,
        scratch.blocks.first,
        scratch.blocks.last,
        scratch.state.low,
        scratch.frames.items,
    )
    height, order, base, capacity = scratch.notes.height, scratch.notes.order, scratch.notes.base, scratch.capacity
    for section in range(lowest, highest):
        height[section] = 0
        scratch.notes.under[section] = FAR
        scratch.notes.second[section] = FAR
    middle = _passed_over(scratch, begin, end, least, least_turn)
    if middle > begin:
        _lie_on_others(scratch, begin, middle, end, least)
    over, at = np.int64(0), middle
    while over < middle - begin or at < end:
        if over < middle - begin and (at == end or base[order[over]] <= low[items[at]]):
            block = order[over]
            here = base[block]
            over += 1
        else:
            block = items[at]
            here = low[block]
            at += 1
        most = np.int64(0)
        for section in range(first[block], last[block]):  # without a branch, so that several are done at once
            height[section] = max(height[section], here) + size[block]
            most = max(most, height[section])
        if most > capacity:
            for section in range(first[block], last[block]):
                if height[section] > capacity:
                    scratch.state.hot[0] = section
                    return False
    return True
