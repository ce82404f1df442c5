"""Fusion rules: every kernel is convex, of one loop, and has no op that runs alone, checked by networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.baselines.fusion.greedy import Merges, greedy_kernels
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.kinds import (
    ALONE,
    ELEMENTWISE,
    GATHERING,
    HEAVY,
    OPAQUE,
    POINTWISE,
    REDUCING,
    REDUCTION,
    SCATTERING,
    fusing_of,
    work_of,
)
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


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("aten.addmm.default", ALONE),
        ("aten.convolution_backward.default", ALONE),
        ("aten._scaled_dot_product_efficient_attention_backward.default", ALONE),
        ("aten._native_batch_norm_legit_functional.default", ALONE),
        ("aten.native_group_norm_backward.default", ALONE),
        ("aten.topk.default", ALONE),
        ("optim.adam", ALONE),
        ("aten.gelu_backward.default", POINTWISE),
        ("aten.native_dropout.default", POINTWISE),
        ("aten.nll_loss_backward.default", POINTWISE),
        ("aten.nll_loss_forward.default", REDUCING),
        ("aten.native_layer_norm_backward.default", REDUCING),
        ("aten._log_softmax.default", REDUCING),
        ("aten.embedding.default", GATHERING),
        ("aten.select_backward.default", GATHERING),
        ("aten.max_pool2d_with_indices_backward.default", GATHERING),
        ("Concat", GATHERING),
        ("aten.embedding_dense_backward.default", SCATTERING),
        ("aten.index_put.default", SCATTERING),
        ("aten.scatter_add.default", SCATTERING),
    ],
)
def test_ways_of_fusing(kind: str, way: str) -> None:
    assert fusing_of(kind) == way


# What ops make of a tensor of rows and columns, and their loop: (kind, shape read, shape made, points, rows).
LOOPS = (
    ("aten.relu.default", (4, 6), (4, 6), 24, 0),
    ("aten.add.Tensor", (4, 6), (4, 6), 24, 0),
    ("aten.relu.default", (4,), (4,), 4, 0),
    ("aten.mul.Tensor", (4,), (4, 6), 24, 0),
    ("aten.relu.default", (6,), (6,), 6, 0),
    ("aten.relu.default", (10,), (10,), 10, 0),
    ("aten.sum.dim_IntList", (4, 6), (4,), 24, 4),
    ("aten.sum.dim_IntList", (4, 6), (6,), 24, 6),
    ("aten._softmax.default", (4, 6), (4, 6), 24, 4),
    ("aten.mm.default", (4, 6), (4, 6), 0, 0),
    ("aten.embedding.default", (4, 6), (4, 6), 24, 0),
    ("aten.embedding_dense_backward.default", (4, 6), (4, 6), 24, 0),
)


@st.composite
def fusing_problems(draw: st.DrawFn) -> Problem:
    """Ops whose loops are known by how they were drawn: their names begin with the row of LOOPS."""
    builder, made = GraphBuilder("fuse"), dict[tuple[int, ...], list[int]]()
    for op in range(draw(st.integers(2, 20))):
        row = draw(st.integers(0, len(LOOPS) - 1))
        kind, read, shape, _, _ = LOOPS[row]
        known = made.get(read, [])
        reads = draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []
        if not reads:
            reads = [builder.tensor(int(np.prod(read)) * 4, "input", shape=read)]
        role = draw(st.sampled_from(["activation"] * 5 + ["output"]))
        here = builder.tensor(int(np.prod(shape)) * 4, role, shape=shape)
        made.setdefault(shape, []).append(here)
        builder.op(f"{row}:{op}", kind, reads, [here], flops=draw(st.integers(0, 10**5)))
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
        assert head == members.min()
        assert len(members) == 1 or ALONE not in [fusing_of(problem.graph.kind[op]) for op in members]
        if ":" in problem.graph.op_name[0] and len(members) > 1:
            assert_one_loop(problem, members.tolist())


def assert_one_loop(problem: Problem, members: list[int]) -> None:
    graph = problem.graph
    loop = {op: LOOPS[int(graph.op_name[op].split(":")[0])] for op in members}
    points = max(row[3] for row in loop.values())
    reduced = {row[3:] for row in loop.values() if row[4]}
    assert len(reduced) <= 1
    assert reduced <= {(points, rows) for _, rows in reduced}
    assert all(points % row[3] == 0 for row in loop.values())
    for op in members:
        for maker in set(graph.producer[graph.reads_of(op)].tolist()) & set(members):
            assert loop[maker][0] != "aten.embedding_dense_backward.default"
            if loop[maker][4] == 6:  # summed down columns: complete only at the end
                assert loop[op][3] == 6
            if loop[op][0] == "aten.embedding.default" or loop[op][4] == 6:
                tensors = graph.makes_of(maker)
                assert graph.role[tensors].max() == 0
                assert [int(reader) for t in tensors for reader in graph.readers_of(t)] == [op]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(fusing_problems(), st.integers(0, 2**32))
def test_kernels_are_legal(problem: Problem, seed: int) -> None:
    assert_legal(problem, greedy_kernels(problem))
    priority = np.random.default_rng(seed).random(problem.num_ops)
    assert_legal(problem, Merges.of(problem).kernels(np.zeros(problem.num_ops, np.int32), priority)[0])


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
        one = Merges.of(problem).kernels(device[row], priority[row])[0]
        assert one.tolist() == kernels[row].tolist()


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
    """The producer and those of its readers that can join it one after the other, lowest first; nothing is known of
    their sizes."""
    graph = problem.graph
    ways = [fusing_of(kind) for kind in graph.kind]
    readers = [op for op in range(problem.num_ops) if producer in graph.producer[graph.reads_of(op)].tolist()]
    members = {producer}
    if ways[producer] == ALONE:
        return members
    for reader in readers:
        inlined = len(readers) == 1 and ways[producer] in (POINTWISE, GATHERING)
        light = ways[reader] != ALONE and (ways[reader] != GATHERING or inlined)
        if light and convex(problem, members | {reader}):
            members |= {reader}
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


def test_batch_norm_of_an_inference_is_pointwise() -> None:
    """Its statistics are given, where those of a training step take a pass of their own."""
    assert fusing_of("aten._native_batch_norm_legit_no_training.default") == "pointwise"
    assert fusing_of("aten._native_batch_norm_legit_functional.default") == "alone"
