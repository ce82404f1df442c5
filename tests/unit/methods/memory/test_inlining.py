"""Inlining: what is light is made where it is read, and never costs time or memory."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import load
from loadmaster.baselines.fusion.greedy import greedy_kernels
from loadmaster.cost import Learned, price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.methods.memory.inlining import inlined
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate

SIZE, SHAPE = 4 << 20, (1024, 1024)


def layers(count: int) -> Graph:
    """Products, each with a residual sum of its relu, and back: the derivative reads the relu's result."""
    builder = GraphBuilder("layers")

    def tensor(role: str = "activation") -> int:
        return builder.tensor(SIZE, role, shape=SHAPE)

    def op(name: str, kind: str, reads: list[int], makes: list[int]) -> None:
        builder.op(name, kind, reads, makes, flops=10**6)

    x, kept = tensor("input"), []
    for i in range(count):
        weight, made, positive, out = tensor("weight"), tensor(), tensor(), tensor()
        op(f"mm{i}", "aten.mm.default", [x, weight], [made])
        op(f"relu{i}", "aten.relu.default", [made], [positive])
        op(f"add{i}", "aten.add.Tensor", [x, positive], [out])
        kept.append((weight, positive))
        x = out
    for i in reversed(range(count)):
        weight, positive = kept[i]
        back, down = tensor(), tensor("output" if i == 0 else "activation")
        op(f"relu{i}.back", "aten.threshold_backward.default", [x, positive], [back])
        op(f"mm{i}.back", "aten.mm.default", [back, weight], [down])
        x = down
    return builder.build()


def fused(problem: Problem) -> Plan:
    return Plan.of(problem, np.zeros(problem.num_ops, np.int64), None, greedy_kernels(problem))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(layers(5), "1xa100-nvlink")


def test_what_a_relu_makes_is_never_written(problem: Problem) -> None:
    """It is written once and read once less: what it reads is there, and is held in its place. The last one shares a
    kernel with its derivative anyway."""
    plan = fused(problem)
    made = inlined(problem, plan)
    check(made, problem)
    assert made.added is not None
    assert {problem.graph.op_name[op] for op in made.added.op} == {f"relu{i}" for i in range(4)}
    assert made.num_kernels == plan.num_kernels
    before, after = simulate(problem, plan), simulate(whole(problem, made), made)
    assert after.peak_bytes[0] <= before.peak_bytes[0]
    saved = before.step_ns - after.step_ns
    once = SIZE * 1e9 / int(problem.bytes_per_s[0])
    assert abs(saved - 4 * 2 * once) <= 10


def test_products_and_outputs_are_left(problem: Problem) -> None:
    made = inlined(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    kinds = [] if made.added is None else [problem.graph.kind[op] for op in made.added.op]
    assert "aten.mm.default" not in kinds


@pytest.mark.parametrize("cluster", ["1xa100-nvlink", "2xp100-pcie"])
def test_the_method_is_never_worse_than_what_it_starts_from(cluster: str) -> None:
    problem = price(layers(4), cluster)
    plain = solve(problem, "greedy-fusion", Budget(None, 20))
    found = solve(problem, "inline:inner=greedy-fusion", Budget(None, 20))
    assert found.value <= plain.value
    assert found.value >= found.lower_bound


def test_a_residual_sum_of_many_layers_is_stored() -> None:
    """Else the norms of the last layers would read what all layers added: 31 tensors and more."""
    problem = price(load("zoo:vit-base/train"), "1xh200", cost=Learned())
    plan = fused(problem)
    made = inlined(problem, plan)
    assert made.added is not None and simulate(problem, made).step_ns < simulate(problem, plan).step_ns
    graph, reads = whole(problem, made).graph, []
    for kernel in set(made.kernel.tolist()):
        members = np.flatnonzero(made.kernel == kernel).tolist()
        own = {t for op in members for t in graph.makes_of(op).tolist()}
        reads.append(len({t for op in members for t in graph.reads_of(op).tolist()} - own))
    assert max(reads) <= 12


@pytest.mark.parametrize(("role", "again"), [("activation", True), ("output", False)])
def test_what_is_written_anyway_is_not_made_again(role: str, again: bool) -> None:
    """A relu that two kernels far apart read; as a result of the step it is stored whatever they do."""
    builder = GraphBuilder("result")
    x, weight = (builder.tensor(SIZE, kind, shape=SHAPE) for kind in ("input", "weight"))
    made, positive = builder.tensor(SIZE, shape=SHAPE), builder.tensor(SIZE, role, shape=SHAPE)
    builder.op("mm", "aten.mm.default", [x, weight], [made], flops=10**6)
    builder.op("relu", "aten.relu.default", [made], [positive], flops=10**6)
    last = made
    for at in range(2):
        product, out = builder.tensor(SIZE, shape=SHAPE), builder.tensor(SIZE, "output", shape=SHAPE)
        builder.op(f"mm{at}", "aten.mm.default", [last, weight], [product], flops=10**6)
        builder.op(f"add{at}", "aten.add.Tensor", [product, positive], [out], flops=10**6)
        last = product
    problem = price(builder.build(), "1xa100-nvlink")
    found = inlined(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    names = set() if found.added is None else {problem.graph.op_name[op] for op in found.added.op}
    assert ("relu" in names) == again
