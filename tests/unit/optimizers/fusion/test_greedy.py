"""Fusion rules: every kernel is convex, has at most one heavy op and no opaque one, checked by networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.kinds import ELEMENTWISE, HEAVY, OPAQUE, REDUCTION, work_of
from loadmaster.optimizers.fusion.greedy import Merges, greedy_kernels, kernels_by_priority, refuse
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve

KINDS = (
    "aten.mm.default",
    "aten.relu.default",
    "aten.sum.dim_IntList",
    "aten.embedding.default",
    "aten.add.Tensor",
    "Conv",
)


@pytest.mark.parametrize(
    ("kind", "work"),
    [
        ("aten.mm.default", HEAVY),
        ("aten.convolution_backward.default", HEAVY),
        ("Conv", HEAVY),
        ("Gemm", HEAVY),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", HEAVY),
        ("aten.relu_.default", ELEMENTWISE),
        ("aten.mul.Tensor", ELEMENTWISE),
        ("Relu", ELEMENTWISE),
        ("aten._softmax.default", REDUCTION),
        ("aten.native_layer_norm.default", REDUCTION),
        ("ReduceMean", REDUCTION),
        ("aten.embedding_dense_backward.default", OPAQUE),
        ("aten.native_dropout.default", OPAQUE),
        ("optim.adam", OPAQUE),
        ("MaxPool", OPAQUE),
    ],
)
def test_kinds(kind: str, work: str) -> None:
    assert work_of(kind) == work


@st.composite
def fusing_problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(2, 20))
    builder, made = GraphBuilder("fuse"), []
    for op in range(count):
        reads = draw(st.lists(st.sampled_from(made), unique=True, max_size=3)) if made else []
        made.append(builder.tensor(draw(st.integers(0, 4000)), draw(st.sampled_from(["activation"] * 5 + ["output"]))))
        builder.op(f"op{op}", draw(st.sampled_from(KINDS)), reads, [made[-1]], flops=draw(st.integers(0, 10**5)))
    return price(builder.build(), Cluster.preset("2xp100-pcie"))


def assert_legal(problem: Problem, kernel: np.ndarray) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(kernel.tolist())
    start, before = problem.graph.dependencies
    for op in range(problem.num_ops):
        for earlier in before[start[op] : start[op + 1]]:
            if kernel[op] != kernel[earlier]:
                graph.add_edge(int(kernel[earlier]), int(kernel[op]))
    assert nx.is_directed_acyclic_graph(graph)
    for head in set(kernel.tolist()):
        members = np.flatnonzero(kernel == head)
        works = [work_of(problem.graph.kind[op]) for op in members]
        assert head == members.min()
        assert len(members) == 1 or (works.count(HEAVY) <= 1 and OPAQUE not in works)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(fusing_problems(), st.integers(0, 2**32))
def test_kernels_are_legal(problem: Problem, seed: int) -> None:
    assert_legal(problem, greedy_kernels(problem))
    assert_legal(problem, kernels_by_priority(problem, np.random.default_rng(seed).random(problem.num_ops)))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(fusing_problems(), st.integers(0, 2**32), st.sampled_from([2, 5, 10**6]))
def test_kernels_of_many_candidates_are_legal_on_one_device_each_and_as_one_by_one(
    problem: Problem, seed: int, levels: int
) -> None:
    rng = np.random.default_rng(seed)
    device = rng.integers(0, 2, (5, problem.num_ops))
    priority = rng.integers(-1, levels, (5, problem.num_ops))
    kernels = Merges.of(problem).kernels(device, priority)
    for row in range(5):
        assert_legal(problem, kernels[row])
        assert (device[row] == device[row][kernels[row]]).all()
        one = refuse(problem, Plan.of(problem, device[row]), priority[row])
        assert one.kernel.tolist() == kernels[row].tolist()


def long_problem(rng: np.random.Generator) -> Problem:
    """Ops that read near and far: kernels then reach over many others."""
    builder, made = GraphBuilder("long"), []
    for op in range(60):
        near, far = made[-4:], made[:-4]
        reads = {int(rng.choice(among)) for among in (near, far) if among and rng.random() < 0.8}
        made.append(builder.tensor(1000))
        kind = KINDS[int(rng.choice([0, 1, 1, 1, 2, 4, 4, 3]))]
        builder.op(f"op{op}", kind, sorted(reads), [made[-1]], flops=1000)
    return price(builder.build(), Cluster.preset("2xp100-pcie"))


@pytest.mark.parametrize("seed", range(40))
def test_kernels_that_reach_over_others_stay_convex(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = long_problem(rng)
    device, priority = rng.integers(0, 2, (6, problem.num_ops)), rng.random((6, problem.num_ops))
    for kernel in Merges.of(problem).kernels(device, priority):
        assert_legal(problem, kernel)


def test_a_kernel_that_a_later_one_waits_for_is_not_closed_around_it() -> None:
    """first and last are one kernel on device 0; two on device 1 may not be one: last waits for what two's lead to."""
    builder = GraphBuilder("crossed")
    one, two, through = (builder.tensor(8) for _ in range(3))
    builder.op("first", "aten.relu.default", [], [one], flops=1)
    builder.op("two", "aten.relu.default", [], [two], flops=1)
    builder.op("both", "aten.add.Tensor", [one, two], [builder.tensor(8, "output")], flops=1)
    builder.op("between", "aten.embedding.default", [two], [through], flops=1)
    builder.op("last", "aten.add.Tensor", [one, through], [builder.tensor(8, "output")], flops=1)
    problem = price(builder.build(), Cluster.preset("2xp100-pcie"))
    device = np.array([[0, 1, 1, 1, 0]])
    merges = Merges.of(problem)
    assert merges.kernels(device, np.array([[2.0, 1, 0, 0, 0]])).tolist() == [[0, 1, 2, 3, 0]]
    assert merges.kernels(device, np.array([[1.0, 2, 0, 0, 0]])).tolist() == [[0, 1, 1, 3, 4]]
    assert merges.kernels(device, np.array([[-1.0, 2, 0, 0, 0]])).tolist() == [[0, 1, 1, 3, 4]]
    assert merges.kernels(device, np.array([[1.0, -1, 0, 0, 0]])).tolist() == [[0, 1, 2, 3, 0]]


