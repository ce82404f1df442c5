"""The plan that fusion begins with, and where there is nothing to look for."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster import Budget
from loadmaster.optimizers.fusion import search as fusing
from loadmaster.plans import Plan
from loadmaster.search import Search
from tests.unit.optimizers.test_joint_epochs import relus


class Inner:
    """Scores a good plan and returns a bad one, or the other way round; spends all where that is wanted."""

    def __init__(self, *, bad: bool = True, scores: bool = True, spends: bool = False) -> None:
        self.bad, self.scores, self.spends = bad, scores, spends

    def optimize(self, part: Search) -> Plan:
        good, bad = Plan.of(part.problem, [0] * 4), Plan.of(part.problem, [0, 1, 0, 1])
        if self.scores:
            part.score(good if self.bad else bad)
        if self.spends:
            part.count(part.simulations_left)
        return bad if self.bad else good


@pytest.mark.parametrize(
    ("inner", "device", "simulations"),
    [
        (Inner(), [0] * 4, 3),  # what it scored is better than what it returned
        (Inner(bad=False), [0] * 4, 3),
        (Inner(scores=False), [0, 1, 0, 1], 1),
        (Inner(bad=False, spends=True), [0, 1, 0, 1], 20),  # no simulation is left to compare
        (Inner(scores=False, spends=True), [0, 1, 0, 1], 20),
    ],
)
def test_the_better_of_what_a_method_returned_and_what_it_scored(
    inner: Inner, device: list[int], simulations: int
) -> None:
    search = Search(relus(4), Budget(None, 20))
    assert fusing.inner_plan(search, inner).device.tolist() == device
    assert search.simulations == simulations


def test_nothing_is_looked_for_where_nothing_can_be_fused_or_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[Any]()
    monkeypatch.setattr(fusing, "fusing_chains", lambda *given: asked.append(given))
    for ops, spent, count in ((1, False, 0), (4, True, 0), (4, False, 1), (2, False, 2)):
        search = Search(relus(ops), Budget(None, 9))
        if spent:
            search.halt()
        fusing.improve_fusion(search, Plan.of(search.problem, [0] * ops), 0.1, 0.01)
        assert len(asked) == count


def test_chains_begin_from_the_kernels_of_a_plan_or_from_the_best_simple_ones() -> None:
    problem = relus(4)
    fused = Plan.of(problem, [0] * 4, None, [0, 0, 2, 3])
    search = Search(problem, Budget(None, 99))
    own = fusing.fusing_chains(search, fused, fusing.ALONE, 2)
    assert own is not None and [chain.kernel.tolist() for chain in own.chains] == [[0, 0, 2, 3]] * 2
    assert search.simulations == 1
    simple = fusing.fusing_chains(search, Plan.of(problem, [0] * 4), fusing.ALONE, 0)
    assert simple is not None and [chain.kernel.tolist() for chain in simple.chains] == [[0, 0, 0, 0]]
    few = Search(problem, Budget(None, 1))
    assert fusing.fusing_chains(few, fused, fusing.ALONE, 2) is None, "the budget ended"
