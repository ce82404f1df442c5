"""Ranks of list schedulers: the longest ways, by plain recursion."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.baselines.lists import schedulers
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from tests.strategies import problems


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 9))
def test_ranks_are_the_longest_ways_to_the_end_and_from_the_start(problem: Problem, seed: int) -> None:
    graph, rng = problem.graph, np.random.default_rng(seed)
    times, sends = rng.integers(0, 20, problem.num_ops), rng.integers(0, 9, graph.num_tensors)
    device = rng.integers(0, problem.num_devices, problem.num_ops)
    ways = [
        (int(graph.producer[tensor]), op, tensor)
        for op in range(problem.num_ops)
        for tensor in graph.reads_of(op).tolist()
        if graph.producer[tensor] >= 0
    ]
    ways += [(before, op, -1) for op in range(problem.num_ops) for before in graph.after_of(op).tolist()]

    def crossing(one: int, other: int, tensor: int) -> int:
        if tensor < 0 or device[one] == device[other]:
            return 0
        return int(problem.send_ns[tensor, problem.send_class[device[one], device[other]]])

    def sent(tensor: int) -> int:
        return 0 if tensor < 0 else int(sends[tensor])

    @cache
    def to_end(op: int, placed: bool) -> int:
        rest = [
            to_end(later, placed) + (crossing(op, later, tensor) if placed else sent(tensor))
            for one, later, tensor in ways
            if one == op
        ]
        return int(times[op]) + max(rest, default=0)

    @cache
    def from_start(op: int) -> int:
        """To the end of the op."""
        rest = [from_start(one) + sent(tensor) for one, later, tensor in ways if later == op]
        return int(times[op]) + max(rest, default=0)

    every = range(problem.num_ops)
    way = ints(sends[graph.reads])
    assert schedulers.longest_to_end(graph, ints(times), way).tolist() == [to_end(op, False) for op in every]
    assert schedulers.longest_from_start(graph, ints(times), way).tolist() == [from_start(op) for op in every]
    way = schedulers.crossing_ns(problem, ints(device))
    assert schedulers.longest_to_end(graph, ints(times), way).tolist() == [to_end(op, True) for op in every]
