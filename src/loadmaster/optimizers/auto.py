"""Auto: a portfolio under one budget. Cheap methods first, then search from the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from loadmaster.catalog.specs import make_optimizer
from loadmaster.columns import Ints, ints
from loadmaster.errors import MissingExtra
from loadmaster.optimizers.annealing.anneal import Walkers, improve, spread_ranks
from loadmaster.optimizers.cuts import cuts
from loadmaster.optimizers.exact import closing
from loadmaster.optimizers.genetic.brkga import Brkga
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.optimizers.memory.orders import memory_order
from loadmaster.passes.chaining import chain_small_ops
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Score, Search
from loadmaster.simulator import first_come

ONE_SHOT = ("one-device", "expert", "heft", "etf", "cpop", "sct", "heft:contention=no")
PARTITIONS = tuple(f"{name}:order=critical" for name in ("metis", "scotch", "kahip", "mtkahypar"))
WHEN_TIGHT = ("m-etf", "m-heft", "m-sct")
LEARNED = {"peak-memory": ("regal:plans_only=yes",)}  # policies whose plans join the starts
LEARNED_SECONDS = 8.0  # budgets from which on loading a policy's network pays
MOST_PARTITIONED = 12_000  # ops; the better partitioners take many seconds beyond
STARTS = 3  # plans that search goes on from, at first
TRIALS = 3  # coolings from the starts in turn, where the budget is one of time
TRIAL = 0.08  # share of the time for each; the rest is one long cooling from the best plan
MOVE_NS = 40  # what a move costs per op and read of the graph, about
FEW_MOVES = 1  # moves per op under which several starts cost more than they bring
AGAIN, HOTTEST = 0.3, 5.0  # times the heat, for the long cooling: least and most
HOTTER = 15.0  # moves per op for which it is the heat itself; with more it pays to start hotter
JOINED = 0.65  # share of the time for the smaller problem, where there is one
LAST = 0.2  # of the heat, for the cooling of its plan on the whole problem
GROUPS = Brkga(by="edges", blocks=24, sends=False, evaluations=10**9)
EVOLVED_SHARE = 0.15  # of the time for it
ALSO_SHARE = 0.25  # most of the time that another method may use for a start
A_FEW = 400  # simulations for either, where those are counted
FAR = 1.25  # times the best: a start that is worse than that is left out
HEATS = (0.6, 0.6, 0.6, 2.0)  # of successive epochs
EPOCH = 192  # simulations of the first epoch; each later one has half as many again


@dataclass(frozen=True)
class Auto:
    """The portfolio. What it does with N simulations is the beginning of what it does with more, so more is never
    worse.

    One-shot plans, those of a trained policy where one helps, and each of them under the usual orders; then epochs of
    annealing, the first ones from several good starts, the later and longer ones from the best plan so far.
    """

    heat: float = 0.001
    cold: float = 1e-4
    follow: float = 0.5
    also: Optimizer | None = None  # another method whose plan joins the starts

    def optimize(self, search: Search) -> Plan:
        starts = one_shots(search, self.also)
        ranked = sorted(starts, key=lambda start: start[0])
        if search.problem.num_ops == 1 and not search.problem.objective.of_memory:
            return ranked[0][1]
        with closing(search):
            self._go_on(search, ranked)
        return search.best if search.best is not None else ranked[0][1]

    def _go_on(self, search: Search, ranked: list[tuple[Score, Plan]]) -> None:
        """Search from the best of the starts."""
        plans = unlike([plan for score, plan in ranked if not far(score, ranked[0][0])], STARTS)
        if search.problem.objective.of_memory and search.problem.num_devices > 1:
            plans = [*self._evolved(search), *plans][: STARTS + 1]
        if search.counts_simulations:
            self._epochs(search, plans)
        else:
            self._cool(search, plans)

    def _evolved(self, search: Search) -> list[Plan]:
        """What a genetic search over few large groups finds: far from all rules, and often the best place to be."""
        if search.spent:
            return []
        with a_little(search, EVOLVED_SHARE) as part:
            return [GROUPS.optimize(part)]

    def _epochs(self, search: Search, plans: list[Plan]) -> None:
        """Coolings that do not depend on the budget: one from each start, then longer and longer ones from the best."""
        epoch, turn = EPOCH, 0
        heats = tuple(self.heat * times for times in HEATS)
        while not search.spent:
            plan = plans[turn] if turn < len(plans) else search.best
            assert plan is not None
            self._epoch(search, plan, epoch, heats[turn % len(heats)])
            turn += 1
            if turn >= STARTS:
                epoch = int(epoch * 1.5)

    def _cool(self, search: Search, plans: list[Plan]) -> None:
        """Where the clock decides: where small ops can be joined, first on the smaller problem; then on the whole."""
        small = None if search.problem.objective.of_memory else chain_small_ops(search.problem)
        if small is None:
            self._trials(search, plans)
            return
        part = search.part(JOINED, small.problem)
        try:
            self._trials(part, [small.down(plan) for plan in plans])
        finally:  # an interrupt keeps what the part has found
            if part.best is not None:
                search.score(small.up(part.best))
        assert search.best is not None
        self._part(search, search.best, 1.0, self.heat * LAST)

    def _trials(self, search: Search, plans: list[Plan]) -> None:
        """Coolings from the starts, then a long one from the best plan. With few moves for each op, one cooling from
        the best start: there is no time to come back from far away."""
        if moves_each(search) < FEW_MOVES:
            self._part(search, plans[0], 1.0, self.heat * AGAIN)
            return
        for trial in range(TRIALS):
            self._part(search, plans[trial % len(plans)], TRIAL / (1 - TRIAL * trial), self.heat)
        heat = self.heat * float(np.clip(moves_each(search) / HOTTER, AGAIN, HOTTEST))
        self._part(search, plans[0] if search.best is None else search.best, 1.0, heat)

    def _part(self, search: Search, plan: Plan, share: float, heat: float) -> None:
        if search.spent:
            return
        with search.keeping(share) as part:
            improve(part, plan, heat, self.cold, follow=self.follow)

    def _epoch(self, search: Search, plan: Plan, simulations: int, heat: float) -> None:
        problem = search.problem
        rank = spread_ranks(problem, plan)
        walkers = Walkers(problem, plan.device, rank, 2, search)
        walkers.epoch(simulations, heat, self.cold, self.follow, lambda device, rank: Plan.of(problem, device, rank))


def a_little(search: Search, share: float) -> AbstractContextManager[Search]:
    """A part for a start: that share of the time, or as many simulations whatever the budget is, so that more of them
    never give a worse plan."""
    return search.keeping(simulations=A_FEW) if search.counts_simulations else search.keeping(share)


def moves_each(search: Search) -> float:
    """How many moves per op the time that is left will allow, about."""
    ops, reads = search.problem.num_ops, len(search.problem.graph.reads)
    return search.seconds_left * 1e9 / MOVE_NS / (ops + reads) / ops


def far(score: Score, best: Score) -> bool:
    """Whether a start is too bad to go on from: search gets that far from the best one sooner."""
    return score.over_bytes > best.over_bytes or score.value > best.value * FAR


def unlike(plans: list[Plan], count: int) -> list[Plan]:
    """The first few plans of which no two place nine ops in ten alike."""
    chosen = [plans[0]]
    for plan in plans[1:]:
        if len(chosen) < count and all((plan.device != other.device).mean() > 0.1 for other in chosen):
            chosen.append(plan)
    return chosen


def one_shots(search: Search, also: Optimizer | None = None) -> list[tuple[Score, Plan]]:
    """Scored plans of every one-shot method under every order, best placements of each kept apart."""
    problem, scored = search.problem, list[tuple[Score, Plan]]()
    for plan in _placements(search, also):
        if scored and search.spent:
            break
        scored.append((search.score(plan), plan))
        for rank in _orders(problem, plan):
            if not search.spent:
                other = plan.with_rank(rank)
                scored.append((search.score(other), other))
    return scored


def _placements(search: Search, also: Optimizer | None) -> Iterator[Plan]:
    problem = search.problem
    if also is not None:
        with a_little(search, ALSO_SHARE) as part:
            plan = also.optimize(part)
        yield plan
    tight = problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum()
    partitions = PARTITIONS if problem.num_ops <= MOST_PARTITIONED else PARTITIONS[:1]
    several = (*_splits(problem), *partitions) if problem.num_devices > 1 else ()
    learned = LEARNED.get(problem.objective.name, ()) if several and search.seconds_left >= LEARNED_SECONDS else ()
    for name in (*ONE_SHOT, *(WHEN_TIGHT if tight else ()), *several, *learned):
        try:
            yield make_optimizer(name).optimize(search)
        except MissingExtra:
            continue
    for device in cuts(problem):
        yield Plan.of(problem, device)


def _splits(problem: Problem) -> tuple[str, ...]:
    """Contiguous stages: for a short step, or for a small load of each device where that is what counts."""
    if problem.objective.of_order:
        return ("pipeline:order=critical",)
    return ("downsets:effort=1000000,sets=4000", "pipeline:goal=max-load,order=critical", "pipeline:order=critical")


def _orders(problem: Problem, plan: Plan) -> list[Ints]:
    if not problem.objective.of_order:
        return []
    program = np.arange(problem.num_ops)
    orders = [ints(program)]
    if not problem.objective.of_memory:
        fifo = first_come(problem, plan.device)
        return [*orders, critical_rank(problem, plan.device), fifo.rank]
    best = np.empty(problem.num_ops, np.int64)
    best[memory_order(problem)] = program
    return [*orders, ints(best)]
