"""The dynamic programme over downsets, against every contiguous split of small graphs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from loadmaster.baselines.downsets.downsets import Downsets, split_of
from loadmaster.baselines.downsets.units import Units, downsets, units_of
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate
from tests.graphs.tiny import diamond, pair

ENOUGH = 10**7


def cluster_of(count: int, memory_bytes: int = 10**9, overlap: bool = False) -> Cluster:
    """Like devices that send or compute, on wires of their own."""
    devices = tuple(Device(f"d{at}", "toy", memory_bytes, 1e9, 1e9, overlap=overlap) for at in range(count))
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    channel = np.full((count, count), -1, np.int64)
    for number, ends in enumerate(pairs):
        channel[ends] = number
    return Cluster("like", devices, dict.fromkeys(pairs, Link(1e9, 1)), ints(channel))


def random_graph(rng: np.random.Generator, ops: int) -> Graph:
    g, made = GraphBuilder("random"), list[int]()
    for op in range(ops):
        reads = rng.choice(made, min(len(made), int(rng.integers(0, 3))), replace=False).tolist()
        made.append(g.tensor(int(rng.integers(0, 12))))
        g.op(f"op{op}", "any", reads, [made[-1]], time_ns=int(rng.integers(1, 30)))
    return g.build()


def training_graph(rng: np.random.Generator, layers: int) -> Graph:
    """Forward ops in a row with some that skip, and beside each a backward op."""
    g = GraphBuilder("training")
    out = [g.tensor(int(rng.integers(1, 9))) for _ in range(layers)]
    back = [g.tensor(int(rng.integers(1, 9))) for _ in range(layers)]
    for layer in range(layers):
        reads = [out[layer - 1]] if layer else []
        reads += [out[layer - 2]] if layer > 1 and rng.random() < 0.4 else []
        g.op(f"f{layer}", "any", reads, [out[layer]], time_ns=int(rng.integers(1, 20)), colocate=f"{layer}")
    for layer in reversed(range(layers)):
        reads = [back[layer + 1]] if layer + 1 < layers else [out[layer]]
        g.op(f"b{layer}", "any", reads, [back[layer]], time_ns=int(rng.integers(1, 20)), colocate=f"{layer}")
    return g.build()


def load_of(problem: Problem, device: object) -> int:
    return problem.value(simulate(problem, Plan.of(problem, np.asarray(device))))


def best_contiguous(problem: Problem, forward: list[int]) -> int:
    """Of all placements in which forward ops never read from a later device; the rest go with their group."""
    graph, best = problem.graph, 2**62
    start, before = graph.dependencies
    for place in product(range(problem.num_devices), repeat=len(forward)):
        device = np.zeros(problem.num_ops, np.int64)
        device[forward] = place
        for op in set(range(problem.num_ops)) - set(forward):
            device[op] = device[next(f for f in forward if graph.colocate[f] == graph.colocate[op])]
        edges = ((op, e) for op in forward for e in before[start[op] : start[op + 1]].tolist() if e in forward)
        if all(device[e] <= device[op] for op, e in edges):
            best = min(best, load_of(problem, device))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_best_of_all_contiguous_splits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = price(random_graph(rng, 7), cluster_of(2 + seed % 2), objective="throughput")
    split = split_of(problem, ints(np.arange(7)), ENOUGH)
    assert split is not None
    assert split[0] == load_of(problem, split[1]) == best_contiguous(problem, list(range(7)))


@pytest.mark.parametrize("seed", range(8))
def test_backward_ops_lie_with_their_forward_ops(seed: int) -> None:
    problem = price(training_graph(np.random.default_rng(seed), 5), cluster_of(3), objective="throughput")
    forward = [op for op in range(10) if problem.graph.op_name[op].startswith("f")]
    split = split_of(problem, ints(problem.graph.colocate), ENOUGH)
    assert split is not None
    assert split[0] == load_of(problem, split[1]) == best_contiguous(problem, forward)


def test_downsets_of_the_diamond() -> None:
    """Nothing, a, ab, ac, abc, abcd."""
    problem = price(diamond(), pair())
    found = downsets(units_of(problem, ints(np.arange(4))), 100)
    assert found is not None and sorted(found.members) == [0b0, 0b1, 0b11, 0b101, 0b111, 0b1111]
    assert downsets(units_of(problem, ints(np.arange(4))), 5) is None


def test_with_little_effort_units_are_joined() -> None:
    problem = price(random_graph(np.random.default_rng(3), 60), cluster_of(3), objective="throughput")
    rough, fine = (split_of(problem, ints(np.arange(60)), effort) for effort in (300, 10**6))
    assert rough is not None and fine is not None
    assert rough[0] == load_of(problem, rough[1]) >= fine[0]


def test_memory_of_devices_is_kept() -> None:
    """Each of three ops needs 100 bytes for good: two to a device are too many."""
    g = GraphBuilder("heavy")
    for name in "abc":
        g.op(name, "any", [g.tensor(100, "weight")], [g.tensor(0, "output")], time_ns=1)
    problem = price(g.build(), cluster_of(3, memory_bytes=150), objective="throughput")
    found = solve(problem, Downsets(), Budget(None, 3))
    assert found.fits and sorted(found.plan.device.tolist()) == [0, 1, 2]


def test_a_slow_device_gets_less() -> None:
    cluster = cluster_of(2)
    problem = price(diamond(), cluster, objective="throughput")
    slower = replace(problem, op_ns=ints(problem.op_ns * [[1, 10]]))
    assert solve(slower, Downsets(), Budget(None, 3)).plan.device.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("chains", "length"), [(1, 130), (2, 70), (3, 14), (11, 1)])
def test_downsets_of_chains_beside_each_other(chains: int, length: int) -> None:
    """Each is a beginning of every chain, so they can be counted; with more units than a word has bits, too."""
    count = chains * length
    before = tuple(sum(1 << earlier for earlier in range(unit - unit % length, unit)) for unit in range(count))
    after = tuple(sum(1 << later for later in range(unit + 1, unit - unit % length + length)) for unit in range(count))
    many = (length + 1) ** chains
    units = Units(ints(np.arange(count)), before, after)
    found = downsets(units, many)
    assert found is not None and len(set(found.members)) == len(found.members) == many
    assert all(
        each & before[unit] == before[unit] for each in found.members for unit in range(count) if each >> unit & 1
    )
    sizes = [each.bit_count() for each in found.members]
    assert sizes == sorted(sizes)
    for here, members in enumerate(found.members):
        ways = slice(found.start[here], found.start[here + 1])
        larger = {unit: found.members[after] for unit, after in zip(found.unit[ways], found.after[ways], strict=True)}
        ready = [unit for unit in range(count) if not members >> unit & 1 and before[unit] & ~members == 0]
        assert larger == {unit: members | 1 << unit for unit in ready}
    assert downsets(units, many - 1) is None
