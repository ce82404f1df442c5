"""How the epochs of `joint` are shared out between all decisions together and placement and order alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.optimizers import joint
from loadmaster.optimizers.annealing.chains import Reheating
from loadmaster.optimizers.starts import Scored
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from tests.problems import halves

LENGTH = 120


def runner_on(problem: Problem, epochs: int) -> joint.FusingRunner:
    """One that has had some epochs."""
    plan = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    return joint.FusingRunner(Score(0, 1000), plan, Reheating(10**6, LENGTH), marks=[(0, Score(0, 1000))] * epochs)


def spending(monkeypatch: pytest.MonkeyPatch, gains: tuple[int, int]) -> list[tuple[str, int]]:
    """Halves of epochs that take as long as they were given, and gain so much the first time; what they were given."""
    seen = list[tuple[str, int]]()

    def spend(kind: str, gain: int) -> Any:
        def part(self: Any, *given: Any) -> Scored:
            start = next(one for one in given if isinstance(one, Scored))
            simulations = next(one for one in given if type(one) is int)
            seen.append((kind, simulations))
            self.search.count(simulations)
            value = start.score.value - (gain if len(seen) <= 2 else 0)
            return Scored(Score(0, value), start.plan)

        return part

    monkeypatch.setattr(joint.JointEpochs, "_fused", spend("fused", gains[0]))
    monkeypatch.setattr(joint.JointEpochs, "_moved", spend("moved", gains[1]))
    return seen


@pytest.mark.parametrize(("gains", "share"), [((0, 0), 0.03), ((90, 0), 0.5), ((0, 90), 0.02), ((3, 97), 0.5)])
def test_each_half_has_its_share_of_an_epoch_by_what_it_gained_for_what_it_took(
    monkeypatch: pytest.MonkeyPatch, gains: tuple[int, int], share: float
) -> None:
    """At first 3 of 100 simulations change kernels; 3 gained in them are as much for each as 97 in the rest."""
    seen, problem = spending(monkeypatch, gains), halves()
    epochs, runner = (
        joint.JointEpochs(joint.Joint(), Search(problem, Budget(None, 10**6))),
        runner_on(problem, joint.PLACED),
    )
    epochs.go_on(runner)
    epochs.go_on(runner)
    assert seen[:2] == [("fused", LENGTH * 3 // 100), ("moved", LENGTH * 97 // 100)]
    second = seen[2][1] + seen[3][1]
    assert [kind for kind, _ in seen[2:]] == ["fused", "moved"] and second in (LENGTH * 3 // 2, LENGTH * 3 // 2 - 1)
    assert seen[2][1] == pytest.approx(second * share, abs=second * 0.02)
    assert [score.value for _, score in runner.marks[-2:]] == [1000 - sum(gains)] * 2
    assert runner.used == seen[0][1] + seen[1][1] + second


@pytest.mark.parametrize("epochs", range(joint.PLACED))
def test_the_first_epochs_are_for_placement_and_order(monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    seen, problem = spending(monkeypatch, (0, 0)), halves()
    joint.JointEpochs(joint.Joint(), Search(problem, Budget(None, 10**6))).go_on(runner_on(problem, epochs))
    assert seen == [("moved", joint.FIRST if epochs == 0 else LENGTH)]


def test_where_nothing_can_be_fused_an_epoch_is_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spending(monkeypatch, (0, 0))
    graph = GraphBuilder("products")
    made = graph.tensor(4096)
    graph.op("one", "aten.mm.default", [graph.tensor(4096, "input")], [made], flops=10**6)
    graph.op("two", "aten.mm.default", [made], [graph.tensor(4096, "output")], flops=10**6)
    problem = price(graph.build(), "2xp100-pcie")
    joint.JointEpochs(joint.Joint(), Search(problem, Budget(None, 10**6))).go_on(runner_on(problem, joint.PLACED))
    assert seen == [("moved", LENGTH)]
