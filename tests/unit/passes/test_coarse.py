"""Coarser problems: plans go down and come back up as what they were, whatever is fused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints
from loadmaster.passes import coarsen
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from tests.problems import problem_of
from tests.strategies import problems


def any_kernels(problem: Problem, rng: np.random.Generator) -> Ints:
    """[ops] kernels of what may be fused, in any order."""
    return ints(Merges.of(problem).kernels(np.zeros(problem.num_ops, np.int32), rng.random(problem.num_ops))[0])


def plan_of(problem: Problem, seed: int) -> Plan:
    """Some kernels, each on the device of its lowest op where all its members can run, with orders of sends."""
    rng = np.random.default_rng(seed)
    kernel = any_kernels(problem, rng)
    device = legal(problem, rng.integers(0, problem.num_devices, problem.num_ops))[kernel]
    shape = (problem.graph.num_tensors, problem.num_devices)
    plan = Plan.of(problem, device, rng.permutation(problem.num_ops)[kernel], kernel)
    return replace(plan, send_rank=ints(rng.integers(0, 50, shape)))


@given(problem=problems(max_ops=12, max_devices=3))
@settings(max_examples=40, deadline=None)
def test_what_goes_down_comes_back_up(problem: Problem) -> None:
    plan = plan_of(problem, problem.num_ops)
    coarse = coarsen(problem, plan.kernel)
    back = coarse.up(coarse.down(plan))
    for name in ("kernel", "device", "rank"):
        assert getattr(back, name).tolist() == getattr(plan, name).tolist(), name
    assert back.send_rank is not None and plan.send_rank is not None
    assert back.send_rank[coarse.tensors].tolist() == plan.send_rank[coarse.tensors].tolist()
    assert (np.delete(back.send_rank, coarse.tensors, axis=0) == -1).all()
    assert (back.graph_digest, back.cluster_digest) == (plan.graph_digest, plan.cluster_digest)


@given(problem=problems(max_ops=12, max_devices=3))
@settings(max_examples=25, deadline=None)
def test_a_plan_of_the_coarser_problem_costs_there_what_it_costs_here(problem: Problem) -> None:
    rng = np.random.default_rng(problem.num_ops)
    coarse = coarsen(problem, any_kernels(problem, rng))
    device = legal(coarse.problem, rng.integers(0, problem.num_devices, coarse.problem.num_ops))
    small = Plan.of(coarse.problem, device, rng.permutation(coarse.problem.num_ops))
    if not (problem.able[np.arange(problem.num_ops), coarse.each(device)]).all():
        return  # members that share no device
    whole = coarse.up(small)
    check(whole, problem)
    there, here = simulate(coarse.problem, small), simulate(problem, whole)
    assert (there.step_ns, there.peak_bytes.tolist()) == (here.step_ns, here.peak_bytes.tolist())
    # A kernel fused further is one kernel of the whole, too.
    further = coarsen(coarse.problem, any_kernels(coarse.problem, rng))
    twice = coarse.up(further.up(Plan.of(further.problem, further.first(device))))
    assert len(np.unique(twice.kernel)) == further.problem.num_ops


def test_the_last_few_are_remembered_and_nothing_fused_is_the_problem_itself() -> None:
    problem = problem_of(4)
    own = ints(np.arange(problem.num_ops))
    assert coarsen(problem, own).problem is problem
    kernel = ints(np.where(own == 1, 0, own))
    assert coarsen(problem, kernel).problem.num_ops == problem.num_ops - 1
    assert coarsen(problem, kernel) is coarsen(problem, ints(kernel.copy()))
