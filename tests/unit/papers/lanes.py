"""Small problems whose best placement is known by trying all."""

from __future__ import annotations

from itertools import product

import numpy as np

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.papers.decoding import critical_ranks
from loadmaster.problem import Problem
from loadmaster.simulator import simulate_many
from tests.graphs.tiny import pair


def lanes(count: int = 5, memory_bytes: int = 2**30, slow: int = 1) -> Problem:
    """Lanes of two ops with unequal times and cheap sends, joined at the end: which lanes go together decides.

    By single readers all of it would be one group. The second device takes `slow` times as long."""
    graph = GraphBuilder("lanes")
    ends = []
    for lane, time_ns in zip(range(count), (500, 900, 400, 700, 600), strict=False):
        middle, end = graph.tensor(80), graph.tensor(10)
        graph.op(f"begin {lane}", "any", [], [middle], time_ns=[time_ns, slow * time_ns])
        graph.op(f"end {lane}", "any", [middle], [end], time_ns=[100, slow * 100])
        ends.append(end)
    graph.op("join", "any", ends, [graph.tensor(8, "output")], time_ns=[10, slow * 10])
    return price(graph.build(), pair(memory_bytes))


def brute_force(problem: Problem) -> int:
    """The shortest step of all placements, ops in critical-path order."""
    every = np.array(list(product(range(2), repeat=problem.num_ops)))
    return int(simulate_many(problem, every, critical_ranks(problem, ints(every))).step_ns.min())
