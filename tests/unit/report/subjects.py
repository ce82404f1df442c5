"""Results to explain: tiny ones, and steps of any size that look like training."""

from __future__ import annotations

import numpy as np

from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.report.explain import replayed
from loadmaster.report.schedule import Schedule
from loadmaster.search import Result
from tests.graphs import GRAPHS, pair


def tiny(name: str = "diamond", device: tuple[int, ...] = (0, 0, 1, 0)) -> Result:
    problem = price(GRAPHS[name](), pair())
    return replayed(problem, Plan.of(problem, device))


def schedule_of(result: Result) -> Schedule:
    return Schedule.of(result.problem, result.plan, result.timeline)


def training_like(ops: int, blocks: int = 12) -> Graph:
    """Forward through blocks of modules, then backward, reading what forward kept; weights are updated last."""
    g = GraphBuilder(f"training-like {ops}")
    rng = np.random.default_rng(ops)
    forward = (ops - blocks) // 2
    weights = [g.tensor(4 << 20, "weight", name=f"block.{i}.weight") for i in range(blocks)]
    last = g.tensor(1 << 20, "input", name="x")
    kept: list[tuple[int, str, int]] = []
    for at in range(forward):
        block = at * blocks // forward
        scope = f"block.{block}.part.{at % 4}"
        out = g.tensor(int(rng.integers(1, 64)) << 12)
        skip = [kept[-7][0]] if len(kept) > 7 and at % 5 == 0 else []
        g.op(
            f"f{at}",
            "matmul" if at % 3 == 0 else "relu",
            [last, *skip, weights[block]],
            [out],
            flops=10**7,
            scope=scope,
        )
        kept.append((out, scope, block))
        last = out
    last_of: dict[int, int] = {}
    for at, (out, scope, block) in enumerate(reversed(kept)):
        grad = g.tensor(int(rng.integers(1, 64)) << 12)
        g.op(f"b{at}", "matmul_backward", [last, out, weights[block]], [grad], flops=2 * 10**7, scope=scope)
        last = last_of[block] = grad
    for block, weight in enumerate(weights):
        new = g.tensor(4 << 20, "state", alias_of=weight)
        after = [f"f{at}" for at in range(forward) if at * blocks // forward == block]
        g.op(
            f"sgd:block.{block}",
            "sgd",
            [weight, last_of[block]],
            [new],
            flops=10**6,
            after=after,
            scope=f"block.{block}",
        )
    return g.build()


def by_blocks(problem: Problem) -> Plan:
    """Contiguous shares of the blocks, nothing fused."""
    device = [int(scope.split(".")[1]) * problem.num_devices // 12 for scope in problem.graph.scope]
    return Plan.of(problem, device)
