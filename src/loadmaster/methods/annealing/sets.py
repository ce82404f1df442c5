"""Compiled: which ops a move is about, and where they are to go.

Ops that belong together move together: a stretch of the mirrored order or of the program, an op alone, or what lies on
one side of a border between devices. An aimed set is about an op that the step waits for. Modules and readers of a
weight as sets of their own gain nothing: starts place those.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.methods.annealing.state import (
    BORDER,
    SHIFT,
    SINGLE,
    TOP_RANK,
    Scratch,
    Terrain,
    copy,
)
from loadmaster.search.xorshift import RandomState, below, length, unit
from loadmaster.simulator.state import Layout

ANYWHERE = -1  # no device suggests itself


@compiled(_nrt=False)
def draw_set(
    layout: Layout,
    terrain: Terrain,
    place: Ints32,
    scratch: Scratch,
    kind: Whole,
    seed: Whole,
    aimed: bool,
    state: RandomState,
) -> tuple[Whole, Whole]:
    """(how many ops are drawn, a device that suggests itself or ANYWHERE); the ops are in scratch.members. `aimed`: the
    seed is an op that the step waits for, and the set is about it."""
    members = scratch.members
    if kind == SINGLE:
        members[0] = seed
        other = next_to(layout, terrain, seed, state)
        return 1, np.int64(place[other]) if other >= 0 else np.int64(ANYWHERE)
    if kind == BORDER:
        return _border(terrain, place, members, seed, state)
    return _window(terrain, place, scratch, kind, seed, aimed, state), np.int64(ANYWHERE)


@compiled(_nrt=False)
def _window(
    terrain: Terrain, place: Ints32, scratch: Scratch, kind: Whole, seed: Whole, aimed: bool, state: RandomState
) -> Whole:
    """Ops in a row: of the mirrored order, in which a backward op is beside its forward op, or of the program; about an
    op that the step waits for, also what its device ran about that time."""
    members, ops = scratch.members, len(place)
    size = length(state, max(1, ops // 2))
    mirrored = below(state, 2) == 1
    back = below(state, size) if aimed else np.int64(0)
    if aimed and kind != SHIFT and below(state, 2):
        turns, here, count = scratch.turns, place[seed], 0
        low = max(0, scratch.turn_of[seed] - back)
        for at in range(low, min(ops, low + size)):
            if place[turns[at]] == here:
                members[count] = turns[at]
                count += 1
        return count
    low = max(0, (terrain.mirror_at[seed] if mirrored else seed) - back)
    high = min(ops, low + size)
    for at in range(low, high):
        members[at - low] = terrain.by_mirror[at] if mirrored else at
    return high - low


@compiled(_nrt=False)
def _border(terrain: Terrain, place: Ints32, members: Ints, seed: Whole, state: RandomState) -> tuple[Whole, Whole]:
    """Ops on one side of a place where the mirrored order changes device; they might go to the other side."""
    by_mirror, ops = terrain.by_mirror, len(place)
    here = terrain.mirror_at[seed]
    after = here + 1 if here + 1 < ops else 0
    for _ in range(ops):
        if place[by_mirror[here]] != place[by_mirror[after]]:
            break
        here, after = after, after + 1 if after + 1 < ops else 0
    size = length(state, max(1, ops // 2))
    low, high, toward = after, min(ops, after + size), place[by_mirror[here]]
    if below(state, 2):
        low, high, toward = max(0, here - size + 1), here + 1, place[by_mirror[after]]
    copy(by_mirror, low, high, members)
    return high - low, np.int64(toward)


@compiled(_nrt=False)
def next_to(layout: Layout, terrain: Terrain, op: Whole, state: RandomState) -> Whole:
    """A random op that this one reads from or feeds, or -1."""
    read_start, make_start, reader_start = terrain.read_start, layout.make_start, layout.reader_start
    inputs, outputs = read_start[op + 1] - read_start[op], make_start[op + 1] - make_start[op]
    if inputs + outputs == 0:
        return np.int64(-1)
    chosen = below(state, inputs + outputs)
    if chosen < inputs:
        tensor = terrain.reads[read_start[op] + chosen]
    else:
        tensor = np.int64(layout.makes[make_start[op] + chosen - inputs])
    if chosen < inputs and terrain.producer[tensor] >= 0:
        return terrain.producer[tensor]  # type: ignore[no-any-return]
    count = reader_start[tensor + 1] - reader_start[tensor]
    if count == 0:
        return np.int64(-1)
    return np.int64(layout.readers[reader_start[tensor] + below(state, count)])


@compiled(_nrt=False)
def device_of(
    layout: Layout, terrain: Terrain, place: Ints32, toward: Whole, seed: Whole, aimed: bool, state: RandomState
) -> Whole:
    """Where a set goes: to the device that suggests itself, to one of an op beside the seed, or to any."""
    if toward != ANYWHERE:
        return toward
    if aimed and layout.devices > 2 and below(state, 2):
        other = next_to(layout, terrain, seed, state)
        if other >= 0:
            return np.int64(place[other])
    return below(state, layout.devices)


@compiled(_nrt=False)
def distance(ops: Whole, state: RandomState) -> Whole:
    """How far ranks are shifted, either way: log-uniform from half the mean distance of two ops to half the scale, so
    that most are short and some go across the step."""
    far = np.int64(np.exp(np.log(float(TOP_RANK // 2)) - unit(state) * np.log(float(ops) * 2.0)))
    return far if below(state, 2) else -far
