"""When branch and bound runs beside a search, and what it is for."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers.branching import beside
from loadmaster.optimizers.branching.beside import Beside
from loadmaster.optimizers.branching.branch_and_bound import SearchTree, can_branch
from loadmaster.plans import Plan
from loadmaster.search import Score, Search
from tests.graphs.tiny import pair
from tests.unit.optimizers.test_exact_closing import many, started


@pytest.mark.parametrize(("left", "runs"), [(0.2, False), (0.21, True)])
def test_it_runs_beside_a_search_that_has_time(left: float, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    search = started(many(4), Budget(60.0))
    monkeypatch.setattr(Search, "seconds_left", property(lambda self: left))
    assert (Beside.of(search, 0.2) is not None) == runs


def test_it_runs_beside_a_search_of_a_small_problem_that_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    for ops, runs in ((1, False), (2, True), (64, True), (65, False)):
        assert (Beside.of(started(many(ops), Budget(60.0)), 0.2) is not None) == runs, ops
    assert Beside.of(started(many(4), Budget(None, 50_000)), 0.2) is None, "simulations are counted"
    assert Beside.of(Search(many(4), Budget(60.0)), 0.2) is None, "no plan"
    fused = started(many(4), Budget(60.0))
    assert fused.best is not None
    fused.best = Plan.of(fused.problem, fused.best.device, None, ints([0, 0, 2, 3]))
    assert Beside.of(fused, 0.2) is None
    full = started(many(4), Budget(60.0))
    full.best_score = Score(1, 10)
    assert Beside.of(full, 0.2) is None, "a plan that does not fit"
    monkeypatch.setattr(beside, "MANY", 70)
    for simulations, runs in ((70, False), (71, True)):  # one of them is spent
        assert (Beside.of(started(many(4), Budget(60.0, simulations)), 0.2) is not None) == runs


def test_it_ends_with_its_tree_or_when_it_is_told_to() -> None:
    search = started(many(4), Budget(60.0))
    found = Beside.of(search, 0.2)
    assert found is not None
    found.run()
    assert found.branches.finished and search.spent, "the search is told that nothing is left"
    found.start = found.join = lambda *_: None  # type: ignore[method-assign]
    found.finish()
    assert search.closed and search.note == "proved optimal"
    assert search.best_score.value == 10 + 13 == 11 + 12
    told = Beside.of(started(many(9), Budget(60.0)), 0.2)
    assert told is not None
    told.ended = True
    told.run()
    assert told.branches.looked_at == 0 and not told.search.spent


def test_which_problems_branch_and_bound_is_for() -> None:
    assert can_branch(many(64)) and not can_branch(many(65))
    assert can_branch(many(4, 16)) and not can_branch(many(4, 17))
    assert can_branch(many(50, 16)), "50 tensors on 16 devices"
    wide = GraphBuilder("wide")
    wide.op("op", "any", [], [wide.tensor(1) for _ in range(1_001)], time_ns=1)
    assert not can_branch(price(wide.build(), pair()))
    slim = GraphBuilder("slim")
    slim.op("op", "any", [], [slim.tensor(1) for _ in range(1_000)], time_ns=1)
    assert can_branch(price(slim.build(), pair()))
    assert not can_branch(many(4).with_objective("peak-memory"))


def test_a_tree_remembers_as_much_as_fits_in_24_mb() -> None:
    """Unless memory may be short, when two moments that are alike need not be."""
    problem = many(4)
    tree: Any = SearchTree(problem, Plan.of(problem, [0] * 4)).tree
    assert tree.memory.nbytes == 24 << 20
    tight = price(problem.source, problem.cluster, memory_limit=3)
    assert SearchTree(tight, Plan.of(tight, [0] * 4)).tree.memory.nbytes == 0
