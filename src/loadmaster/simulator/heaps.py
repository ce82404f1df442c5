"""Compiled: heaps of what waits for a device, a channel or the host, and of what ends when.

Binary heaps in one flat array, each at its own start. A key is (rank << 32) | id, so that comparing two whole numbers
compares ranks and then ties (rules 3 and 4). They are inlined into the loop that calls them.

Which child is lower is added, not branched on: nobody can guess it, and a wrong guess costs the processor as much as
all the rest of a level. Where a node has one child, the other place holds what is moved, so it may be looked at too.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.simulator.state import FIXED, Layout, RunScratch

# Each becomes machine code within a run. They are given the few arrays that they need.
part = compiled(error_model="numpy", _nrt=False, forceinline=True)


@part
def push(heap: Ints, start: Whole, size: Whole, key: Whole) -> None:
    """Puts a key on the heap of so many that lies at `start`."""
    here = np.int64(size)
    while here > 0:
        parent = (here - 1) >> 1
        if heap[start + parent] <= key:
            break
        heap[start + here] = heap[start + parent]
        here = parent
    heap[start + here] = key


@part
def pop(heap: Ints, start: Whole, left_over: Whole) -> Whole:
    """Takes the lowest key off the heap at `start`, where so many are left then."""
    child: Whole
    here: Whole
    lowest, moved, here = heap[start], heap[start + left_over], 0
    while True:
        child = 2 * here + 1
        if child >= left_over:
            break
        child += np.int64(heap[start + child + 1] < heap[start + child])
        if heap[start + child] >= moved:
            break
        heap[start + here] = heap[start + child]
        here = child
    heap[start + here] = moved
    return lowest  # type: ignore[no-any-return]


@part
def push_event(event_ns: Ints, event_at: Ints32, events: Whole, end: Whole, at: Whole) -> None:
    """Notes that something ends on resource `at` at that time."""
    here = events
    while here > 0:
        parent = (here - 1) >> 1
        if event_ns[parent] <= end:
            break
        event_ns[here] = event_ns[parent]
        event_at[here] = event_at[parent]
        here = parent
    event_ns[here] = end
    event_at[here] = at


@part
def pop_event(event_ns: Ints, event_at: Ints32, left_over: Whole) -> Whole:
    """What ends first; so many are left then."""
    child: Whole
    here: Whole
    first = np.int64(event_at[0])
    end, moved_at, here = event_ns[left_over], event_at[left_over], 0
    while True:
        child = 2 * here + 1
        if child >= left_over:
            break
        child += np.int64(event_ns[child + 1] < event_ns[child])
        if event_ns[child] >= end:
            break
        event_ns[here] = event_ns[child]
        event_at[here] = event_at[child]
        here = child
    event_ns[here] = end
    event_at[here] = moved_at
    return first


@compiled(_nrt=False)
def pack_heaps(layout: Layout, place: Ints32, scratch: RunScratch) -> None:
    """Lays heaps side by side with room for what this placement can make wait: the ops of each device, the sends of
    each channel."""
    devices, maker, origin, channel = layout.devices, layout.maker, layout.origin, layout.channel
    reader_start, readers, start, seen = layout.reader_start, layout.readers, scratch.heap_start, scratch.low
    start[:] = 0
    seen[:] = -1
    for op in range(len(place)):
        start[place[op]] += 1
    for tensor in range(len(origin)):
        if origin[tensor] == FIXED or reader_start[tensor] == reader_start[tensor + 1]:
            continue
        home = np.int64(place[maker[tensor]])
        for at in range(reader_start[tensor], reader_start[tensor + 1]):
            where = place[readers[at]]
            if where != home and seen[where] != tensor:
                seen[where] = tensor
                start[channel[home * devices + where]] += 1
    total = np.int64(0)
    for at in range(len(start)):
        total, start[at] = total + start[at], total
