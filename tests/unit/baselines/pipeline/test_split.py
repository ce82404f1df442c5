"""The pipeline split against all splits tried one by one, and on models whose best split is plain to see."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from loadmaster import Budget, Cluster, Graph, GraphBuilder, price, solve
from loadmaster.baselines.pipeline.split import PipelineSplit, least_loads, least_totals, scope_slots
from loadmaster.graph.columns import ints
from loadmaster.problem import CANNOT, Problem
from loadmaster.simulator import simulate
from tests.graphs.tiny import pair
from tests.unit.baselines.partition.test_partitioners import cluster_of

BUDGET = Budget(None, 200)


def chain_of(times: list[int | list[int]], nbytes: list[int], weight: int = 0) -> Graph:
    graph = GraphBuilder("chain")
    read = graph.tensor(1, "input")
    for op, (time_ns, size) in enumerate(zip(times, nbytes, strict=True)):
        made = graph.tensor(size)
        held = [graph.tensor(weight, "weight")] if weight else []
        graph.op(f"op{op}", "any", [read, *held], [made], time_ns=time_ns)
        read = made
    return graph.build()


def every_split(problem: Problem, slot: np.ndarray) -> list[tuple[list[int], list[list[int]]]]:
    """(devices, ops of each stage) for every way to cut the slots into stages and put them on devices."""
    slots = sorted(set(slot.tolist()))
    found = []
    for stages in range(1, problem.num_devices + 1):
        for cuts in combinations(range(1, len(slots)), stages - 1):
            edges = [0, *cuts, len(slots)]
            parts = [slots[low:high] for low, high in pairwise(edges)]
            ops = [np.flatnonzero(np.isin(slot, part)).tolist() for part in parts]
            found += [(list(devices), ops) for devices in permutations(range(problem.num_devices), stages)]
    return found


def costs(problem: Problem, devices: list[int], stages: list[list[int]]) -> tuple[float, float]:
    """(largest stage, all stages added up), or infinity where a stage cannot run or does not fit on its device."""
    graph = problem.graph
    home = {op: stage for stage, ops in enumerate(stages) for op in ops}
    loads, totals = [], []
    for stage, (device, ops) in enumerate(zip(devices, stages, strict=True)):
        times = [int(problem.op_ns[op, device]) for op in ops]
        residents = {t for op in ops for t in graph.reads_of(op).tolist() if problem.resident[t]}
        held = sum(int(graph.nbytes[t]) for t in residents) + sum(kept_over_the_turn(problem).get(op, 0) for op in ops)
        if CANNOT in times or held > problem.memory_bytes[device]:
            return float("inf"), float("inf")
        sends = 0
        for tensor in np.flatnonzero(graph.producer >= 0).tolist():
            touched = {home[int(graph.producer[tensor])], *(home[int(r)] for r in graph.readers_of(tensor))}
            if stage in touched and len(touched) > 1:
                sends += int(problem.send_ns[tensor].max())
        loads.append(max(sum(times), sends))
        totals.append(sum(times) + sends / 2)
    return max(loads), sum(totals)


def kept_over_the_turn(problem: Problem) -> dict[int, int]:
    """Bytes per op that are alive, in program order, where the most are, beyond what is made and read there."""
    graph = problem.graph
    last = [max([int(graph.producer[t]), *graph.readers_of(t).tolist()]) for t in range(graph.num_tensors)]
    made = [t for t in range(graph.num_tensors) if graph.producer[t] >= 0]
    alive = [
        sum(int(graph.nbytes[t]) for t in made if graph.producer[t] <= op <= last[t]) for op in range(problem.num_ops)
    ]
    turn = alive.index(max(alive))
    kept: dict[int, int] = {}
    for tensor in made:
        if graph.producer[tensor] <= turn < last[tensor]:
            kept[int(graph.producer[tensor])] = kept.get(int(graph.producer[tensor]), 0) + int(graph.nbytes[tensor])
    return kept


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    graph = GraphBuilder("random")
    devices = int(rng.integers(2, 4))
    unlike = bool(rng.integers(2))
    known = [graph.tensor(int(rng.integers(1, 50)), "input")]
    for op in range(int(rng.integers(4, 9))):
        reads = {known[int(k)] for k in rng.integers(0, len(known), 2)}
        held = [graph.tensor(int(rng.integers(1, 200)), "weight")] if rng.random() < 0.5 else []
        time = int(rng.integers(1, 100))
        times: list[int | None] | int = (
            [time, 2 * time, None if rng.random() < 0.2 else 3 * time][:devices] if unlike else time
        )
        made = graph.tensor(int(rng.integers(1, 400)))
        graph.op(f"op{op}", "any", [*reads, *held], [made], time_ns=times)
        known.append(made)
    cluster = cluster_of(devices, rate=1e10)
    limits = [int(rng.choice([250, 600, 10**9])) for _ in range(devices)] if unlike else [10**9] * devices
    tight = tuple(replace(d, memory_bytes=m) for d, m in zip(cluster.devices, limits, strict=True))
    return price(graph.build(), replace(cluster, devices=tight))


@pytest.mark.parametrize("seed", range(60))
def test_no_contiguous_split_is_better(seed: int) -> None:
    problem = random_problem(seed)
    slot = ints(np.arange(problem.num_ops))
    every = [costs(problem, *split) for split in every_split(problem, slot)]
    load, total = min(cost[0] for cost in every), min(cost[1] for cost in every)
    if load == float("inf"):
        return  # nothing fits: whatever it gives is judged by the simulator
    loads, totals = least_loads(problem, slot), least_totals(problem, slot)
    assert loads[0][0] == load
    assert totals[0][0] == pytest.approx(total)
    # The placement that comes with it is such a split.
    device = loads[0][1].tolist()
    stages = [[op for op in range(problem.num_ops) if device[op] == d] for d in dict.fromkeys(device)]
    assert costs(problem, list(dict.fromkeys(device)), stages)[0] == load


def test_the_slow_device_gets_the_small_share_wherever_it_stands() -> None:
    # On one device three times slower than the other: 50 + 50 and 3 x 10; the other way round it would be 3 x 50.
    for times, stages in (([50, 50, 10], [0, 0, 1]), ([10, 50, 50], [1, 0, 0])):
        problem = price(chain_of([[t, 3 * t] for t in times], [1] * 3), pair())
        (load, device), *_ = least_loads(problem, ints(np.arange(3)))
        assert load == 100
        assert device.tolist() == stages


def test_eight_unlike_devices_are_put_in_the_best_order() -> None:
    # Op i takes 100 on device perm[i] and 1,000 elsewhere: only one order of devices has no slow stage.
    perm = [3, 0, 7, 5, 1, 6, 2, 4]
    times: list[int | list[int]] = [[100 if device == perm[op] else 1_000 for device in range(8)] for op in range(8)]
    problem = price(chain_of(times, [1] * 8), cluster_of(8))
    (load, device), *_ = least_loads(problem, ints(np.arange(8)))
    assert load == 100
    assert device.tolist() == perm


def training(layers: int, scopes: bool) -> Graph:
    """Forward through the layers, backward through them, and an update of each layer's weight."""
    graph = GraphBuilder("training")
    read = graph.tensor(100, "input")
    weights = [graph.tensor(5_000, "weight") for _ in range(layers)]
    kept = []
    for layer in range(layers):
        made = graph.tensor(1_000)
        scope = f"layers.{layer}" if scopes else ""
        graph.op(f"f{layer}", "mm", [read, weights[layer]], [made], time_ns=100, scope=scope)
        kept.append(made)
        read = made
    gradient = graph.tensor(1_000)
    graph.op("loss", "loss", [read], [gradient], time_ns=1)
    for layer in reversed(range(layers)):
        scope = f"layers.{layer}" if scopes else ""
        below, own = graph.tensor(1_000), graph.tensor(5_000)
        graph.op(f"b{layer}", "mm", [gradient, kept[layer], weights[layer]], [below, own], time_ns=200, scope=scope)
        new = graph.tensor(5_000, "state", alias_of=weights[layer])
        graph.op(f"u{layer}", "sgd", [weights[layer], own], [new], time_ns=10, flops=1, scope=scope)
        gradient = below
    return graph.build()


