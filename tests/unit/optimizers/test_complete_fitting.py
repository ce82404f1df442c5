"""When plans are made to fit beside a search, which, and with how much, by searches that are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loadmaster.optimizers import complete
from loadmaster.optimizers.complete import Complete, Fitting
from loadmaster.problem import Problem
from loadmaster.search import Score


def problem(*, devices: int = 2, of_memory: bool = False, memory: int = 10) -> Any:
    graph = SimpleNamespace(nbytes=np.array([20]), workspace_bytes=np.array([1]))
    objective = SimpleNamespace(of_memory=of_memory)
    made = SimpleNamespace(graph=graph, num_devices=devices, objective=objective, memory_bytes=np.array([memory]))
    made.always_fits = Problem.always_fits.func(cast(Problem, made))
    return made


class Told:
    """A search that says what its parts were given; making a plan fit takes as many simulations as it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, over: int = 5, counts: bool = True) -> None:
        self.given, self.over = list[Any](), over
        self.simulations, self.seconds, self.seconds_left = 0, 0.0, 90.0
        self.counts_simulations, self.spent, self.problem = counts, False, problem()
        self.best: Any = None
        self.adding = False
        monkeypatch.setattr(complete, "one_computes", lambda problem: False)
        monkeypatch.setattr(complete, "Ready", lambda plan: plan)

        def method(plan: Any, again: bool, offload: bool) -> Any:
            return SimpleNamespace(optimize=lambda part: self.given.append((plan, again, offload)))

        monkeypatch.setattr(complete, "Recompute", method)
        search: Any = self
        self.fitting = Fitting(Complete(), search)

    @contextmanager
    def keeping(self, share: float = 1.0, *, simulations: int | None = None) -> Iterator[Any]:
        yield SimpleNamespace(best_score=Score(self.over, 1))
        self.given[-1] = (*self.given[-1], share, simulations)
        self.simulations += simulations or 0
        self.seconds += 20.0

    def go_on(self, simulations: int, plan: Any = "plan") -> bool:
        """Whether it does, when so many simulations were used."""
        self.simulations = simulations
        self.fitting._too_large = lambda own: plan  # type: ignore[method-assign, assignment]
        before = len(self.given)
        self.fitting.go_on(self)  # type: ignore[arg-type]
        return len(self.given) > before


def test_the_first_turn_is_at_once_and_later_ones_are_longer_while_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(monkeypatch)
    assert told.go_on(10) and told.given == [("plan", True, True, 1.0, 64)]
    assert not told.go_on(239) and told.go_on(240), "eight tenths, less 64, are twice the last"
    assert told.given[1][4] == 128 and not told.go_on(400)


def test_once_a_plan_fits_it_has_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, over=0)
    assert told.go_on(10) and told.fitting.made
    assert not told.go_on(255) and told.go_on(256) and told.given[1][4] == 64
    told.over = 7
    assert told.go_on(1_000) and told.fitting.made, "it stays so"


def test_nothing_is_made_to_fit_where_nothing_need_or_the_search_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    assert not told.go_on(10, plan=None)
    told.spent = True
    assert not told.go_on(10)
    told.spent, told.fitting.allowed = False, False
    assert not told.go_on(10)


def test_by_the_clock_turns_are_shares_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, counts=False)
    told.seconds = 10.0
    assert told.go_on(0)
    # A fifth of the 100 s that there are, of the 90 that are left.
    assert told.given[0][3] == pytest.approx(20 / 90) and told.given[0][4] is None
    assert told.fitting.last == told.fitting.used == 20.0
    told.seconds_left = 1e-9
    assert told.fitting._part(5.0).__enter__() is not None


@pytest.mark.parametrize(
    ("settings", "of_memory", "memory", "allowed", "adding"),
    [
        (Complete(), False, 20, True, True),
        (Complete(), False, 21, True, False),
        (Complete(recompute=False), False, 20, True, True),
        (Complete(offload=False), False, 20, True, True),
        (Complete(recompute=False, offload=False), False, 20, False, False),
        (Complete(), True, 20, False, False),
    ],
)
def test_where_ops_may_be_added(settings: Complete, of_memory: bool, memory: int, allowed: bool, adding: bool) -> None:
    search: Any = SimpleNamespace(problem=problem(of_memory=of_memory, memory=memory))
    assert Fitting(settings, search).allowed is allowed and search.adding is adding


class Plans:
    """What simple rules make, by name: (over, value)."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        simple: dict[str, tuple[int, int]],
        best: tuple[int, int],
        *,
        one: bool = False,
        devices: int = 2,
    ) -> None:
        methods = tuple(SimpleNamespace(optimize=lambda own, name=name: name) for name in simple)
        monkeypatch.setattr(complete, "SIMPLE", methods)
        monkeypatch.setattr(complete, "one_computes", lambda problem: one)
        self.own: Any = SimpleNamespace(
            spent=False, best="best", best_score=Score(*best), score=lambda plan: Score(*simple[plan])
        )
        self.search: Any = SimpleNamespace(problem=problem(devices=devices), best=None)
        self.fitting = Fitting(Complete(), self.search)

    def plan(self) -> Any:
        return self.fitting._too_large(self.own)


def test_the_fastest_of_those_that_do_not_fit_if_it_is_faster_than_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    simple = {"fits": (0, 10), "slow": (3, 99), "fast": (5, 60), "even": (9, 60)}
    for best, found in ((61, "fast"), (60, None), (59, None)):
        assert Plans(monkeypatch, simple, (0, best)).plan() == found
    assert Plans(monkeypatch, {"fits": (0, 10)}, (0, 60)).plan() is None
    spent = Plans(monkeypatch, simple, (0, 61))
    spent.own.spent = True
    assert spent.plan() is None


def test_it_is_looked_for_once_and_kept_while_it_leads_or_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Plans(monkeypatch, {"fast": (5, 60)}, (0, 61))
    assert told.plan() == "fast"
    told.own.score = None
    assert told.plan() == "fast"
    told.fitting.made = True
    assert told.plan() is None
    told.search.best = SimpleNamespace(added=None)
    assert told.plan() is None
    told.search.best = SimpleNamespace(added="some")
    assert told.plan() == "fast"
    told.search.problem.always_fits = True
    assert told.plan() is None, "all of it fits"


def test_a_best_plan_that_does_not_fit_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Plans(monkeypatch, {"fast": (5, 60)}, (1, 61)).plan() == "best"
    alone = Plans(monkeypatch, {"fast": (5, 60)}, (1, 61), one=True, devices=1)
    assert alone.plan() == "fast", "on one device the fastest at first"
    alone.fitting.used = 1.0
    assert alone.plan() == "best"
    slower = Plans(monkeypatch, {"fast": (5, 62)}, (1, 61), one=True, devices=1)
    assert slower.plan() == "best"


def test_beside_a_host_all_is_where_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Plans(monkeypatch, {"there": (5, 900), "other": (1, 1)}, (0, 61), one=True)
    assert told.plan() == "there" and told.fitting.looked
    told.fitting.made = True
    assert told.plan() is None
    assert Plans(monkeypatch, {"there": (0, 900)}, (0, 61), one=True).plan() is None
    spent = Plans(monkeypatch, {"there": (5, 900)}, (0, 61), one=True)
    spent.own.spent = True
    assert spent.plan() is None and not spent.fitting.looked
