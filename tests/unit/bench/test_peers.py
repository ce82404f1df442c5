"""Peers decide by their own functions; what we hand them and take from them is checked here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from loadmaster.bench.methods import EXTRA, method
from loadmaster.bench.peers import Inductor
from loadmaster.cost import price
from loadmaster.errors import UnknownName
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from tests.graphs.tiny import GRAPHS, ladder, pair

ONCE = Budget(None, 5)


def memory_problem(graph: Graph) -> Problem:
    return price(graph, "1xa100-nvlink", objective="peak-memory")


def walked_peak(problem: Problem, order: list[int]) -> int:
    """Peak of running the ops one by one: made tensors live from their op to their last reader or the end."""
    graph, live, peak, done = problem.graph, 0, 0, set()
    fixed = sum(int(graph.nbytes[t]) for t in range(graph.num_tensors) if graph.producer[t] < 0)
    for step, op in enumerate(order):
        assert all(graph.producer[t] < 0 or int(graph.producer[t]) in done for t in graph.reads_of(op).tolist())
        assert all(before in done for before in graph.after_of(op).tolist())
        live += sum(int(graph.nbytes[t]) for t in graph.makes_of(op).tolist() if graph.alias_of[t] < 0)
        peak = max(peak, live + int(graph.workspace_bytes[op]))
        done.add(op)
        for t in range(graph.num_tensors):
            mine = graph.producer[t] in done and graph.alias_of[t] < 0 and not problem.stays[t]
            uses = [int(graph.producer[t]), *graph.readers_of(t).tolist()]
            if mine and all(use in done for use in uses) and max(order.index(use) for use in uses) == step:
                live -= int(graph.nbytes[t])
    return peak + fixed


def waits() -> Graph:
    """b makes little and reads nothing, but must wait for a, which makes much: greed would take b first."""
    builder = GraphBuilder("waits")
    big, small = builder.tensor(100, "output"), builder.tensor(1, "output")
    builder.op("a", "any", [], [big], time_ns=1)
    builder.op("b", "any", [], [small], time_ns=1, after=["a"])
    return builder.build()


@pytest.mark.parametrize("rule", ["best", "lpmf", "bfs", "dfs"])
@pytest.mark.parametrize("name", ["ladder", "join", "diamond", "fork", "waits"])
def test_inductors_orders_are_topological_and_priced_as_by_hand(name: str, rule: Any) -> None:
    pytest.importorskip("torch")
    problem = memory_problem({**GRAPHS, "waits": waits}[name]())
    # As Inductor gave it: solve would put an order right that is not topological.
    rank = Inductor(rule).optimize(Search(problem, ONCE)).rank
    order = np.argsort(rank, kind="stable").tolist()
    assert sorted(rank.tolist()) == list(range(problem.num_ops))
    assert solve(problem, Inductor(rule), ONCE).value == walked_peak(problem, order)


def test_long_chains_do_not_overflow_inductors_recursion() -> None:
    pytest.importorskip("torch")
    builder = GraphBuilder("long")
    before = builder.tensor(8, "input")
    for op in range(1_500):
        after = builder.tensor(8)
        builder.op(f"op{op}", "relu", [before], [after], time_ns=1)
        before = after
    limit = sys.getrecursionlimit()
    result = solve(memory_problem(builder.build()), Inductor("dfs"), ONCE)
    assert result.value == 8 + 2 * 8  # the input, and what an op reads and makes
    assert sys.getrecursionlimit() == limit


def test_every_extra_method_is_made_by_its_name() -> None:
    for name in EXTRA:
        method(name)
    with pytest.raises(UnknownName, match="inductr"):
        method("inductr")


def test_the_experts_best_order_is_never_worse_than_its_own() -> None:
    problem = price(ladder(), pair())
    best, plain = (solve(problem, method(name), ONCE) for name in ("expert-best-order", "expert"))
    assert best.value <= plain.value
    assert best.plan.device.tolist() == plain.plan.device.tolist()
