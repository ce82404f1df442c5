"""A part of a step as a problem of its own: what waits for what, and on what, is as it was in the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import ints
from loadmaster.passes.windows import window
from loadmaster.problem import Problem
from tests.strategies import problems


@settings(max_examples=80)
@given(problems(min_ops=3, max_ops=12, max_devices=3), st.integers(0, 2**16))
def test_ops_of_a_window_wait_for_what_they_waited_for(problem: Problem, seed: int) -> None:
    rng, graph = np.random.default_rng(seed), problem.graph
    device = legal(problem, rng.integers(0, problem.num_devices, problem.num_ops))
    ops = ints(np.flatnonzero(rng.random(problem.num_ops) < 0.6))
    if not len(ops):
        return
    part = window(problem, device, ops, np.zeros(len(ops), bool), ints(np.zeros(len(ops))))
    small, number = part.problem.graph, {int(op): part.first + at for at, op in enumerate(ops)}
    for op, here in number.items():
        after = {number[int(other)] for other in graph.after_of(op) if int(other) in number}
        assert set(small.after_of(here).tolist()) == after
        makers = {int(graph.producer[t]) for t in graph.reads_of(op)} & set(number)
        inside = {int(small.producer[t]) for t in small.reads_of(here)} & set(number.values())
        assert inside == {number[maker] for maker in makers}
        assert sorted(small.nbytes[small.reads_of(here)]) == sorted(graph.nbytes[graph.reads_of(op)])
        assert small.workspace_bytes[here] == graph.workspace_bytes[op]
        assert part.problem.op_ns[here].tolist() == problem.op_ns[op].tolist()
    outside = set(range(small.num_ops)) - set(number.values())
    assert all(len(small.after_of(op)) == 0 and not part.problem.op_ns[op].max() for op in outside)
    assert part.part(np.arange(small.num_ops)).tolist() == list(number.values())
