"""A race as a whole, with epochs that are told: who begins, who leads, who joins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers import racing
from loadmaster.optimizers.starts import Scored
from loadmaster.search import Score


def start(value: int, *devices: int, family: Any = "given") -> Scored:
    plan: Any = SimpleNamespace(device=np.array(devices), name=value)
    return Scored(Score(0, value), plan, family)


class Told:
    """Epochs that each take ten simulations and bring a runner to what they are told, by the value it began with."""

    def __init__(self, left: int, values: dict[int, list[int]], *, given: bool = False) -> None:
        self.left, self.values, self.went = left, values, list[int]()
        problem = SimpleNamespace(num_ops=40, num_devices=2, objective=SimpleNamespace(of_memory=False))
        self.search: Any = SimpleNamespace(in_turn=0, spent=False, problem=problem, starts=(1,) if given else ())

    def go_on(self, runner: racing.Runner) -> None:
        name = runner.plan.name  # type: ignore[attr-defined]
        self.went.append(name)
        if self.left:
            self.left -= 1
            self.search.in_turn += 10
            runner.used += 10
            runner.score = Score(0, self.values[name].pop(0)) if self.values.get(name) else runner.score
            runner.marks.append((runner.used, runner.score))
        self.search.spent = not self.left


FOUR = [start(100, 0, 0, family="list"), start(110, 0, 1), start(120, 1, 0), start(124, 1, 1)]


def raced(told: Told, first: list[Scored], others: list[int | None] | None = None) -> racing.Race:
    race: Any = racing.Race(told, None, first)  # type: ignore[arg-type]
    turns = iter(others or [])
    race._take_in = race._cross = lambda: None
    if others is not None:
        race._other = lambda: next(turns) and race.others[0]
    race.run()
    return race  # type: ignore[no-any-return]


def test_three_begin_and_given_plans_take_nobodys_place() -> None:
    told = Told(3, {})
    raced(told, FOUR, [])
    assert told.went == [100, 110, 120]
    more = Told(4, {}, given=True)
    raced(more, FOUR, [])
    assert more.went == [100, 110, 120, 124]


def test_the_best_after_their_first_epochs_leads_and_others_have_their_turns() -> None:
    told = Told(6, {110: [90, 80, 70], 100: [95], 120: [92, 60]})
    race = raced(told, FOUR, [None, 1, None])
    assert told.went == [100, 110, 120, 110, 100, 110], "of the others the first"
    assert race.leader.plan.name == 110 and race.leader.score == Score(0, 70)  # type: ignore[attr-defined]
    over = Told(5, {110: [90], 100: [95, 50], 120: [92]})
    assert raced(over, FOUR, [1, None]).leader.plan.name == 100 and over.went[3:] == [100, 100]  # type: ignore[attr-defined]


def test_it_ends_where_an_epoch_takes_nothing() -> None:
    told = Told(3, {})
    told.go_on = lambda runner: told.went.append(runner.plan.name)  # type: ignore[attr-defined, method-assign]
    raced(told, FOUR, [None] * 9)
    assert len(told.went) == 4


def test_starts_that_were_not_tried_come_first_and_then_all_again() -> None:
    far_off = start(201, 0, 0, 1, 1)
    first = [start(100, 0, 0, 0, 0), start(110, 1, 1, 1, 1), start(120, 0, 1, 0, 1), start(200, 1, 0, 1, 0), far_off]
    race = racing.Race(Told(0, {}), None, first)  # type: ignore[arg-type]
    assert race.best_start == race.leader.score == Score(0, 100)
    assert [next(race.again).score.value for _ in range(6)] == [200, 100, 110, 120, 200, 100]


class Due:
    """Starts that are due, and whether the bound is."""

    def __init__(self, bound: bool) -> None:
        self.bound = bound

    def due(self) -> list[str]:
        return ["one", "other"]

    def bound_is_due(self) -> bool:
        return self.bound


def took_in(
    monkeypatch: pytest.MonkeyPatch,
    values: list[int],
    *,
    of_memory: bool = False,
    devices: int = 2,
    ops: int = 40,
    counts: bool = True,
    bound: bool = False,
) -> tuple[list[int], list[int]]:
    """(values of runners that joined, bounds that were proved)."""
    race: Any = racing.Race.__new__(racing.Race)
    objective, proved = SimpleNamespace(of_memory=of_memory), list[int]()
    problem = SimpleNamespace(num_ops=ops, num_devices=devices, objective=objective)
    race.search = SimpleNamespace(problem=problem, counts_simulations=counts, prove=proved.append, bound_seconds=3.0)
    race.waiting, race.others, race.best_start = Due(bound), [], Score(0, 100)
    race._evolve = lambda: [start(77)]

    def ordered(search: Any, found: list[str], most: int) -> list[Scored]:
        assert (found, most) == (["one", "other"], 1)
        return [start(value) for value in values]

    monkeypatch.setattr(racing, "made", lambda search, some: iter(some))
    monkeypatch.setattr(racing, "ordered", ordered)
    monkeypatch.setattr(racing, "lower_bound", lambda problem, fitting, seconds: 5)
    race._take_in()
    return [runner.score.value for runner in race.others], proved


def test_the_best_of_those_that_are_due_joins_unless_it_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert took_in(monkeypatch, [125, 110]) == ([125], [])
    assert took_in(monkeypatch, [126, 110]) == ([], [])
    assert took_in(monkeypatch, []) == ([], [])


def test_evolution_is_for_peak_memory_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert took_in(monkeypatch, [125], of_memory=True)[0] == [125, 77]
    assert took_in(monkeypatch, [125], of_memory=True, devices=1)[0] == [125]


def test_the_bound_of_a_large_problem_is_proved_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    large: dict[str, Any] = {"ops": racing.SMALL + 1, "counts": False, "bound": True}
    assert took_in(monkeypatch, [], **large)[1] == [5]
    for other in ({"ops": racing.SMALL}, {"counts": True}, {"bound": False}):
        assert took_in(monkeypatch, [], **(large | other))[1] == []
