"""Kernels whose results live to the end wait where that holds less; nothing else changes."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from loadmaster import Budget, Cluster, GraphBuilder, price, solve
from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Device
from loadmaster.graph.columns import ints
from loadmaster.methods.memory.delaying import delayed
from loadmaster.methods.memory.recompute import Recompute
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulator import simulate, simulate_many
from tests.unit.methods.memory.test_recompute import limited


def narrowing(weights: tuple[int, ...], sizes: tuple[int, ...]) -> Problem:
    """Layers back from the last, whose weights are large, to the first, whose tensors are: each makes the gradient of
    its weight, and what the next reads."""
    g = GraphBuilder("narrowing")
    came = g.tensor(sizes[0], "input")
    kept = [came, *(g.tensor(size, "input") for size in sizes[1:])]
    grad = g.tensor(sizes[-1])
    g.op("loss", "aten.mm.default", [kept[-1]], [grad], flops=10, bytes_moved=10)
    for i in reversed(range(len(weights))):
        of_weight, made = g.tensor(weights[i], "output"), g.tensor(sizes[i])
        g.op(f"weight{i}", "aten.mm.default", [grad, kept[i]], [of_weight], flops=10, bytes_moved=10)
        g.op(f"down{i}", "aten.mm.default", [grad], [made], flops=10, bytes_moved=10)
        grad = made
    g.op("end", "aten.mm.default", [grad], [g.tensor(1, "output")], flops=10, bytes_moved=10)
    device = Device("d", "gpu", 2**40, 1e12, 1e12, 100)
    return price(g.build(), Cluster("one", (device,), {}, ints([[-1]])))


def least_peak(problem: Problem) -> int:
    """Of all orders, simulated side by side."""
    ranks = np.array(list(permutations(range(problem.num_ops))))
    scores = simulate_many(problem, np.zeros_like(ranks), ranks)
    return int(scores.objective(problem.with_objective("peak-memory")).min())


def test_no_order_has_a_lower_peak_where_weights_grow_as_tensors_shrink() -> None:
    problem = narrowing((10, 400, 900), (600, 100, 10))
    plain = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    late = delayed(Search(problem, Budget(None, 9)), plain)
    check(late, problem)
    before, after = simulate(problem, plain), simulate(problem, late)
    assert after.step_ns == before.step_ns
    assert int(after.peak_bytes[0]) == least_peak(problem) < int(before.peak_bytes[0])


def test_what_holds_more_than_it_makes_does_not_wait() -> None:
    problem = narrowing((10, 20, 30), (600, 500, 400))
    plain = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    assert delayed(Search(problem, Budget(None, 9)), plain) is plain


def test_recompute_fits_what_only_another_order_can() -> None:
    problem = narrowing((10, 400, 900), (600, 100, 10))
    plain = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    limit = int(simulate(problem, delayed(Search(problem, Budget(None, 9)), plain)).peak_bytes[0])
    found = solve(limited(problem, limit), Recompute(OneDevice(), offload=False), Budget(None, 20))
    assert found.fits and found.timeline.step_ns == simulate(problem, plain).step_ns
