"""The bound on a pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster import price
from loadmaster.graph.columns import ints
from loadmaster.pipelines import microbatched
from loadmaster.problem import CANNOT
from tests.unit.pipelines.lines import devices, line, problem


def test_the_bound_is_what_the_busiest_device_must_do() -> None:
    """Four layers of 300 ns on two devices, three times; and what adding gradients up takes, unless replicas share it.
    Nothing can be on a device that cannot run it."""
    assert microbatched.bound_of(problem(4, 2), 3) == 4 * 300 * 3 // 2
    heavy = problem(4, 2, weights=500)
    assert microbatched.bound_of(heavy, 3) == (4 * 300 * 3 + 4 * 2_999) // 2
    assert microbatched.bound_of(heavy, 3, replicate=True) == 4 * 300 * 3 // 2
    graph = line(2)
    times = np.repeat(graph.time_ns[:, :1], 2, axis=1)
    times[graph.op_name.index("f0")] = [CANNOT, 100]
    assert microbatched.bound_of(price(replace(graph, time_ns=ints(times)), devices(2)), 3) == 2 * 300 * 3 // 2
