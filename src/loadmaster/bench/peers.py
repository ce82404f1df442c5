"""Other tools as methods: their own functions decide on the same problem, and our simulator judges all alike.

Each is called through its PyPI package where that is installed and says so where it is not.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loadmaster.baselines.simple import OneDevice, legal
from loadmaster.bench import _inductor
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search

NOTE = "peers decide with their own functions on the same graph and costs; our simulator judges every plan"
PACKAGES = {"torch": "torch", "saga": "anrg-saga", "accelerate": "accelerate"}  # module -> its name on PyPI


def door(module: str) -> Any:
    """The peer's module; MissingExtra with the pip command where its package is not installed."""
    package = PACKAGES[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"the comparison with '{package}' needs a package that is not installed: {error.name or package}",
            "",
            f"pip install -c constraints.txt {package}",
        ) from None


@dataclass(frozen=True)
class Inductor:
    """The orders of PyTorch Inductor (`torch._inductor.memory`), on one device.

    "best" is its `reorder_for_peak_memory`: the best of the given order, lpmf, bfs and dfs by its own estimate.
    """

    rule: Literal["best", "lpmf", "bfs", "dfs"] = "best"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        memory, virtual = door("torch._inductor.memory"), door("torch._inductor.virtualized")
        device = OneDevice().optimize(search).device
        with _deep(20 * problem.num_ops + 1_000):
            order = _inductor.order(problem, self.rule, memory, virtual)
        return Plan.of(problem, device, positions(order))


@contextmanager
def _silent() -> Iterator[None]:
    """Peers warn about devices that this machine does not have, and about graphs with several sources."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _deep(frames: int) -> Iterator[None]:
    """Inductor walks chains of ops by recursion."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, frames))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


SAGA = {"heft": "heft:HeftScheduler", "etf": "etf:ETFScheduler", "cpop": "cpop:CpopScheduler"}


@dataclass(frozen=True)
class Saga:
    """A scheduler of SAGA (PyPI anrg-saga), which knows op times, device speeds and bytes ÷ bandwidth.

    It knows neither wires that several sends share, nor memory, nor groups; groups are brought together afterwards.
    """

    scheduler: Literal["heft", "etf", "cpop"] = "heft"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        module, _, name = SAGA[self.scheduler].partition(":")
        saga = door("saga")
        kind = getattr(door(f"saga.schedulers.{module}"), name)
        with _silent():
            schedule = kind().schedule(_network(saga, problem), _task_graph(saga, problem))
        return _plan_of(problem, schedule.mapping)


def _network(saga: Any, problem: Problem) -> Any:
    """Speed of a device: how much of all work it does in a ns, the fastest 1. Links: bytes per ns, both ways alike."""
    total = problem.op_ns.sum(axis=0)
    nodes = [(str(device), float(total.min() / total[device])) for device in range(problem.num_devices)]
    edges = []
    for (src, dst), link in problem.cluster.links.items():
        if src < dst:
            edges.append((str(src), str(dst), float("inf") if link.bytes_per_s is None else link.bytes_per_s / 1e9))
    return saga.Network.create(nodes, edges)


def _task_graph(saga: Any, problem: Problem) -> Any:
    """Tasks are ops at the fastest device's time; what an op reads of another is one dependency."""
    graph = problem.graph
    fast = problem.op_ns[:, problem.op_ns.sum(axis=0).argmin()]
    tasks = [(str(op), float(fast[op])) for op in range(problem.num_ops)]
    sizes: dict[tuple[int, int], int] = {}
    for op in range(problem.num_ops):
        for tensor in graph.reads_of(op).tolist():
            maker = int(graph.producer[tensor])
            if maker >= 0:
                sizes[maker, op] = sizes.get((maker, op), 0) + int(graph.nbytes[tensor])
        for earlier in graph.after_of(op).tolist():
            sizes.setdefault((earlier, op), 0)
    edges = [(str(maker), str(op), float(size)) for (maker, op), size in sizes.items()]
    return saga.TaskGraph.create(tasks, edges)


def _plan_of(problem: Problem, mapping: Any) -> Plan:
    """Devices and starts of a schedule; the tasks that SAGA adds as one source and one sink are not ours."""
    device, start = np.zeros(problem.num_ops, np.int64), np.zeros(problem.num_ops)
    for node, tasks in mapping.items():
        for task in tasks:
            if task.name.isdecimal():
                device[int(task.name)], start[int(task.name)] = int(node), task.start
    order = np.lexsort((np.arange(problem.num_ops), start))
    return Plan.of(problem, legal(problem, ints(device)), positions(order))


@dataclass(frozen=True)
class Accelerate:
    """The device map of accelerate for `device_map="auto"`: layers in order, balanced by the bytes of their weights.

    Modules and weights come from the names of the graph's weights; an op goes where its module is.
    """

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        modeling, torch = door("accelerate.utils.modeling"), door("torch")
        model = _modules(torch, problem)
        limits = {device: int(size) for device, size in enumerate(problem.memory_bytes)}
        layers = {"no_split_module_classes": ["Layer"]}
        with _silent():
            balanced = modeling.get_balanced_memory(model, dict(limits), **layers)
            where = modeling.infer_auto_device_map(model, {d: balanced[d] for d in limits}, **layers)
        return Plan.of(problem, legal(problem, _by_map(problem, where)))


def _modules(torch: Any, problem: Problem) -> Any:
    """A module tree without data that has the graph's weights, a byte an element, under their own names."""
    weights = _weights(problem)
    if not weights:
        raise InvalidSetting("the graph has no named weights", problem.graph.name, "take a graph of the zoo")

    class Layer(torch.nn.Module):  # type: ignore[misc]
        pass

    class Part(torch.nn.Module):  # type: ignore[misc]
        pass

    root = Part()
    for name, nbytes in weights.items():
        here, (*path, leaf) = root, name.split(".")
        for part in path:
            if part not in here._modules:
                here.add_module(part, Layer() if part.isdecimal() else Part())
            here = here._modules[part]
        data = torch.empty(nbytes, dtype=torch.uint8, device="meta")
        here.register_parameter(leaf, torch.nn.Parameter(data, requires_grad=False))
    return root


def _weights(problem: Problem) -> dict[str, int]:
    graph = problem.graph
    named = (t for t in np.flatnonzero(problem.resident).tolist() if "." in graph.tensor_name[t])
    return {graph.tensor_name[t]: int(graph.nbytes[t]) for t in named if "[" not in graph.tensor_name[t]}


def _by_map(problem: Problem, where: dict[str, Any]) -> Ints:
    """[ops] the device of the deepest mapped module that an op's scope lies in; elsewhere as the op before it."""
    device, last = np.zeros(problem.num_ops, np.int64), 0
    for op, scope in enumerate(problem.graph.scope):
        parts = scope.split(".")
        paths = (".".join(parts[:end]) for end in range(len(parts), -1, -1))
        found = next((where[path] for path in paths if path in where), last)
        device[op] = last = found if isinstance(found, int) else 0  # "cpu" and "disk" are no devices of ours
    return ints(device)


def ideal_load_ns(problem: Problem) -> int:
    """The load of every device if work could be shared out exactly by speed."""
    total = np.maximum(problem.op_ns.sum(axis=0), 1).astype(np.float64)
    return int(1.0 / (1.0 / total).sum())


def loads_ns(problem: Problem, plan: Plan) -> Ints:
    """[devices] time of the ops on each, as if none were fused."""
    load = np.zeros(problem.num_devices, np.int64)
    np.add.at(load, plan.device, problem.op_ns[np.arange(problem.num_ops), plan.device])
    return ints(load)
