"""Training of the list scheduler: examples that every process makes alike, what counts, and the way uphill."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from loadmaster.graph import Graph
from loadmaster.learn.scheduling.examples import ScheduleKey, best_by_rule, make_example, tightened, unrolled_step
from loadmaster.learn.scheduling.training import Ascent, ForkedCrew, Settings, ascend, directions, outcome, worth
from loadmaster.optimizers.policy.policy import first_weights
from loadmaster.search import Score
from loadmaster.simulator import simulate


@cache
def keys() -> list[ScheduleKey]:
    every = (ScheduleKey(-1, seed) for seed in range(12))
    return [key for key in every if (found := make_example(key)) and found[0].num_ops < 300]


def test_an_example_is_the_same_everywhere() -> None:
    first = make_example(keys()[0])
    make_example.cache_clear()
    again = make_example(keys()[0])
    assert first is not None and again is not None
    assert (first[0].op_ns == again[0].op_ns).all()
    assert (first[0].memory_bytes == again[0].memory_bytes).all()
    assert (first[2].device == again[2].device).all()


def test_an_unrolled_step_updates_every_weight_once() -> None:
    graph: Graph = unrolled_step(np.random.default_rng(1))
    updates = [op for op in range(graph.num_ops) if (graph.alias_of[graph.makes_of(op)] >= 0).any()]
    updated = {int(graph.alias_of[tensor]) for op in updates for tensor in graph.makes_of(op)}
    assert len(updates) == len(updated) > 0


def test_tightened_memory_is_that_of_one_device_in_shares() -> None:
    example = make_example(keys()[0])
    assert example is not None
    problem = example[0]
    tight = tightened(problem, 1.5)
    one = simulate(problem, best_by_rule(problem)).peak_bytes.sum()
    assert tight.memory_bytes.sum() > 0
    assert len(set(tight.memory_bytes.tolist())) == 1
    assert tight.memory_bytes.sum() < 4 * one


def test_a_plan_that_fits_counts_for_more_than_a_faster_one_that_does_not() -> None:
    example = make_example(keys()[0])
    assert example is not None
    problem = example[0]
    assert worth(problem, Score(0, 2_000)) < worth(problem, Score(1, 1_000))
    assert worth(problem, Score(0, 1_000)) < worth(problem, Score(0, 2_000))


@pytest.mark.parametrize(
    "settings", [Settings(each=3), Settings(each=2, simulations=8), Settings(each=2, simulations=16, proposes=True)]
)
def test_the_gradient_is_that_of_the_outcomes(settings: Settings) -> None:
    weights = first_weights(0)
    crew = ForkedCrew(keys()[:1], [], 1)
    try:
        gradient, _ = crew.gradient(weights, 4, settings)
    finally:
        crew.close()
    example = make_example(keys()[0])
    assert example is not None
    along = directions(4, len(weights), settings.each)
    gains = [
        outcome(example, weights - settings.step * row, settings, 4)
        - outcome(example, weights + settings.step * row, settings, 4)
        for row in along
    ]
    expected = sum(gain * row for gain, row in zip(np.clip(gains, -0.3, 0.3), along, strict=True))
    assert np.allclose(gradient, expected / (2 * settings.step * settings.each))


def test_adam_goes_uphill() -> None:
    ascent = Ascent.of(np.array([3.0, -2.0]))
    for _ in range(400):
        ascent.step(-2 * ascent.weights, 0.05)
    assert np.abs(ascent.weights).max() < 0.05


def test_training_returns_the_weights_that_were_best_on_problems_held_out() -> None:
    told: list[tuple[float, np.ndarray]] = []
    crew = ForkedCrew(keys()[:1], keys()[:1], 1)
    try:
        found = ascend(
            crew,
            Ascent.of(first_weights(0)),
            Settings(each=2),
            float("inf"),
            4,
            lambda row, now: told.append((row["gain"], now.weights)),
            every=1,
        )
    finally:
        crew.close()
    assert len(told) == 4
    assert (found == max(told, key=lambda one: one[0])[1]).all()
