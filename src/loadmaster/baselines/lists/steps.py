"""The steps of every list scheduler: when data could come, bringing it, the gap for an op, what is known after it.

Small compiled functions over the same few arrays, inlined into the loops of `loop`, `rolling` and `policy.decoding`.
Asking (`arrival`) writes nothing but tentative use of channels; `commit` and `settle` are for good.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole
from loadmaster.simulator.state import Layout

FAR = np.iinfo(np.int64).max // 4


@compiled(_nrt=False)
def arrival(
    layout: Layout,
    op: Whole,
    device: Whole,
    made_ns: Ints,
    home: Ints,
    there: Ints,
    channel_free: Ints,
    added: Ints,
    contention: bool,
) -> Whole:
    """When all that the op reads could be on the device; `added` collects tentative use of channels."""
    devices = layout.devices
    latest = np.int64(0)
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = layout.reads[at]
        known = there[tensor * devices + device]
        if known < 0:
            source = home[tensor]
            if source < 0:
                continue
            pair = source * devices + device
            channel = layout.channel[pair] - devices
            begin = made_ns[tensor]
            if contention:
                begin = max(begin, channel_free[channel] + added[channel])
            known = begin + layout.send_ns[tensor * layout.send_classes + layout.send_class[pair]]
            if contention:
                added[channel] = known - channel_free[channel]
        latest = max(latest, known)
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        source = home[layout.reads[at]]
        if source >= 0 and source != device:
            added[layout.channel[source * devices + device] - devices] = 0
    return latest


@compiled(_nrt=False)
def thrifty(
    layout: Layout, op: Whole, device: Whole, finish: Whole, home: Ints, there: Ints, channel_free: Ints, thrift: float
) -> Whole:
    """When the op ends, later by a share of the sends that it needs here, and of how long what it makes would then wait
    for a way out that all destinations share."""
    devices, total = layout.devices, np.int64(0)
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = np.int64(layout.reads[at])
        if there[tensor * devices + device] < 0 and home[tensor] >= 0:
            total += layout.send_ns[tensor * layout.send_classes + layout.send_class[home[tensor] * devices + device]]
    finish += np.int64(thrift * total)
    one, two = (device + 1) % devices, (device + 2) % devices
    out = layout.channel[device * devices + one]
    if devices > 2 and out == layout.channel[device * devices + two]:
        finish += np.int64(thrift * max(np.int64(0), channel_free[out - devices] - finish))
    return finish


@compiled(_nrt=False)
def commit(
    layout: Layout,
    op: Whole,
    device: Whole,
    made_ns: Ints,
    home: Ints,
    there: Ints,
    channel_free: Ints,
    contention: bool,
    home_of: Ints,
    colocate: Ints,
    groups: Ints,
    where: Ints,
) -> Whole:
    """Brings what the op reads to the device for good and returns when it is all there."""
    devices = layout.devices
    latest = np.int64(0)
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = layout.reads[at]
        slot = tensor * devices + device
        if there[slot] < 0:
            source = home[tensor]
            if source < 0:  # an updated weight stays where it is first read, and its update goes there
                home[tensor] = device
                there[slot] = 0
                updater = layout.maker[tensor]
                if where[updater] < 0 and home_of[updater] < 0:
                    home_of[updater] = device
                    if colocate[updater] >= 0 and groups[colocate[updater]] < 0:
                        groups[colocate[updater]] = device
            else:
                pair = source * devices + device
                channel = layout.channel[pair] - devices
                begin = made_ns[tensor]
                if contention:
                    begin = max(begin, channel_free[channel])
                there[slot] = begin + layout.send_ns[tensor * layout.send_classes + layout.send_class[pair]]
                channel_free[channel] = max(channel_free[channel], there[slot])
        latest = max(latest, there[slot])
    return latest


@compiled(_nrt=False)
def settle(
    layout: Layout,
    op: Whole,
    device: Whole,
    end: Whole,
    made_ns: Ints,
    home: Ints,
    there: Ints,
    colocate: Ints,
    groups: Ints,
    where: Ints,
) -> None:
    """The op is on the device for good: its group goes there too, and what it makes is there from `end` on."""
    where[op] = device
    if colocate[op] >= 0:
        groups[colocate[op]] = device
    for at in range(layout.make_start[op], layout.make_start[op + 1]):
        tensor = layout.makes[at]
        made_ns[tensor] = end
        home[tensor] = device
        there[tensor * layout.devices + device] = end


@compiled(_nrt=False)
def gap(busy_from: Ints, busy_to: Ints, count: Whole, ready: Whole, time: Whole) -> Whole:
    """The earliest start at or after `ready` in a gap of that length between busy spans."""
    low: Whole
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if busy_to[middle] <= ready:
            low = middle + 1
        else:
            high = middle
    begin = ready
    while low < count and time > 0:
        if busy_from[low] - begin >= time:
            return begin
        begin = max(begin, busy_to[low])
        low += 1
    return begin


@compiled(_nrt=False)
def occupy(busy_from: Ints, busy_to: Ints, count: Whole, begin: Whole, end: Whole) -> Whole:
    """Adds a busy span; how many there are. Spans without a gap between them are one, so that full stretches, in which
    nothing fits, are passed at once."""
    here = count
    while here > 0 and busy_from[here - 1] > begin:
        here -= 1
    joins, meets = here > 0 and busy_to[here - 1] == begin, here < count and busy_from[here] == end
    if joins and meets:
        busy_to[here - 1] = busy_to[here]
        for at in range(here, count - 1):
            busy_from[at], busy_to[at] = busy_from[at + 1], busy_to[at + 1]
        return count - 1
    if joins:
        busy_to[here - 1] = end
        return count
    if meets:
        busy_from[here] = begin
        return count
    for at in range(count, here, -1):
        busy_from[at], busy_to[at] = busy_from[at - 1], busy_to[at - 1]
    busy_from[here], busy_to[here] = begin, end
    return count + 1
