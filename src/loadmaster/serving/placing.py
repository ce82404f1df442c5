"""Placing: which module computes where, and which weights stay in host memory, for all phases of a request at once.

Every phase is an ordinary problem that the simulator judges, one candidate or many at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import DoesNotFit
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem.bounds import lower_bound
from loadmaster.serving.services import Service, cache_bytes
from loadmaster.simulator import simulate_many

BATCH = 32  # candidates simulated together: enough for all cores, few enough to follow the best
FEW = 2048  # placements that are all tried, so that the best of them is found for certain
LONGEST = 8  # units that one move takes along, at most


@dataclass(frozen=True, eq=False)
class Placement:
    """Decisions and their consequences, as the simulator sees them.

    Attributes:
        compute: [units] device.
        home: [units] device that keeps the weights; another than `compute`: they are streamed.
        step_ns: [phases] of one run of each.
        peak_bytes: [devices] the largest of all phases.
        over_bytes: over the memory of the devices.
        value: what the goal makes small, in ns.
        bound: what no placement can beat.
    """

    compute: Ints  # [units]
    home: Ints  # [units]
    step_ns: tuple[int, ...]  # [phases]
    peak_bytes: Ints  # [devices]
    over_bytes: int
    value: float
    bound: float

    @property
    def fits(self) -> bool:
        return self.over_bytes == 0

    @property
    def streamed(self) -> NDArray[np.bool_]:
        """[units] whether its weights are kept elsewhere than where it computes."""
        away: NDArray[np.bool_] = self.compute != self.home
        return away


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
    if service not in _bounds:
        steps = ints([lower_bound(phase.problem, fitting=True) for phase in service.phases])
        alone = replace(service, requests=replace(service.requests, flight=1))
        if service.goal == "throughput":
            busy = sum(p.times * p.unit_ns.min(axis=1).sum() for p in service.phases) / service.cluster.num_devices
            latency = value_of(replace(alone, goal="latency"), steps, ints([]), ints([]))
            _bounds[service] = max(latency / service.requests.flight, busy)
        else:
            _bounds[service] = value_of(alone, steps, ints([]), ints([]))
    return _bounds[service]


_bounds: WeakKeyDictionary[Service, float] = WeakKeyDictionary()


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

    Args:
        service: what there is to place.
        seconds, seed: of the search.
        starts: (compute, home) of units to begin from, too.
        stream: weights may stay in host memory and be sent when they are needed.
        compute_on_host: modules may run on the host.
        follow: experts are computed where their layer is, wherever they are kept.
        without: devices that take no part.
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
