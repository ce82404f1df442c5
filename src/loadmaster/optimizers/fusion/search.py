"""Search over fusion: which merges are tried first, and which not at all. Devices and order are those of another
optimizer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.columns import Ints, ints, inverse, ragged, rows_of
from loadmaster.optimizers.fusion import walk
from loadmaster.optimizers.fusion.greedy import Merges, heavy
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Score, Search
from loadmaster.simulator import contraction_facts, layout, spread
from loadmaster.simulator.contraction import make_space

Floats = NDArray[np.float64]
Ranked = tuple[Score, Floats, NDArray[np.int32]]  # score, wish of each pair, kernels

# How often each kind of move is tried: window, alike, some alike, shift, one, cut, join.
WEIGHTS = (2.0, 3.0, 3.0, 2.0, 1.0, 2.0, 2.0)
BATCH = 16  # random candidates scored at once
ROUND = 32  # moves of each chain between two looks at the budget, where answers must not depend on the clock
MOST_ROUND = 2**20
BEHIND = 1.02  # times the best value: a chain that is worse goes on from the best one


class Pace:
    """How many candidates to score at once: always as many where answers must not depend on the clock, else what a
    fiftieth of the time that is left allows, at most a tenth of a second."""

    def __init__(self, search: Search, first: int) -> None:
        self.search, self.count, self.clock = search, first, 0.0

    def next(self, most: int = 8) -> int:
        """After each batch, how many the next one has."""
        now, before = time.perf_counter(), self.clock
        self.clock = now
        if self.search.counts_simulations:
            return most
        if before:
            goal = min(0.1, max(0.002, self.search.seconds_left / 50))
            self.count = int(np.clip(self.count * goal / max(now - before, 1e-6), 1, 8 * self.count))
        self.count = min(self.count, most)
        return self.count


@dataclass(frozen=True)
class RandomFusion:
    """Merges in a random order, the best of several; kernels stay on the devices that `inner` chose."""

    inner: Optimizer = field(default_factory=Heft)
    samples: int = 64

    def optimize(self, search: Search) -> Plan:
        plan, left = start_of(search, self.inner), self.samples
        pace = Pace(search, 2)
        while left and not search.spent:
            count = min(left, search.room, pace.next(BATCH))
            score_priorities(search, plan, search.rng.random((count, search.problem.num_ops)))
            left -= count
        return search.best if search.best is not None else plan


@dataclass(frozen=True)
class AnnealFusion:
    """Simulated annealing over the priorities in which merges are tried; devices and order are those of `inner`.

    Starts from the best of the simple rules: the default one of compilers, and every merge that is legal in several
    orders. Moves give new priorities to a window of the program, to ops of one kind in one surrounding, to single ops,
    or part and join kernels.
    """

    inner: Optimizer = field(default_factory=Heft)
    heat: float = 2e-3
    cold: float = 1e-5
    chains: int = 2

    def optimize(self, search: Search) -> Plan:
        plan = start_of(search, self.inner)
        improve_fusion(search, plan, self.heat, self.cold, self.chains)
        return search.best if search.best is not None else plan


def start_of(search: Search, inner: Optimizer) -> Plan:
    """The inner optimizer's plan without fusion, scored."""
    part = search.part(0.2)
    try:
        plan = inner.optimize(part)
    except KeyboardInterrupt:
        if part.best is not None:
            search.offer(part.best, part.best_score)
        raise
    if part.best is not None and (search.spent or part.score(plan) > part.best_score):
        plan = part.best
    if not search.spent:
        search.score(plan)
    return plan


def improve_fusion(search: Search, plan: Plan, heat: float, cold: float, chains: int = 2) -> None:
    """Looks for better kernels of the plan until the budget is spent; the search keeps the best. Starts from the plan's
    own kernels where it has some, else from those of simple rules."""
    if search.spent or not len(Merges.of(search.problem).producers):
        return
    starts = own_start(search, plan) * chains if plan.fuses else simple_starts(search, plan)
    if not search.spent:
        walk = FusionWalk(search, plan, sorted(starts, key=lambda each: each[0])[: max(1, chains)])
        if len(walk.terrain.pairs):
            walk.walk(heat, cold)


