"""What must share a device: against branch and bound on small problems, and on a real step."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import Budget, Cluster, price, solve
from loadmaster.bench.best import load_best
from loadmaster.bench.records import cluster_key
from loadmaster.bench.rows import Source, go_rows
from loadmaster.optimizers.branching.branch_and_bound import BranchAndBound
from loadmaster.optimizers.simple import OneDevice
from loadmaster.problem.bounds import bounds, step_bound
from loadmaster.search import Search
from tests.unit.problem.bounds.test_bounds import equal_problem


def test_no_optimum_is_under_the_bound_and_more_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of problems that branch and bound closes; here the search for what shares a device begins with two ops."""
    rng, raised, met = np.random.default_rng(5), 0, 0
    for _ in range(60):
        problem = equal_problem(rng)
        search = Search(problem, Budget(None, 30_000))
        BranchAndBound(start=OneDevice()).optimize(search)
        plain = step_bound(problem)
        monkeypatch.setattr(bounds, "LEAST_SHARED", 2)
        bound = step_bound(problem)
        monkeypatch.undo()
        assert plain <= bound <= search.best_score.value
        raised += bound > plain
        met += bound == search.best_score.value
    assert raised > 6 and met > 36


def test_transformer_xl_is_proven_within_a_few_percent() -> None:
    """Attention of one layer reads what the next one needs, too: most of its sends are too long."""
    (row,) = (row for row in go_rows(Source()) if row.name == "transformer-xl-2/train")
    problem = price(row.graph(), row.cluster)
    known = load_best().get((row.digest, cluster_key(row.cluster), "step-time"))
    assert known is not None and 0.93 * known.value < step_bound(problem) <= known.value
    assert step_bound(problem) <= solve(problem, "placement", Budget(None, 300)).value


def test_far_faster_links_prove_nothing() -> None:
    (row,) = (row for row in go_rows(Source()) if row.name == "transformer-xl-2/train")
    near = price(row.graph(), Cluster.preset("2xa100-nvlink"))
    assert step_bound(near) <= solve(near, "placement", Budget(None, 300)).value