@pytest.mark.parametrize("scopes", [True, False])
def test_a_stage_holds_a_layers_forward_backward_and_update(scopes: bool) -> None:
    problem = price(training(8, scopes), cluster_of(4, rate=1e12))
    fold = "scope" if scopes else "mirror"
    plan = solve(problem, PipelineSplit(goal="max-load", fold=fold), BUDGET).plan
    home: dict[str, set[int]] = {}
    for name, device in zip(problem.graph.op_name, plan.device.tolist(), strict=True):
        home.setdefault(name[1:], set()).add(device)
    home.pop("oss")
    assert all(len(devices) == 1 for devices in home.values())
    order = [next(iter(home[str(layer)])) for layer in range(8)]
    assert [order.count(device) for device in dict.fromkeys(order)] == [2, 2, 2, 2]


def test_where_memory_runs_out_the_split_is_the_shortest_that_fits() -> None:
    # Ten weights of 100 B, 590 B a device: a chain is fastest on one, but needs two; the cut is where it is thin.
    problem = price(chain_of([50] * 10, [40, 40, 40, 40, 7, 40, 40, 40, 40, 40], weight=100), pair(590))
    result = solve(problem, PipelineSplit(), BUDGET)
    assert result.fits
    assert result.plan.device.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)
    assert result.timeline.step_ns == 500 + 5 + 1  # 7 B at 10 B per ns, rounded up, after 5 ns


