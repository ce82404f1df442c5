"""Placing: which module computes where, and which weights stay in host memory, for all phases of a request at once.

Every phase is an ordinary problem that the simulator judges. A unit's weights have a home, an op without a length that
stands for where they are kept (rule 7 of the simulator): on the unit's own device they are resident; on the host they
are sent once a step, in the background, and take room on the device only while they are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from loadmaster.cluster import Cluster
from loadmaster.cost import CostModel, price
from loadmaster.errors import DoesNotFit, InvalidSetting
from loadmaster.graph import STATE, WEIGHT, Graph, GraphBuilder
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.graph import ROLES
from loadmaster.graph.modules import ModuleUnits, units_of
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.serving.experts import Apart, Mixture, apart
from loadmaster.serving.requests import GOALS, Goal, Requests
from loadmaster.simulator import simulate_many

HOME = "home:"
BATCH = 32  # candidates simulated together: enough for all cores, few enough to follow the best
FEW = 2048  # placements that are all tried, so that the best of them is found for certain
LONGEST = 8  # units that one move takes along, at most


@dataclass(frozen=True, eq=False)
class PricedPhase:
    """A phase on a cluster, with what turns units into ops."""

    name: str
    times: float
    problem: Problem
    unit_of: Ints  # [ops]
    is_home: NDArray[np.bool_]  # [ops]

    def placed(self, compute: Ints, home: Ints) -> Ints:
        """[candidates, ops] of [candidates, units]."""
        return np.where(self.is_home, home[:, self.unit_of], compute[:, self.unit_of])

    @cached_property
    def unit_ns(self) -> Ints:
        """[units, devices] work of each unit."""
        table = np.zeros((int(self.unit_of.max()) + 1, self.problem.num_devices), np.int64)
        np.add.at(table, self.unit_of[~self.is_home], np.maximum(self.problem.op_ns[~self.is_home], 0))
        return ints(table)


@dataclass(frozen=True, eq=False)
class Service:
    """What there is to place: units of a model, and the phases of requests to it on a cluster."""

    names: tuple[str, ...]  # [units] module paths, in the order of the model
    weight_bytes: Ints  # [units]
    phases: tuple[PricedPhase, ...]
    cluster: Cluster
    requests: Requests
    goal: Goal
    together: Ints  # [units] lowest unit that shares a weight with it; itself where none does
    within: Ints  # [units] the unit of its layer, for a part of a layer's experts; itself for all others

    @property
    def host(self) -> int | None:
        """The device whose memory weights can be streamed from."""
        return next((i for i, d in enumerate(self.cluster.devices) if d.kind.startswith("cpu")), None)


@dataclass(frozen=True, eq=False)
class Placement:
    """Decisions and their consequences, as the simulator sees them."""

    compute: Ints  # [units] device
    home: Ints  # [units] device that keeps the weights; another than `compute`: they are streamed
    step_ns: tuple[int, ...]  # [phases]
    peak_bytes: Ints  # [devices] the largest of all phases
    over_bytes: int
    value: float  # what the goal makes small, in ns
    bound: float  # what no placement can beat

    @property
    def fits(self) -> bool:
        return self.over_bytes == 0

    @property
    def streamed(self) -> NDArray[np.bool_]:
        away: NDArray[np.bool_] = self.compute != self.home
        return away


def service_of(
    graphs: Sequence[tuple[str, Graph, float]],
    cluster: Cluster,
    requests: Requests,
    *,
    goal: Goal = "latency",
    blocks: Sequence[str] = (),
    cost: CostModel | None = None,
    experts: Apart | None = None,
) -> Service:
    """Prices every phase; units are the blocks, the modules beside them, and experts as `experts` says."""
    if goal not in GOALS:
        raise InvalidSetting(f"'{goal}' is no goal", "--goal", f"use one of {', '.join(GOALS)}")
    mixtures = [
        apart(graph, requests.batch * (1 if i else requests.prompt), experts or Apart())
        for i, (_, graph, _) in enumerate(graphs)
    ]
    every = [units_of(mixture.graph, "block", blocks, mixture.paths) for mixture in mixtures]
    names = tuple(dict.fromkeys(name for units in every for name in units.names))
    index = {name: i for i, name in enumerate(names)}
    phases, sizes = [], np.zeros(len(names), np.int64)
    shared: dict[str, set[int]] = {}
    for (name, _, times), mixture, units in zip(graphs, mixtures, every, strict=True):
        to_all = np.array([index[unit] for unit in units.names])
        phases.append(_priced(name, mixture, times, units, to_all, cluster, cost))
        held = _weights(mixture.graph, units, to_all, shared)
        for path, more in mixture.unused_bytes.items():
            held[index[path]] += more
        sizes = np.maximum(sizes, held)
    together = np.arange(len(names))
    for members in shared.values():
        together[sorted(members)] = min(members)
    within = [_block_of(name, i, index, set(mixtures[0].paths)) for i, name in enumerate(names)]
    return Service(names, ints(sizes), tuple(phases), cluster, requests, goal, ints(together), ints(within))


def _block_of(name: str, unit: int, index: Mapping[str, int], experts: set[str]) -> int:
    """The unit whose layer a part of experts belongs to; any other unit itself."""
    path = name
    while name in experts and "." in path:
        path = path.rpartition(".")[0]
        if path in index and path not in experts:
            return index[path]
    return unit


def _weights(
    graph: Graph, units: ModuleUnits, to_all: NDArray[np.int64], shared: dict[str, set[int]]
) -> NDArray[np.int64]:
    """[all units] bytes of weights; notes who reads each."""
    sizes = np.zeros(int(to_all.max()) + 1 if len(to_all) else 0, np.int64)
    start, readers = graph.readers
    for tensor in np.flatnonzero(graph.role == WEIGHT):
        users = to_all[units.of_op[readers[start[tensor] : start[tensor + 1]]]]
        if len(users):
            sizes[users[0]] += graph.nbytes[tensor]
            shared.setdefault(graph.tensor_name[tensor], set()).update(users.tolist())
    return sizes


def _priced(
    name: str,
    mixture: Mixture,
    times: float,
    units: ModuleUnits,
    to_all: NDArray[np.int64],
    cluster: Cluster,
    cost: CostModel | None,
) -> PricedPhase:
    graph = mixture.graph
    problem = price(_with_homes(graph, units, mixture.unused_bytes), cluster, cost=cost)
    source = problem.source_ops
    is_home = source >= graph.num_ops
    number = {unit: i for i, unit in enumerate(units.names)}
    homes = [number[op.removeprefix(HOME)] for op in problem.source.op_name[graph.num_ops :]]
    unit_of = np.concatenate([units.of_op, np.array(homes, np.int64)])[source]
    return PricedPhase(name, times, problem, ints(to_all[unit_of]), is_home)


def _with_homes(graph: Graph, units: ModuleUnits, unused_bytes: Mapping[str, int]) -> Graph:
    """The same ops, and behind them one for each unit with weights, which says where those are kept, with those that a
    step does not need."""
    builder = GraphBuilder.of(graph)
    start, readers = graph.readers
    for unit, name in enumerate(units.names):
        kept = np.flatnonzero(units.of_tensor == unit).tolist()
        if kept:
            users = sorted({int(op) for t in kept for op in readers[start[t] : start[t + 1]]})
            again = [builder.tensor(int(graph.nbytes[t]), ROLES[STATE], alias_of=t) for t in kept]
            after = [graph.op_name[op] for op in users]
            idle = [builder.tensor(unused_bytes[name], "weight")] if unused_bytes.get(name) else []
            builder.op(f"{HOME}{name}", "home", [*kept, *idle], again, time_ns=0, after=after)
    return builder.build()


def evaluate(service: Service, compute: NDArray[np.integer], home: NDArray[np.integer]) -> list[Placement]:
    """What [candidates, units] placements cost, each phase simulated in program order."""
    steps, peaks = [], np.zeros((len(compute), service.cluster.num_devices), np.int64)
    for phase in service.phases:
        scores = simulate_many(phase.problem, phase.placed(np.asarray(compute), np.asarray(home)))
        steps.append(scores.step_ns)
        peaks = np.maximum(peaks, scores.peak_bytes)
    over = np.maximum(peaks - service.cluster.memory_bytes, 0).sum(axis=1)
    bound = _bound(service)
    table = np.stack(steps, axis=1)
    return [
        Placement(
            ints(compute[i]),
            ints(home[i]),
            tuple(table[i].tolist()),
            ints(peaks[i]),
            int(over[i]),
            value_of(service, table[i], np.asarray(compute[i]), np.asarray(home[i])),
            bound,
        )
        for i in range(len(compute))
    ]


def value_of(service: Service, step_ns: Ints, compute: Ints, home: Ints) -> float:
    """What the goal makes small: ns a request, a first token or a token; for throughput, ns between two answers."""
    times = np.array([phase.times for phase in service.phases])
    if service.goal == "first-token":
        return float(step_ns[0])
    if service.goal == "per-token":
        return float((step_ns[1:] * times[1:]).sum() / times[1:].sum())
    latency = float((step_ns * times).sum())
    if service.goal == "latency":
        return latency
    return max(latency / service.requests.flight, _busiest(service, compute, home))


def _busiest(service: Service, compute: Ints, home: Ints) -> float:
    """ns that the busiest device or wire works for one batch of requests, whatever else is under way."""
    load = np.zeros(service.cluster.num_devices)
    wires: dict[int, float] = {}
    units = np.arange(len(compute))
    for phase in service.phases:
        np.add.at(load, compute, phase.times * phase.unit_ns[units, compute])
        for unit in np.flatnonzero(compute != home):
            link = service.cluster.links[int(home[unit]), int(compute[unit])]
            if link.bytes_per_s:
                wire = int(service.cluster.channel[home[unit], compute[unit]])
                sent = phase.times * service.weight_bytes[unit] * 1e9 / link.bytes_per_s
                wires[wire] = wires.get(wire, 0.0) + sent
    return float(max(load.max(), *wires.values(), 0.0))


def _bound(service: Service) -> float:
    key = id(service)
    if key not in _bounds:
        _bounds.clear()
        steps = ints([lower_bound(phase.problem, fitting=True) for phase in service.phases])
        alone = replace(service, requests=replace(service.requests, flight=1))
        if service.goal == "throughput":
            busy = sum(p.times * p.unit_ns.min(axis=1).sum() for p in service.phases) / service.cluster.num_devices
            latency = value_of(replace(alone, goal="latency"), steps, ints([]), ints([]))
            _bounds[key] = max(latency / service.requests.flight, busy)
        else:
            _bounds[key] = value_of(alone, steps, ints([]), ints([]))
    return _bounds[key]


_bounds: dict[int, float] = {}


def place(
    service: Service,
    *,
    seconds: float = 5.0,
    seed: int = 0,
    starts: Sequence[tuple[Ints, Ints]] = (),
    stream: bool = True,
    compute_on_host: bool = True,
    follow: bool = False,
    without: Sequence[int] = (),
) -> Placement:
    """The best placement found: simple fillings and the given starts first, then moves of neighbouring units.

    `stream` and `compute_on_host` say what the runtime can do with weights in host memory; `follow`: experts are
    computed where their layer is, wherever they are kept; `without`: devices that take no part.
    """
    rng, begun = np.random.default_rng(seed), time.perf_counter()
    devices = [
        d
        for d in range(service.cluster.num_devices)
        if d not in without and (compute_on_host or d != service.host or service.cluster.num_devices == 1)
    ]
    if (every := _every(service, devices, stream)) is not None:
        return min(evaluate(service, *_legal(service, *every, follow)), key=_score)
    first = [*starts, *fillings(service, devices, stream)]
    best = min(evaluate(service, *_stacked(service, first, follow)), key=_score)
    while time.perf_counter() - begun < seconds and best.value > best.bound * 1.0001:
        tried = [_moved(service, best, devices, stream, rng) for _ in range(BATCH)]
        best = min([best, *evaluate(service, *_stacked(service, tried, follow))], key=_score)
    return best


def _stacked(service: Service, pairs: Sequence[tuple[Ints, Ints]], follow: bool) -> tuple[Ints, Ints]:
    """[candidates, units] of what was tried, made legal."""
    compute, home = (np.stack([pair[i] for pair in pairs]) for i in (0, 1))
    return _legal(service, ints(compute), ints(home), follow)


def _legal(service: Service, compute: Ints, home: Ints, follow: bool) -> tuple[Ints, Ints]:
    """Units that share a weight go where the first of them is; experts with their layer, where they must."""
    away = (compute != home)[:, service.together]
    compute = compute[:, service.together]
    if follow:
        compute = compute[:, service.within]
    kept = home[:, service.together]
    return ints(compute), ints(np.where(away & (kept == service.host), kept, compute))


def _every(service: Service, devices: Sequence[int], stream: bool) -> tuple[Ints, Ints] | None:
    """All placements there are, where they are few."""
    leaders = np.unique(service.together)
    host = service.host if stream else None
    fates = [(d, d) for d in devices] + [(d, host) for d in devices if host is not None and d != host]
    if len(fates) ** len(leaders) > FEW:
        return None
    rows = np.array(list(product(range(len(fates)), repeat=len(leaders))))
    pairs = np.array(fates)[rows[:, np.searchsorted(leaders, service.together)]]
    return ints(pairs[..., 0]), ints(pairs[..., 1])


def _score(placement: Placement) -> tuple[int, float]:
    return placement.over_bytes, placement.value


def _moved(
    service: Service, best: Placement, devices: Sequence[int], stream: bool, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """One to three runs of neighbouring units on another device, or with their weights kept elsewhere."""
    compute, home = np.array(best.compute), np.array(best.home)
    experts = np.flatnonzero(service.within != np.arange(len(compute)))
    for _ in range(rng.integers(1, 4)):
        low = int(rng.integers(len(compute)))
        run: slice | Ints = slice(low, low + int(rng.integers(1, LONGEST + 1)))
        if len(experts) and rng.random() < 0.5:  # experts of neighbouring layers, and nothing between them
            at = int(rng.integers(len(experts)))
            run = ints(experts[at : at + int(rng.integers(1, 2 * LONGEST + 1))])
        kind = rng.integers(4)
        if kind == 0 and stream and service.host is not None:
            away = compute[run] == home[run]
            home[run] = np.where(away, service.host, compute[run])
        elif kind == 1 and isinstance(run, slice) and run.stop < len(compute):  # a border between two devices moves
            edges = np.flatnonzero(np.diff(compute)) + 1
            if len(edges):
                edge, shift = int(rng.choice(edges)), int(rng.integers(1, LONGEST + 1))
                part = slice(edge, edge + shift) if rng.random() < 0.5 else slice(max(0, edge - shift), edge)
                compute[part] = home[part] = compute[edge - 1] if part.start == edge else compute[edge]
        else:
            compute[run] = home[run] = int(rng.choice(devices))
    return ints(compute), ints(home)


def fillings(service: Service, devices: Sequence[int], stream: bool) -> Iterator[tuple[Ints, Ints]]:
    """Devices filled one after the other in several orders, with more and less room left for what is not a weight."""
    work = sum(phase.times * phase.unit_ns.sum(axis=0) for phase in service.phases)
    by_speed = sorted(devices, key=lambda d: float(work[d]))
    orders = {tuple(by_speed), tuple(devices), tuple(reversed(by_speed))}
    for device in devices:
        yield _all(service, device), _all(service, device)
    for order in sorted(orders):
        for room in (0.0, 0.05, 0.1, 0.2, 0.35, 0.5):
            compute = _filled(service, order, room)
            yield compute, compute
            yield from _experts_away(service, order, room, stream, devices)
            if stream and service.host is not None:
                main = by_speed[0] if by_speed[0] != service.host else by_speed[-1]
                away = compute == service.host
                yield ints(np.where(away, main, compute)), compute


def _experts_away(
    service: Service, order: Sequence[int], room: float, stream: bool, devices: Sequence[int]
) -> Iterator[tuple[Ints, Ints]]:
    """Experts of the first layers in host memory, streamed or computed there, and the rest filled in."""
    experts = service.within != np.arange(len(service.names))
    gpus = [device for device in order if device != service.host]
    if service.host is None or not gpus or not experts.any():
        return
    layers = np.unique(service.within[experts])
    for count in np.unique(np.linspace(1, len(layers), 9).astype(int)):
        away = experts & np.isin(service.within, layers[:count])
        rest = _filled(service, gpus, room, skipped=away)
        kept = ints(np.where(away, service.host, rest))
        if stream:
            yield rest, kept
        if service.host in devices:
            yield kept, kept


def _all(service: Service, device: int) -> Ints:
    return ints(np.full(len(service.names), device))


def _filled(service: Service, order: Sequence[int], room: float, skipped: NDArray[np.bool_] | None = None) -> Ints:
    """Units in order, each to the first device that still has memory for its weights and its share of the cache; those
    skipped go along and take none."""
    held = service.weight_bytes + cache_bytes(service)
    if skipped is not None:
        held = ints(np.where(skipped, 0, held))
    left = service.cluster.memory_bytes * (1 - room)
    compute, at = np.empty(len(service.names), np.int64), 0
    for unit in range(len(service.names)):
        while at < len(order) - 1 and left[order[at]] < held[unit]:
            at += 1
        compute[unit] = order[at]
        left[order[at]] -= held[unit]
    return ints(compute)


def cache_bytes(service: Service) -> Ints:
    """[units] inputs and outputs that stay for the whole of the last phase: the cache, for the most part."""
    phase = service.phases[-1]
    graph = phase.problem.graph
    sizes = np.zeros(len(service.names), np.int64)
    start, readers = graph.readers
    for tensor in np.flatnonzero((graph.producer < 0) & (graph.role != WEIGHT) & (np.diff(start) > 0)):
        sizes[phase.unit_of[readers[start[tensor]]]] += graph.nbytes[tensor]
    return ints(sizes)


def check_fits(service: Service, placement: Placement) -> None:
    """Raises where the best placement does not fit, with how much is missing where."""
    if placement.fits:
        return
    memory = service.cluster.memory_bytes
    short = {
        service.cluster.devices[d].name: int(placement.peak_bytes[d] - memory[d])
        for d in np.flatnonzero(placement.peak_bytes > memory)
    }
    what = ", ".join(f"{name} is {size / 2**30:.2f} GiB short" for name, size in short.items())
    raise DoesNotFit(f"the model does not fit: {what}", service.cluster.name, "loadmaster fits says what would help")


def able(service: Service) -> NDArray[np.bool_]:
    """[units, devices] where every op of a unit can run."""
    table = np.ones((len(service.names), service.cluster.num_devices), bool)
    for phase in service.phases:
        np.logical_and.at(table, phase.unit_of, phase.problem.op_ns != CANNOT)
    return table
