"""The race of docs/methods/go.md: when it ends, and how its figures read."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Moment, Score, Search, solve

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def questions() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "questions.py"
    spec = importlib.util.spec_from_file_location("questions", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fork() -> Problem:
    """a makes 100 bytes that b and c read; b makes 10 that c reads."""
    builder = GraphBuilder("fork")
    source = builder.tensor(8, "input")
    big, small, end = builder.tensor(100, "activation"), builder.tensor(10, "activation"), builder.tensor(1, "output")
    builder.op("a", "any", [source], [big], flops=10**9)
    builder.op("b", "any", [big], [small], flops=10**9)
    builder.op("c", "any", [big, small], [end], flops=10**9)
    return price(builder.build(), "3xp100-pcie")


@dataclass
class Scripted:
    """Scores placements in turn."""

    devices: list[list[int]]
    pause: float = 0.0
    scored: list[Score] = field(default_factory=list)

    def optimize(self, search: Search) -> Plan:
        for device in self.devices:
            time.sleep(self.pause)
            plan = Plan.of(search.problem, ints(device))
            self.scored.append(search.score(plan))
        return plan


def test_a_race_ends_at_the_first_plan_that_is_as_good(questions: ModuleType) -> None:
    problem = _fork()
    alone, apart = [0, 0, 0], [0, 1, 2]  # a chain: every send makes the step longer
    [target, worse] = [solve(problem, Scripted([device]), Budget(None, 1)).score for device in (alone, apart)]
    assert target < worse
    plain = Scripted([apart, [0, 1, 1], alone, alone])
    moment = questions.first_at(problem, plain, Budget(None, 9), target)
    assert (moment.simulations, moment.score) == (3, target)
    slow = Scripted([apart, alone, apart, apart, apart], pause=0.12)
    assert questions.first_at(problem, slow, Budget(None, 9), target).simulations == 2 and len(slow.scored) < 5
    assert questions.first_at(problem, Scripted([apart, apart]), Budget(None, 9), target) is None


def test_times_sooner_are_a_ratio_of_seconds_and_none_for_never(questions: ModuleType) -> None:
    best, early = Moment(900, 60.0, Score(0, 5_000_000)), Moment(40, 1.5, Score(0, 4_000_000))
    heat = questions.Heat("one", best, (early, None))
    assert (heat.ratio(0), heat.ratio(1)) == (40.0, 0.0)
    assert questions._line(heat) == "| one | 5.0 | 60.0 | 1.50 | 40.0 | never | 0 |"
