"""What each device and each wire does during the step.

A device computes, waits for a transfer of what is made, waits for what others still make, or is done; the four add up
to the step. A wire is busy, and what is ready waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, rows_of
from loadmaster.report.schedule import Schedule


@dataclass(frozen=True)
class DeviceTime:
    """The step of one device; the four times add up to it exactly.

    Attributes:
        device: its name.
        kernels, ops: that run on it.
        compute_ns: in which it computes.
        transfer_wait_ns: what it needs next is made and on its way, or waits for a wire.
        idle_ns: what it needs next is still being made elsewhere.
        finished_ns: after its last kernel; all of the step when it has none.
    """

    device: str
    kernels: int
    ops: int
    compute_ns: int
    transfer_wait_ns: int
    idle_ns: int
    finished_ns: int


@dataclass(frozen=True)
class WireLoad:
    """One channel: the pairs of devices that share it, and what it carries in a step.

    Attributes:
        name: of the channel, by its ends.
        pairs: that sent something.
        sends, sent_bytes: in a step.
        busy_ns: in which it carries something.
        queue_ns: transfers ready to go spent this long, added up, waiting for it.
    """

    name: str
    pairs: tuple[str, ...]
    sends: int
    sent_bytes: int
    busy_ns: int
    queue_ns: int


def device_times(schedule: Schedule) -> tuple[DeviceTime, ...]:
    """For each device, what it does with the step: computes, waits for transfers, waits for what others make, is
    done."""
    length = schedule.end_ns - schedule.start_ns
    freed = np.where(schedule.previous >= 0, schedule.end_ns[schedule.previous], 0)
    gap = schedule.start_ns - freed
    waited = np.where(gap > 0, schedule.start_ns - np.maximum(freed, _last_made_ns(schedule)), 0)
    rows = []
    for device, name in enumerate(schedule.problem.cluster.device_names):
        mine = np.flatnonzero(schedule.device == device)
        busy, waits, gaps = (int(column[mine].sum()) for column in (length, waited, gap))
        last = int(schedule.end_ns[mine].max(initial=0))
        ops = int(schedule.members[mine].sum())
        rows.append(DeviceTime(name, len(mine), ops, busy, waits, gaps - waits, schedule.step_ns - last))
    return tuple(rows)


def _last_made_ns(schedule: Schedule) -> Ints:
    """[kernels] of those whose last input came by wire, when that was made; else their own start."""
    graph, sends = schedule.problem.graph, schedule.read_send
    reader = rows_of(graph.read_start)
    ends = schedule.timeline.send_end_ns
    late = sends >= 0
    late[late] = ends[sends[late]] == schedule.start_ns[reader[late]]
    made = np.full(schedule.num_kernels, -1, np.int64)
    np.maximum.at(made, reader[late], schedule.made_ns[graph.reads[late]])
    return np.where(made < 0, schedule.start_ns, made)


def wire_loads(schedule: Schedule) -> tuple[WireLoad, ...]:
    """Channels that carried something, the busiest first."""
    line, cluster = schedule.timeline, schedule.problem.cluster
    length = line.send_end_ns - line.send_start_ns
    queue = line.send_start_ns - schedule.made_ns[schedule.send_tensor]
    sizes = schedule.problem.graph.nbytes[schedule.send_tensor]
    names = cluster.device_names
    loads = []
    for channel in np.unique(schedule.send_channel):
        mine = np.flatnonzero(schedule.send_channel == channel)
        used = sorted({(int(line.send_src[send]), int(line.send_dst[send])) for send in mine})
        busy, queued, sent = (int(column[mine].sum()) for column in (length, queue, sizes))
        pairs = tuple(f"{names[src]} > {names[dst]}" for src, dst in used)
        loads.append(WireLoad(wire_name(schedule, int(channel)), pairs, len(mine), sent, busy, queued))
    return tuple(sorted(loads, key=lambda load: (-load.busy_ns, load.name)))


def wire_name(schedule: Schedule, channel: int) -> str:
    """The pair that has it to itself; the device all its pairs go out of; else its number."""
    cluster = schedule.problem.cluster
    pairs = np.argwhere(cluster.channel == channel)
    names = cluster.device_names
    if len(pairs) == 1:
        return f"{names[pairs[0][0]]} > {names[pairs[0][1]]}"
    if len(set(pairs[:, 0].tolist())) == 1:
        return f"out of {names[pairs[0][0]]}" + (_only(cluster.channel, int(pairs[0][0]), pairs[:, 1], names))
    return "shared bus" if (cluster.channel.max() == cluster.channel[cluster.channel >= 0].min()) else f"bus {channel}"


def _only(channel: Ints, src: int, to: Ints, names: tuple[str, ...]) -> str:
    """Where a bus out of a device leads, when it does not lead everywhere."""
    return "" if len(to) == len(channel) - 1 else f" to {names[to[0]]}" + (f" … {names[to[-1]]}" if len(to) > 1 else "")
