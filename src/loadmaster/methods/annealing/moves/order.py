"""Moves of order: ranks of some ops shifted, or all of them set anew by the critical path.

Ranks are spread over the whole scale of 2^31, so that there is room between any two. A shift moves a set of ops as one,
by a distance drawn log-uniformly: most are short, some go across the step.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Whole
from loadmaster.methods.annealing.critical import measure_tails
from loadmaster.methods.annealing.state import Chain, Scratch, Terrain, copy
from loadmaster.search.xorshift import RandomState, unit
from loadmaster.simulator.state import Layout

TOP_RANK = 2**31 - 1


@compiled(_nrt=False)
def apply(chain: Chain, scratch: Scratch, count: Whole, by: Whole) -> None:
    """Shifts the ranks of the first `count` members."""
    rank, members = chain.rank, scratch.members
    copy(rank, 0, len(rank), scratch.old_rank)
    for at in range(count):
        op = members[at]
        rank[op] = np.int32(min(np.int64(TOP_RANK), max(np.int64(0), np.int64(rank[op]) + by)))


@compiled(_nrt=False)
def follow(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch) -> None:
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


@compiled(_nrt=False)
def undo(chain: Chain, scratch: Scratch) -> None:
    copy(scratch.old_rank, 0, len(chain.rank), chain.rank)


@compiled(_nrt=False)
def distance(ops: Whole, state: RandomState) -> Whole:
    """How far ranks are shifted: log-uniform from half the mean distance of two ops to half the scale."""
    return np.int64(np.exp(np.log(float(TOP_RANK // 2)) - unit(state) * np.log(float(ops) * 2.0)))
