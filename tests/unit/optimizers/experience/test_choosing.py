"""Which plans that are kept a search begins from, and what it tries of them, by shelves that are told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.errors import InvalidPlan
from loadmaster.optimizers.experience import choosing, trying
from loadmaster.optimizers.experience.entries import PlanHead
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from tests.unit.optimizers.experience.stacks import stack


def head(name: str, devices: int | None = 2, objective: str = "step-time") -> PlanHead:
    return PlanHead(name, name, "cluster", objective, 5, 4, (), devices)


class Shelf:
    """Entries as they are told; which were read, and which were of use."""

    def __init__(self, *entries: PlanHead) -> None:
        self.kept, self.was_read, self.was_used = entries, list[str](), list[str]()

    def entries(self) -> list[PlanHead]:
        return list(self.kept)

    def read(self, entry: PlanHead) -> bytes:
        self.was_read.append(entry.name)
        return entry.name.encode()

    def used(self, entry: PlanHead) -> None:
        self.was_used.append(entry.name)


def chosen(
    monkeypatch: pytest.MonkeyPatch, shelf: Shelf, likeness: dict[str, float], close: dict[str, float]
) -> list[str]:
    """Where starts come from, by how alike problems are and how close their ops."""
    left = iter([likeness[entry.name] for entry in shelf.kept if entry.objective == "step-time"])

    def adapt(known: bytes, problem: Problem, sight: Any) -> tuple[list[Any], float]:
        name = known.decode()
        if name == "torn":
            raise InvalidPlan("torn", name, "")
        return [name], close.get(name, 1.0)

    monkeypatch.setattr(choosing, "alike", lambda one, other: next(left))
    monkeypatch.setattr(choosing, "known_of", lambda data, where: data)
    monkeypatch.setattr(choosing, "adapt", adapt)
    found = choosing.starts_like(lm.price(stack(1), "2xp100-pcie"), [shelf])
    return [start.plan for start in found]  # type: ignore[misc]


def test_plans_of_problems_that_are_alike_enough_the_most_alike_first(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(head("some"), head("most"), head("least"), head("none"), head("other", objective="peak-memory"))
    like = {"some": 0.5, "most": 0.9, "least": choosing.LEAST_LIKE, "none": choosing.LEAST_LIKE - 0.01}
    assert chosen(monkeypatch, shelf, like, {}) == ["most", "some", "least"] == shelf.was_used


def test_a_plan_for_twice_as_many_devices_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(head("twice", 4), head("same"), head("older", None), head("half", 1), head("eight", 16))
    like = {"twice": 0.75, "same": 0.7, "older": 0.6, "half": 0.74, "eight": 0.97}
    assert chosen(monkeypatch, shelf, like, {})[:4] == ["same", "eight", "twice", "half"]


def test_only_the_few_most_alike_are_read_and_only_close_ones_used(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"plan {at}" for at in range(choosing.LOOKED_INTO + 2)]
    shelf = Shelf(*map(head, names))
    like = {name: 0.9 - at / 100 for at, name in enumerate(names)}
    close = {names[0]: choosing.LEAST_CLOSE, names[1]: choosing.LEAST_CLOSE - 0.01}
    assert chosen(monkeypatch, shelf, like, close) == [names[0], *names[2 : choosing.LOOKED_INTO]] == shelf.was_used
    assert shelf.was_read == names[: choosing.LOOKED_INTO]
    torn = Shelf(head("torn"), head("whole"))
    assert chosen(monkeypatch, torn, {"torn": 0.9, "whole": 0.8}, {}) == ["whole"]


# What is tried of them


def test_groups_by_module_are_one_of_the_rules_where_there_are_modules_and_devices() -> None:
    problem = lm.price(stack(2), "2xp100-pcie")
    bare = replace(problem, graph=replace(problem.graph, scope=("",) * problem.num_ops))
    alone, memory = lm.price(stack(2), "1xa100-nvlink"), lm.price(stack(2), "2xp100-pcie", objective="peak-memory")
    assert [len(list(trying._in_groups(some))) for some in (problem, bare, alone, memory)] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("on", "objective", "rejoined"),
    [("2xp100-pcie", "step-time", True), ("1xa100-nvlink", "step-time", False), ("2xp100-pcie", "peak-memory", False)],
)
def test_the_best_that_was_given_is_tried_with_its_islands_rejoined(
    on: str, objective: Any, rejoined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = lm.price(stack(2), on, objective=objective)
    one, two = Plan.of(problem, [0] * 7), Plan.of(problem, [0] * 7, np.arange(7)[::-1].copy())
    dears = list[float]()

    def again(problem: Problem, plan: Plan, dear: float) -> Plan:
        assert plan is one
        dears.append(dear)
        return Plan.of(problem, [0] * 7, np.arange(7) * 2)

    counted = list[int]()
    monkeypatch.setattr(trying, "rejoined", again)
    monkeypatch.setattr(trying, "ordered", lambda search, found, most: counted.append(most) or found)
    search = Search(problem, Budget(None, 50))
    assert trying.suited(search) == [], "nothing was given"
    search.best, search.best_score, search.starts = one, search.score(one), (one, two)
    assert [start.plan for start in trying.suited(search)][:2] == [one, two] and counted == [2]
    assert dears == (list(trying.DEAR) if rejoined else [])
    search.halt()
    assert trying.suited(search) == []


def test_a_search_that_has_ended_lets_no_plan_stand_out() -> None:
    search = Search(lm.price(stack(2), "2xp100-pcie"), Budget(None, 50))
    search.halt()
    assert not trying.stands_out(search, SimpleNamespace(value=1, over_bytes=0))  # type: ignore[arg-type]
    assert search.simulations == 0
