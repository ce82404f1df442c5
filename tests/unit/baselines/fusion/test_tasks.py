"""Kernels of kernels, and what is decided one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.fusion.greedy import Merges, greedy_kernels, plan_fused
from loadmaster.baselines.simple import OneDevice
from loadmaster.catalog.specs import make_method
from loadmaster.methods.separate import Separate
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from loadmaster.simulator import simulate
from tests.problems import tangled


def test_kernels_of_kernels_are_named_after_their_lowest_op() -> None:
    for seed in range(6):
        problem = tangled(50, seed)
        coarse = coarsen(problem, greedy_kernels(problem))
        inner = greedy_kernels(coarse.problem)
        plan = coarse.up(Plan.of(coarse.problem, np.zeros(coarse.problem.num_ops, np.int64), None, inner))
        for op, kernel in enumerate(plan.kernel):
            assert kernel == min(np.flatnonzero(plan.kernel == plan.kernel[op]))


def test_a_lifted_plan_of_kernels_runs_as_it_did_there() -> None:
    """First come, first served holds for sends too."""
    problem = tangled(60, 12)
    kernel = greedy_kernels(problem)
    small = coarsen(problem, kernel).problem
    metis = make_method("metis:order=fifo")
    there = metis.optimize(Search(small, Budget(None, 50)))
    assert there.send_rank is not None
    here = plan_fused(Search(problem, Budget(None, 50)), kernel, metis)
    assert simulate(problem, here).step_ns == simulate(small, there).step_ns
    assert simulate(problem, here).num_sends == simulate(small, there).num_sends > 0


def spread_out(problem: Problem, seed: int = 0) -> Plan:
    device = np.random.default_rng(seed).integers(0, problem.num_devices, problem.num_ops)
    return Plan.of(problem, device)


@pytest.mark.parametrize("task", ["fusion", "placement", "schedule"])
def test_a_task_alone_changes_nothing_else(task: str) -> None:
    problem = tangled(50, 9)
    start = Search(problem, Budget(None, 100))
    given = Plan.of(problem, spread_out(problem).device, None, Merges.of(problem).greedy(spread_out(problem).device))
    search = Search(problem, Budget(None, 600))
    result = Separate(tasks=(task,), start=Given(given)).optimize(search)  # type: ignore[arg-type]
    assert search.best_score < start.score(given)
    if task != "fusion":
        np.testing.assert_array_equal(result.kernel, given.kernel)
    if task != "placement":
        np.testing.assert_array_equal(result.device, given.device)
    if task == "fusion":
        np.testing.assert_array_equal(result.rank, given.rank)


class Given:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def optimize(self, search: Search) -> Plan:
        return self.plan


def test_separate_on_one_device_decides_order_and_kernels() -> None:
    problem = tangled(30, 10, "1xp100-pcie")
    result = solve(problem, Separate(start=OneDevice()), Budget(None, 200))
    assert result.plan.fuses
    assert result.value < solve(problem, "one-device", Budget(None, 1)).value
