"""How much is tried to fit a plan into memory, with parts that only note what they were asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, price
from loadmaster.optimizers.memory import recompute
from loadmaster.optimizers.memory.recompute import Fitted, Recompute, apart
from loadmaster.plans import Plan
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate
from tests.graphs.tiny import chain, diamond, ladder, pair


@pytest.mark.parametrize(
    ("left", "counted", "asked"),
    [
        (1, True, None),
        (2, True, (None, 0.04)),
        (500, True, (None, 10.0)),
        (501, True, (None, 10.0)),
        (499, True, (None, 9.98)),
        (9, False, (3.0, 10.0)),
    ],
)
def test_what_the_exact_model_is_given(
    left: int, counted: bool, asked: tuple[float | None, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Any]()
    monkeypatch.setattr(recompute, "least_time", lambda _, seconds, effort, seed: seen.append((seconds, effort, seed)))
    search: Any = SimpleNamespace(
        simulations_left=left, counts_simulations=counted, seconds_left=10.0, problem=None, seed=7, spent=False
    )
    Recompute()._exactly(search)
    Recompute(again=False)._exactly(search)
    assert seen == ([] if asked is None else [(asked[0], pytest.approx(asked[1]), 7)])


def test_the_exact_plan_is_scored_where_a_simulation_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = list[Any]()
    monkeypatch.setattr(recompute, "least_time", lambda *_: "plan")
    for spent in (False, True):
        search: Any = SimpleNamespace(
            simulations_left=9, counts_simulations=True, problem=None, seed=0, spent=spent, score=scored.append
        )
        Recompute()._exactly(search)
    assert scored == ["plan"]


@pytest.mark.parametrize("least", [0, 90, 107, 120, 146, 150, 10**6])
def test_the_least_limit_is_looked_for_by_halving(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain that holds 108, 158 and 66 bytes, one op after the other; at most seven times."""
    problem = price(chain(), "1xp100-pcie", objective="peak-memory")
    plan = Plan.of(problem, [0, 0, 0])
    line = simulate(problem, plan)
    tried = list[int]()

    def fitted(self: Recompute, part: Search, plan: Plan, kept: set[int], noise: float) -> Fitted:
        limit = int(part.problem.memory_bytes[0])
        tried.append(limit)
        part.best_score = Score(0 if limit >= least else 1, 5)
        return Fitted(part.best_score, plan, set(), plan)

    monkeypatch.setattr(Recompute, "_fitted", fitted)
    search = Search(problem, Budget(None, 50))
    Recompute()._least(search, plan)
    low, high, wanted = 66, 158, list[int]()
    assert line.peak_bytes.tolist() == [158]
    for _ in range(7):
        if low >= high:
            break
        middle = (low + high) // 2
        wanted.append(middle)
        low, high = (low, middle) if middle >= least else (middle + 1, high)
    assert tried == wanted


def test_members_of_a_kernel_become_kernels_of_their_own() -> None:
    """Where they stood: the ranks of the others and of their kernel stay as they were."""
    problem = price(ladder(), pair())
    ops = problem.num_ops
    kernel = np.arange(ops)
    kernel[[1, 2, 3]] = 1
    kernel[4] = kernel[5] = 4
    plan = Plan.of(problem, np.zeros(ops, np.int64), np.arange(ops)[::-1].copy(), kernel)
    parted = apart(problem, plan, 1)
    assert parted.kernel[[1, 2, 3]].tolist() == [1, 2, 3] and parted.kernel[5] == 4
    by_kernel = plan.rank[plan.kernel]
    turn = sorted(range(ops), key=lambda op: (by_kernel[op], op))
    assert np.argsort(parted.rank).tolist() == turn


def test_firsts_and_ways() -> None:
    problem = price(diamond(), pair())
    plain = Plan.of(problem, [0, 0, 0, 0])
    fused = Plan.of(problem, [0, 0, 0, 0], None, [0, 0, 2, 3])
    assert Recompute()._firsts(plain) == ("nothing", "cut") and Recompute()._firsts(fused) == (
        "nothing",
        "inline",
        "cut",
    )
    assert Recompute(again=False)._firsts(fused) == ("nothing",)
