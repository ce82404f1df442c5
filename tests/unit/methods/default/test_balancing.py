"""What devices hold, added up, against the simulator and a slow count; and groups moved until they are balanced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster import Cluster, GraphBuilder, load, price
from loadmaster.baselines.cuts import cuts
from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.default.balancing import FINER, MIXED, Stage, balanced, fullest, held_of
from loadmaster.passes.groups import group_ops
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate


def drawn(seed: int = 0, cluster: str = "2xa100-nvlink+2xp100-pcie", ops: int = 60) -> Problem:
    *_, graph = generate("layered", 1, seed, (ops, ops + 20))
    return price(graph, Cluster.preset(cluster), objective="peak-memory")


@pytest.mark.parametrize("name", ["transformer-xl-2/train", "resnet50/infer"])
def test_on_one_device_it_is_the_peak_of_the_program(name: str) -> None:
    problem = price(load(f"zoo:{name}"), "1xa100-nvlink", objective="peak-memory")
    alone = ints(np.zeros(problem.num_ops, np.int64))
    assert fullest(held_of(problem), alone) == simulate(problem, Plan.of(problem, alone)).peak_bytes.max()


def counted(problem: Problem, device: Ints) -> int:
    """The same op by op: what is on each device while it runs."""
    graph, most = problem.graph, 0
    needs = {tensor: set[int]() for tensor in range(graph.num_tensors)}
    for op in range(problem.num_ops):
        for tensor in graph.reads_of(op):
            needs[int(graph.owner[tensor])].add(op)
        for tensor in graph.makes_of(op):
            if graph.alias_of[tensor] >= 0:
                needs[int(graph.owner[tensor])].add(op)
    lasting = {int(graph.owner[tensor]) for tensor in np.flatnonzero(problem.stays)}
    for now in range(problem.num_ops):
        held = np.zeros(problem.num_devices, np.int64)
        held[device[now]] += graph.workspace_bytes[now]
        for tensor, ops in needs.items():
            if graph.alias_of[tensor] >= 0:
                continue
            maker, updater = int(graph.producer[tensor]), int(problem.updater[tensor])
            for place in range(problem.num_devices):
                mine = [op for op in ops if device[op] == place]
                if problem.resident[tensor]:
                    there = device[updater] == place if updater >= 0 else bool(mine)
                    there = there or (updater >= 0 and any(op >= now for op in mine))
                elif device[maker] == place:
                    there = maker <= now and (tensor in lasting or maker == now or any(op >= now for op in mine))
                else:
                    there = maker < now and any(op >= now for op in mine)
                held[place] += graph.nbytes[tensor] * there
        most = max(most, int(held.max()))
    return most


@pytest.mark.parametrize("seed", range(4))
def test_on_several_devices_it_is_what_a_slow_count_gives(seed: int) -> None:
    problem = drawn(seed, ops=30)
    device = ints(np.random.default_rng(seed).integers(0, problem.num_devices, problem.num_ops))
    assert fullest(held_of(problem), device) == counted(problem, device)


def test_updates_in_place_and_weights_are_counted_as_well() -> None:
    problem = price(load("zoo:transformer-xl-2/train"), "2xp100-pcie", objective="peak-memory")
    for device in cuts(problem)[:2]:
        assert fullest(held_of(problem), device) == counted(problem, device)


@pytest.mark.parametrize("stages", [MIXED, FINER], ids=["mixed", "finer"])
def test_the_fullest_device_is_less_full_than_with_any_that_was_given(stages: tuple[Stage, ...]) -> None:
    for seed in range(3):
        problem = drawn(seed)
        given, held = cuts(problem), held_of(problem)
        found = balanced(problem, given, stages)
        assert fullest(held, found) < min(fullest(held, device) for device in given)
        assert (found == balanced(problem, given, stages)).all()
        assert (found != balanced(problem, given, stages, 1)).any()


def test_ops_of_a_group_go_together_and_only_where_they_can_run() -> None:
    problem = drawn()
    times = problem.op_ns.copy()
    times[::9, 1:] = CANNOT
    problem = replace(problem, op_ns=ints(times))
    label = group_ops(problem, 24)
    found = balanced(problem, [ints(np.zeros(problem.num_ops, np.int64))], (Stage((("edges", 24),), 500),))
    assert len(np.unique(found)) > 2 and (found[::9] == 0).all()
    assert all(len(np.unique(found[label == group])) == 1 for group in range(int(label.max()) + 1))


def test_a_tensor_of_one_byte_counts_and_one_that_nobody_needs_does_not() -> None:
    build = GraphBuilder("bytes")
    weight, unread = build.tensor(1, "weight"), build.tensor(50, "weight")
    made, last = build.tensor(1), build.tensor(1, "output")
    assert (weight, unread) == (0, 1)
    build.op("a", "any", [weight], [made], time_ns=5)
    build.op("b", "any", [made], [last], time_ns=5, workspace_bytes=1)
    problem = price(build.build(), "2xp100-pcie", objective="peak-memory")
    for device, most in (([0, 0], 4), ([0, 1], 3), ([1, 1], 4)):
        assert fullest(held_of(problem), ints(device)) == counted(problem, ints(device)) == most


def test_the_first_op_may_write_over_the_first_tensor() -> None:
    """A weight that op 0 updates and op 1, elsewhere, reads as it was."""
    build = GraphBuilder("first")
    weight = build.tensor(10, "weight")
    new = build.tensor(10, "weight", alias_of=weight)
    build.op("update", "optim.sgd", [weight], [new], time_ns=5)
    build.op("read", "any", [new], [build.tensor(3, "output")], time_ns=5)
    problem = price(build.build(), "2xp100-pcie", objective="peak-memory")
    held = held_of(problem)
    assert held.home[0] == 0 and held.users[held.use_start[0] : held.use_start[1]].tolist() == [0, 1]
    assert held.nbytes.tolist() == [10, 0, 3]
    for device in ([0, 0], [0, 1], [1, 0]):
        assert fullest(held, ints(device)) == counted(problem, ints(device))
