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
from loadmaster.kinds import ELEMENTWISE, HEAVY, OPAQUE, REDUCTION, work_of
from loadmaster.optimizers.fusion import greedy_kernels, kernels_by_priority
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
