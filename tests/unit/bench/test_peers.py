"""Peers decide by their own functions; what we hand them and take from them is checked here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.bench.methods import EXTRA, method
from loadmaster.bench.peers import Accelerate, Inductor, Saga, _by_map, _modules, door, ideal_load_ns, loads_ns
from loadmaster.bench.published import PEAK_MB
from loadmaster.cost import price
from loadmaster.errors import MissingExtra, UnknownName
from loadmaster.files import load_graph
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from tests.graphs.tiny import GRAPHS, diamond, ladder, pair

SHARED = Path(os.environ.get("LOADMASTER_SHARED", Path(__file__).parents[4] / "shared"))
ONCE = Budget(None, 5)


def memory_problem(graph: Graph) -> Problem:
    return price(graph, "1xa100-nvlink", objective="peak-memory")


def walked_peak(problem: Problem, order: list[int]) -> int:
    """Peak of running the ops one by one: made tensors live from their op to their last reader or the end."""
    graph, live, peak, done = problem.graph, 0, 0, set()
    fixed = sum(int(graph.nbytes[t]) for t in range(graph.num_tensors) if graph.producer[t] < 0)
    for step, op in enumerate(order):
        assert all(graph.producer[t] < 0 or int(graph.producer[t]) in done for t in graph.reads_of(op).tolist())
        assert all(before in done for before in graph.after_of(op).tolist())
        live += sum(int(graph.nbytes[t]) for t in graph.makes_of(op).tolist() if graph.alias_of[t] < 0)
        peak = max(peak, live + int(graph.workspace_bytes[op]))
        done.add(op)
        for t in range(graph.num_tensors):
            mine = graph.producer[t] in done and graph.alias_of[t] < 0 and not problem.stays[t]
            uses = [int(graph.producer[t]), *graph.readers_of(t).tolist()]
            if mine and all(use in done for use in uses) and max(order.index(use) for use in uses) == step:
                live -= int(graph.nbytes[t])
    return peak + fixed


def waits() -> Graph:
    """b makes little and reads nothing, but must wait for a, which makes much: greed would take b first."""
    builder = GraphBuilder("waits")
    big, small = builder.tensor(100, "output"), builder.tensor(1, "output")
    builder.op("a", "any", [], [big], time_ns=1)
    builder.op("b", "any", [], [small], time_ns=1, after=["a"])
    return builder.build()


@pytest.mark.parametrize("rule", ["best", "lpmf", "bfs", "dfs"])
@pytest.mark.parametrize("name", ["ladder", "join", "diamond", "fork", "waits"])
def test_inductors_orders_are_topological_and_priced_as_by_hand(name: str, rule: Any) -> None:
    pytest.importorskip("torch")
    problem = memory_problem({**GRAPHS, "waits": waits}[name]())
    # As Inductor gave it: solve would put an order right that is not topological.
    rank = Inductor(rule).optimize(Search(problem, ONCE)).rank
    order = np.argsort(rank, kind="stable").tolist()
    assert sorted(rank.tolist()) == list(range(problem.num_ops))
    assert solve(problem, Inductor(rule), ONCE).value == walked_peak(problem, order)


@pytest.mark.skipif(not (SHARED / "peers").is_dir(), reason="LOADMASTER_SHARED has no graphs of peers")
@pytest.mark.parametrize("name", PEAK_MB)
def test_inductor_gives_the_recorded_peaks(name: str) -> None:
    pytest.importorskip("torch")
    problem = memory_problem(load_graph(SHARED / "peers" / f"{name}.json"))
    given, best, _ = PEAK_MB[name]
    assert round(solve(problem, Inductor(), ONCE).value / 1e6, 2) == best
    assert round(solve(problem, method("given-order"), ONCE).value / 1e6, 2) == given


def test_long_chains_do_not_overflow_inductors_recursion() -> None:
    pytest.importorskip("torch")
    builder = GraphBuilder("long")
    before = builder.tensor(8, "input")
    for op in range(1_500):
        after = builder.tensor(8)
        builder.op(f"op{op}", "relu", [before], [after], time_ns=1)
        before = after
    limit = sys.getrecursionlimit()
    result = solve(memory_problem(builder.build()), Inductor("dfs"), ONCE)
    assert result.value == 8 + 2 * 8  # the input, and what an op reads and makes
    assert sys.getrecursionlimit() == limit


def fake_saga(monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any]) -> None:
    """A SAGA that puts every second task on device 1 and starts them last to first."""

    class Made:
        @staticmethod
        def create(*parts: Any) -> Any:
            return parts

    class Scheduler:
        def schedule(self, network: Any, tasks: Any) -> Any:
            seen["network"], seen["tasks"] = network, tasks
            names = [name for name, _ in tasks[0]]
            starts = {name: float(-int(name)) for name in names}
            mapping: dict[str, list[Any]] = {"0": [], "1": [SimpleNamespace(name="__super_sink__", start=9.0)]}
            for name in names:
                mapping[str(int(name) % 2)].append(SimpleNamespace(name=name, start=starts[name]))
            return SimpleNamespace(mapping=mapping)

    saga, heft = ModuleType("saga"), ModuleType("saga.schedulers.heft")
    saga.Network = saga.TaskGraph = Made  # type: ignore[attr-defined]
    heft.HeftScheduler = Scheduler  # type: ignore[attr-defined]
    for name, module in (("saga", saga), ("saga.schedulers", ModuleType("x")), ("saga.schedulers.heft", heft)):
        monkeypatch.setitem(sys.modules, name, module)


def test_saga_gets_times_and_bytes_and_gives_devices_and_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    fake_saga(monkeypatch, seen)
    problem = price(diamond(), pair())
    plan = solve(problem, Saga("heft"), ONCE).plan
    (nodes, edges), (tasks, waits) = seen["network"], seen["tasks"]
    assert nodes == [("0", 1.0), ("1", 1.0)] and edges == [("0", "1", 10.0)]  # bytes per ns
    assert [cost for _, cost in tasks] == [10, 20, 30, 10]
    assert sorted(waits) == [("0", "1", 100), ("0", "2", 100), ("1", "3", 50), ("2", "3", 40)]
    assert plan.device.tolist() == [0, 1, 0, 1]


def test_a_peer_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, package in (("saga", "anrg-saga"), ("accelerate.utils.modeling", "accelerate")):
        monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra) as caught:
            door(module)
        assert package in caught.value.what and f"pip install -c constraints.txt {package}" in caught.value.fix
    with pytest.raises(MissingExtra):
        solve(price(diamond(), pair()), Saga("etf"), ONCE)


def layered_model() -> Graph:
    """Two layers under one model, each with a weight, and an op that belongs to none."""
    builder = GraphBuilder("model")
    x = builder.tensor(8, "input", name="input[0]")
    for layer, size in enumerate((100, 300)):
        weight = builder.tensor(size, "weight", name=f"model.layers.{layer}.linear.weight")
        out = builder.tensor(8)
        builder.op(f"mm{layer}", "mm", [x, weight], [out], scope=f"model.layers.{layer}.linear", time_ns=10)
        x = out
    builder.op("last", "relu", [x], [builder.tensor(8, "output")], time_ns=10)
    return builder.build()


def test_ops_follow_the_deepest_module_that_a_device_map_names() -> None:
    problem = price(layered_model(), pair())
    assert _by_map(problem, {"model.layers.0": 0, "model.layers.1": 1}).tolist() == [0, 1, 1]
    assert _by_map(problem, {"model": 1, "model.layers.0.linear": 0}).tolist() == [0, 1, 1]
    assert _by_map(problem, {"": 1}).tolist() == [1, 1, 1]
    assert _by_map(problem, {"model.layers.0": "cpu", "model.layers.1": 1}).tolist() == [0, 1, 1]


def test_the_module_tree_has_the_graphs_weights_and_no_data() -> None:
    torch = pytest.importorskip("torch")
    tree = _modules(torch, price(layered_model(), pair()))
    sizes = {name: (weight.numel(), weight.device.type) for name, weight in tree.named_parameters()}
    assert sizes == {f"model.layers.{n}.linear.weight": (size, "meta") for n, size in ((0, 100), (1, 300))}
    layers = [type(module).__name__ for name, module in tree.named_modules() if name.endswith(("0", "1"))]
    assert layers == ["Layer", "Layer"]


def test_accelerate_balances_bytes_where_it_is_installed() -> None:
    pytest.importorskip("accelerate")
    result = solve(price(layered_model(), pair(memory_bytes=1_000)), Accelerate(), ONCE)
    assert set(result.plan.device.tolist()) <= {0, 1}


def test_loads_are_times_on_each_device_and_the_ideal_shares_by_speed() -> None:
    problem = price(ladder(), pair())
    plan = Plan.of(problem, [0, 0, 1, 1, 0, 0])
    total = int(problem.op_ns[:, 0].sum())
    assert loads_ns(problem, plan).sum() == total
    assert ideal_load_ns(problem) == total // 2


def test_every_extra_method_is_made_by_its_name() -> None:
    for name in EXTRA:
        method(name)
    with pytest.raises(UnknownName, match="inductr"):
        method("inductr")


def test_the_experts_best_order_is_never_worse_than_its_own() -> None:
    problem = price(ladder(), pair())
    best, plain = (solve(problem, method(name), ONCE) for name in ("expert-best-order", "expert"))
    assert best.value <= plain.value
    assert best.plan.device.tolist() == plain.plan.device.tolist()
