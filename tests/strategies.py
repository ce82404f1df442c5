"""Hypothesis strategies: graphs, clusters, problems, plans. Small numbers, so that ties and zero lengths are common.

Hypothesis draws a seed, and all the rest comes from it: choices of its own would take most of the time of a test. What
fails is shrunk to the least that fails by any other profile than "ci" (`tests/conftest.py`), where it draws every one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from hypothesis import strategies as st

from loadmaster import catalog
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.plans.additions import (
    Additions,
    may_live_elsewhere,
    may_stay,
    reads_again,
    repeatable,
    statistics,
    updated_by,
)
from loadmaster.problem import CANNOT, Problem

SIZES = [0, 1, 8, 10, 50, 100, 333, 1000]
FLOPS = [0, 1, 20, 100, 700]
RATES = [1e9, 2e9, 3e9, 7e8]
LINK_RATES = [None, 1e9, 1e10, 3e8, 7e9]
SOMETIMES = [False, False, False, True]

Made = TypeVar("Made")
Given = ParamSpec("Given")
RANDOMS = st.randoms(use_true_random=os.environ.get("LOADMASTER_HYPOTHESIS", "ci") == "ci")


def seeded(make: Callable[Concatenate[Random, Given], Made]) -> Callable[Given, st.SearchStrategy[Made]]:
    """A strategy of what is made from random numbers."""

    @wraps(make)
    def strategy(*args: Given.args, **settings: Given.kwargs) -> st.SearchStrategy[Made]:
        return RANDOMS.map(lambda rng: make(rng, *args, **settings))

    return strategy


@dataclass
class _Draft:
    """A graph in the making. Tensors are numbered here as they come and may be declared in another order."""

    devices: int | None  # for lists of times; None: one time for all devices
    home: int  # a device that can run everything, so that no group is left without one
    plain: bool
    tensors: list[tuple[int, str, int | None]]  # bytes, role, alias
    resident: list[int]
    readable: list[int]
    ops: list[tuple[list[int], list[int], dict[str, Any]]]  # reads, makes, settings

    def tensor(self, nbytes: int, role: str, alias_of: int | None = None) -> int:
        self.tensors.append((nbytes, role, alias_of))
        return len(self.tensors) - 1

    def op(self, reads: list[int], makes: list[int], **settings: Any) -> None:
        self.ops.append((reads, makes, settings))
        self.readable += makes

    def build(self, tensor_order: list[int], op_order: list[int]) -> Graph:
        builder = GraphBuilder("random")
        number = {tensor: place for place, tensor in enumerate(tensor_order)}
        for tensor in tensor_order:
            nbytes, role, alias = self.tensors[tensor]
            builder.tensor(nbytes, role, alias_of=None if alias is None else number[alias])
        for op in op_order:
            reads, makes, settings = self.ops[op]
            builder.op(f"op{op}", "any", [number[t] for t in reads], [number[t] for t in makes], **settings)
        return builder.build()


def random_graph(
    rng: Random, max_ops: int = 14, devices: int | None = None, plain: bool = False, min_ops: int = 1
) -> Graph:
    """A graph of up to `max_ops` ops, views among them; `plain`: every op alike on all devices and in no group."""
    home = rng.randint(0, devices - 1) if devices else 0
    draft = _Draft(None if plain else devices, home, plain, [], [], [], [])
    for _ in range(rng.randint(0, 3)):
        alias = rng.choice(draft.resident) if draft.resident and rng.choice(SOMETIMES) else None
        draft.resident.append(draft.tensor(rng.choice(SIZES), rng.choice(["weight", "input", "state"]), alias))
    draft.readable += draft.resident
    sizes = [size for size in (1, 2, 3, 4, 5, 6, 8, 10, 12, 14) if min_ops <= size <= max_ops]
    for index in range(rng.choice(sizes)):
        choices = ["compute", "compute", "compute", "view", "update", "update"]
        kind = rng.choice(choices) if index and draft.readable else "compute"
        _ADD[kind](rng, draft)
    tensors, ops = range(len(draft.tensors)), range(len(draft.ops))
    if rng.choice(SOMETIMES):
        return draft.build(_shuffled(rng, tensors), _shuffled(rng, ops))
    return draft.build(list(tensors), list(ops))


def _some(rng: Random, among: list[Any], most: int) -> list[Any]:
    return rng.sample(among, rng.randint(0, min(most, len(among))))


def _shuffled(rng: Random, among: Sequence[int]) -> list[int]:
    return rng.sample(among, len(among))


def _times(rng: Random, draft: _Draft) -> Any:
    how = rng.choice(["model", "model", "one", "each"])
    if how == "one":
        return rng.choice([0, 0, 1, 7, 10])
    if how == "each" and draft.devices:
        times = [rng.choice([None, 0, 3, 10]) for _ in range(draft.devices)]
        times[draft.home] = times[draft.home] or 0
        return times
    return None


def _afters(rng: Random, draft: _Draft) -> list[str]:
    return [f"op{op}" for op in _some(rng, list(range(len(draft.ops))), 2)] if rng.choice(SOMETIMES) else []


def _settings(rng: Random, draft: _Draft) -> dict[str, Any]:
    return {
        "workspace_bytes": rng.choice([0, 0, 0, 5, 200]),
        "colocate": None if draft.plain else rng.choice([None] * 6 + ["g", "h"]),
        "after": _afters(rng, draft),
        "dtype": rng.choice(["float32", "float16"]),
        "time_ns": _times(rng, draft),
    }


def _outputs(rng: Random, draft: _Draft, most: int) -> list[int]:
    roles = ["activation"] * 5 + ["output", "state"]
    return [draft.tensor(rng.choice(SIZES), rng.choice(roles)) for _ in range(rng.randint(0, most))]


def _add_compute(rng: Random, draft: _Draft) -> None:
    reads, makes = _some(rng, draft.readable, 3), _outputs(rng, draft, 3)
    draft.op(reads, makes, flops=rng.choice(FLOPS), **_settings(rng, draft))


def _add_view(rng: Random, draft: _Draft) -> None:
    shown = rng.choice(draft.readable)
    size = rng.randint(0, draft.tensors[shown][0])
    reads = [shown] + ([rng.choice(draft.readable)] if rng.choice(SOMETIMES) else [])
    makes = [draft.tensor(size, rng.choice(["activation"] * 4 + ["output"]), shown)]
    draft.op(reads, makes, after=_afters(rng, draft))


def _add_update(rng: Random, draft: _Draft) -> None:
    """An op that overwrites a weight or an activation, and may make other tensors too."""
    target = rng.choice(draft.resident + draft.readable)
    unread = target in draft.resident and rng.choice(SOMETIMES)
    reads = sorted({*_some(rng, draft.readable, 2)} - {target}) if unread else [target, *_some(rng, draft.readable, 2)]
    roles = ["activation", "activation", "output", "state"]
    size = draft.tensors[target][0]
    makes = [draft.tensor(size, rng.choice(roles), target) for _ in range(rng.choice([1, 1, 1, 2]))]
    makes += _outputs(rng, draft, 1)
    draft.op(reads, makes, flops=rng.choice(FLOPS) or 1, **_settings(rng, draft))


_ADD = {"compute": _add_compute, "view": _add_view, "update": _add_update}


def random_cluster(rng: Random, max_devices: int = 4, hosts: bool = False) -> Cluster:
    """One to four unlike devices and unlike links, wired in one of five ways."""
    count = rng.randint(1, max_devices)
    devices = tuple(_device(rng, f"d{index}") for index in range(count))
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    links = {pair: Link(rng.choice(LINK_RATES), rng.choice([0, 0, 3, 5])) for pair in pairs}
    op_ns = rng.choice([None, None, None, None, 0, 4])
    host = rng.choice([0, 0, 0, 2, 40]) if hosts else 0
    free = rng.choice(SOMETIMES)
    wires = _channels(rng, count)
    return Cluster("random", devices, links, wires, op_ns, "eager", {"eager": host}, contention=not free)


def _device(rng: Random, name: str) -> Device:
    rate = rng.choice(RATES)
    rates = {"default": rate, "float16": 2 * rate} if rng.choice(SOMETIMES) else rate
    memory = rng.choice([0, 300, 1500, 2**30, 2**30])
    idle = rng.choice([None, 0.5, 30])
    watts = (idle or 0) + rng.choice([0, 0.25, 120])
    rate, launch = rng.choice([1e9, 1e10, 7.6e9]), rng.choice([0, 1, 5])
    return Device(
        name, "any", memory, rates, rate, launch, watts=watts, idle_watts=idle, overlap=rng.choice((False, True))
    )


def _channels(rng: Random, count: int) -> Any:
    wiring = rng.choice(["pair", "out", "in", "one", "any"])
    channel = np.full((count, count), -1, np.int64)
    for src in range(count):
        for dst in range(count):
            if src != dst:
                number = {"pair": src * count + dst, "out": src, "in": dst, "one": 0}
                channel[src, dst] = number[wiring] if wiring in number else rng.randint(0, 3)
    return dense_channels(channel)


def random_equal_cluster(rng: Random) -> Cluster:
    """Equal devices and equal links: any relabelling gives the same cluster."""
    count = rng.randint(2, 4)
    device = _device(rng, "d")
    link = Link(rng.choice(LINK_RATES), rng.choice([0, 3]))
    wiring = rng.choice(["pair", "out", "one"])
    channel = np.full((count, count), -1, np.int64)
    links = {}
    for src in range(count):
        for dst in range(count):
            if src != dst:
                links[src, dst] = link
                channel[src, dst] = {"pair": src * count + dst, "out": src, "one": 0}[wiring]
    devices = tuple(replace(device, name=f"d{index}") for index in range(count))
    return Cluster("equal", devices, links, dense_channels(channel))


def random_problem(
    rng: Random, max_ops: int = 14, max_devices: int = 4, plain: bool = False, min_ops: int = 1, hosts: bool = False
) -> Problem:
    """A priced graph; memory is sometimes too small for any plan, sometimes for some."""
    cluster = random_cluster(rng, max_devices, hosts)
    graph = random_graph(rng, max_ops, cluster.num_devices, plain, min_ops)
    limit = rng.choice([None, None, 100, 1000])
    return price(graph, cluster, objective=rng.choice(list(catalog.OBJECTIVES)), memory_limit=limit)


def random_equal_problem(rng: Random) -> Problem:
    return price(random_graph(rng, plain=True), random_equal_cluster(rng))


def random_plan(
    rng: Random, problem: Problem, fuse: bool = True, ties: bool = True, sends: bool = True, kernel: Any | None = None
) -> Plan:
    """A valid plan; `fuse`: it may fuse; `ties`: ranks may be equal; `sends`: it may give ranks to sends."""
    if kernel is None and fuse and rng.choice((False, True)):
        kernel = random_kernels(rng, problem)
    together = _together(problem, kernel)
    device = np.zeros(problem.num_ops, np.int64)
    for ops in together:
        device[sorted(ops)] = rng.choice(_common_devices(problem, ops))
    plan = Plan.of(problem, device, _ranks(rng, problem.num_ops, ties), kernel)
    if sends and rng.choice(SOMETIMES):
        count = problem.graph.num_tensors * problem.num_devices
        given = [rng.randint(-1, 5) for _ in range(count)]
        plan = replace(plan, send_rank=ints(np.array(given, np.int64).reshape(-1, problem.num_devices)))
    return plan


def _ranks(rng: Random, count: int, ties: bool) -> Any:
    if not ties or rng.choice(SOMETIMES):
        return _shuffled(rng, range(count))
    most = rng.choice([0, 2, 5, 2**31 - 1])
    return [rng.randint(0, most) for _ in range(count)]


def random_kernels(rng: Random, problem: Problem) -> Any:
    """[ops] kernels from random merges, each kept if no kernel then waits for itself and some device can run all."""
    count = problem.num_ops
    kernel = np.arange(count)
    for _ in range(rng.randint(0, min(10, 2 * count))):
        one, other = rng.randrange(count), rng.randrange(count)
        trial = np.where((kernel == kernel[one]) | (kernel == kernel[other]), min(kernel[one], kernel[other]), kernel)
        if is_acyclic(problem, trial) and all(_common_devices(problem, ops) for ops in _together(problem, trial)):
            kernel = trial
    return kernel


def is_acyclic(problem: Problem, kernel: Any) -> bool:
    """Whether the kernels can be done one after the other."""
    graph = problem.graph
    waits: dict[int, set[int]] = {int(head): set() for head in kernel}
    for op in range(problem.num_ops):
        makers = {int(graph.producer[t]) for t in graph.reads_of(op)} - {-1}
        waits[int(kernel[op])] |= {int(kernel[earlier]) for earlier in (*makers, *graph.after_of(op))}
    for head, before in waits.items():
        before.discard(head)
    done: set[int] = set()
    while ready := {head for head, before in waits.items() if head not in done and before <= done}:
        done |= ready
    return len(done) == len(waits)


def _together(problem: Problem, kernel: Any | None) -> list[set[int]]:
    """Ops that must share a device, by group or by kernel."""
    sets: list[set[int]] = []
    for op in range(problem.num_ops):
        group = int(problem.graph.colocate[op])
        same = {other for other in range(problem.num_ops) if group >= 0 and problem.graph.colocate[other] == group}
        if kernel is not None:
            same |= {other for other in range(problem.num_ops) if kernel[other] == kernel[op]}
        joined = same | {op}
        apart = [known for known in sets if not known & joined]
        sets = [*apart, joined.union(*(known for known in sets if known & joined))]
    return sets


def _common_devices(problem: Problem, ops: set[int]) -> list[int]:
    return [d for d in range(problem.num_devices) if all(problem.op_ns[op, d] != CANNOT for op in ops)]


def random_additions(rng: Random, problem: Problem, most: int = 5) -> Additions | None:
    """Legal ones: each is read by some that read the original, and may follow an op before all of them; None where
    there is nothing to add."""
    graph, count = problem.graph, problem.num_ops
    moves, updates = may_live_elsewhere(graph), updated_by(graph)
    again, stay, left = repeatable(graph), may_stay(graph), statistics(graph)
    reads = {op: {int(t): -1 for t in graph.reads_of(op)} for op in range(count)}  # node -> tensor -> addition
    rows: list[tuple[int, int, int]] = []
    for _ in range(rng.randint(1, most)):
        wanted = sorted((t, node) for node, of in reads.items() for t, source in of.items() if source < 0)
        made = [t for t, _ in wanted if graph.producer[t] >= 0 and not left[t]]
        able = [t for t in made if again[graph.producer[t]] or stay[t]] + [t for t, _ in wanted if moves[t]]
        if not able:
            break
        tensor = rng.choice(able)
        op = int(graph.producer[tensor])
        stays = bool(moves[tensor]) or (bool(stay[tensor]) and (not again[op] or rng.choice((False, True))))
        mates = {tensor} if stays else {int(t) for t in graph.makes_of(op) if not left[t]}
        readers = [(t, node) for t, node in wanted if t in mates and node != count + len(rows)]
        if moves[tensor]:  # its stays read it where it lives
            readers = [(t, node) for t, node in readers if node < count or rows[node - count][0] >= 0]
            if not readers:
                continue
        chosen = rng.sample(readers, rng.randint(1, min(3, len(readers))))
        number = len(rows)
        for t, node in chosen:
            reads[node][t] = number
        again_reads = [] if stays else graph.reads[reads_again(graph, ints([op]))[1]].tolist()
        own = {tensor: -1} if stays else dict.fromkeys(again_reads, -1)
        reads[count + number] = own
        if moves[tensor]:  # any op before those that may read it
            users = [node if node < count else rows[node - count][0] for _, node in chosen]
            op = min([*users, *([] if updates[tensor] < 0 else [int(graph.producer[updates[tensor]])])]) - 1
        trigger = rng.randint(-1, op) if rng.choice(SOMETIMES) else -1
        rows.append((-1 if stays else op, tensor if stays else -1, trigger))
    for tensor in {t for _, t, _ in rows if t >= 0 and updates[t] >= 0}:
        writer, own = int(graph.producer[updates[tensor]]), [i for i, row in enumerate(rows) if row[1] == tensor]
        if reads[writer][tensor] < 0:
            reads[writer][tensor] = rng.choice(own)
        reads[count + len(rows)] = {int(updates[tensor]): -1}
        rows.append((-1, int(updates[tensor]), -1))
    if not rows:
        return None
    named = [(node, t, source) for node, of in reads.items() for t, source in of.items() if source >= 0]
    return Additions(*(ints(column) for column in (*zip(*rows, strict=True), *zip(*named, strict=True))))


graphs, clusters = seeded(random_graph), seeded(random_cluster)
problems, equal_problems = seeded(random_problem), seeded(random_equal_problem)
plans, kernels, additions = seeded(random_plan), seeded(random_kernels), seeded(random_additions)
