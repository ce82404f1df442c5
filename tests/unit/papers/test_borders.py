"""Settings of learning at their borders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster import Budget
from loadmaster.errors import LoadmasterError
from loadmaster.papers.environment import Measurements, Simulated, reward
from loadmaster.papers.go2020_training import GoTrainingSettings
from loadmaster.papers.methods import Go, Regal
from loadmaster.papers.regal2020 import RegalTrainingSettings
from loadmaster.search import Search
from tests.problems import problem_of

FILES: dict[str, Any] = {"corpus": "graphs", "out": "here"}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (GoTrainingSettings, {"samples": 2}, {"samples": 1}),
        (GoTrainingSettings, {"tasks": " placement , fusion"}, {"tasks": " , "}),
        (GoTrainingSettings, {"tasks": "schedule"}, {"tasks": "placement,nothing"}),
        (RegalTrainingSettings, {"samples": 2}, {"samples": 1}),
        (RegalTrainingSettings, {"reads": "nothing"}, {"reads": "other"}),
        (RegalTrainingSettings, {"says": "graph"}, {"says": "device"}),
    ],
)
def test_settings(kind: Any, good: dict[str, Any], bad: dict[str, Any]) -> None:
    kind(**(FILES | good))
    with pytest.raises(LoadmasterError):
        kind(**(FILES | bad))


@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        (Go(), {"samples": 1}, {"samples": 0}),
        (Go(), {"rollouts": 2}, {"rollouts": 1}),
        (Go(), {"groups": 1}, {"groups": 0}),
        (Go(), {"tasks": "[placement]"}, {"tasks": "[]"}),
        (Regal(), {"population": 1}, {"population": 0}),
    ],
)
def test_methods(method: Any, good: dict[str, Any], bad: dict[str, Any]) -> None:
    replace(method, **good)
    with pytest.raises(LoadmasterError):
        replace(method, **bad)


def test_what_is_measured_ends_with_the_budget() -> None:
    search = Search(problem_of(4), Budget(None, 5))
    environment = Simulated(search, np.arange(search.problem.num_ops))
    places = np.zeros((3, search.problem.num_ops), np.int64)
    assert environment.measure(places).valid.tolist() == [True] * 3 and environment.measurements_left == 2
    measured = environment.measure(places)
    assert np.isnan(measured.step_ns).tolist() == [False, False, True]
    assert environment.measurements_left == 0 and search.simulations == 5


def test_rewards() -> None:
    step = np.array([4.0, 400.0, 40_000.0, 4.0, np.nan])
    measured = Measurements(step, np.array([0, 0, 0, 1, 0]))
    assert reward(measured, 1.0).tolist() == [-2.0, -10.0, -10.0, -10.0, -10.0]
