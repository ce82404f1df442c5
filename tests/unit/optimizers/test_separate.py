"""Tasks in turn, each with as many simulations and twice as many the next time, by parts that are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, price
from loadmaster.optimizers import separate
from loadmaster.optimizers.separate import Separate, one_shots
from loadmaster.optimizers.simple import Ready
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from tests.graphs.tiny import diamond, pair


def problem(on: Any = None) -> Problem:
    return price(diamond(), on or pair())


def test_every_task_goes_on_from_the_one_before_and_each_turn_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    some = problem()
    begun = Plan.of(some, [0] * 4)
    asked = list[tuple[str, str, int]]()

    def decide(self: Separate, search: Search, plan: Any, task: str, simulations: int) -> Any:
        asked.append((getattr(plan, "name", "start"), task, simulations))
        search.count(3)
        return type("Found", (), {"name": task})()

    monkeypatch.setattr(Separate, "_decide", decide)
    search = Search(some, Budget(None, 14))
    assert Separate(start=Ready(begun)).optimize(search) is begun
    first = asked[0][2]
    assert asked == [
        ("start", "fusion", first), ("fusion", "placement", first), ("placement", "schedule", first),
        ("start", "fusion", 2 * first), ("fusion", "placement", 2 * first),
    ]  # fmt: skip
    asked.clear()
    monkeypatch.setattr(Separate, "_decide", lambda self, search, plan, task, simulations: asked.append((task, "", 0)))
    idle = Search(some, Budget(None, 14))
    Separate(("schedule",), start=Ready(begun)).optimize(idle)
    assert len(asked) == 1 and idle.simulations == 1, "it ends where a turn takes nothing"
    spent = Search(some, Budget(None, 1))
    spent.count(1)
    assert Separate(start=Ready(begun)).optimize(spent) is begun and len(asked) == 1 and spent.best is None


@pytest.mark.parametrize(
    ("on", "task", "done"),
    [
        (None, "fusion", "fused"),
        (None, "placement", "walked"),
        (None, "schedule", "walked"),
        ("1xa100-nvlink", "schedule", "walked"),
        ("1xa100-nvlink", "placement", ""),  # there is nothing to place
        ("1xa100-nvlink", "fusion", "fused"),
    ],
)
def test_what_each_task_asks_for(on: Any, task: Any, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = problem(on)
    asked = list[str]()
    found = Plan.of(some, [0] * 4, [3, 2, 1, 0])

    def fused(part: Search, plan: Plan, hot: float, cold: float) -> None:
        assert (hot, cold, part.simulations_left) == (0.01, 0.5, 20)
        asked.append("fused")
        part.offer(found, Score(0, 5))

    def walked(self: Separate, part: Search, plan: Plan, which: str) -> None:
        assert which == task
        asked.append("walked")

    monkeypatch.setattr(separate, "improve_fusion", fused)
    monkeypatch.setattr(Separate, "_walk", walked)
    plan = Plan.of(some, [0] * 4)
    search = Search(some, Budget(None, 100))
    decided = Separate(temperature=0.02, cold=0.5)._decide(search, plan, task, 20)
    assert asked == ([done] if done else []) and decided is (found if done == "fused" else plan)


def test_one_shot_plans_differ_in_order_or_in_placement_alone() -> None:
    some = problem()
    given = Plan.of(some, [0, 1, 0, 0], [9, 8, 7, 6])
    search = Search(some, Budget(None, 100))
    first, *others = one_shots(search, given, "schedule")
    assert first is given and len(others) == 2
    assert all(np.array_equal(plan.device, given.device) for plan in others)
    assert others[1].rank.tolist() == [0, 1, 2, 3]
    placed = list(one_shots(search, given, "placement"))
    assert placed[0] is given and len(placed) > 3
