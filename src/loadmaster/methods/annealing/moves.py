"""Moves of annealing: what is drawn is applied to a chain, and taken back where it is not kept.

Ops that belong together move together: a stretch of the mirrored order or of the program, an op alone, or what lies on
one side of a border between devices. An aimed set is about an op that the step waits for. Modules and readers of a
weight as sets of their own gain nothing: starts place those.

Placement: ops go to another device, with what is bound to them; loads and tails are kept up, tails only for ops up to
the last that moved, since a tail depends on what comes after. Order: ranks of some ops shifted, or all of them set anew
by the critical path. Ranks are spread over the whole scale of 2^31, so that there is room between any two.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.methods.annealing.choice import measure_tails
from loadmaster.methods.annealing.state import BORDER, SHIFT, SINGLE, TOP_RANK, Chain, Scratch, Terrain, copy
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


@compiled(_nrt=False)
def place_ops(
    layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, count: Whole, target: Whole
) -> tuple[Whole, Whole]:
    """(ops moved, the last of them in the program). The first `count` of the members that can run on the target go
    there."""
    devices, op_ns, place, load = layout.devices, layout.op_ns, chain.place, scratch.load
    able, colocate, mate_start, mates = terrain.able, terrain.colocate, terrain.mate_start, terrain.mates
    members, touched, old_place, stamp = scratch.members, scratch.touched, scratch.old_place, scratch.stamp
    scratch.mark[0] += 1
    mark, moved, top = scratch.mark[0], 0, np.int64(-1)
    for at in range(count):
        op = members[at]
        if stamp[op] == mark or place[op] == target or not able[op, target]:
            continue
        group = colocate[op]
        first, last = (mate_start[group], mate_start[group + 1]) if group >= 0 else (0, 1)
        for index in range(first, last):
            mate = mates[index] if group >= 0 else op
            touched[moved], old_place[moved], stamp[mate] = mate, place[mate], mark
            moved += 1
            load[place[mate]] -= op_ns[mate * devices + place[mate]]
            load[target] += op_ns[mate * devices + target]
            place[mate] = target
            top = max(top, mate)
    if moved > 0 and terrain.goal.step_price > 0:
        copy(scratch.tail, 0, top + 1, scratch.old_tail)
        measure_tails(layout, place, top, scratch.tail)
    return moved, top


@compiled(_nrt=False)
def unplace_ops(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, moved: Whole, top: Whole) -> None:
    """The ops that have moved go back to where they were, last one first."""
    devices, op_ns, place, load = layout.devices, layout.op_ns, chain.place, scratch.load
    touched, old_place = scratch.touched, scratch.old_place
    for index in range(moved - 1, -1, -1):
        op, home = touched[index], np.int64(old_place[index])
        load[place[op]] -= op_ns[op * devices + place[op]]
        load[home] += op_ns[op * devices + home]
        place[op] = home
    if moved > 0 and terrain.goal.step_price > 0:
        copy(scratch.old_tail, 0, top + 1, scratch.tail)


@compiled(_nrt=False)
def shift_ranks(chain: Chain, scratch: Scratch, count: Whole, by: Whole) -> None:
    """Shifts the ranks of the first `count` members."""
    rank, members = chain.rank, scratch.members
    copy(rank, 0, len(rank), scratch.old_rank)
    for at in range(count):
        op = members[at]
        rank[op] = np.int32(min(np.int64(TOP_RANK), max(np.int64(0), np.int64(rank[op]) + by)))


@compiled(_nrt=False)
def follow_path(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch) -> None:
    """Ranks by the longest way to the end, over the whole scale so that there is room between them."""
    rank, tail = chain.rank, scratch.tail
    copy(rank, 0, len(rank), scratch.old_rank)
    if terrain.goal.step_price == 0:  # then nothing else asks for tails, and they are not kept up
        measure_tails(layout, chain.place, len(rank) - 1, tail)
    longest = np.int64(1)
    for op in range(len(rank)):
        longest = max(longest, tail[op])
    scale = np.float64(TOP_RANK - 1) / np.float64(longest)
    for op in range(len(rank)):
        rank[op] = np.int32(np.float64(longest - tail[op]) * scale)
