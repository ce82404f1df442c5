"""Measuring: this machine, and each distinct op of a captured model alone; kept so that nothing is measured twice.

Results lie in `$LOADMASTER_CACHE`, or where the platform keeps caches, under a digest of hardware and versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from loadmaster.cluster import Cluster
from loadmaster.cost import Calibrated, Measured, OpTime, fit
from loadmaster.files import load_cluster, save_cluster
from loadmaster.files.costs import load_costs, save_costs
from loadmaster.graph import Graph
from loadmaster.graph.columns import digest
from loadmaster.importers.torch.signature import UPDATED_TOGETHER, call_of
from loadmaster.runtime.machine import identity, measure_machine, torch_names
from loadmaster.runtime.timing import DeviceClock, Timing

Say = Callable[[str], None]


def cache_folder() -> Path:
    """Where measurements are kept; made if need be."""
    home = os.environ.get("LOADMASTER_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "loadmaster"
    )
    folder = Path(home) / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def here(*, fresh: bool = False, say: Say = lambda text: None) -> Cluster:
    """The cluster of this machine: measured once, then read from the cache while hardware and versions stay."""
    path = cache_folder() / f"cluster-{digest('here', *identity())}.json"
    if path.exists() and not fresh:
        return load_cluster(path)
    machine = measure_machine(say)
    save_cluster(machine.cluster, path)
    kept = known_costs()
    save_costs(Measured(kept.times, {**kept.fallback, **machine.calibrated}), _costs_path())
    return machine.cluster


def _costs_path() -> Path:
    return cache_folder() / f"costs-{digest('here', *identity())}.json"


def known_costs() -> Measured:
    """All that has been measured on this machine so far."""
    path = _costs_path()
    return load_costs(path) if path.exists() else Measured({})


def keep_costs(costs: Measured) -> None:
    """What is known of this machine from now on."""
    save_costs(costs, _costs_path())


def measure_ops(graph: Graph, cluster: Cluster, *, seconds: float = 120.0, say: Say = lambda text: None) -> Measured:
    """Times each distinct op of the graph that has no time yet, on each kind of device of this machine, and keeps them.

    An op that a device cannot run, or has no memory for, is left to the efficiencies of what was measured there.

    Args:
        graph: captured here: ops are told apart by their signatures.
        cluster: of this machine (`here`).
        seconds: after which it stops; what is left is priced by efficiencies.
        say: is told what goes on.

    Returns:
        Measured: a cost model for `price`, of all that is known of this machine.
    """
    import time

    costs, until = known_costs(), time.monotonic() + seconds
    times = {kind: dict(table) for kind, table in costs.times.items()}
    fallback: dict[str, Calibrated] = dict(costs.fallback)
    names = torch_names()
    for device in {device.kind: device for device in cluster.devices}.values():
        name = next((n for n, d in zip(names, cluster.devices, strict=False) if d.kind == device.kind), None)
        if name is None:
            continue
        table = times.setdefault(device.kind, {})
        _measure_on(name, graph, table, until, say)
        if table:
            fitted = fit(table, device)
            known = fallback.get(device.kind)
            fallback[device.kind] = fitted if known is None else _joined(fitted, known)
    measured = Measured(times, fallback)
    keep_costs(measured)
    return measured


def _measure_on(name: str, graph: Graph, table: dict[str, OpTime], until: float, say: Say) -> None:
    import time

    wanted = {graph.signature[op]: number for number, op in enumerate(graph.op_name) if op in graph.signature}
    new = [(signature, number) for signature, number in wanted.items() if signature not in table]
    if not new:
        return
    clock = DeviceClock(name)
    for done, (signature, number) in enumerate(new):
        if time.monotonic() > until:
            say(f"{name}: out of time, {len(new) - done} of {len(new)} ops are left to the calibrated roofline")
            return
        if done % 50 == 0:
            say(f"{name}: op {done + 1} of {len(new)}")
        timing = _time(clock, signature)
        if timing is not None:
            facts = graph.kind[number], graph.dtype[number], int(graph.flops[number]), int(graph.bytes_moved[number])
            table[signature] = OpTime(*facts, **vars(timing))


def _time(clock: DeviceClock, signature: str) -> Timing | None:
    """None where the device cannot run it or has no room for it."""
    try:
        with torch.no_grad():
            timing = clock.time(call_of(signature, clock.device))
    except (RuntimeError, NotImplementedError, MemoryError, TypeError, AttributeError, IndexError):
        return None
    if not signature.startswith('["optim.'):
        return timing
    whole = ("hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns")
    return replace(timing, **{key: round(getattr(timing, key) / UPDATED_TOGETHER) for key in whole})


def _joined(fitted: Calibrated, known: Calibrated) -> Calibrated:
    """What was fitted to real ops, and for groups and sizes that it lacks what the machine's own measurement has."""
    rows: Mapping[tuple[str, bool, int], float] = {row[:3]: row.share for row in known.efficiencies}
    both = {**rows, **{row[:3]: row.share for row in fitted.efficiencies}}
    return Calibrated(
        tuple(type(known.efficiencies[0])(*key, share) for key, share in sorted(both.items())), fitted.floor_ns
    )