def own_start(search: Search, plan: Plan) -> list[Ranked]:
    wish = wish_of(Merges.of(search.problem), plan.kernel)
    return [(search.score(plan), wish, plan.kernel.astype(np.int32))]


def simple_starts(search: Search, plan: Plan) -> list[Ranked]:
    """What simple rules give, until the budget is spent."""
    merges, ways = Merges.of(search.problem), simple_orders(search.problem)
    greedy = merges.greedy(plan.device)
    score = score_kernels(search, plan, [greedy])[0]
    starts = [(score, wish_of(merges, greedy), greedy.astype(np.int32))]
    pace = Pace(search, 2)
    while ways and not search.spent:
        count = pace.next()
        starts += score_priorities(search, plan, np.stack(ways[:count]))
        ways = ways[count:]
    return starts


def score_priorities(search: Search, plan: Plan, priorities: Floats) -> list[Ranked]:
    """[candidates, ops] priorities of producers, each with the kernels that come of it."""
    merges = Merges.of(search.problem)
    kernels = merges.kernels(plan.device, priorities)
    scores = score_kernels(search, plan, kernels)
    return list(zip(scores, priorities[:, merges.producers], kernels, strict=True))


def score_kernels(search: Search, plan: Plan, kernels: Any) -> list[Score]:
    rows = np.stack(kernels)
    device, rank = (np.broadcast_to(column, rows.shape) for column in (plan.device, plan.rank))
    over, value = search.score_fused(device, rank, rows)
    return [Score(int(o), int(v)) for o, v in zip(over, value, strict=True)]


def priority_of(merges: Merges, kernel: Ints) -> Floats:
    """[ops] priorities that give about these kernels: producers that share none with a reader are kept apart."""
    joined = np.full(len(kernel), -1.0)
    joined[merges.producers[wish_of(merges, kernel) >= 0]] = 0.5
    return joined


def wish_of(merges: Merges, kernel: Ints) -> Floats:
    """[pairs] wishes that give about these kernels."""
    return np.where(kernel[merges.producers] == kernel[merges.consumers], 0.5, -1.0)


def simple_orders(problem: Problem) -> list[Floats]:
    """Priorities by rules that any graph has: by bytes saved, first or last op first; heavy ops before or after the
    others; all producers, or only those with one reader."""
    count, graph = problem.num_ops, problem.graph
    made = graph.producer >= 0
    saved, readers = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(saved, graph.producer[made], graph.nbytes[made])
    np.maximum.at(readers, graph.producer[made], np.diff(graph.readers[0])[made])
    program, heavies = np.arange(count), heavy(problem)
    rules = []
    for by in (saved, program, -program):
        for first in (heavies, ~heavies, np.zeros(count, bool)):
            order = np.lexsort((-program, by, first))
            place = np.empty(count)
            place[order] = np.arange(count) / count
            rules += [place, np.where(readers == 1, place, -1.0)]
    return rules


def alike(problem: Problem, merges: Merges) -> list[tuple[int, ...]]:
    """Sets of producers that do the same work: of one kind; of one kind among the same kinds; and of the same size."""
    sets = pairs_alike(problem, merges, ints(np.arange(len(merges.producers))))
    return sorted({tuple(np.unique(merges.producers[list(pairs)]).tolist()) for pairs in sets})


def pairs_alike(problem: Problem, merges: Merges, pairs: Ints) -> list[tuple[int, ...]]:
    """Sets of pairs that do the same work: with producers of one kind; of two kinds; among the same kinds; and of the
    same size."""
    graph, (start, before) = problem.graph, problem.graph.dependencies
    groups: dict[tuple[Any, ...], list[int]] = {}
    for pair in pairs.tolist():
        op, reader = int(merges.producers[pair]), int(merges.consumers[pair])
        kinds = (graph.kind[op], graph.kind[reader])
        near = (*kinds, *sorted(graph.kind[maker] for maker in before[start[op] : start[op + 1]]))
        for key in {kinds[:1], kinds, near, (*near, int(problem.traffic_bytes[op]))}:  # each set holds a pair once
            groups.setdefault(key, []).append(pair)
    return sorted({tuple(group) for group in groups.values()})


