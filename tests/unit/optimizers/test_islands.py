"""What each island of each round is given, and what becomes of what it finds."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster import Budget, price
from loadmaster.optimizers import islands
from loadmaster.optimizers.annealing.anneal import Anneal
from loadmaster.optimizers.islands import IslandResult, Islands, explore
from loadmaster.optimizers.simple import OneDevice, Ready
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from tests.graphs.tiny import chain, pair


def problem() -> Problem:
    return price(chain(), pair())


@pytest.mark.parametrize(
    ("some", "left", "simulations", "each", "seeds"),
    [
        (Islands(islands=4, rounds=3), 3, 120, 10, [7_000, 7_001, 7_002, 7_003]),
        (Islands(islands=4, rounds=3), 2, 120, 15, [7_004, 7_005, 7_006, 7_007]),
        (Islands(islands=4, rounds=3), 1, 2, 1, [7_008, 7_009]),  # no more islands than simulations
        (Islands(islands=2, rounds=3), 2, 3, 1, [7_002, 7_003]),
        (Islands(islands=0, rounds=0), 1, 9, 9, [7_000]),
        (Islands(islands=0, rounds=2), 1, 9, 9, [7_001]),
    ],
)
def test_every_island_has_an_equal_share_and_a_seed_of_its_own(
    some: Islands, left: int, simulations: int, each: int, seeds: list[int]
) -> None:
    jobs = some._jobs(Search(problem(), Budget(None, simulations), 7), left)
    assert [job.seed for job in jobs] == seeds
    assert {job.budget for job in jobs} == {Budget(None, each)} and {job.method for job in jobs} == {some.inner}


@pytest.mark.parametrize(
    ("processes", "ray", "seconds"), [(1, "", 5.0), (0, "", 5.0), (3, "", 15.0), (9, "", 20.0), (1, "auto", 20.0)]
)
def test_where_the_clock_counts_islands_at_once_have_longer(processes: int, ray: str, seconds: float) -> None:
    """A minute for three rounds of four."""
    search: Any = SimpleNamespace(
        seconds_left=60.0, counts_simulations=False, simulations_left=2**31, best=None, seed=0
    )
    jobs = Islands(islands=4, rounds=3, processes=processes, ray=ray)._jobs(search, 3)
    assert [job.budget.seconds for job in jobs] == [seconds] * 4


def test_later_islands_anneal_from_the_best_plan_of_any() -> None:
    search = Search(problem(), Budget(None, 50))
    search.score(Plan.of(search.problem, [0, 0, 0]))
    (job,) = Islands(islands=1)._jobs(search, 1)
    assert isinstance(job.method, Anneal) and job.method.start.optimize(search) is search.best


class Told:
    """Runs of jobs that find what they are told, one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: IslandResult) -> None:
        self.rounds, left = list[list[Any]](), list(found)

        def run(function: Any, jobs: list[Any], ray: str, shared: Any, processes: int) -> Iterator[IslandResult]:
            assert function is explore
            self.rounds.append(jobs)
            for _ in jobs:
                yield left.pop(0)

        monkeypatch.setattr(islands, "in_order", run)


def test_the_best_of_all_rounds_is_kept_and_every_simulation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(problem(), Budget(None, 100))
    plans = [Plan.of(search.problem, device) for device in ([0, 0, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1])]
    values = (Score(0, 50), None, Score(0, 40), Score(0, 45))
    told = Told(monkeypatch, *(IslandResult(plan, score, 20, False) for plan, score in zip(plans, values, strict=True)))
    assert Islands(islands=2, rounds=2).optimize(search) is plans[2]
    assert search.best_score == Score(0, 40) and search.simulations == 80 and search.fusing is False
    assert [len(jobs) for jobs in told.rounds] == [2, 2]
    assert told.rounds[1][0].method.start.optimize(search) is plans[0], "the best by then"


def test_there_is_a_plan_where_none_was_scored_and_no_round_without_simulations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = Search(problem(), Budget(None, 10))
    plans = [Plan.of(search.problem, device) for device in ([0, 0, 0], [1, 1, 1])]
    told = Told(monkeypatch, *(IslandResult(plan, None, 8, True) for plan in plans))
    assert Islands(islands=2, rounds=5).optimize(search) is plans[0]
    assert len(told.rounds) == 1 and search.simulations == 10 and search.fusing is not False
    again = Told(monkeypatch, IslandResult(plans[1], None, 1, False))
    assert Islands(islands=1, rounds=0).optimize(Search(problem(), Budget(None, 10))) is plans[1]
    assert len(again.rounds) == 1


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
