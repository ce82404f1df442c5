"""The human expert: layers to devices by module scope, run with a framework's ready queue."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.columns import Ints, ints
from loadmaster.optimizers.simple import legal
from loadmaster.plan import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulate import first_come


@dataclass(frozen=True)
class Expert:
    """What people do by hand (the "human expert" rows of Mirhoseini 2017, HDP 2018 and GO 2020).

    One RNN layer per device, transformer blocks and CNN modules in contiguous shares, the embedding with the first and
    the head with the last layer; without scopes, contiguous shares of the program order balanced by time.

    Differs from the papers: their placements were never published; these follow their descriptions.
    """

    order: Literal["fifo", "program"] = "fifo"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        device = legal(problem, expert_placement(problem))
        return first_come(problem, device) if self.order == "fifo" else Plan.of(problem, device)


def expert_placement(problem: Problem) -> Ints:
    """[ops] the device an expert would choose."""
    scopes = problem.graph.scope
    known = sum(1 for scope in scopes if scope)
    if problem.num_devices == 1 or known < problem.num_ops / 2:
        return shares(problem.best_ns, problem)
    layers = [layer_of(scope) for scope in scopes]
    stacks = {stack for stack, number in layers if number >= 0}
    deep = {stack: 1 + max(n for s, n in layers if s == stack) for stack in stacks}
    if not deep or max(deep.values()) < 2:
        return _by_module(problem)
    return _by_layer(problem, layers, deep)


def shares(time_ns: Ints, problem: Problem) -> Ints:
    """[ops] contiguous shares in the given order, each device's in proportion to its speed."""
    speed = _speed(problem)
    edge = np.cumsum(speed) / speed.sum()
    middle = (np.cumsum(time_ns) - time_ns / 2) / max(1, time_ns.sum())
    return ints(np.minimum(np.searchsorted(edge, middle, side="right"), problem.num_devices - 1))


def _speed(problem: Problem) -> np.ndarray:
    """[devices] how much of the whole graph each would do in unit time."""
    total = np.where(problem.op_ns < 0, problem.best_ns[:, None] * 100, problem.op_ns).sum(axis=0)
    return 1.0 / np.maximum(total, 1)


def layer_of(scope: str) -> tuple[str, int]:
    """("decoder.layers", 3) of "decoder.layers.3.cell"; number -1 where no part of the path is a number."""
    parts = scope.split(".")
    for index, part in enumerate(parts):
        if re.fullmatch(r"\d+", part):
            return ".".join(parts[:index]), int(part)
    return scope, -1


def _by_layer(problem: Problem, layers: list[tuple[str, int]], deep: dict[str, int]) -> Ints:
    """Each stack of layers is spread over all devices; what is in no stack goes with the layer it feeds or follows."""
    where = {stack: _spread_stack(problem, layers, stack, count) for stack, count in deep.items()}
    device = np.full(problem.num_ops, -1, np.int64)
    for op, (stack, number) in enumerate(layers):
        if number >= 0:
            device[op] = where[stack][number]
    for scope in {problem.graph.scope[op] for op in np.flatnonzero(device < 0)}:
        ops = [op for op in np.flatnonzero(device < 0) if problem.graph.scope[op] == scope]
        device[ops] = _loose_device(problem, device, ops)
    return ints(device)


def _spread_stack(problem: Problem, layers: list[tuple[str, int]], stack: str, count: int) -> list[int]:
    if count <= problem.num_devices:
        return [number * problem.num_devices // count for number in range(count)]
    load = np.zeros(count, np.int64)
    for op, (name, number) in enumerate(layers):
        if name == stack:
            load[number] += problem.best_ns[op]
    return [int(d) for d in shares(load, problem)]


def _loose_device(problem: Problem, device: Ints, ops: list[int]) -> int:
    """For ops outside any stack: the device of the layers that read what they make; of a head, of those it reads."""
    graph = problem.graph
    votes: dict[int, int] = defaultdict(int)
    first = min(ops)
    fed = [int(device[r]) for op in ops[:64] for t in graph.makes_of(op) for r in graph.readers_of(int(t))]
    feeds = [int(device[graph.producer[t]]) for op in ops[:64] for t in graph.reads_of(op) if graph.producer[t] >= 0]
    placed = [d for d in feeds if d >= 0] or [d for d in fed if d >= 0]
    if not placed:
        return 0 if first < problem.num_ops / 4 else problem.num_devices - 1
    for d in placed:
        votes[d] += 1
    return max(sorted(votes), key=lambda d: votes[d])


def _by_module(problem: Problem) -> Ints:
    """Top-level modules in order of first use, in contiguous shares balanced by time (backward ops with their module)."""
    scopes = problem.graph.scope
    depth = 1 if len({scope.split(".")[0] for scope in scopes}) >= 2 * problem.num_devices else 2
    names = [".".join(scope.split(".")[:depth]) for scope in scopes]
    order = {name: index for index, name in enumerate(dict.fromkeys(names))}
    load = np.zeros(len(order), np.int64)
    np.add.at(load, [order[name] for name in names], problem.best_ns)
    place = shares(load, problem)
    return ints([place[order[name]] for name in names])