class FusionWalk:
    """A few annealing chains over which pairs of ops are merged first, for one plan's devices and order."""

    def __init__(self, search: Search, plan: Plan, starts: list[Ranked]) -> None:
        problem = search.problem
        self.search, self.plan = search, plan
        self.merges = merges = Merges.of(problem)
        pairs = ints(np.flatnonzero(plan.device[merges.producers] == plan.device[merges.consumers]))
        index = np.full(len(merges.producers), -1, np.int64)
        index[pairs] = np.arange(len(pairs))
        start, sets = ragged(pairs_alike(problem, merges, pairs))
        self.terrain = walk.Terrain(
            pairs,
            ints(index),
            start,
            sets,
            *inverse(ints(np.arange(len(sets) + 1)), sets, len(merges.producers)),
            ints(rows_of(start)),
            plan.device.astype(np.int32),
            plan.rank.astype(np.int32),
            problem.memory_bytes,
            problem.goal,
        )
        self.chains = [self._chain(start) for start in starts]
        self.spaces = [make_space(layout(problem)) for _ in starts]

    def _chain(self, start: Ranked) -> walk.Chain:
        score, wish, kernel = start
        seed = int(self.search.rng.integers(1, 2**62))
        random = np.array([seed, seed ^ 0x9E3779B97F4A7C15], np.uint64)
        tallies = (np.zeros(walk.KINDS, np.int64), np.zeros(walk.KINDS, np.int64))
        both = np.array((*score, *score), np.int64)
        at = np.full(len(kernel), -1, np.int32)
        heads = coarsen(self.search.problem, ints(kernel)).heads
        at[: len(heads)] = heads
        return walk.Chain(wish.copy(), kernel.copy(), at, kernel.copy(), both, random, *tallies)

    def walk(self, heat: float, cold: float) -> None:
        """Rounds of moves until the budget is spent, cooling as it goes."""
        search, begun, pace = self.search, self.search.progress, Pace(self.search, 2)
        while not search.spent:
            share = (search.progress - begun) / max(1e-9, 1 - begun)
            most = ROUND if search.counts_simulations else MOST_ROUND
            steps = max(1, min(pace.next(most), search.room // len(self.chains)))
            self._round(steps, heat * (cold / heat) ** share)
            search.count(min(search.room, steps * len(self.chains)))
            self._share()

    def _round(self, steps: int, heat: float) -> None:
        problem, weights = self.search.problem, np.array(WEIGHTS)
        walking = self.chains[: max(1, self.search.room)]
        plain, facts = layout(problem), contraction_facts(problem)

        def part(low: int, high: int) -> None:
            for at in range(low, high):
                given = (plain, facts, *self.spaces[at], self.merges.rules, self.terrain, walking[at])
                walk.walk(*given, weights, steps, heat)

        spread(part, len(walking), len(walking))

    def _share(self) -> None:
        """The best of all chains is kept, and a chain that has fallen behind goes on from where that one stands."""
        best = min(self.chains, key=lambda chain: (chain.score[2], chain.score[3]))
        score = Score(int(best.score[2]), int(best.score[3]))
        if score < self.search.best_score:
            plan = Plan.of(self.search.problem, self.plan.device, self.plan.rank, best.best_kernel)
            self.search.offer(plan, score)
        here = min(self.chains, key=lambda chain: (chain.score[0], chain.score[1]))
        for chain in self.chains:
            if (chain.score[0], chain.score[1]) > (here.score[0], here.score[1] * BEHIND):
                chain.wish[:], chain.kernel[:], chain.at[:] = here.wish, here.kernel, here.at
                chain.score[:2] = here.score[:2]
