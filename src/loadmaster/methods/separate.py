"""Separate: fusion, placement and schedule decided one after another, or some of them alone.

What deciding together is measured by (docs/benchmarks.md): the same moves and the same number of simulations, but
each task sees the others only as they were decided before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.baselines.ordering import best_of
from loadmaster.catalog.specs import make_method
from loadmaster.errors import MissingExtra
from loadmaster.methods.annealing.chains import CHAINS, Chains, ChainStart, epochs, spread_ranks
from loadmaster.methods.fusion_search import improve_fusion
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

Task = Literal["fusion", "placement", "schedule"]
# One of each family that is in use: by hand, list schedulers, partitioners.
PLACERS = ("expert", "heft", "etf", "metis:order=fifo", "scotch:order=fifo")
FIRST = 128  # simulations for each task in the first turn
ONE_PLAN = 8  # simulations that a one-shot method may use
DEFAULT = "greedy-fusion:inner=[metis:order=fifo]"  # what frameworks do where nobody says anything


@dataclass(frozen=True)
class Separate:
    """The tasks in turn, each by annealing with equally many simulations, from the plan of `start`; what is not among
    the tasks, and what is decided already, stays as it is. What deciding everything together is measured by.

    Then again from the start, with twice as many simulations for each task, as long as the budget lasts: what a budget
    buys is the beginning of what a larger one does.

    Attributes:
        tasks: in the order in which they are decided.
        start: gives the plan that is begun from: by default what frameworks do where nobody says anything.
        temperature: first temperature, as a share of the value.
        cold: last temperature.
    """

    tasks: tuple[Task, ...] = ("fusion", "placement", "schedule")
    start: Method = field(default_factory=lambda: make_method(DEFAULT))
    temperature: float = 2e-3
    cold: float = 1e-5

    def optimize(self, search: Search) -> Plan:
        first = self.start.optimize(search)
        if not search.spent:
            search.score(first)
        length, used = FIRST, -1
        while not search.spent and search.simulations > used:
            plan, used = first, search.simulations
            for task in self.tasks:
                if not search.spent:
                    plan = self._decide(search, plan, task, length)
            length *= 2
        return search.best if search.best is not None else first

    def _decide(self, search: Search, plan: Plan, task: Task, simulations: int) -> Plan:
        """The best plan found that differs from the given one in that task alone."""
        with search.keeping(simulations=simulations) as part:
            if task == "fusion":
                improve_fusion(part, plan, self.temperature / 2, self.cold)
            elif task == "schedule" or search.problem.num_devices > 1:
                self._walk(part, plan, task)
        return plan if part.best is None else part.best

    def _walk(self, search: Search, plan: Plan, task: Task) -> None:
        """Over placement alone, first come, first served at first and then with ranks as they are, or over ranks
        alone; from the best that one-shot methods give."""
        coarse = coarsen(search.problem, plan.kernel)
        small = coarse.problem
        given = Plan.of(small, coarse.first(plan.device), coarse.lowest(spread_ranks(search, plan)))
        part = search.part(problem=small)
        start, score = best_of(part, one_shots(part, given, task))
        search.offer(coarse.up(start), score)
        if search.spent:
            return
        begun = ChainStart(start.device, spread_ranks(part, start), score)
        walking = Chains(search, coarse, [begun] * CHAINS, placing=task == "placement", ordering=task == "schedule")
        for length in epochs():
            walking.cool(length, self.temperature, self.cold)
            if search.spent or not walking.kinds.any():
                return
            walking.return_to_best()


def one_shots(search: Search, given: Plan, task: Task) -> Iterator[Plan]:
    """The given plan, then others that differ in placement, or in order, alone."""
    problem = search.problem
    yield given
    if task == "schedule":
        yield Plan.of(problem, given.device, critical_rank(problem, given.device))
        yield Plan.of(problem, given.device)
        return
    for spec in PLACERS:
        try:
            placed = make_method(spec).optimize(search.part(simulations=ONE_PLAN))
        except MissingExtra:
            continue
        yield search.first_come(placed.device)
