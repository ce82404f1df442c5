"""What must share a device, and runs in turn there: against branch and bound on small problems, and on real steps."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import Budget, Cluster, GraphBuilder, load, price, solve
from loadmaster.baselines.simple import OneDevice
from loadmaster.bench.best import load_best
from loadmaster.bench.records import cluster_key
from loadmaster.bench.rows import Source, go_rows
from loadmaster.methods.exact.branching.branch_and_bound import BranchAndBound
from loadmaster.problem import Problem
from loadmaster.problem.bounds import step
from loadmaster.problem.bounds.among import Work
from loadmaster.problem.bounds.step import step_bound
from loadmaster.search import Search
from tests.graphs.tiny import pair
from tests.unit.problem.bounds.test_bounds import equal_problem


class Asked(Work):
    """Up once it was asked so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def is_up(self, more_ns: float = 0.0) -> bool:
        self.times -= 1
        return self.times < 0


def test_no_optimum_is_under_the_bound_and_more_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of problems that branch and bound closes; here the search for what shares a device begins with two ops."""
    rng, raised, in_turn, met = np.random.default_rng(5), 0, 0, 0
    for _ in range(60):
        problem = equal_problem(rng)
        search = Search(problem, Budget(None, 30_000))
        BranchAndBound(start=OneDevice()).optimize(search)
        plain = step_bound(problem)
        monkeypatch.setattr(step, "LEAST_SHARED", 2)
        bound = step_bound(problem)
        monkeypatch.setattr(step, "MOST_TOGETHER", 1)  # as large problems are looked at
        light = step_bound(problem)
        monkeypatch.undo()
        assert plain <= bound <= search.best_score.value and plain <= light <= search.best_score.value
        raised, in_turn = raised + (bound > plain), in_turn + (light > plain)
        met += bound == search.best_score.value
    assert raised > 6 and in_turn > 3 and met > 36


def test_what_cannot_wait_comes_first_where_both_read_what_is_long_to_send() -> None:
    """One op of 30 that much depends on, and one of 40 that nothing waits for, read the same large tensor: on two
    devices the second waits for the first or for the send, and only then is the other device of use."""
    graph = GraphBuilder("beside")
    large, path = graph.tensor(10_000), graph.tensor(1)  # 1,005 and 6 ns between devices
    graph.op("loss", "any", [], [large], time_ns=10)
    graph.op("path", "any", [large], [path], time_ns=30)
    graph.op("beside", "any", [large], [graph.tensor(1, "output")], time_ns=40)
    for lane in range(100):
        graph.op(f"lane {lane}", "any", [path], [graph.tensor(1, "output")], time_ns=1)
    problem = price(graph.build(), pair())
    # Path and loss take 40; then 40 and 100 lanes are left for two devices. In any order 10 + (170 / 2) would do.
    assert 40 + (40 + 100) // 2 <= step_bound(problem) <= solve(problem, "placement", Budget(None, 300)).value


def test_gnmt_is_proven_within_a_few_percent() -> None:
    """The gradient of its vocabulary is long to send, and two large products read it."""
    (row,) = (row for row in go_rows(Source()) if row.name == "gnmt-2/train")
    known = load_best().get((row.digest, cluster_key(row.cluster), "step-time"))
    bound = step_bound(price(row.graph(), row.cluster))
    assert known is not None and 0.96 * known.value < bound <= known.value


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


def test_when_its_work_is_up_at_any_moment_the_bound_is_lower_but_none() -> None:
    """The count is asked so many times before it says so; what is known by then is no more than all that follows."""
    whole = step_bound(_transformer())
    seen = set()
    for asked in (0, 3, 10, 30, 100, 10_000):
        found = step_bound(_transformer(), allowed=Asked(asked))
        assert found <= whole
        seen.add(found)
    assert len(seen) > 2 and max(seen) == whole


def _transformer() -> Problem:
    return price(load("zoo:transformer-xl-2/train"), "2xp100-pcie")
