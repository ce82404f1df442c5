"""What steps of an episode cost, and what they are worth to learning: worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.placeto2019 import episodes  # noqa: E402
from loadmaster.learn.placeto2019.episodes import _after_failures, advantages, cost_of  # noqa: E402

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


@pytest.mark.parametrize(("steps_at_once", "parts"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (5, [5]), (99, [5])])
def test_groups_are_embedded_anew_for_as_many_steps_at_once_as_there_is_room(
    steps_at_once: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three episodes of five groups, whose states are four wide."""
    network: Any = SimpleNamespace(
        pool=SimpleNamespace(in_features=4),
        embed=lambda tensors, change: change,
        pooled=lambda *_: None,
        scores=lambda tensors, own, pool, place, pairs, able: pairs[..., 0],
    )
    tensors: Any = SimpleNamespace(groups=torch.zeros(5, 1), num_devices=2, able=torch.ones(5, 2, dtype=torch.bool))
    monkeypatch.setattr(episodes, "changing", lambda tensors, place, done, current: torch.zeros(3, len(done), 5, 4))
    played = episodes.Episodes(
        ints(range(5)), ints([0] * 5), ints(np.zeros((3, 5))), np.zeros((3, 5, 2, 21), np.float32)
    )
    for spare in (0, 59):
        monkeypatch.setattr(episodes, "AT_ONCE", 60 * steps_at_once + spare)
        found = [(some.start, some.stop) for some, _ in episodes.log_chances(network, tensors, played, "step")]
        edges = np.cumsum([0, *parts]).tolist()
        assert found == list(pairwise(edges))
    monkeypatch.setattr(episodes, "AT_ONCE", 3)
    assert len(list(episodes.log_chances(network, tensors, played, "step"))) == 5, "at least one step at a time"


def test_a_device_is_drawn_by_its_chance_and_never_one_that_has_none() -> None:
    chances = np.array([[0.5, 0.0, 0.25, 0.25]] * 4, np.float32)
    assert episodes._drawn(chances, np.array([0.49, 0.51, 0.76, 0.999])).tolist() == [0, 2, 3, 3]
    assert episodes._drawn(np.array([[0.0, 0.3, 0.7]], np.float32), np.array([0.0])).tolist() == [2]


def test_costs_are_measured_every_so_many_steps_and_at_the_end() -> None:
    asked: list[Any] = []

    class Environment:
        measurements_left = 99
        unit_ns = 1.0
        problem = SimpleNamespace(memory_bytes=np.array([1]))

        def measure(self, places: Any) -> Any:
            asked.append(places.tolist())
            step = np.array([1.0 + place.sum() for place in places]) ** 2
            return SimpleNamespace(step_ns=step, over_bytes=np.zeros(len(places)), failed=np.zeros(len(places), bool))

    environment: Any = Environment()
    played = episodes.Episodes(ints([2, 0, 1]), ints([0, 0, 0]), ints([[1, 0, 1]]), np.zeros((1, 3, 2, 21), np.float32))
    found = episodes.costs(environment, played, 1)
    assert found is not None and found.tolist() == [[1.0, 2.0, 2.0, 3.0]]
    assert sorted(asked[0]) == [[0, 0, 0], [0, 0, 1], [0, 1, 1]], "equal placements once"
    found = episodes.costs(environment, played, 2)
    assert found is not None and found.tolist() == [[1.0, 1.0, 2.0, 3.0]]
    found = episodes.costs(environment, played, 99)
    assert found is not None and found.tolist() == [[1.0, 1.0, 1.0, 3.0]]
    environment.measurements_left = 3
    assert episodes.costs(environment, played, 0) is not None
    environment.measurements_left = 2
    assert episodes.costs(environment, played, 1) is None
    assert asked[-1] == [[0, 1, 1]], "what is left goes to where episodes ended"
