"""Moves of annealing: what is drawn (`sets`) is applied to a chain, and taken back where it is not kept.

Placement: ops go to another device, with what is bound to them; loads and tails are kept up, tails only for ops up to
the last that moved, since a tail depends on what comes after. Order: ranks of some ops shifted, or all of them set anew
by the critical path. Ranks are spread over the whole scale of 2^31, so that there is room between any two.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Whole
from loadmaster.methods.annealing.critical import measure_tails
from loadmaster.methods.annealing.state import TOP_RANK, Chain, Scratch, Terrain, copy
from loadmaster.simulator.state import Layout


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
