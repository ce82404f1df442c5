"""Local search and simulated annealing over placement and order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from loadmaster.columns import Ints, ints, inverse, rows_of
from loadmaster.objective import Objective
from loadmaster.optimizers.annealing import walk
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.passes import coarsen
from loadmaster.passes.groups import grouping
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Score, Search
from loadmaster.simulator import layout, simulate, spread

# How often each kind of move is tried at first: window, scope, slice, neighbour, border, swap, shift, beside, critical,
# block.
STEP_TIME = (4.0, 3.0, 3.0, 2.0, 4.0, 1.0, 4.0, 2.0, 0.5, 2.0)
PEAK_MEMORY = (4.0, 2.0, 2.0, 2.0, 4.0, 1.0, 6.0, 4.0, 0.0, 0.0)
PLACE_ALONE = (4.0, 3.0, 3.0, 4.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0.0)
AIM = 0.5  # share of moves about ops that the step waits for
BEHIND = 0.03  # a chain that is worse than the best by this share is far behind
HOT, HEATS_BEHIND = 1e-3, 20.0  # above this heat, by so many times the rest of it more
FEWEST = 16  # moves for which it pays to look those up first
ROUND = 64  # moves of each chain between two looks at the budget, where answers must not depend on the clock


@dataclass(frozen=True)
class Anneal:
    """Simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) over placement and order.

    Moves act on windows of the program with the backward ops that belong to them, on module scopes, on readers of one
    weight and on single ops. Two chains walk side by side and go on from the better one.

    Differs from the paper: starts from another optimizer's plan, not from a random one.
    """

    start: Optimizer = field(default_factory=Heft)
    heat: float = 0.005  # first temperature, as a share of the value
    cold: float = 1e-4  # last temperature
    chains: int = 2
    follow: float = 0.5  # chance that ranks follow the critical path after a change of placement

    def optimize(self, search: Search) -> Plan:
        plan = self.start.optimize(search)
        return improve(search, plan, self.heat, self.cold, self.chains, self.follow)


@dataclass(frozen=True)
class LocalSearch:
    """Takes a move whenever it does not make the plan worse."""

    start: Optimizer = field(default_factory=Heft)
    chains: int = 2
    follow: float = 0.5

    def optimize(self, search: Search) -> Plan:
        plan = self.start.optimize(search)
        return improve(search, plan, 0.0, 0.0, self.chains, self.follow)


def improve(search: Search, plan: Plan, heat: float, cold: float, chains: int = 2, follow: float = 0.5) -> Plan:
    """Walks from the plan until the budget is spent; returns the best plan met. Kernels stay as the plan has them."""
    coarse = coarsen(search.problem, plan.kernel)
    small, ranks = coarse.problem, coarse.lowest(spread_ranks(search.problem, plan))
    walkers = Walkers(small, coarse.first(plan.device), ranks, chains, search)
    walkers.walk(heat, cold, follow, lambda device, rank: coarse.up(Plan.of(small, device, rank)))
    return search.best if search.best is not None else plan


def spread_ranks(problem: Problem, plan: Plan) -> Ints:
    """Ranks in the order of dispatch, spread over the whole scale so that there is room between them."""
    turn = simulate(problem, plan).turn
    return ints(turn * (walk.TOP_RANK // (int(turn.max()) + 1)))


class Walkers:
    """A few annealing chains on one problem, kept between rounds."""

    def __init__(self, problem: Problem, device: Ints, rank: Ints, chains: int, search: Search) -> None:
        self.problem, self.search = problem, search
        self.layout, self.ground = layout(problem), ground_of(problem)
        self.weights = np.array(_weights(problem.objective))
        self.chains = [self._chain(device, rank, int(search.rng.integers(1, 2**62))) for _ in range(max(1, chains))]

    def _chain(self, device: Ints, rank: Ints, seed: int) -> walk.Chain:
        place, order = device.astype(np.int32), rank.astype(np.int32)
        random = np.array([seed, seed ^ 0x9E3779B97F4A7C15], np.uint64)
        tallies = (np.zeros(walk.KINDS * walk.WAYS), np.zeros(walk.KINDS * walk.WAYS))
        return walk.Chain(
            place, order, place.copy(), order.copy(), np.full(4, np.iinfo(np.int64).max), random, *tallies
        )

    def walk(self, heat: float, cold: float, follow: float, plan_of: object) -> None:
        """Rounds of moves until the budget is spent, cooling as it goes."""
        assert callable(plan_of)
        search = self.search
        begun, used = search.progress, search.progress
        steps = 8
        self._measure_start(plan_of)
        while not search.spent:
            before, clock = used, time.perf_counter()
            steps = max(1, min(steps, search.room // len(self.chains)))
            now = self._heat(heat, cold, begun, before)
            self._round(steps, now, follow)
            search.count(min(search.room, steps * len(self.chains)))
            self._share(plan_of, now)
            used = search.progress
            steps = ROUND if search.counts_simulations else self._next_steps(steps, time.perf_counter() - clock)

    def epoch(self, simulations: int, heat: float, cold: float, follow: float, plan_of: object) -> None:
        """That many simulations, cooling from heat to cold whatever the budget is; less only where the budget ends."""
        self._measure_start(plan_of)
        search, chains, done = self.search, len(self.chains), 0
        steps = ROUND if search.counts_simulations else 4
        while done < simulations and not search.spent:
            clock = time.perf_counter()
            steps = max(1, min(steps, search.room // chains, -(-(simulations - done) // chains)))
            now = heat * (cold / heat) ** (done / simulations)
            self._round(steps, now, follow)
            search.count(min(search.room, steps * chains))
            done += steps * chains
            self._share(plan_of, now)
            steps = ROUND if search.counts_simulations else self._next_steps(steps, time.perf_counter() - clock)

    def _heat(self, heat: float, cold: float, begun: float, now: float) -> float:
        if heat <= 0:
            return 0.0
        share = (now - begun) / max(1e-9, 1 - begun)
        return float(heat * (cold / heat) ** share)

    def _next_steps(self, steps: int, seconds: float) -> int:
        """As many as a fiftieth of the time that is left allows, at most a tenth of a second."""
        goal = min(0.1, max(0.002, self.search.seconds_left / 50))
        return int(np.clip(steps * goal / max(seconds, 1e-6), 1, 8 * steps))

    def _measure_start(self, plan_of: object) -> None:
        """Scores the start once; every chain stands there."""
        assert callable(plan_of)
        first = self.chains[0]
        score = self.search.score(plan_of(ints(first.place), ints(first.rank)))
        for chain in self.chains:
            chain.score[:] = (*score, *score)

    def _round(self, steps: int, heat: float, follow: float) -> None:
        walking = self.chains[: max(1, self.search.room)]
        aim = AIM if self.search.counts_simulations or steps >= FEWEST else 0.0

        def part(low: int, high: int) -> None:
            for chain in walking[low:high]:
                walk.walk(self.layout, self.ground, chain, self.weights, steps, heat, follow, aim)

        spread(part, len(walking), len(walking))

    def _share(self, plan_of: object, heat: float) -> None:
        """The best of all chains is kept, and a chain that has fallen far behind goes on from it: farther than its heat
        explains, or a hot walk would be called back before it gets anywhere."""
        assert callable(plan_of)
        best = min(self.chains, key=lambda chain: (chain.score[2], chain.score[3]))
        score = Score(int(best.score[2]), int(best.score[3]))
        if score < self.search.best_score:
            self.search.offer(plan_of(ints(best.best_place), ints(best.best_rank)), score)
        far = BEHIND + HEATS_BEHIND * max(0.0, heat - HOT)
        for chain in self.chains:
            behind = (chain.score[0], chain.score[1] / (1 + far)) > (best.score[2], best.score[3])
            if behind:
                chain.place[:], chain.rank[:] = best.best_place, best.best_rank
                chain.score[:2] = best.score[2:]


def _weights(objective: Objective) -> tuple[float, ...]:
    if not objective.of_order:
        return PLACE_ALONE
    return PEAK_MEMORY if objective.of_memory else STEP_TIME


def ground_of(problem: Problem) -> walk.Ground:
    """What moves need to know of the problem."""
    graph, groups = problem.graph, grouping(problem)
    members = np.flatnonzero(graph.colocate >= 0)
    mate_start, mates = inverse(
        ints(np.arange(len(members) + 1)), ints(graph.colocate[members]), int(graph.colocate.max(initial=-1)) + 1
    )
    return walk.Ground(
        graph.read_start,
        graph.reads,
        graph.producer,
        graph.after_start,
        graph.after,
        groups.start,
        groups.ops,
        groups.by_mirror,
        ints(np.argsort(groups.by_mirror)),
        *inverse(ints(np.arange(len(groups.ops) + 1)), groups.ops, problem.num_ops),
        rows_of(groups.start),
        graph.colocate,
        mate_start,
        ints(members[mates]),
        np.ascontiguousarray(problem.able),
        problem.memory_bytes,
        problem.goal,
    )