def test_merging_misses_nothing_that_is_legal() -> None:
    """On pairs tried one at a time, against a search of the whole graph by networkx."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        problem = long_problem(rng)
        merges, alone = Merges.of(problem), np.zeros(problem.num_ops, np.int64)
        for producer in range(problem.num_ops):
            priority = np.full(problem.num_ops, -1)
            priority[producer] = 1
            kernel = merges.kernels(alone, priority)[0]
            expected = joined_in_turn(problem, producer)
            assert set(np.flatnonzero(kernel == kernel[producer]).tolist()) == expected


def joined_in_turn(problem: Problem, producer: int) -> set[int]:
    """The producer and those of its readers that can join it one after the other, lowest first."""
    kinds = [work_of(kind) for kind in problem.graph.kind]
    members = {producer}
    if kinds[producer] == OPAQUE:
        return members
    for reader in range(producer + 1, problem.num_ops):
        reads = problem.graph.producer[problem.graph.reads_of(reader)].tolist()
        trial = members | {reader}
        light = sum(kinds[op] == HEAVY for op in trial) <= 1 and kinds[reader] != OPAQUE
        if producer in reads and light and convex(problem, trial):
            members = trial
    return members


def convex(problem: Problem, members: set[int]) -> bool:
    graph = nx.DiGraph()
    start, before = problem.graph.dependencies
    for op in range(problem.num_ops):
        graph.add_edges_from((int(earlier), op) for earlier in before[start[op] : start[op + 1]])
    graph.add_nodes_from(members)
    after = set().union(*(nx.descendants(graph, op) for op in members))
    ahead = set().union(*(nx.ancestors(graph, op) for op in members))
    return not (after & ahead) - members


def test_a_chain_of_cheap_ops_becomes_one_kernel_and_saves_launches_and_traffic() -> None:
    builder = GraphBuilder("chain")
    here = builder.tensor(4_000_000, "input")
    for op in range(5):
        made = builder.tensor(4_000_000, "output" if op == 4 else "activation")
        builder.op(f"op{op}", "aten.relu.default", [here], [made], flops=1_000_000)
        here = made
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    plain, fused = (solve(problem, spec, Budget(None, 5)) for spec in ("one-device", "greedy-fusion:inner=one-device"))
    assert fused.plan.num_kernels == 1
    # Each op reads and writes 4 MB at 732 GB/s; the kernel reads and writes once and launches once.
    once = int(np.ceil(8e6 * 1e9 / 732e9)) + 5_000
    assert (plain.value, fused.value) == (5 * once, once)


def test_searching_fusion_is_no_worse_than_the_default_rule() -> None:
    builder = GraphBuilder("blocks")
    here = builder.tensor(400_000, "input")
    for op in range(30):
        made = builder.tensor(400_000)
        kind = KINDS[(0, 1, 2, 4)[op % 4]]
        builder.op(f"op{op}", kind, [here], [made], flops=10**6)
        here = made
    problem = price(builder.build(), Cluster.preset("2xp100-pcie"))
    default = solve(problem, "greedy-fusion:inner=one-device", Budget(None, 50))
    annealed = solve(problem, "anneal-fusion:inner=one-device", Budget(None, 50))
    assert annealed.value <= default.value < solve(problem, "one-device", Budget(None, 1)).value
