"""Auto: a portfolio under one budget. Cheap methods first, then search from the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadmaster.columns import Ints, ints
from loadmaster.errors import MissingExtra
from loadmaster.optimizers.descent import Walkers, improve, spread_ranks
from loadmaster.optimizers.grouping import mirrored_position
from loadmaster.optimizers.list_schedulers import critical_rank
from loadmaster.optimizers.memory import memory_order
from loadmaster.optimizers.simple import legal
from loadmaster.plan import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from loadmaster.simulate import first_come
from loadmaster.specs import make_optimizer

ONE_SHOT = ("one-device", "expert", "heft", "etf", "cpop", "sct", "heft:contention=no")
PARTITIONS = tuple(f"{name}:order=critical" for name in ("metis", "scotch", "kahip", "mtkahypar"))
WHEN_TIGHT = ("m-etf", "m-heft", "m-sct")
MOST_PARTITIONED = 12_000  # ops; the better partitioners take many seconds beyond
STARTS = 3  # plans that search goes on from, at first
SCOUTING = 0.1  # share of the time for epochs, where the budget is one of time
EPOCH = 192  # simulations of the first epoch; each later one has half as many again


@dataclass(frozen=True)
class Auto:
    """The portfolio. What it does with N simulations is the beginning of what it does with more, so more is never
    worse.

    One-shot plans and each of them under the usual orders; then epochs of annealing, the first ones from several good
    starts, the later and longer ones from the best plan so far.
    """

    heat: float = 0.02
    cold: float = 1e-4
    follow: float = 0.5

    def optimize(self, search: Search) -> Plan:
        starts = one_shots(search)
        ranked = sorted(starts, key=lambda start: start[0])
        if search.problem.objective == "step-time" and search.problem.num_ops == 1:
            return ranked[0][1]
        self._search(search, unlike([plan for _, plan in ranked], STARTS))
        return search.best if search.best is not None else ranked[0][1]

    def _search(self, search: Search, plans: list[Plan]) -> None:
        """Epochs that do not depend on the budget. Where the clock decides they only scout; then each start gets one
        long
        cooling, and the best plan a last one."""
        epoch, turn, begun = EPOCH, 0, search.progress
        heats = (self.heat / 10, self.heat / 10, self.heat / 10, self.heat / 2)
        while not search.spent:
            if not search.counts_simulations and search.progress > begun + (1 - begun) * SCOUTING:
                self._cool(search, plans)
                return
            plan = plans[turn] if turn < len(plans) else search.best
            assert plan is not None
            self._epoch(search, plan, epoch, heats[turn % len(heats)])
            turn += 1
            if turn >= STARTS:
                epoch = int(epoch * 1.5)

    def _cool(self, search: Search, plans: list[Plan]) -> None:
        for index, plan in enumerate(plans):
            part = search.part(1 / (len(plans) + 1.5 - index))
            improve(part, plan, self.heat, self.cold, follow=self.follow)
            if part.best is not None:
                search.offer(part.best, part.best_score)
        assert search.best is not None
        improve(search, search.best, self.heat / 4, self.cold, follow=self.follow)

    def _epoch(self, search: Search, plan: Plan, simulations: int, heat: float) -> None:
        problem = search.problem
        rank = spread_ranks(problem, plan)
        walkers = Walkers(problem, plan.device, rank, 2, search)
        walkers.epoch(simulations, heat, self.cold, self.follow, lambda device, rank: Plan.of(problem, device, rank))


def unlike(plans: list[Plan], count: int) -> list[Plan]:
    """The first few plans of which no two place nine ops in ten alike."""
    chosen = [plans[0]]
    for plan in plans[1:]:
        if len(chosen) < count and all((plan.device != other.device).mean() > 0.1 for other in chosen):
            chosen.append(plan)
    return chosen


def one_shots(search: Search) -> list[tuple[Score, Plan]]:
    """Scored plans of every one-shot method under every order, best placements of each kept apart."""
    problem, scored = search.problem, list[tuple[Score, Plan]]()
    for plan in _placements(search):
        if scored and search.spent:
            break
        scored.append((search.score(plan), plan))
        for rank in _orders(problem, plan):
            if not search.spent:
                other = plan.with_rank(rank)
                scored.append((search.score(other), other))
    return scored


def _placements(search: Search) -> Iterator[Plan]:
    problem = search.problem
    tight = problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum()
    partitions = PARTITIONS if problem.num_ops <= MOST_PARTITIONED else PARTITIONS[:1]
    several = ("pipeline:order=critical", *partitions) if problem.num_devices > 1 else ()
    for name in (*ONE_SHOT, *(WHEN_TIGHT if tight else ()), *several):
        try:
            yield make_optimizer(name).optimize(search)
        except MissingExtra:
            continue
    for device in cuts(problem):
        yield Plan.of(problem, device)


def _orders(problem: Problem, plan: Plan) -> list[Ints]:
    program = np.arange(problem.num_ops)
    orders = [ints(program)]
    if problem.objective == "step-time":
        fifo = first_come(problem, plan.device)
        return [*orders, critical_rank(problem, plan.device), fifo.rank]
    best = np.empty(problem.num_ops, np.int64)
    best[memory_order(problem)] = program
    return [*orders, ints(best)]


def cuts(problem: Problem) -> list[Ints]:
    """Placements that cut the mirrored order into contiguous shares: of equal time, of equal bytes, of equal count."""
    if problem.num_devices == 1:
        return []
    graph = problem.graph
    order = np.lexsort((np.arange(problem.num_ops), mirrored_position(problem)))
    made = np.zeros(problem.num_ops, np.int64)
    np.add.at(made, graph.producer[graph.producer >= 0], graph.nbytes[graph.producer >= 0])
    placements = []
    for weight in (problem.best_ns, made, np.ones(problem.num_ops, np.int64)):
        share = np.cumsum(weight[order]) - weight[order] / 2
        device = np.empty(problem.num_ops, np.int64)
        device[order] = np.minimum(share * problem.num_devices // max(1, int(weight.sum())), problem.num_devices - 1)
        placements.append(legal(problem, device))
    return placements
