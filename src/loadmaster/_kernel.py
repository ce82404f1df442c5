# mypy: ignore-errors
"""The compiled inner loop of the simulator: arrays in, arrays out. The rules are in simulate.py.

One call runs one step. Devices and channels are resources 0 … devices-1, devices … devices+channels-1; each has a
heap of what waits for it, keyed (rank << 32) | id. Nothing of size tensors x devices is reset between candidates:
`hold` is written when a tensor is made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from loadmaster.columns import rows_of
from loadmaster.problem import Problem

MADE, FIXED, UPDATED = 0, 1, 2  # where a tensor comes from: an op; resident; resident and overwritten in place
FOREVER = np.iinfo(np.int64).max


class Layout(NamedTuple):
    """A Problem as the loop wants it: flat, narrow, with every index it needs computed once."""

    devices: int
    channels: int
    op_ns: np.ndarray  # [ops * devices]
    workspace: np.ndarray  # [ops]
    tie: np.ndarray  # [ops] order among equal ranks
    op_of_tie: np.ndarray  # [ops]
    waits: np.ndarray  # [ops] made tensors read + ops come after
    sources: np.ndarray  # ops that wait for nothing
    make_start: np.ndarray
    makes: np.ndarray
    read_start: np.ndarray  # reads of tensors that come and go; fixed ones are left out
    reads: np.ndarray
    next_start: np.ndarray  # ops that come after each op
    nexts: np.ndarray
    reader_start: np.ndarray
    readers: np.ndarray
    nbytes: np.ndarray
    origin: np.ndarray  # MADE, FIXED or UPDATED
    maker: np.ndarray  # producer of a made tensor, updater of an updated one
    base: np.ndarray  # tensor it overwrites in place, or -1
    stays: np.ndarray  # 1: alive to the end
    fixed: np.ndarray  # list of fixed tensors
    updated: np.ndarray  # list of updated tensors
    send_classes: int
    send_ns: np.ndarray  # [tensors * classes]
    send_class: np.ndarray  # [devices * devices]
    channel: np.ndarray  # [devices * devices] resource number
    heap_start: np.ndarray  # [resources] where its heap lies
    heap_room: int


class Room(NamedTuple):
    """Scratch space for one thread."""

    left: np.ndarray
    hold: np.ndarray
    heap: np.ndarray
    size: np.ndarray
    busy: np.ndarray
    event_ns: np.ndarray
    event_at: np.ndarray
    dirty: np.ndarray
    is_dirty: np.ndarray
    memory: np.ndarray
    count: np.ndarray
    low: np.ndarray
    far: np.ndarray
    arrivals: np.ndarray  # [1] how many have come, where ranks are not given


class Record(NamedTuple):
    """What a recorded run writes down; empty arrays when it does not."""

    start_ns: np.ndarray  # [ops]
    end_ns: np.ndarray
    turn: np.ndarray  # [ops] order of dispatch
    send_key: np.ndarray  # [sends] tensor * devices + destination
    send_start_ns: np.ndarray
    send_end_ns: np.ndarray
    curve_device: np.ndarray
    curve_ns: np.ndarray
    curve_bytes: np.ndarray
    counts: np.ndarray  # [2] sends, points of the curve


def layout_of(problem: Problem) -> Layout:
    graph, devices = problem.graph, problem.num_devices
    narrow = np.int32
    origin = np.where(graph.producer >= 0, MADE, np.where(problem.updater >= 0, UPDATED, FIXED)).astype(np.int8)
    moving = origin[graph.reads] != FIXED
    read_start = np.zeros(problem.num_ops + 1, np.int64)
    np.cumsum(np.bincount(rows_of(graph.read_start)[moving], minlength=problem.num_ops), out=read_start[1:])
    made_reads = rows_of(graph.read_start)[origin[graph.reads] == MADE]
    waits = np.bincount(made_reads, minlength=problem.num_ops) + np.diff(graph.after_start)
    reader_start, readers = graph.readers
    next_start = np.zeros(problem.num_ops + 1, np.int64)
    np.cumsum(np.bincount(graph.after, minlength=problem.num_ops), out=next_start[1:])
    nexts = rows_of(graph.after_start)[np.argsort(graph.after, kind="stable")]
    op_of_tie = np.argsort(problem.source_ops, kind="stable")
    tie = np.empty(problem.num_ops, np.int64)
    tie[op_of_tie] = np.arange(problem.num_ops)
    channel = problem.cluster.channel
    channels = int(channel.max(initial=-1)) + 1
    heap_start, heap_room = _heaps(problem, channels)
    was_read = np.diff(reader_start) > 0
    return Layout(
        devices,
        channels,
        problem.op_ns.reshape(-1),
        graph.workspace_bytes,
        tie.astype(narrow),
        op_of_tie.astype(narrow),
        waits.astype(narrow),
        np.flatnonzero(waits == 0).astype(narrow),
        graph.make_start.astype(narrow),
        graph.makes.astype(narrow),
        read_start.astype(narrow),
        graph.reads[moving].astype(narrow),
        next_start.astype(narrow),
        nexts.astype(narrow),
        reader_start.astype(narrow),
        readers.astype(narrow),
        graph.nbytes,
        origin,
        np.where(origin == UPDATED, problem.updater, graph.producer).astype(narrow),
        np.where(graph.producer >= 0, graph.alias_of, -1).astype(narrow),
        problem.stays.astype(np.int8),
        np.flatnonzero((origin == FIXED) & was_read).astype(narrow),
        np.flatnonzero(origin == UPDATED).astype(narrow),
        max(1, problem.send_ns.shape[1]),
        problem.send_ns.reshape(-1),
        problem.send_class.reshape(-1).astype(narrow),
        (channel.reshape(-1) + devices).astype(narrow),
        heap_start,
        heap_room,
    )


def _heaps(problem: Problem, channels: int) -> tuple[np.ndarray, int]:
    """Room for all that may ever wait: every op on one device, every tensor for each destination of a channel."""
    room = [problem.num_ops] * problem.num_devices
    for channel in range(channels):
        fan = (problem.cluster.channel == channel).sum(axis=1).max()
        room.append(problem.graph.num_tensors * int(fan))
    start = np.zeros(len(room), np.int64)
    np.cumsum(room[:-1], out=start[1:])
    return start, sum(room)


@njit(cache=True, nogil=True)
def make_room(layout):
    resources = layout.devices + layout.channels
    return Room(
        np.empty(len(layout.waits), np.int32),
        np.empty(len(layout.nbytes) * layout.devices, np.int32),
        np.empty(layout.heap_room, np.int64),
        np.zeros(resources, np.int32),
        np.empty(resources, np.int64),
        np.empty(resources + 1, np.int64),
        np.empty(resources + 1, np.int32),
        np.empty(resources, np.int32),
        np.zeros(resources, np.int8),
        np.empty(layout.devices, np.int64),
        np.zeros(layout.devices, np.int32),
        np.empty(layout.devices, np.int64),
        np.empty(layout.devices, np.int32),
        np.zeros(1, np.int64),
    )


@njit(cache=True, nogil=True)
def make_record(ops, sends, points):
    return Record(
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(sends, np.int64),
        np.empty(sends, np.int64),
        np.empty(sends, np.int64),
        np.empty(points, np.int32),
        np.empty(points, np.int64),
        np.empty(points, np.int64),
        np.zeros(2, np.int64),
    )


@njit(inline="always")
def _wait(heap, start, size, key):
    """Adds a key to the heap at `start` that holds `size` keys."""
    here = size
    while here > 0:
        parent = (here - 1) >> 1
        if heap[start + parent] <= key:
            break
        heap[start + here] = heap[start + parent]
        here = parent
    heap[start + here] = key


@njit(inline="always")
def _take(heap, start, size):
    """Removes the lowest key; `size` is what remains."""
    lowest = heap[start]
    key = heap[start + size]
    here = 0
    while True:
        child = 2 * here + 1
        if child >= size:
            break
        if child + 1 < size and heap[start + child + 1] < heap[start + child]:
            child += 1
        if heap[start + child] >= key:
            break
        heap[start + here] = heap[start + child]
        here = child
    heap[start + here] = key
    return lowest


@njit(inline="always")
def _queue(layout, room, at, key, dirty):
    """Lets a key wait for resource `at`; returns the number of resources to look at this round."""
    _wait(room.heap, layout.heap_start[at], room.size[at], key)
    room.size[at] += 1
    if room.busy[at] < 0 and room.is_dirty[at] == 0:
        room.is_dirty[at] = 1
        room.dirty[dirty] = at
        dirty += 1
    return dirty


@njit(inline="always")
def _ready(layout, room, place, rank, op, dirty):
    """An op may run. Without ranks, first come first served."""
    if len(rank):
        order = np.int64(rank[op])
    else:
        order = room.arrivals[0]
        room.arrivals[0] += 1
    return _queue(layout, room, place[op], (order << 32) | np.int64(layout.tie[op]), dirty)


@njit(inline="always")
def _release(layout, room, place, tensor, device):
    """Frees a tensor nobody on the device needs any more, and what it kept alive there."""
    while layout.base[tensor] >= 0 and place[layout.maker[tensor]] == device:
        tensor = layout.base[tensor]
        if layout.origin[tensor] != MADE:
            return
        slot = tensor * layout.devices + device
        room.hold[slot] -= 1
        if room.hold[slot] > 0:
            return
    room.memory[device] -= layout.nbytes[tensor]


@njit(inline="always")
def _announce(layout, room, place, rank, send_rank, tensor, device, dirty, local_change):
    """Counts who needs the tensor where, queues its sends, and wakes its readers on the device (change -1)."""
    devices = layout.devices
    local, fars = 0, 0
    for at in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
        op = layout.readers[at]
        where = place[op]
        if where == device:
            local += 1
            if local_change:
                room.left[op] -= 1
                if room.left[op] == 0:
                    dirty = _ready(layout, room, place, rank, op, dirty)
            continue
        if room.count[where] == 0:
            room.far[fars] = where
            fars += 1
            room.low[where] = rank[op] if len(rank) else room.arrivals[0]
        elif len(rank) and rank[op] < room.low[where]:
            room.low[where] = rank[op]
        room.count[where] += 1
        if not local_change:
            room.left[op] += 1
    for far in range(fars):
        where = room.far[far]
        slot = tensor * devices + where
        room.hold[slot] = room.count[where]
        room.count[where] = 0
        order = room.low[where]
        if send_rank.size and send_rank[slot] >= 0:
            order = send_rank[slot]
        dirty = _queue(layout, room, layout.channel[device * devices + where], (np.int64(order) << 32) | np.int64(slot), dirty)
    room.hold[tensor * devices + device] = local + fars + layout.stays[tensor]
    return dirty


@njit(inline="always")
def _prepare(layout, room, place, rank, send_rank, peak):
    """The state at time 0: residents in place, updated weights queued for other readers, first ops ready."""
    for device in range(layout.devices):
        room.memory[device] = 0
        room.far[device] = -1
    for at in range(len(room.size)):
        room.size[at] = 0
        room.busy[at] = -1
        room.is_dirty[at] = 0
    room.left[:] = layout.waits
    room.arrivals[0] = 0
    for tensor in layout.fixed:
        for at in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
            device = place[layout.readers[at]]
            if room.far[device] != tensor:
                room.far[device] = tensor
                room.memory[device] += layout.nbytes[tensor]
    dirty = 0
    for tensor in layout.updated:
        home = place[layout.maker[tensor]]
        room.memory[home] += layout.nbytes[tensor]
        dirty = _announce(layout, room, place, rank, send_rank, tensor, home, dirty, False)
    for op in layout.sources:
        if room.left[op] == 0:
            dirty = _ready(layout, room, place, rank, op, dirty)
    peak[:] = room.memory
    return dirty


@njit(inline="always")
def _end_op(layout, room, place, rank, send_rank, op, device, dirty):
    room.memory[device] -= layout.workspace[op]
    for at in range(layout.make_start[op], layout.make_start[op + 1]):
        tensor = layout.makes[at]
        dirty = _announce(layout, room, place, rank, send_rank, tensor, device, dirty, True)
        held = room.hold[tensor * layout.devices + device] > 0
        base = layout.base[tensor]
        if base < 0:
            if not held:
                room.memory[device] -= layout.nbytes[tensor]
        elif held and layout.origin[base] == MADE:
            room.hold[base * layout.devices + device] += 1
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = layout.reads[at]
        if layout.origin[tensor] == UPDATED and place[layout.maker[tensor]] == device:
            continue
        slot = tensor * layout.devices + device
        room.hold[slot] -= 1
        if room.hold[slot] == 0:
            _release(layout, room, place, tensor, device)
    for at in range(layout.next_start[op], layout.next_start[op + 1]):
        later = layout.nexts[at]
        room.left[later] -= 1
        if room.left[later] == 0:
            dirty = _ready(layout, room, place, rank, later, dirty)
    return dirty


@njit(inline="always")
def _end_send(layout, room, place, rank, slot, dirty):
    tensor, device = slot // layout.devices, slot % layout.devices
    source = place[layout.maker[tensor]]
    if layout.origin[tensor] == MADE:
        room.hold[tensor * layout.devices + source] -= 1
        if room.hold[tensor * layout.devices + source] == 0:
            _release(layout, room, place, tensor, source)
    for at in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
        op = layout.readers[at]
        if place[op] == device:
            room.left[op] -= 1
            if room.left[op] == 0:
                dirty = _ready(layout, room, place, rank, op, dirty)
    return dirty


@njit(inline="always")
def _schedule(room, events, end, at):
    """Adds the end of what resource `at` runs to the heap of events."""
    here = events
    while here > 0:
        parent = (here - 1) >> 1
        if room.event_ns[parent] <= end:
            break
        room.event_ns[here] = room.event_ns[parent]
        room.event_at[here] = room.event_at[parent]
        here = parent
    room.event_ns[here] = end
    room.event_at[here] = at


@njit(inline="always")
def _next_event(room, events):
    """Removes the earliest event, `events` remaining, and returns its resource."""
    first = room.event_at[0]
    end, at = room.event_ns[events], room.event_at[events]
    here = 0
    while True:
        child = 2 * here + 1
        if child >= events:
            break
        if child + 1 < events and room.event_ns[child + 1] < room.event_ns[child]:
            child += 1
        if room.event_ns[child] >= end:
            break
        room.event_ns[here] = room.event_ns[child]
        room.event_at[here] = room.event_at[child]
        here = child
    room.event_ns[here] = end
    room.event_at[here] = at
    return first


@njit(cache=True, nogil=True, error_model="numpy")
def run(layout, place, rank, send_rank, room, most_ns, most_bytes, peak, recording, record):
    """Runs one step; returns its time, or -1 once it passes most_ns or a device passes most_bytes."""
    devices = layout.devices
    dirty = _prepare(layout, room, place, rank, send_rank, peak)
    events, now, turn, last = 0, np.int64(0), 0, np.int64(0)
    sends, points = 0, 0
    if recording:
        before = room.memory.copy()
        for device in range(devices):
            record.curve_device[points] = device
            record.curve_ns[points] = 0
            record.curve_bytes[points] = before[device]
            points += 1
    for device in range(devices):
        if peak[device] > most_bytes:
            return np.int64(-1)
    while True:
        for index in range(dirty):
            at = room.dirty[index]
            room.is_dirty[at] = 0
            if room.size[at] == 0:
                continue
            room.size[at] -= 1
            key = _take(room.heap, layout.heap_start[at], room.size[at]) & 0xFFFFFFFF
            if at < devices:
                op = layout.op_of_tie[key]
                room.busy[at] = op
                end = now + layout.op_ns[op * devices + at]
                total = room.memory[at] + layout.workspace[op]
                for make in range(layout.make_start[op], layout.make_start[op + 1]):
                    tensor = layout.makes[make]
                    if layout.base[tensor] < 0:
                        total += layout.nbytes[tensor]
                room.memory[at] = total
                if total > peak[at]:
                    peak[at] = total
                    if total > most_bytes:
                        return np.int64(-1)
                if recording:
                    record.start_ns[op] = now
                    record.end_ns[op] = end
                    record.turn[op] = turn
                    turn += 1
            else:
                room.busy[at] = key
                tensor, where = key // devices, key % devices
                source = place[layout.maker[tensor]]
                link = layout.send_class[source * devices + where]
                end = now + layout.send_ns[tensor * layout.send_classes + link]
                room.memory[where] += layout.nbytes[tensor]
                if room.memory[where] > peak[where]:
                    peak[where] = room.memory[where]
                    if peak[where] > most_bytes:
                        return np.int64(-1)
                if recording:
                    record.send_key[sends] = key
                    record.send_start_ns[sends] = now
                    record.send_end_ns[sends] = end
                sends += 1
            _schedule(room, events, end, at)
            events += 1
        dirty = 0
        if recording:
            for device in range(devices):
                if room.memory[device] != before[device]:
                    before[device] = room.memory[device]
                    record.curve_device[points] = device
                    record.curve_ns[points] = now
                    record.curve_bytes[points] = before[device]
                    points += 1
        if events == 0:
            break
        now = room.event_ns[0]
        if now > most_ns:
            return np.int64(-1)
        while events > 0 and room.event_ns[0] == now:
            events -= 1
            at = _next_event(room, events)
            done = room.busy[at]
            room.busy[at] = -1
            if room.is_dirty[at] == 0:
                room.is_dirty[at] = 1
                room.dirty[dirty] = at
                dirty += 1
            if at < devices:
                last = now
                dirty = _end_op(layout, room, place, rank, send_rank, done, at, dirty)
            else:
                dirty = _end_send(layout, room, place, rank, done, dirty)
    record.counts[0] = sends
    record.counts[1] = points
    return last


@njit(cache=True, nogil=True)
def run_many(layout, places, ranks, low, high, most_ns, most_bytes, step_ns, peaks):
    """Scores candidates low … high-1; a single row of ranks serves all."""
    room = make_room(layout)
    record = make_record(0, 0, 0)
    no_sends = np.empty(0, np.int64)
    for k in range(low, high):
        rank = ranks[k if len(ranks) > 1 else 0]
        step_ns[k] = run(layout, places[k], rank, no_sends, room, most_ns, most_bytes, peaks[k], False, record)
