"""Kernels taken apart."""

from __future__ import annotations

import numpy as np

from loadmaster import price
from loadmaster.methods.memory.recompute import apart
from loadmaster.plans import Plan
from tests.graphs.tiny import ladder, pair


def test_members_of_a_kernel_become_kernels_of_their_own() -> None:
    """Where they stood: the ranks of the others and of their kernel stay as they were."""
    problem = price(ladder(), pair())
    ops = problem.num_ops
    kernel = np.arange(ops)
    kernel[[1, 2, 3]] = 1
    kernel[4] = kernel[5] = 4
    plan = Plan.of(problem, np.zeros(ops, np.int64), np.arange(ops)[::-1].copy(), kernel)
    parted = apart(problem, plan, 1)
    assert parted.kernel[[1, 2, 3]].tolist() == [1, 2, 3] and parted.kernel[5] == 4
    by_kernel = plan.rank[plan.kernel]
    turn = sorted(range(ops), key=lambda op: (by_kernel[op], op))
    assert np.argsort(parted.rank).tolist() == turn
