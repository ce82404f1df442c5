"""What windows found is taken where it helps: all of it, or the half that gained most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster import price
from loadmaster.graph.columns import ints
from loadmaster.optimizers.multilevel import multilevel, refine
from loadmaster.optimizers.multilevel.refine import FoundWindow
from loadmaster.plans import Plan
from loadmaster.search import Score
from tests.graphs.tiny import ladder, pair


class Judge:
    """A search whose scores are given: by the ops that are on the second device."""

    spent, simulations_left = False, 10

    def __init__(self, problem: Any, values: dict[tuple[int, ...], int]) -> None:
        self.problem, self.values, self.best_score, self.seen = problem, values, Score(0, 100), list[Any]()

    def score(self, plan: Plan) -> Score:
        moved = tuple(np.flatnonzero(plan.device).tolist())
        self.seen.append(moved)
        return Score(0, self.values[moved])


@pytest.mark.parametrize(
    ("both", "one", "kept", "looks"),
    [(90, 95, (0, 2), 1), (120, 95, (2,), 2), (120, 110, (), 2)],
)
def test_all_or_the_better_half_or_nothing(both: int, one: int, kept: tuple[int, ...], looks: int) -> None:
    problem = price(ladder(), pair())
    plan = Plan.of(problem, [0] * problem.num_ops)
    found = [FoundWindow(ints([0]), ints([1]), ints([0]), 0.1), FoundWindow(ints([2]), ints([1]), ints([0]), 0.3)]
    judge: Any = Judge(problem, {(0, 2): both, (2,): one})
    better = refine._better(judge, plan, found)
    assert tuple(np.flatnonzero(better.device).tolist()) == kept
    assert judge.seen == [(0, 2), (2,)][:looks]


def test_the_limits_of_what_is_too_large_are_not_too_large() -> None:
    class Size:
        def __init__(self, num_ops: int, num_devices: int) -> None:
            self.num_ops, self.num_devices = num_ops, num_devices

    def large(ops: int, devices: int) -> bool:
        size: Any = Size(ops, devices)
        return multilevel.too_large(size)

    assert not large(40_000, 1) and large(40_001, 1)
    assert not large(6_250, 64) and large(6_251, 64), "400,000 ops x devices"
