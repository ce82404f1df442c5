"""Partitioners: cuts anyone can see, shares of unlike devices, links of the cluster, memory, colocation."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, Cluster, Graph, GraphBuilder, MissingExtra, load, price, solve
from loadmaster.baselines.ordering import ordered
from loadmaster.baselines.partition.partitioners import GpDfs, Kahip, Metis, MtKahypar, Scotch
from loadmaster.baselines.partition.parts import Parts, parts_of, seat
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulator import simulate
from tests.graphs.tiny import pair

BUDGET = Budget(None, 50)
KINDS = (Metis, Scotch, Kahip, MtKahypar, GpDfs)
PACKAGES = {Metis: "pymetis", Scotch: "pyscotch", Kahip: "kahip", MtKahypar: "mtkahypar", GpDfs: "pymetis"}
every_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__name__.lower()) for kind in KINDS])


@pytest.fixture(autouse=True)
def _skip_what_is_not_installed(request: pytest.FixtureRequest) -> None:
    if hasattr(request.node, "callspec") and "kind" in request.node.callspec.params:
        pytest.importorskip(PACKAGES[request.node.callspec.params["kind"]])


def towers(count: int, height: int = 30, thick: int = 1_000, thin: int = 10, time_ns: int = 100) -> Graph:
    """Chains of thick tensors, tower by tower; each hands the next a thin one half way up."""
    graph = GraphBuilder("towers")
    bridge = None
    for tower in range(count):
        read = graph.tensor(thick, "input")
        for floor in range(height):
            made = [graph.tensor(thick, "output" if floor == height - 1 else "activation")]
            reads = [read] + ([bridge] if bridge is not None and floor == height // 2 else [])
            if floor == height // 2 - 1:
                bridge_out = graph.tensor(thin)
                made.append(bridge_out)
            graph.op(f"{tower}.{floor}", "any", reads, made, time_ns=time_ns)
            read = made[0]
        bridge = bridge_out
    return graph.build()


def cluster_of(count: int, rate: float = 1e9, memory: int = 2**40, **links: Any) -> Cluster:
    """Equal devices; `near`: pairs (0, 1), (2, 3), … are that many times faster than the rest."""
    devices = tuple(Device(f"d{i}", "toy", memory, 1e9, 1e9, 0) for i in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    near = links.get("near", 1)
    made = {(a, b): Link(rate * (near if a // 2 == b // 2 else 1), 5) for a, b in pairs}
    channel = np.full((count, count), -1)
    for a, b in pairs:
        channel[a, b] = a * count + b
    return Cluster("toy", devices, made, dense_channels(channel))


def tower_of(problem: Problem) -> np.ndarray:
    return np.array([int(name.split(".")[0]) for name in problem.graph.op_name])


@every_kind
@pytest.mark.parametrize("count", [2, 4])
def test_cuts_where_the_tensors_are_thin(kind: Any, count: int) -> None:
    problem = price(towers(count), cluster_of(count))
    plan = solve(problem, kind(), BUDGET).plan
    homes = {(tower, device) for tower, device in zip(tower_of(problem), plan.device.tolist(), strict=True)}
    assert len(homes) == count == len({device for _, device in homes}), "each tower whole, on a device of its own"


@every_kind
def test_faster_devices_get_more(kind: Any) -> None:
    graph = GraphBuilder("long")
    read = graph.tensor(10, "input")
    for op in range(200):
        made = graph.tensor(10)
        graph.op(f"op{op}", "any", [read], [made], time_ns=[100, 300])
        read = made
    problem = price(graph.build(), pair())
    share = np.bincount(solve(problem, kind(), BUDGET).plan.device, minlength=2) / 200
    assert share[0] == pytest.approx(0.75, abs=0.06)


@every_kind
def test_groups_stay_together_and_nothing_goes_where_it_cannot_run(kind: Any) -> None:
    rng = np.random.default_rng(1)
    graph = GraphBuilder("groups")
    known = [graph.tensor(50, "input")]
    for op in range(60):
        made = graph.tensor(int(rng.integers(10, 500)))
        times = [50, None, 50] if op % 7 == 0 else 50
        group = f"g{op % 5}" if op % 7 and op % 3 == 0 else None
        graph.op(f"op{op}", "any", [known[int(rng.integers(len(known)))]], [made], time_ns=times, colocate=group)
        known.append(made)
    problem = price(graph.build(), cluster_of(3))
    plan = solve(problem, kind(), BUDGET).plan
    group = problem.graph.colocate
    for number in set(group[group >= 0].tolist()):
        assert len(set(plan.device[group == number].tolist())) == 1
    assert (plan.device[::7] != 1).all()


@every_kind
def test_an_updated_weight_draws_its_readers_to_its_update(kind: Any) -> None:
    # Two heavy weights, each read 20 times by ops in a mixed order; thin chains run across.
    graph = GraphBuilder("weights")
    weights = [graph.tensor(100_000, "weight") for _ in range(2)]
    read = graph.tensor(1, "input")
    gradients: list[list[int]] = [[], []]
    for op in range(40):
        made, gradient = graph.tensor(1), graph.tensor(1)
        graph.op(f"op{op}", "any", [weights[op % 2], read], [made, gradient], time_ns=100)
        gradients[op % 2].append(gradient)
        read = made
    for side, weight in enumerate(weights):
        new = graph.tensor(100_000, "state", alias_of=weight)
        graph.op(f"update {side}", "any", [weight, *gradients[side]], [new], time_ns=100, flops=1)
    problem = price(graph.build(), cluster_of(2))
    plan = solve(problem, kind(), BUDGET).plan
    assert len(set(plan.device[:40:2].tolist())) == len(set(plan.device[1:40:2].tolist())) == 1
    assert plan.device[40] == plan.device[0] != plan.device[1] == plan.device[41]


@pytest.mark.parametrize("kind", [pytest.param(k, id=k.__name__.lower()) for k in (Metis, Scotch, Kahip, MtKahypar)])
def test_busy_pairs_get_the_fast_links(kind: Any) -> None:
    # Four towers, of which 0 and 2 exchange much, 1 and 3 exchange much; devices 0-1 and 2-3 are near each other.
    graph = GraphBuilder("partners")
    last: dict[int, int] = {}
    for floor in range(40):
        made = {tower: graph.tensor(2_000) for tower in range(4)}
        for tower in made:
            reads = [last[tower], *([last[(tower + 2) % 4]] if floor % 4 == 0 else [])] if floor else []
            graph.op(f"{tower}.{floor}", "any", reads, [made[tower]], time_ns=100)
        last = made
    problem = price(graph.build(), cluster_of(4, near=8))
    device = solve(problem, kind(), BUDGET).plan.device
    even = tower_of(problem) % 2 == 0
    assert len(set((device[even] // 2).tolist())) == len(set((device[~even] // 2).tolist())) == 1
    assert sorted(set(device.tolist())) == [0, 1, 2, 3]


@every_kind
def test_units_leave_a_device_that_is_over_its_memory(kind: Any) -> None:
    # Balanced by time, a half of the ops with large weights would not fit on either device; d1 has room.
    graph = GraphBuilder("full")
    read = graph.tensor(10, "input")
    for op in range(60):
        weight, made = graph.tensor(1_000, "weight"), graph.tensor(10)
        graph.op(f"op{op}", "any", [read, weight], [made], time_ns=100)
        read = made
    cluster = cluster_of(2)
    small = replace(cluster.devices[0], memory_bytes=16_000)
    problem = price(graph.build(), replace(cluster, devices=(small, cluster.devices[1])))
    result = solve(problem, kind(balance="time"), BUDGET)
    if kind is GpDfs:  # as published: it does not look at memory
        assert not result.fits
    else:
        assert result.fits


@every_kind
def test_same_seed_same_plan_and_it_is_silent(kind: Any, capfd: pytest.CaptureFixture[str]) -> None:
    problem = price(towers(3, height=17), cluster_of(3, near=3))
    one, two = (solve(problem, kind(), BUDGET, seed=11).plan for _ in range(2))
    assert one.device.tolist() == two.device.tolist()
    assert one.rank.tolist() == two.rank.tolist()
    assert capfd.readouterr() == ("", "")


def test_scotch_answers_alike_on_graphs_that_it_would_cut_by_threads() -> None:
    pytest.importorskip("pyscotch")
    problem = price(load("zoo:rnnlm-2/train"), "4xp100-pcie")
    found = [Scotch().optimize(Search(problem, Budget(None, 1))).device for _ in range(3)]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_scotch_is_silent_from_its_first_use() -> None:
    pytest.importorskip("pyscotch")
    here = "tests.unit.baselines.partition.test_partitioners"
    code = f"from {here} import *; solve(price(towers(2), cluster_of(2)), Scotch(), BUDGET)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@every_kind
def test_one_device_and_ops_without_tensors_need_no_cut(kind: Any) -> None:
    graph = GraphBuilder("loose")
    for op in range(12):
        graph.op(f"op{op}", "any", time_ns=10 * (op + 1))
    problem = price(graph.build(), cluster_of(3))
    result = solve(problem, kind(), BUDGET)
    assert result.timeline.step_ns == 260  # 780 over three devices
    assert set(solve(price(towers(2), cluster_of(1)), kind(), BUDGET).plan.device.tolist()) == {0}


@every_kind
def test_a_missing_package_is_said_with_the_command_that_brings_it(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name == PACKAGES[kind]:
            raise ModuleNotFoundError(name)
        return original(name, *rest)

    monkeypatch.setattr("loadmaster.baselines.partition.partitioners.importlib.import_module", without)
    with pytest.raises(MissingExtra, match=PACKAGES[kind]) as caught:
        solve(price(towers(2), cluster_of(2)), kind(), BUDGET)
    assert "loadmaster[partition]" in caught.value.fix


def test_peak_memory_is_cut_by_bytes_not_by_time() -> None:
    # 20 slow ops with small outputs, then 20 fast ones with large: balanced by time the large are all together.
    graph = GraphBuilder("bytes")
    for op in range(40):
        slow = op < 20
        graph.op(f"op{op}", "any", [], [graph.tensor(1 if slow else 1_000, "output")], time_ns=1_000 if slow else 1)
    graph.op("end", "any", [], [], time_ns=1)
    problem = price(graph.build(), cluster_of(2), objective="peak-memory")
    result = solve(problem, Metis(), BUDGET)
    assert int(result.timeline.peak_bytes.max()) <= 10_020


def test_best_order_is_the_best_of_all_and_keeps_the_placement() -> None:
    problem = price(towers(4), cluster_of(2))
    device = ints(np.arange(problem.num_ops) % 2)
    search = Search(problem, BUDGET)
    step = {
        order: simulate(problem, ordered(search, device, order)).step_ns for order in ("fifo", "program", "critical")
    }
    best = ordered(search, device, "best")
    assert simulate(problem, best).step_ns == min(step.values())
    assert best.device.tolist() == device.tolist()


def test_parts_hold_every_send_once() -> None:
    """The cost between two blocks is the time of the sends that the simulator makes between them."""
    problem = price(towers(3, thick=900, thin=100), cluster_of(3))
    parts = parts_of(problem)
    rng = np.random.default_rng(0)
    device = ints(rng.integers(0, 3, problem.num_ops))
    line = simulate(problem, ordered(Search(problem, BUDGET), device, "program"))
    block = np.empty(parts.num_units, np.int64)
    block[parts.unit] = device
    traffic = parts.traffic(ints(block), 3)
    sent = np.zeros((3, 3))
    np.add.at(sent, (line.send_src, line.send_dst), line.send_end_ns - line.send_start_ns)
    np.testing.assert_allclose(traffic / traffic.sum(), sent / sent.sum(), rtol=1e-3)


def test_edges_are_symmetric_and_positive() -> None:
    parts: Parts = parts_of(price(towers(3), cluster_of(3)))
    start, others, weight = parts.edges
    rows = np.repeat(np.arange(parts.num_units), np.diff(start))
    one_way = dict(zip(zip(rows.tolist(), others.tolist(), strict=True), weight.tolist(), strict=True))
    assert len(one_way) == len(others), "no edge twice"
    assert all(one_way[b, a] == w > 0 and a != b for (a, b), w in one_way.items())


@pytest.mark.parametrize("seed", range(8))
def test_no_two_blocks_are_better_off_in_each_other_s_seat(seed: int) -> None:
    """Blocks whose seats may not be swapped stay apart: those of another kind."""
    rng, count = np.random.default_rng(seed), 6
    traffic, far = rng.integers(0, 50, (count, count)).astype(float), rng.integers(1, 90, (count, count))
    far = np.triu(far, 1) + np.triu(far, 1).T
    kind = rng.integers(0, 2, count) if seed % 2 else np.zeros(count, int)
    may_swap = kind[:, None] == kind[None, :]
    device = seat(traffic, ints(np.arange(count)), ints(far), may_swap)

    def cost(places: list[int]) -> float:
        return sum(traffic[a, b] * far[places[a], places[b]] for a in range(count) for b in range(count))

    found = device.tolist()
    assert sorted(found) == list(range(count)) and (kind[found] == kind).all()
    for one in range(count):
        for other in range(one):
            swapped = found.copy()
            swapped[one], swapped[other] = found[other], found[one]
            assert kind[one] != kind[other] or cost(swapped) >= cost(found) - 1e-6


def test_seats_put_the_busiest_pair_side_by_side() -> None:
    traffic = np.zeros((4, 4))
    traffic[0, 3] = traffic[1, 2] = 10.0
    far = np.full((4, 4), 9)
    far[[0, 1, 2, 3], [1, 0, 3, 2]] = 1
    np.fill_diagonal(far, 0)
    device = seat(traffic, ints(np.arange(4)), ints(far), np.ones((4, 4), bool))
    assert sorted(device.tolist()) == [0, 1, 2, 3]
    assert far[device[0], device[3]] == far[device[1], device[2]] == 1
