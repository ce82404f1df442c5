"""Which blocks wait while others are placed from the bottom up, and whether they can still be stacked.

What waits in a section must be stacked, each block not under the lowest place it has left: a single machine with
release times, whose least end is found by going through them in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Truth, Whole
from loadmaster.simulator.arenas.sections import Blocks

FAR = np.iinfo(np.int64).max // 4


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
def place(blocks: Blocks, state: State, block: Whole, mark: Whole) -> tuple[Whole, bool]:
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
def undo(blocks: Blocks, state: State, mark: Whole, until: Whole) -> Whole:
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
def sort_waiting(items: Ints, begin: Whole, end: Whole, low: Ints, turn: Ints, offset: Ints) -> Whole:
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
def lowest_place(blocks: Blocks, state: State, block: Whole, least: Whole, least_turn: Whole) -> Whole:
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
def fits_hot(blocks: Blocks, state: State, least: Whole, least_turn: Whole, capacity: Whole) -> Truth:
    """Whether what waits can be stacked in the section where that failed the last time: it often fails again."""
    size, offset, base, order, hot = blocks.size, state.offset, state.base, state.order, state.hot[0]
    count = 0
    for at in range(blocks.member_start[hot], blocks.member_start[hot + 1]):
        block = blocks.members[at]
        if offset[block] >= 0:
            continue
        base[block] = lowest_place(blocks, state, block, least, least_turn)
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
def fits(
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
        base[block] = lowest_place(blocks, state, block, least, least_turn)
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
