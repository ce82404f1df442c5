"""Throughput of devices that transfers hold up: no placement is under the bound, and transfers raise it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.simulator import simulate
from tests.unit.baselines.downsets.test_downsets import cluster_of, random_graph, training_graph


def least(problem: Problem) -> int:
    """The best of all placements, one by one, by the simulator."""
    values = []
    for device in product(range(problem.num_devices), repeat=problem.num_ops):
        groups: dict[int, int] = {}
        held = zip(device, problem.graph.colocate.tolist(), strict=True)
        if all(group < 0 or groups.setdefault(group, place) == place for place, group in held):
            values.append(problem.value(simulate(problem, Plan.of(problem, list(device)))))
    return min(values)


def updated_graph(rng: np.random.Generator) -> Graph:
    """A weight that two ops read and one updates, between random ops."""
    g = GraphBuilder("updated")
    weight = g.tensor(int(rng.integers(1, 20)), "weight")
    made = [g.tensor(int(rng.integers(1, 20))) for _ in range(3)]
    for op in range(3):
        reads = [weight, *made[:op][-1:]] if op < 2 else made[:2]
        g.op(f"op{op}", "any", reads, [made[op]], time_ns=int(rng.integers(1, 30)))
    new = g.tensor(0, "weight", alias_of=weight)
    g.op("update", "optim.sgd", [weight, made[2]], [new], time_ns=int(rng.integers(1, 9)), after=["op0", "op1"])
    return g.build()


@pytest.mark.parametrize("devices", [2, 3])
def test_no_placement_is_under_the_bound(devices: int) -> None:
    rng, raised = np.random.default_rng(devices), 0
    for number in range(36 if devices == 2 else 18):
        graph = (random_graph(rng, 6), training_graph(rng, 3), updated_graph(rng))[number % 3]
        problem = price(graph, cluster_of(devices), objective="throughput")
        found = lower_bound(problem)
        assert found <= least(problem), graph.op_name
        without = price(graph, cluster_of(devices, overlap=True), objective="throughput")
        raised += found > lower_bound(without)
        some = cluster_of(devices)
        mixed = (replace(some.devices[0], overlap=True), *some.devices[1:])
        problem = price(graph, replace(some, devices=mixed), objective="throughput")
        assert lower_bound(problem) <= least(problem), graph.op_name
    assert raised >= 6


def test_two_ops_and_what_is_between_them() -> None:
    """Apart, one sends for 41 ns and the other receives as long; together they take 60."""
    g = GraphBuilder("two")
    x = g.tensor(40)
    g.op("first", "any", [], [x], time_ns=30)
    g.op("second", "any", [x], [], time_ns=30)
    problem = price(g.build(), cluster_of(2), objective="throughput")
    assert lower_bound(problem) == least(problem) == 60
