"""Bounds over plans that run ops again: against a search over all that may be in memory, and sums done by hand."""

from __future__ import annotations

import heapq

import numpy as np

from loadmaster import Budget, Cluster, GraphBuilder, price, solve
from loadmaster.baselines.fusion.greedy import fusing_of
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import expand
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Sharing, lower_bound
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.simulator import simulate
from tests.unit.methods.memory.test_recompute import fused_peak, layers, limited, one


def drawn(rng: np.random.Generator) -> Problem:
    """Ops there and back; some of what is made lives to the end."""
    g, half = GraphBuilder("drawn"), int(rng.integers(2, 4))
    made = [g.tensor(10, "input")]
    for op in range(2 * half):
        reads = {made[-1], made[2 * half - 1 - op] if op >= half else int(rng.choice(made))}
        made.append(g.tensor(int(rng.integers(1, 60)), "output" if rng.random() < 0.2 else "activation"))
        results = [g.tensor(int(rng.integers(1, 60)), "output")] if rng.random() < 0.4 else []
        space = int(rng.integers(1, 30)) if rng.random() < 0.3 else 0
        g.op(f"op{op}", "aten.mm.default", sorted(reads), [made[-1], *results], flops=10, workspace_bytes=space)
    return price(g.build(), Cluster("one", (Device("d", "gpu", 2**30, 1e9, 1e9, 100),), {}, ints([[-1]])))


def least_peak(problem: Problem) -> int:
    """Over all ways to run ops, each as often as it likes, and to drop what is no result: the way through what may be
    in memory whose fullest moment is the least."""
    graph = problem.graph
    size, stays = graph.nbytes.tolist(), {t for t in range(graph.num_tensors) if problem.stays[t]}
    held = sum(size[t] for t in {int(t) for t in graph.reads} if graph.producer[t] < 0)
    reads = [{t for t in graph.reads_of(op).tolist() if graph.producer[t] >= 0} for op in range(graph.num_ops)]
    makes = [frozenset(graph.makes_of(op).tolist()) for op in range(graph.num_ops)]
    heap, seen, number = [(held, 0, frozenset[int](), frozenset[int]())], set(), 0
    while heap:
        peak, _, done, live = heapq.heappop(heap)
        if (done, live) in seen:
            continue
        seen.add((done, live))
        if len(done) == graph.num_ops:
            return peak
        nexts = [(peak, done, live - {t}) for t in live - stays]
        for op in range(graph.num_ops):
            if reads[op] <= live:
                inside = live | makes[op]
                there = held + sum(size[t] for t in inside) + int(graph.workspace_bytes[op])
                nexts.append((max(peak, there), done | {op}, inside))
        for most, after, left in nexts:
            if (after, left) not in seen:
                number += 1
                heapq.heappush(heap, (most, number, after, left))
    raise AssertionError("every op can run")


def test_no_way_to_run_ops_again_is_under_the_bound() -> None:
    rng, reached, raised = np.random.default_rng(5), 0, 0
    for _ in range(60):
        problem = drawn(rng)
        least, bound = least_peak(problem), peak_bound(problem, adding=True)
        assert bound <= least
        reached += bound == least
        raised += bound > peak_bound(problem, fusing=True, adding=True)
    assert reached >= 10 and raised >= 40, (reached, raised)


def test_what_an_op_that_shares_no_kernel_reads_and_makes_is_stored() -> None:
    """Two light ops around a product: copies may hide what they make from each other, not from the product."""
    g = GraphBuilder("products")
    x, a, b, c, y = g.tensor(10, "input"), g.tensor(40), g.tensor(50), g.tensor(70), g.tensor(20, "output")
    g.op("scale", "aten.relu.default", [x], [a], flops=1, bytes_moved=50)
    g.op("product", "aten.mm.default", [a], [b], flops=1000, bytes_moved=90)
    g.op("shift", "aten.relu.default", [b], [c], flops=1, bytes_moved=120)
    g.op("add", "aten.add.Tensor", [c, a], [y], flops=1, bytes_moved=130)
    problem = price(g.build(), Cluster("one", (Device("d", "toy", 2**30, 1e9, 1e9, 100),), {}, ints([[-1]])))
    sharing = Sharing(ints([2]), ints([3]), 64, np.array([False, True, False, False]))
    assert peak_bound(problem, fusing=sharing, adding=True) == 10 + 40 + 50
    assert peak_bound(problem, fusing=True, adding=True) == 10 + 20
    # The product whole. Of the light ops, in kernels of at most three: what "scale" reads, as a copy of it may be in
    # the kernel of "add"; what "shift" reads; what "add" makes; each a nanosecond less, as it is rounded down.
    launches = 3 * (100 // 3)
    assert lower_bound(problem, fusing=sharing, adding=True) == (100 + 1000) + launches + 9 + 49 + 19


def test_a_plan_that_runs_ops_again_is_told_how_far_it_can_be_from_the_best() -> None:
    problem = price(layers(), one())
    peak, _ = fused_peak(problem)
    found = solve(limited(problem, int(0.45 * peak)), "recompute", Budget(None, 40))
    assert found.fits and found.plan.added is not None
    assert isinstance(fusing_of(problem, found.plan), Sharing)
    assert lower_bound(problem, fusing=True, adding=True) < found.lower_bound <= found.value


def test_a_copy_of_what_lives_to_the_end_may_be_read_inside_a_kernel() -> None:
    """op 0 makes an output of 1,000 B that op 1 reads. Run again in op 1's kernel it takes no memory there, so the
    device of op 1 holds 1,000 B less than op by op; and on another device it is neither stored nor moved."""
    g = GraphBuilder("kept")
    x, kept, y = g.tensor(10, "input"), g.tensor(1_000, "output"), g.tensor(20)
    g.op("a", "aten.relu.default", [x], [kept], bytes_moved=1_010)
    g.op("b", "aten.relu.default", [kept], [y], bytes_moved=1_020, workspace_bytes=500)
    problem = price(g.build(), two(), objective="peak-memory")
    again = Additions(*(ints([column]) for column in (0, -1, -1, 1, kept, 0)))
    expanded = expand(problem, again)
    place = {name: op for op, name in enumerate(expanded.graph.op_name)}
    kernel, device = np.arange(3), np.zeros(3, np.int64)
    kernel[place["b"]] = kernel[place["a.again"]] = min(place["b"], place["a.again"])
    device[place["b"]] = device[place["a.again"]] = 1
    line = simulate(expanded, Plan.of(expanded, device, kernel=kernel))
    assert line.peak_bytes.tolist() == [10 + 1_000, 10 + 20 + 500]
    assert peak_bound(problem, fusing=True, adding=True) == 1_010
    assert lower_bound(problem.with_objective("step-time"), fusing=True, adding=True) <= line.step_ns
    assert lower_bound(problem, fusing=True) == 1_000 + 20 + 500, "without copies the device of b holds both"


def two() -> Cluster:
    devices = tuple(Device(f"d{i}", "gpu", 2**30, 1e9, 1e9, 100) for i in range(2))
    links = {way: Link(1e9, 1_000) for way in ((0, 1), (1, 0))}
    return Cluster("two", devices, links, dense_channels(np.array([[-1, 0], [1, -1]])))