def test_a_chain_that_fits_stays_on_one_device() -> None:
    problem = price(chain_of([50] * 10, [900] * 10), pair(2**30))
    assert solve(problem, PipelineSplit(), BUDGET).timeline.step_ns == 500


def test_thousands_of_slots_are_merged_and_still_balanced() -> None:
    problem = price(chain_of([10] * 5_000, [1] * 5_000), cluster_of(4, rate=1e12))
    plan = solve(problem, PipelineSplit(goal="max-load", order="program"), BUDGET).plan
    busy = np.bincount(plan.device, weights=problem.op_ns[:, 0], minlength=4)
    assert busy.max() < 1.01 * busy.mean()


def test_groups_are_not_torn() -> None:
    graph = GraphBuilder("tied")
    read = graph.tensor(1, "input")
    for op in range(8):
        made = graph.tensor(1)
        graph.op(f"op{op}", "any", [read], [made], time_ns=10, colocate="ends" if op in (0, 7) else None)
        read = made
    problem = price(graph.build(), pair())
    for goal in ("max-load", "step-time"):
        plan = solve(problem, PipelineSplit(goal=goal), BUDGET).plan
        assert plan.device[0] == plan.device[7]


def test_more_kinds_than_can_be_ordered_are_taken_as_they_come() -> None:
    count = 12
    times: list[int | list[int]] = [[10 + device for device in range(count)] for _ in range(24)]
    cluster: Cluster = cluster_of(count, rate=1e12)
    problem = price(chain_of(times, [1] * 24), cluster)
    (load, device), *_ = least_loads(problem, ints(np.arange(24)))
    assert load <= 42  # two ops on each, at most 21 each
    assert (np.diff(device) >= 0).all()
    assert simulate(problem, solve(problem, PipelineSplit(), BUDGET).plan).step_ns >= 240


def test_an_op_of_no_module_goes_with_what_it_reads_or_the_next_and_the_last_of_all_with_the_first_slot() -> None:
    graph = GraphBuilder("scopes")
    one, two = graph.tensor(1, "input"), graph.tensor(1, "input")
    a, b, c = (graph.tensor(1) for _ in range(3))
    graph.op("before", "any", [two], [graph.tensor(1)], time_ns=1)
    graph.op("first", "any", [one], [a], time_ns=1, scope="m0")
    graph.op("second", "any", [a], [b], time_ns=1, scope="m1")
    graph.op("reads", "any", [a, b], [c], time_ns=1)
    graph.op("alone", "any", [two], [graph.tensor(1)], time_ns=1)
    problem = price(graph.build(), pair())
    assert scope_slots(problem).tolist() == [0, 0, 1, 1, 0]
