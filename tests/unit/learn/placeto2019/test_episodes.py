"""What steps of an episode cost, and what they are worth to learning: worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.learn.placeto2019.episodes import _after_failures, advantages, cost_of

NO = np.nan


def test_the_root_of_the_time_and_the_share_of_memory_that_is_over_each_up_to_a_limit() -> None:
    problem = SimpleNamespace(memory_bytes=np.array([60, 40]))
    environment: Any = SimpleNamespace(unit_ns=4.0, problem=problem)
    measured: Any = SimpleNamespace(
        step_ns=np.array([16, 16, 16, 400, 401, 900]),
        over_bytes=np.array([0, 25, 900, 0, 0, 0]),
        failed=np.array([False, False, False, False, False, True]),
    )
    assert cost_of(environment, measured).tolist()[:5] == [2.0, 3.0, 6.0, 10.0, 10.0]
    assert np.isnan(cost_of(environment, measured)[5])


@pytest.mark.parametrize(
    ("cost", "filled"),
    [
        ([[3.0, 2.0, 1.0]], [[3.0, 2.0, 1.0]]),
        ([[3.0, NO, NO, 1.0, NO]], [[3.0, 4.0, 4.0, 1.0, 2.0]]),  # one more than the last that ran
        ([[NO, 2.0, NO], [4.0, 6.0, 5.0]], [[4.25, 2.0, 3.0], [4.0, 6.0, 5.0]]),  # the mean of all that ran
        ([[NO, NO]], [[10.0, 11.0]]),
        ([[13.5, NO, 15.0, NO]], [[13.5, 14.0, 14.0, 14.0]]),  # no more than the dearest there is
    ],
)
def test_a_placement_that_failed_costs_more_than_the_last_that_ran(
    cost: list[list[float]], filled: list[list[float]]
) -> None:
    given = np.array(cost)
    before = given.copy()
    assert _after_failures(given).tolist() == filled
    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_what_a_step_gains_is_compared_with_the_same_step_of_others(discount: float) -> None:
    cost = np.array([[5.0, 4.0, 1.0], [5.0, 5.0, 5.0], [6.0, 2.0, 3.0]])
    rewards = np.array([[1.0, 3.0], [0.0, 0.0], [4.0, -1.0]])
    returns = np.stack([rewards[:, 0] + discount * rewards[:, 1], rewards[:, 1]], axis=1)
    over = returns - returns.mean(axis=0)
    np.testing.assert_allclose(advantages(cost, discount), over / (over.std() + 0.01))  # so that little is not all


def test_one_that_stands_out_counts_no_more_than_four_deviations() -> None:
    cost = np.zeros((60, 2))
    cost[0, 0], cost[1, 0] = 100.0, -100.0
    found = advantages(cost)
    assert found.max() == 4.0 and found.min() == -4.0
