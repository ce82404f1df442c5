# mypy: ignore-errors
"""Compiled: which ops a draw of GO is about, and what they take by the network's scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.optimizers.annealing import walk
from loadmaster.optimizers.annealing.walk import TOP_RANK, _neighbour

WINDOW, SCOPE, SLICE, NEAR, SINGLE, BORDER, SHIFT, BESIDE, FUSE = range(9)
KINDS = 9
MOST_NEAR = 64  # ops of a neighbourhood


class Desk(NamedTuple):
    """Scratch space of a walk."""

    members: np.ndarray
    touched: np.ndarray
    old: np.ndarray
    old_rank: np.ndarray
    old_tail: np.ndarray
    stamp: np.ndarray
    load: np.ndarray
    peak: np.ndarray
    chance: np.ndarray
    level_chance: np.ndarray
    critical: np.ndarray
    turns: np.ndarray
    turn_of: np.ndarray
    queued: np.ndarray
    itself: np.ndarray  # [ops] every op its own
    mark: np.ndarray  # [1]


@compiled
def make_desk(ops, devices, levels):
    return Desk(
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(ops, np.int32),
        np.empty(ops, np.int32),
        np.empty(ops, np.int64),
        np.full(ops, -1, np.int64),
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.zeros(devices),
        np.zeros(levels),
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.zeros(ops, np.bool_),
        np.arange(ops),
        np.zeros(1, np.int64),
    )


@compiled
def below(state, count):
    """As there, but compiled once and not into every caller: that would take several times as long."""
    return walk._below(state, count)


@compiled
def unit(state):
    return walk._unit(state)


@compiled
def length_of(state, most):
    return walk._length(state, most)


@compiled
def draw_set(layout, ground, place, desk, kind, seed, aimed, state):
    """(how many ops are drawn, a device that suggests itself or -1); the ops are in desk.members."""
    members, ops = desk.members, len(place)
    first, last = ground.within_start[seed], ground.within_start[seed + 1]
    if (kind == SCOPE or kind == SLICE) and first < last:
        at = ground.within[first + below(state, last - first)]
        low, high = ground.group_start[ground.group_at[at]], ground.group_start[ground.group_at[at] + 1]
        if kind == SLICE:
            length = length_of(state, high - low)
            low = max(low, at - below(state, length))
            high = min(high, low + length)
        members[: high - low] = ground.group_ops[low:high]
        return high - low, np.int64(-1)
    if kind == SINGLE:
        members[0] = seed
        other = next_to(layout, ground, seed, state)
        return 1, np.int64(place[other]) if other >= 0 else np.int64(-1)
    if kind == NEAR:
        return _grow(layout, ground, desk, seed, state), np.int64(-1)
    if kind == BORDER:
        return _border(ground, place, members, seed, state)
    length = length_of(state, max(1, ops // 2))
    listing = below(state, 4)
    back = below(state, length)
    if aimed and listing == 0:
        # What the device of an op that the step waits for runs about that time.
        low, count = max(0, desk.turn_of[seed] - back), 0
        turns, here = desk.turns, place[seed]
        for at in range(low, min(ops, low + length)):
            if place[turns[at]] == here:
                members[count] = turns[at]
                count += 1
        return count, np.int64(-1)
    low = max(0, (seed if listing == 1 else ground.mirror_at[seed]) - back)
    high = min(ops, low + length)
    if listing == 1:
        members[: high - low] = np.arange(low, high)
    else:
        members[: high - low] = ground.by_mirror[low:high]
    return high - low, np.int64(-1)


@compiled
def next_to(layout, ground, op, state):
    return _neighbour(
        ground.read_start,
        ground.reads,
        ground.producer,
        layout.make_start,
        layout.makes,
        layout.reader_start,
        layout.readers,
        op,
        state,
    )


@compiled
def _grow(layout, ground, desk, seed, state):
    members, stamp = desk.members, desk.stamp
    size = length_of(state, min(MOST_NEAR, len(stamp)))
    desk.mark[0] += 1
    mark = desk.mark[0]
    members[0], stamp[seed], count = seed, mark, 1
    for _ in range(4 * size):
        if count == size:
            break
        other = next_to(layout, ground, members[below(state, count)], state)
        if other >= 0 and stamp[other] != mark:
            stamp[other] = mark
            members[count] = other
            count += 1
    return count


@compiled
def _border(ground, place, members, seed, state):
    """Ops on one side of a place where the mirrored order changes device; they might go to the other side."""
    by_mirror, ops = ground.by_mirror, len(place)
    here = ground.mirror_at[seed]
    after = here + 1 if here + 1 < ops else 0
    for _ in range(ops):
        if place[by_mirror[here]] != place[by_mirror[after]]:
            break
        here, after = after, after + 1 if after + 1 < ops else 0
    length = length_of(state, max(1, ops // 8))
    low, high, toward = after, min(ops, after + length), place[by_mirror[here]]
    if below(state, 2):
        low, high, toward = max(0, here - length + 1), here + 1, place[by_mirror[after]]
    members[: high - low] = by_mirror[low:high]
    return high - low, np.int64(toward)


@compiled
def weigh(label, scores, members, count, toward, uniform, chance):
    """Writes the chances of what a set may take: by its ops' mean scores; some are left to a rule or to nobody."""
    wide = len(chance)
    chance[:] = 0.0
    for at in range(count):
        row = label[members[at]]
        for column in range(wide):
            chance[column] += scores[row, column]
    top, total = chance.max() / count, 0.0
    for column in range(wide):
        chance[column] = np.exp(chance[column] / count - top)
        total += chance[column]
    spare = 0.5 if toward >= 0 else uniform
    for column in range(wide):
        chance[column] *= (1.0 - spare) / total
        if toward < 0:
            chance[column] += spare / wide
    if toward >= 0:
        chance[toward] += spare


@compiled
def take(chance, state):
    left, column = unit(state), np.int64(0)
    while column < len(chance) - 1 and left >= chance[column]:
        left -= chance[column]
        column += 1
    return column


@compiled
def shift(rank, members, count, by):
    for at in range(count):
        op = members[at]
        rank[op] = np.int32(min(np.int64(TOP_RANK), max(np.int64(0), np.int64(rank[op]) + by)))


@compiled
def reach(level, levels, ops, state):
    """How far a level moves ranks: as its distance from the middle squared, on a scale that is drawn."""
    middle = levels // 2
    way = (level - middle) / middle
    far = 0.5 * TOP_RANK * np.exp(-unit(state) * np.log(2.0 * ops)) * way * way
    return np.int64(far if way > 0 else -far)


@compiled
def draw_kind(weights, state):
    left, kind = unit(state) * weights.sum(), 0
    while kind < KINDS - 1 and left >= weights[kind]:
        left -= weights[kind]
        kind += 1
    return kind
