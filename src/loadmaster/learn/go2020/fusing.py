"""Fusion in GO's chains: what merges are judged with, and simple kernels to start from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.columns import Ints, ints, inverse, ragged, rows_of
from loadmaster.learn.decoding import LEVELS
from loadmaster.learn.go2020.kernels import Fusing
from loadmaster.optimizers.fusion.greedy import Merges
from loadmaster.optimizers.fusion.merging import make_kernels
from loadmaster.optimizers.fusion.search import pairs_alike, simple_orders
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from loadmaster.simulator import contraction, contraction_facts, first_come, layout

MOST_FUSIONS = 2  # to start from, one for each chain


class Kernels(NamedTuple):
    """How ops are fused, and which merges are to be tried first when that is to change."""

    wish: NDArray[np.float64]  # [pairs of ops that may share a kernel] 1 to LEVELS, the highest first; -1: not at all
    kernel: NDArray[np.int32]  # [ops]
    at: NDArray[np.int32]  # [ops] kernels in an order in which each comes after those it waits for, then -1


def fusing_of(problem: Problem, drawn: Ints, sets: tuple[Ints, Ints]) -> Fusing:
    """For one thread: it holds scratch space. `drawn`: pairs; `sets`: those that are alike, as a ragged column."""
    merges, (shown, space) = Merges.of(problem), contraction.make_space(layout(problem))
    start, members = sets
    pairs, ops = len(merges.producers), problem.num_ops
    index = np.full(pairs, -1, np.int64)
    index[drawn] = np.arange(len(drawn))
    within_start, within = inverse(ints(np.arange(len(members) + 1)), members, pairs)
    return Fusing(
        merges.rules,
        contraction_facts(problem),
        shown,
        space,
        drawn,
        ints(index),
        start,
        members,
        within_start,
        within,
        ints(rows_of(start)),
        make_kernels(merges.rules),
        pair_from=np.empty(pairs, np.int32),
        pair_to=np.empty(pairs, np.int32),
        trial=np.empty(ops, np.int32),
        opened=np.zeros(ops, np.bool_),
        old_wish=np.empty(pairs),
        drawn=np.empty(pairs, np.int64),
    )


def fusing_for(problem: Problem, threads: int, device: Ints | None = None) -> list[Fusing]:
    """`device`: where the ops stay; then only pairs that are together are drawn."""
    merges = Merges.of(problem)
    together = np.ones(len(merges.producers), bool)
    if device is not None:
        together = device[merges.producers] == device[merges.consumers]
    pairs = ints(np.flatnonzero(together))
    # An op that waits for none is listed twice in a set.
    sets = ragged(sorted({tuple(dict.fromkeys(alike)) for alike in pairs_alike(problem, merges, pairs)}))
    return [fusing_of(problem, pairs, sets) for _ in range(threads)]


def simple_fusions(search: Search, plan: Plan, fifo: bool) -> list[tuple[Kernels, Score]]:
    """Simple fusions, best first: what graph compilers do, and every merge that is legal, in several orders."""
    problem, merges = search.problem, Merges.of(search.problem)
    orders = np.stack([np.zeros(problem.num_ops), *simple_orders(problem)])
    greedy = merges.greedy(plan.device)
    kernels = np.vstack([merges.kernels(plan.device, orders), greedy]).astype(np.int32)
    wishes = [*orders[:, merges.producers], np.where(greedy[merges.producers] == greedy[merges.consumers], 0.5, -1.0)]
    if fifo:
        plans = [first_come(problem, plan.device, ints(kernel)) for kernel in kernels[: search.room]]
        scores = [search.score(each) for each in plans]
    else:
        device, rank = (np.broadcast_to(column, kernels.shape) for column in (plan.device, plan.rank))
        found = search.score_fused(device, rank, kernels)
        scores = [Score(int(over), int(value)) for over, value in zip(*found, strict=True)]
    best = sorted(range(len(scores)), key=lambda row: scores[row])
    return [(_kernels(problem, wishes[row], kernels[row]), scores[row]) for row in best[:MOST_FUSIONS]]


def _kernels(problem: Problem, order: NDArray[np.float64], kernel: NDArray[np.int32]) -> Kernels:
    wish = np.where(order < 0, -1.0, np.minimum(order, 0.999) * (LEVELS - 1) + 1.0)
    return Kernels(wish, kernel, _order(problem, ints(kernel)))


def _order(problem: Problem, kernel: Ints) -> NDArray[np.int32]:
    at = np.full(len(kernel), -1, np.int32)
    heads = coarsen(problem, kernel).heads
    at[: len(heads)] = heads
    return at


def fusion_levels(problem: Problem, wish: NDArray[np.float64]) -> Ints:
    """[ops] as the network says them: the highest priority of each producer's merges, 0 for none."""
    level = np.zeros(problem.num_ops)
    np.maximum.at(level, Merges.of(problem).producers, np.floor(wish))
    return ints(np.clip(level, 0, LEVELS - 1))
