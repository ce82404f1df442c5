"""Bounds over plans whose kernels keep to what may share one: against brute force, and against sums done by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np
import pytest

from loadmaster import Budget, Cluster, Graph, GraphBuilder, load, price, solve
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.cost.roofline import Roofline, unknown
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes import fuse
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.bounds import Sharing, lower_bound
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.problem.bounds.step import step_bound
from loadmaster.simulator import Scores, simulate, simulate_fused
from tests.reference import is_allowed, judge
from tests.unit.problem.bounds.test_bounds import all_kernels, fusible_problem


def edges(problem: Problem) -> list[tuple[int, int]]:
    graph = problem.graph
    maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
    return sorted({(int(m), int(r)) for m, r in zip(maker, reader, strict=True) if m >= 0})


def some_pairs(problem: Problem, rng: np.random.Generator) -> Sharing:
    pairs = [edge for edge in edges(problem) if rng.random() < 0.6]
    return Sharing(ints([a for a, _ in pairs]), ints([b for _, b in pairs]), int(rng.integers(2, 5)))


def keeps_to(problem: Problem, sharing: Sharing, kernel: np.ndarray) -> bool:
    """By trying out: every edge within a kernel is a pair, pairs lead from each op of it to every other, and it is not
    too large."""
    pairs = set(zip(sharing.producers.tolist(), sharing.consumers.tolist(), strict=True))
    for head in set(kernel.tolist()):
        members = set(np.flatnonzero(kernel == head).tolist())
        if len(members) > sharing.most or any({a, b} <= members and (a, b) not in pairs for a, b in edges(problem)):
            return False
        reached = {head}
        for _ in members:
            reached |= {b for a, b in pairs if a in reached and b in members}
            reached |= {a for a, b in pairs if b in reached and a in members}
        if reached != members:
            return False
    return True


def all_plans(problem: Problem, sharing: Sharing) -> Scores:
    ranks = np.array(list(permutations(range(problem.num_ops))), np.int32)
    device, rank, kernels = [], [], []
    for kernel in all_kernels(problem):
        if not keeps_to(problem, sharing, kernel):
            continue
        assert sharing.allows(problem.graph, ints(kernel))
        for place in product(range(problem.num_devices), repeat=problem.num_ops):
            if is_allowed(problem, place) and (np.array(place)[kernel] == place).all():
                device.append(np.tile(np.array(place, np.int32), (len(ranks), 1)))
                rank.append(ranks)
                kernels.append(np.tile(kernel.astype(np.int32), (len(ranks), 1)))
    return simulate_fused(problem, np.concatenate(device), np.concatenate(rank), np.concatenate(kernels))


def moving_problem(rng: np.random.Generator) -> Problem:
    """Up to four ops on up to two devices whose traffic counts as much as their arithmetic, with workspace, weights and
    updates in place."""
    graph, known = GraphBuilder("moving"), [0]
    graph.tensor(int(rng.integers(1, 50)), "input")
    weight = graph.tensor(int(rng.integers(1, 50)), "weight")
    for op in range(int(rng.integers(2, 5))):
        reads = [t for t in known if rng.random() < 0.5] + ([weight] if rng.random() < 0.3 else [])
        made = graph.tensor(int(rng.integers(0, 100)), "output" if rng.random() < 0.15 else "activation")
        space = int(rng.integers(0, 60)) if rng.random() < 0.2 else 0
        flops, moved = int(rng.integers(0, 200)), int(rng.integers(0, 300))
        graph.op(f"op{op}", "any", reads, [made], flops=flops, bytes_moved=moved, workspace_bytes=space)
        known.append(made)
    if rng.random() < 0.3:
        graph.op("update", "any", [known[-1]], [graph.tensor(0, "state", alias_of=weight)], flops=5)
    launch = int(rng.choice([0, 5, 20, 100]))
    count = int(rng.integers(1, 3))
    devices = tuple(Device(f"d{i}", "toy", 2**30, 1e9, 1e9 / (1 + i), launch) for i in range(count))
    links = {at: Link(1e9, int(rng.choice([0, 7, 50]))) for at in permutations(range(count), 2)}
    channels = np.array([[-1, 0], [1, -1]])[:count, :count]
    return price(graph.build(), Cluster("random", devices, links, dense_channels(channels)))


@dataclass(frozen=True)
class Drawn(Roofline):
    """Some ops measured: less than a launch, less than their arithmetic or their traffic, or more."""

    seed: int = 0

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        rng, known = np.random.default_rng(self.seed), unknown(graph, cluster).copy()
        some = rng.random(known.shape[1:]) < 0.6
        known[:, some] = rng.integers(0, 400, int(some.sum()))
        return ints(known)


def measured_problem(rng: np.random.Generator) -> Problem:
    problem = moving_problem(rng)
    return price(problem.source, problem.cluster, cost=Drawn(seed=int(rng.integers(1 << 30))))


@pytest.mark.parametrize("make", [moving_problem, fusible_problem, measured_problem])
def test_a_kernel_takes_as_long_as_the_longest_launch_in_it(make: object) -> None:
    rng = np.random.default_rng(12)
    for _ in range(60):
        problem: Problem = make(rng)  # type: ignore[operator]
        for kernel in all_kernels(problem):
            fused = fuse(problem, ints(kernel))
            for head, row in zip(fused.heads.tolist(), fused.op_ns.tolist(), strict=True):
                members = np.flatnonzero(kernel == head)
                for device in np.flatnonzero((problem.op_ns[members] != CANNOT).all(axis=0)):
                    alone = problem.op_ns[members, device]
                    assert row[device] >= min(int(alone.max()), int(problem.launch_ns[device]))
                    assert row[device] <= alone.sum()


def test_kernels_of_measured_ops_take_what_the_slow_reference_says() -> None:
    rng, shorter = np.random.default_rng(13), 0
    for _ in range(60):
        problem = measured_problem(rng)
        for kernel in all_kernels(problem):
            device = ints(np.full(problem.num_ops, rng.integers(problem.num_devices)))
            plan = Plan.of(problem, device, kernel=ints(kernel))
            many = simulate_fused(problem, device[None], plan.rank[None], kernel[None])
            assert simulate(problem, plan).step_ns == judge(problem, plan).step_ns == int(many.step_ns[0])
            shorter += bool((problem.fixed_ns[:, device[0]] < 0).any() and plan.fuses)
    assert shorter > 100


@pytest.mark.parametrize(("make", "count"), [(moving_problem, 150), (fusible_problem, 80), (measured_problem, 150)])
def test_no_plan_that_keeps_to_the_pairs_is_under_the_bound(make: object, count: int) -> None:
    rng, raised, reached = np.random.default_rng(11), 0, 0
    for _ in range(count):
        problem: Problem = make(rng)  # type: ignore[operator]
        sharing = some_pairs(problem, rng)
        every = all_plans(problem, sharing)
        step, peak = step_bound(problem, fusing=sharing), peak_bound(problem, fusing=sharing)
        least = int(every.step_ns.min())
        assert step <= least and step_bound(problem, fusing=sharing, fitting=True) <= least
        assert 0 <= step_bound(problem, fusing=True) <= least
        assert peak <= int(every.peak_bytes.max(axis=1).min())
        assert lower_bound(problem, fusing=sharing) == step
        raised += step > step_bound(problem, fusing=True)
        reached += step == least
    assert raised > count // 2 and reached > count // 5, "a bound that says no more would be of no use"


def test_what_a_lone_op_makes_is_stored_and_takes_its_time() -> None:
    """A product that shares no kernel between two light ops that could: 40 bytes into it, 50 out of it."""
    graph = GraphBuilder("products")
    x, a, b, y = graph.tensor(10, "input"), graph.tensor(40), graph.tensor(50), graph.tensor(20, "output")
    graph.op("scale", "aten.relu.default", [x], [a], flops=1, bytes_moved=50)
    graph.op("product", "aten.mm.default", [a], [b], flops=1000, bytes_moved=90)
    graph.op("shift", "aten.relu.default", [b], [y], flops=1, bytes_moved=70)
    device = Device("d", "toy", 2**30, 1e9, 1e9, 100)
    problem = price(graph.build(), Cluster("one", (device,), {}, ints([[-1]])))
    alone = Sharing(ints([]), ints([]), 64)
    assert step_bound(problem, fusing=alone) == step_bound(problem) == (100 + 50) + (100 + 1000) + (100 + 70)
    assert peak_bound(problem, fusing=alone) == peak_bound(problem) == 10 + 40 + 50
    assert peak_bound(problem, fusing=True) == 10 + 20
    first = Sharing(ints([0]), ints([1]), 64)  # scale and product: one launch, and 40 bytes neither stored nor moved
    assert step_bound(problem, fusing=first) == (100 + 1001) + (100 + 70)
    assert peak_bound(problem, fusing=first) == 10 + 50 + 20


def test_kernels_that_do_not_keep_to_the_pairs_are_told() -> None:
    #  0 -> 1 -> 2    3 -> 4, and 0 -> 2 is no pair
    graph = GraphBuilder("pairs")
    a, b, c = (graph.tensor(1) for _ in range(3))
    for number, (reads, makes) in enumerate((([], [a]), ([a], [b]), ([a, b], []), ([], [c]), ([c], []))):
        graph.op(f"op{number}", "any", reads, makes, time_ns=1)
    built, sharing = graph.build(), Sharing(ints([0, 1, 3]), ints([1, 2, 4]), 2)
    assert sharing.allows(built, ints([0, 1, 2, 3, 4])) and sharing.allows(built, ints([0, 0, 2, 3, 3]))
    assert not sharing.allows(built, ints([0, 0, 0, 3, 4])), "too many"
    assert not replace(sharing, most=3).allows(built, ints([0, 0, 0, 3, 4])), "what 0 makes is read by 2, no pair"
    assert not sharing.allows(built, ints([0, 1, 1, 1, 4])), "nothing leads from one to the other"
    assert not sharing.allows(built, ints([0, 1, 0, 3, 4]))


def test_the_default_is_judged_by_what_it_may_fuse() -> None:
    problem = price(load("zoo:transformer-xl-2"), "2xp100-pcie")
    found = solve(problem, "auto", Budget(None, 60))
    assert found.plan.fuses and found.value >= found.lower_bound > lower_bound(problem, fusing=True)


def test_kernels_of_copies_are_no_larger_than_those_of_ops() -> None:
    """A row of three ops, and a copy of the first; two may share a kernel."""
    graph = GraphBuilder("row")
    x, a, b, c = graph.tensor(1, "input"), graph.tensor(1), graph.tensor(1), graph.tensor(1, "output")
    for name, read, made in (("a", x, a), ("b", a, b), ("c", b, c)):
        graph.op(name, "aten.relu.default", [read], [made], flops=1)
    built, op = graph.build(), ints([0, 0, 1, 2])
    sharing = Sharing(ints([0, 1]), ints([1, 2]), 2, alone=np.zeros(3, bool))
    assert sharing.allows_copies(built, ints([0, 1, 1, 3]), op)
    assert not sharing.allows_copies(built, ints([0, 1, 1, 1]), op), "three"
    assert not replace(sharing, most=1).allows_copies(built, ints([0, 1, 1, 3]), op)
    assert not replace(sharing, alone=None).allows_copies(built, ints([0, 1, 2, 3]), op), "it is not known which"
    heavy = replace(sharing, alone=np.array([False, False, True]))
    assert heavy.allows_copies(built, ints([0, 1, 1, 3]), op) and not heavy.allows_copies(built, ints([0, 1, 2, 2]), op)
    assert not sharing.allows_copies(built, ints([0, 1, 2, 2]), ints([0, -1, 1, -1])), "what is no op shares none"
