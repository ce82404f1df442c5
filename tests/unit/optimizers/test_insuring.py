"""Plain annealing beside a race: it is the method itself, has its share and no more, and sleeps where it is far
behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.cost import price
from loadmaster.optimizers import insuring
from loadmaster.optimizers.annealing.anneal import Anneal
from loadmaster.optimizers.auto import insurance_of
from loadmaster.optimizers.crossing import Crossing
from loadmaster.optimizers.expert.expert import Expert
from loadmaster.optimizers.insuring import Insurance
from loadmaster.optimizers.simple import Ready
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search, solve
from loadmaster.zoo.synthetic import generate


def told(simulations: int, used: int, value: int | None, race: list[tuple[int, int]], over: int = 0) -> Insurance:
    """One that has found this value, beside a race that had those after so many simulations."""
    search: Any = SimpleNamespace(simulations=simulations, spent=False)
    made = Insurance(search, Expert())
    for at, best in race:
        made.watch(Score(0, best), at)
    made.used = used
    if value is not None:
        made.part, made.score = search, Score(over, value)
    return made


@pytest.mark.parametrize(("simulations", "begins"), [(2_999, False), (3_000, True)])
def test_the_race_has_the_first_simulations(simulations: int, begins: bool) -> None:
    assert told(simulations, 0, None, [(100, 50)]).due is begins


@pytest.mark.parametrize(
    ("value", "share"),
    [
        (999, 0.8),  # it leads
        (1_000, 0.6),  # it is no better than the race
        (1_166, 0.6),  # 6 % over the 1,100 that the race had before as many simulations
        (1_167, 0.1),
    ],
)
def test_its_share_is_by_how_it_stands(value: int, share: float) -> None:
    race = [(100, 1_400), (500, 1_100), (99_999, 1_000)]
    allowed = round(share * 100_000)
    assert told(100_000, allowed - 1, value, race).due and not told(100_000, allowed, value, race).due


def test_a_plan_that_does_not_fit_is_far_behind_one_that_does() -> None:
    assert not told(100_000, 10_000, 900, [(1, 1_000)], over=1).due
    assert told(100_000, 10_000, 1_000, [(1, 1_000)]).due


def test_compared_is_what_the_race_had_after_as_many() -> None:
    race = [(100, 2_000), (4_000, 1_000)]
    assert told(39_990, 3_999, 2_120, race).due  # the race had 2,000 then
    assert not told(40_000, 4_000, 2_120, race).due


def small(objective: str = "step-time", cluster: str = "4xp100-pcie") -> Problem:
    return price(next(generate("layered", 1, 3, 40)), cluster, objective=objective)


def test_it_is_the_method_itself_however_often_it_is_interrupted() -> None:
    problem = small()
    search = Search(problem, Budget(None, 4_000), 5)
    search.rng.random(100)  # what the race draws is nothing to it
    made, stood = Insurance(search, Expert()), list[tuple[int, int]]()
    while not search.spent:
        made.go_on()
        stood.append((made.used, made.score.value))
        if search.simulations_left > 7:
            search.count(7)  # the race goes on in between
    assert len(stood) > 5 and len({value for _, value in stood}) > 2
    for used, value in stood:
        assert solve(problem, Anneal(Expert()), Budget(None, used), 5).value == value
    assert search.best_score == made.score


def test_it_ends_where_there_is_nothing_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insuring, "improving", lambda *given: iter(()))
    search = Search(small(), Budget(None, 9_000), 0)
    search.count(insuring.AFTER)
    made = Insurance(search, Ready(Plan.of(search.problem, [0] * search.problem.num_ops)))
    made.watch(Score(0, 1), 0)
    assert made.due
    made.go_on()
    assert not made.due


def test_a_race_for_step_time_on_several_devices_is_insured() -> None:
    budget = Budget(None, 10)
    assert insurance_of(Search(small(), budget)) is not None
    assert insurance_of(Search(small("peak-memory"), budget)) is None
    assert insurance_of(Search(small(cluster="1xp100-pcie"), budget)) is None


def test_placement_is_no_worse_than_annealing_that_has_led_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all simulations for it, after the first, the plan is that of annealing after as many."""
    problem = small()
    monkeypatch.setattr(insuring, "AFTER", 300)
    for share in ("SHARE", "LEADING", "ASLEEP"):
        monkeypatch.setattr(insuring, share, 1.0)
    alone = solve(problem, Anneal(Expert()), Budget(None, 1_500), 2)
    assert solve(problem, "placement", Budget(None, 2_000), 2).value <= alone.value


def test_more_simulations_are_never_worse_while_both_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insuring, "AFTER", 300)
    monkeypatch.setattr(insuring, "FAR", 10.0)
    problem, turns = small(), list[int]()
    go_on = Insurance.go_on

    def noted(made: Insurance) -> None:
        go_on(made)
        turns.append(made.used)

    monkeypatch.setattr(Insurance, "go_on", noted)
    values = [solve(problem, "placement", Budget(None, many), 1).value for many in range(280, 3_000, 277)]
    assert max(turns) > 1_000 and values == sorted(values, reverse=True) and len({*values}) > 2


def test_crossing_has_no_share_of_its_simulations() -> None:
    search = Search(small(), Budget(None, 50_000), 0)
    crossing = Crossing(search)
    crossing.keep(Plan.of(search.problem, [0] * search.problem.num_ops), 1_000)
    search.count(10_000)
    assert crossing.due == 1_000
    crossing.apart = 6_000
    assert crossing.due == 400
