"""Blocks into an arena of a given size by ejection: a block for which there is no room takes some, and what lay there
is placed anew.

Guided ejection search (Nagata and Bräysy 2009, who save vehicles with it). Each block has a weight, and it goes where
what it would drive out weighs least; each time that there is no room for a block its weight grows, so that what is
hard to place is left in peace and the others learn to live around it. What was driven out last is placed first, the
largest of it before the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole

part = compiled(error_model="numpy", _nrt=False)
HEAVY = np.iinfo(np.int64).max // 4  # more than all blocks weigh


class Mates(NamedTuple):
    """Blocks of memory: how large each is, and which are there together at some time."""

    size: np.ndarray  # [blocks] bytes, or any other unit
    meet: np.ndarray  # [blocks, blocks] 1 where they do, else 0


def mates_of(begin: Ints, end: Ints, size: Ints) -> Mates:
    """Of half-open lives."""
    return Mates(size, ((begin[:, None] < end) & (begin < end[:, None])).astype(np.int8))


class Placed(NamedTuple):
    """Placed blocks by their lowest address and by the first above them; only the first `number[0]` entries are."""

    number: np.ndarray  # [1]
    low: np.ndarray
    by_low: np.ndarray  # the block of each
    high: np.ndarray
    by_high: np.ndarray


class Met(NamedTuple):
    """Placed blocks that are alive together with the one to be placed, in the orders of `Placed`; scratch."""

    low: np.ndarray
    by_low: np.ndarray
    high: np.ndarray
    by_high: np.ndarray


@part
def _find(keys: Ints, count: Whole, key: Whole) -> Whole:
    """The first of the keys, which are in order, that is not under this one."""
    low, high = np.int64(0), np.int64(count)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@part
def _insert(keys: Ints, blocks: Ints, count: Whole, key: Whole, block: Whole) -> None:
    into = _find(keys, count, key)
    for at in range(count, into, -1):
        keys[at] = keys[at - 1]
    for at in range(count, into, -1):
        blocks[at] = blocks[at - 1]
    keys[into], blocks[into] = key, block


@part
def _remove(keys: Ints, blocks: Ints, count: Whole, key: Whole, block: Whole) -> None:
    out = _find(keys, count, key)
    while blocks[out] != block:
        out += 1
    for at in range(out, count - 1):
        keys[at] = keys[at + 1]
    for at in range(out, count - 1):
        blocks[at] = blocks[at + 1]


@part
def _put(placed: Placed, block: Whole, low: Whole, size: Whole) -> None:
    count = placed.number[0]
    _insert(placed.low, placed.by_low, count, low, block)
    _insert(placed.high, placed.by_high, count, low + size, block)
    placed.number[0] = count + 1


@part
def _take(placed: Placed, block: Whole, low: Whole, size: Whole) -> None:
    count = placed.number[0]
    _remove(placed.low, placed.by_low, count, low, block)
    _remove(placed.high, placed.by_high, count, low + size, block)
    placed.number[0] = count - 1


@part
def _meet(keys: Ints, blocks: Ints, count: Whole, mates: Ints, met_keys: Ints, met_blocks: Ints) -> Whole:
    """Those of the placed blocks that are mates; without a branch, which nobody could foresee."""
    found = np.int64(0)
    for at in range(count):
        block = blocks[at]
        met_keys[found], met_blocks[found] = keys[at], block
        found += mates[block]
    return found


@part
def _tightest_gap(size: Ints, met: Met, found: Whole, wide: Whole, goal: Whole) -> Whole:
    """The lowest address of the smallest gap with room for so many bytes, or -1."""
    here: Whole
    place: Whole
    least: Whole
    here, place, least = np.int64(0), np.int64(-1), np.int64(HEAVY)
    for at in range(found + 1):
        low = met.low[at] if at < found else goal
        if wide <= low - here < least:
            place, least = here, low - here
        if at < found:
            here = max(here, low + size[met.by_low[at]])
    return place


@part
def _cheapest(met: Met, found: Whole, wide: Whole, goal: Whole, weight: Ints) -> Whole:
    """The address at which what lies there weighs least: on the bottom, on or right under another block, or at the top;
    by lot among equals."""
    best: Whole
    place: Whole
    best, place, equals = np.int64(HEAVY), np.int64(0), 0
    for under in range(2):
        begun, over, driven = 0, 0, np.int64(0)  # of those met: low enough; ended under it; what is left weighs
        for turn in range(found + 1):
            if under == 1:
                low = (met.low[turn] if turn < found else goal) - wide
            else:
                low = met.high[turn - 1] if turn > 0 else np.int64(0)
            if low < 0 or low + wide > goal:
                continue
            while begun < found and met.low[begun] < low + wide:
                driven += weight[met.by_low[begun]]
                begun += 1
            while over < found and met.high[over] <= low:
                driven -= weight[met.by_high[over]]
                over += 1
            if driven < best:
                best, place, equals = driven, low, 1
            elif driven == best:
                equals += 1
                if np.random.random() * equals < 1.0:
                    place = low
    return place


@compiled
def eject(
    mates: Mates, offset: Ints, goal: Whole, first: Ints, growth: Whole, work: Whole, seed: Whole
) -> tuple[Whole, Whole]:
    """(blocks without a place, work left); places all blocks under the goal, beginning with those of `offset` that are.

    `offset` is written to, -1: no place. `first`: weights at first, which grow by `growth` times themselves.
    """
    left: Whole
    size, count = mates.size, len(mates.size)
    placed = Placed(
        np.zeros(1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
    )
    met = Met(
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
    )
    np.random.seed(seed)
    weight, waiting, left = first.copy(), np.empty(count, np.int64), 0
    for block in range(count):
        if 0 <= offset[block] <= goal - size[block]:
            _put(placed, block, offset[block], size[block])
        else:
            offset[block], waiting[left] = -1, block
            left += 1
    waiting[:left] = waiting[:left][np.argsort(size[waiting[:left]], kind="mergesort")]
    while left > 0 and work > 0:
        left -= 1
        block = waiting[left]
        there, wide = placed.number[0], size[block]
        found = _meet(placed.low, placed.by_low, there, mates.meet[block], met.low, met.by_low)
        place = _tightest_gap(size, met, found, wide, goal)
        work -= there
        if place < 0:
            _meet(placed.high, placed.by_high, there, mates.meet[block], met.high, met.by_high)
            place = _cheapest(met, found, wide, goal, weight)
            work -= there + 4 * found
            weight[block] += growth * first[block]
            last = left
            for at in range(found):
                other = met.by_low[at]
                if met.low[at] < place + wide and place < met.low[at] + size[other]:
                    _take(placed, other, met.low[at], size[other])
                    work -= there // 2
                    offset[other], waiting[left] = -1, other
                    left += 1
            waiting[last:left] = waiting[last:left][np.argsort(size[waiting[last:left]], kind="mergesort")]
        offset[block] = place
        _put(placed, block, place, wide)
        work -= there // 2
    return left, work
