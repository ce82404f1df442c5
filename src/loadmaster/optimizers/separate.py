"""Separate: fusion, placement and schedule decided one after another, or some of them alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from loadmaster.catalog.specs import make_optimizer
from loadmaster.errors import MissingExtra
from loadmaster.optimizers.annealing import walk
from loadmaster.optimizers.annealing.anneal import Walkers, spread_ranks
from loadmaster.optimizers.fusion.search import improve_fusion
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.optimizers.placed import best_of
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Search
from loadmaster.simulator import first_come

Task = Literal["fusion", "placement", "schedule"]
PLACERS = ("expert", "heft", "etf", "metis:order=fifo", "scotch:order=fifo")
ONE_PLAN = 8  # simulations that a one-shot method may use
DEFAULT = "greedy-fusion:inner=[metis:order=fifo]"  # what frameworks do where nobody says anything


@dataclass(frozen=True)
class Separate:
    """The tasks in turn, each by annealing with an equal share of the budget, from the plan of `start`; what is not
    among the tasks, and what is decided already, stays as it is. What deciding everything together is measured by.
    """

    tasks: tuple[Task, ...] = ("fusion", "placement", "schedule")
    start: Optimizer = field(default_factory=lambda: make_optimizer(DEFAULT))
    heat: float = 2e-3
    cold: float = 1e-5

    def optimize(self, search: Search) -> Plan:
        plan = self.start.optimize(search)
        if not search.spent:
            search.score(plan)
        for at, task in enumerate(self.tasks):
            if not search.spent:
                plan = self._decide(search, plan, task, 1 / (len(self.tasks) - at))
        return search.best if search.best is not None else plan

    def _decide(self, search: Search, plan: Plan, task: Task, share: float) -> Plan:
        before = search.best
        with search.keeping(share) as part:
            if task == "fusion":
                improve_fusion(part, plan, self.heat, self.cold)
            elif task == "schedule" or search.problem.num_devices > 1:
                self._walk(part, plan, task)
        return plan if search.best is before or search.best is None else search.best

    def _walk(self, search: Search, plan: Plan, task: Task) -> None:
        """Over placement alone, first come, first served at first and then with ranks as they are, or over ranks
        alone; from the best that one-shot methods give."""
        coarse = coarsen(search.problem, plan.kernel)
        small = coarse.problem
        given = Plan.of(small, coarse.first(plan.device), coarse.lowest(spread_ranks(search.problem, plan)))
        start = best_of(search.part(problem=small), one_shots(search, given, small, task))[0]
        walkers = Walkers(small, start.device, spread_ranks(small, start), 2, search)
        moves_ops = np.arange(walk.KINDS) < walk.SHIFT
        walkers.weights = np.where(moves_ops == (task == "placement"), walkers.weights, 0.0)
        walkers.walk(self.heat, self.cold, 0.0, lambda device, rank: coarse.up(Plan.of(small, device, rank)))


def one_shots(search: Search, given: Plan, problem: Problem, task: Task) -> Iterator[Plan]:
    """The given plan, then others that differ in placement, or in order, alone."""
    yield given
    if task == "schedule":
        yield Plan.of(problem, given.device, critical_rank(problem, given.device))
        yield Plan.of(problem, given.device)
        return
    for spec in PLACERS:
        try:
            placed = make_optimizer(spec).optimize(search.part(problem=problem, simulations=ONE_PLAN))
        except MissingExtra:
            continue
        yield first_come(problem, placed.device)
