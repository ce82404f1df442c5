"""When branch and bound runs beside a search, and what it is for."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster import Budget, GraphBuilder, price
from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.graph.columns import ints
from loadmaster.methods.exact.branching.beside import Beside
from loadmaster.methods.exact.branching.branch_and_bound import SearchTree, can_branch
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search
from tests.graphs.tiny import pair


def many(ops: int, devices: int = 2) -> Problem:
    graph = GraphBuilder("many")
    for op in range(ops):
        graph.op(f"op{op}", "any", [], [graph.tensor(1)], time_ns=10 + op)
    every = tuple(Device(f"d{at}", "toy", 2**30, 1e9, 1e9, 0) for at in range(devices))
    pairs = [(one, two) for one in range(devices) for two in range(devices) if one != two]
    wires = np.full((devices, devices), -1)
    for number, ends in enumerate(pairs):
        wires[ends] = number
    return price(graph.build(), Cluster("many", every, dict.fromkeys(pairs, Link(1e9, 1)), ints(wires)))


def started(problem: Problem, budget: Budget) -> Search:
    search = Search(problem, budget)
    search.score(OneDevice().optimize(search))
    return search


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
