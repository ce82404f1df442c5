"""Plans that a task begins with."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster import Budget, price
from loadmaster.methods.separate import one_shots
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search
from tests.graphs.tiny import diamond, pair


def problem(on: Any = None) -> Problem:
    return price(diamond(), on or pair())


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
