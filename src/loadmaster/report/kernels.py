"""What fusing saves, kernel by kernel.

Each fused kernel against its ops run one by one on the same device: launches, bytes that need not move, tensors that
are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints
from loadmaster.report.schedule import Schedule

MOST_LISTED = 50  # the rest are counted


@dataclass(frozen=True)
class KernelGain:
    """One fused kernel against its ops run one by one on the same device.

    Attributes:
        name, scope: of its first op.
        device: where it runs.
        ops: in it.
        kinds: of its ops, each once, in order.
        launches_saved: one less than its ops.
        traffic_saved_bytes: bytes that need not be written and read again.
        memory_saved_bytes: tensors that are never stored.
        time_saved_ns: against its ops one by one.
    """

    name: str
    scope: str
    device: str
    ops: int
    kinds: tuple[str, ...]
    launches_saved: int
    traffic_saved_bytes: int
    memory_saved_bytes: int
    time_saved_ns: int


@dataclass(frozen=True)
class Fusion:
    """Totals are over all kernels; only those that save most are listed.

    Attributes:
        kernels: with more than one op.
        ops: in them.
        launches_saved, traffic_saved_bytes, memory_saved_bytes, time_saved_ns: as of a kernel.
        largest: kernels that save most.
    """

    kernels: int
    ops: int
    launches_saved: int
    traffic_saved_bytes: int
    memory_saved_bytes: int
    time_saved_ns: int
    largest: tuple[KernelGain, ...]


def fusion(schedule: Schedule) -> Fusion:
    """What fusing spares: launches, traffic, and bytes that are never stored."""
    fused = np.flatnonzero(schedule.members > 1)
    launches = schedule.members - 1
    traffic, stored, spared = _traffic_saved(schedule), _never_stored(schedule), _time_saved(schedule)
    order = fused[np.lexsort((-traffic[fused], -spared[fused]))]
    listed = order[:MOST_LISTED].tolist()
    members = _members(schedule, listed)
    rows = tuple(
        _gain(schedule, kernel, members[kernel], [int(c[kernel]) for c in (launches, traffic, stored, spared)])
        for kernel in listed
    )
    return Fusion(
        kernels=len(fused),
        ops=int(schedule.members[fused].sum()),
        launches_saved=int(launches[fused].sum()),
        traffic_saved_bytes=int(traffic[fused].sum()),
        memory_saved_bytes=int(stored[fused].sum()),
        time_saved_ns=int(spared[fused].sum()),
        largest=rows,
    )


def _gain(schedule: Schedule, kernel: int, members: list[int], saved: list[int]) -> KernelGain:
    graph = schedule.whole.graph
    kinds = tuple(dict.fromkeys(graph.kind[op] for op in members))
    device = schedule.problem.cluster.device_names[schedule.device[kernel]]
    name, scope = graph.op_name[schedule.heads[kernel]], graph.scope[schedule.heads[kernel]]
    return KernelGain(name, scope, device, len(members), kinds, *saved)


def _traffic_saved(schedule: Schedule) -> Ints:
    """[kernels]"""
    apart = np.zeros(schedule.num_kernels, np.int64)
    np.add.at(apart, schedule.kernel_of, schedule.whole.traffic_bytes)
    return apart - schedule.problem.traffic_bytes


def _never_stored(schedule: Schedule) -> Ints:
    """[kernels] bytes of the tensors that only its own ops read."""
    graph = schedule.whole.graph
    inner = np.setdiff1d(np.arange(graph.num_tensors), schedule.tensors)
    stored = np.zeros(schedule.num_kernels, np.int64)
    np.add.at(stored, schedule.kernel_of[graph.producer[inner]], graph.nbytes[inner])
    return stored


def _time_saved(schedule: Schedule) -> Ints:
    """[kernels]"""
    whole, plan = schedule.whole, schedule.plan
    apart = np.zeros(schedule.num_kernels, np.int64)
    np.add.at(apart, schedule.kernel_of, whole.op_ns[np.arange(whole.num_ops), plan.device])
    return apart - (schedule.end_ns - schedule.start_ns)


def _members(schedule: Schedule, kernels: list[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {kernel: [] for kernel in kernels}
    for op in np.flatnonzero(np.isin(schedule.kernel_of, kernels)).tolist():
        members[int(schedule.kernel_of[op])].append(op)
    return members
