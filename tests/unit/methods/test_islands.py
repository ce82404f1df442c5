"""What each island of each round is given, and what becomes of what it finds."""

from __future__ import annotations

from loadmaster import Budget, price
from loadmaster.baselines.simple import OneDevice, Ready
from loadmaster.methods import islands
from loadmaster.methods.annealing.anneal import Anneal
from loadmaster.methods.islands import Islands, explore
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search
from tests.graphs.tiny import chain, pair


def problem() -> Problem:
    return price(chain(), pair())


def test_later_islands_anneal_from_the_best_plan_of_any() -> None:
    search = Search(problem(), Budget(None, 50))
    search.score(Plan.of(search.problem, [0, 0, 0]))
    (job,) = Islands(islands=1)._jobs(search, 1)
    assert isinstance(job.method, Anneal) and job.method.start.optimize(search) is search.best


class Idle:
    """Spends what it has and scores nothing."""

    def optimize(self, search: Search) -> Plan:
        search.count(search.simulations_left)
        return Plan.of(search.problem, [1, 1, 1])


def test_what_an_island_comes_to() -> None:
    some = problem()
    plan = Plan.of(some, [0, 0, 1])
    found = explore(some, islands.IslandJob(Ready(plan), Budget(None, 5), 3))
    assert found.plan is plan and found.score is not None and found.simulations == 1 and not found.fuses
    spent = explore(some, islands.IslandJob(Idle(), Budget(None, 5), 3))
    assert spent.score is None and spent.simulations == 5 and spent.plan.device.tolist() == [1, 1, 1]
    alone = explore(some, islands.IslandJob(Anneal(start=OneDevice()), Budget(None, 5), 3))
    assert alone.score is not None and alone.simulations == 5
