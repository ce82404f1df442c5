"""The compiled loop of HEFT and its kind, and what list schedulers keep account of: arrays in, arrays out.

`in_order` takes ops in a given order and asks every device when each would end, in the earliest gap; `earliest` has the
loop that chooses the op, too. Time in ops x devices x reads. Memory, where it counts, is added up roughly: made tensors
until their last reader is placed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Bools, Ints, Whole
from loadmaster.simulator.state import MADE, UPDATED, Layout

FAR = np.iinfo(np.int64).max // 4


@compiled(_nrt=False)
def new_bytes(
    layout: Layout, op: Whole, device: Whole, fixed_start: Ints, fixed: Ints, there: Ints, has: NDArray[np.int8]
) -> Whole:
    """Bytes that running the op here adds for good or for a while: outputs, workspace, residents not there yet."""
    total = layout.workspace[op]
    for at in range(layout.make_start[op], layout.make_start[op + 1]):
        if layout.base[layout.makes[at]] < 0:
            total += layout.nbytes[layout.makes[at]]
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = layout.reads[at]
        if there[tensor * layout.devices + device] < 0:
            total += layout.nbytes[tensor]
    for at in range(fixed_start[op], fixed_start[op + 1]):
        if has[fixed[at] * layout.devices + device] == 0:
            total += layout.nbytes[fixed[at]]
    return total  # type: ignore[no-any-return]


@compiled(_nrt=False)
def account(
    layout: Layout,
    op: Whole,
    device: Whole,
    fixed_start: Ints,
    fixed: Ints,
    has: NDArray[np.int8],
    used: Ints,
    left: Ints,
    home: Ints,
) -> None:
    """Memory after the op is placed: residents for good, made tensors until their last reader is placed."""
    devices = layout.devices
    for at in range(fixed_start[op], fixed_start[op + 1]):
        if has[fixed[at] * devices + device] == 0:
            has[fixed[at] * devices + device] = 1
            used[device] += layout.nbytes[fixed[at]]
    for at in range(layout.make_start[op], layout.make_start[op + 1]):
        tensor = layout.makes[at]
        left[tensor] = layout.reader_start[tensor + 1] - layout.reader_start[tensor] + layout.stays[tensor]
        if layout.base[tensor] < 0 and left[tensor] > 0:
            used[device] += layout.nbytes[tensor]
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = layout.reads[at]
        slot = tensor * devices + device
        if has[slot] == 0 and (layout.origin[tensor] == UPDATED or home[tensor] != device):
            has[slot] = 1
            used[device] += layout.nbytes[tensor]
        if layout.origin[tensor] == MADE and layout.base[tensor] < 0:
            left[tensor] -= 1
            if left[tensor] == 0:
                for other in range(devices):
                    if other == home[tensor] or has[tensor * devices + other]:
                        used[other] -= layout.nbytes[tensor]
                        has[tensor * devices + other] = 0


class ListState(Struct):
    """What is decided so far, and what is where. It is made in Python: loops that make no arrays need not count who
    still uses them, and are compiled in half the time.

    Attributes:
        home: [tensors] device, -1: nowhere yet.
        there: [tensors * devices] when it is on the device, -1: it is not.
        added: [channels] tentative use.
        groups: [colocation groups] device.
        home_of: [ops] device that an op is bound to.
        has: [tensors * devices] whether it takes memory there.
        left: [tensors] readers to come.
        used: [devices] bytes.
    """

    made_ns: np.ndarray  # [tensors]
    home: np.ndarray  # [tensors]
    there: np.ndarray  # [tensors * devices]
    channel_free: np.ndarray
    added: np.ndarray  # [channels]
    where: np.ndarray  # [ops]
    begin: np.ndarray  # [ops]
    end: np.ndarray  # [ops]
    groups: np.ndarray  # [colocation groups]
    home_of: np.ndarray  # [ops]
    has: np.ndarray  # [tensors * devices]
    left: np.ndarray  # [tensors]
    used: np.ndarray  # [devices]


def fresh_state(layout: Layout, colocate: Ints, home_of: np.ndarray) -> ListState:
    """Nothing is decided, and residents are nowhere yet."""
    ops, tensors, devices = len(layout.waits), len(layout.nbytes), layout.devices
    return ListState(
        np.zeros(tensors, np.int64),
        np.full(tensors, -1, np.int64),
        np.full(tensors * devices, -1, np.int64),
        np.zeros(layout.channels + 1, np.int64),
        np.zeros(layout.channels + 1, np.int64),
        np.full(ops, -1, np.int64),
        np.zeros(ops, np.int64),
        np.zeros(ops, np.int64),
        np.full(max(1, int(colocate.max()) + 1), -1, np.int64),
        home_of,
        np.zeros(tensors * devices, np.int8),
        np.zeros(tensors, np.int64),
        np.zeros(devices, np.int64),
    )


def in_order(
    layout: Layout,
    start: Ints,
    before: Ints,
    fixed_reads: tuple[Ints, Ints],
    colocate: Ints,
    able: Bools,
    order: Ints,
    fixed_device: Ints,
    limits: Ints,
    contention: bool,
    thrift: float,
) -> tuple[Ints, Ints]:
    """Ops in the given topological order, each where it ends first, in the earliest gap that holds it. `thrift`: a
    device also counts as later by that share of the sends that it needs, and of the wait at its way out."""
    state, size = fresh_state(layout, colocate, fixed_device.copy()), (layout.devices, len(layout.waits))
    busy = (np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(layout.devices, np.int64))
    _in_order(layout, start, before, *fixed_reads, colocate, able, order, limits, contention, thrift, state, *busy)
    return state.where, state.begin


@compiled(_nrt=False)
def _in_order(
    layout: Layout,
    start: Ints,
    before: Ints,
    fixed_start: Ints,
    fixed: Ints,
    colocate: Ints,
    able: Bools,
    order: Ints,
    limits: Ints,
    contention: bool,
    thrift: float,
    state: ListState,
    busy_from: Ints,
    busy_to: Ints,
    count: Ints,
) -> None:
    devices, made_ns, home, there = layout.devices, state.made_ns, state.home, state.there
    channel_free, added, where, begin, end = state.channel_free, state.added, state.where, state.begin, state.end
    groups, home_of, has, left, used = state.groups, state.home_of, state.has, state.left, state.used
    for op in order:
        base = np.int64(0)
        for at in range(start[op], start[op + 1]):
            base = max(base, end[before[at]])
        only = groups[colocate[op]] if colocate[op] >= 0 else -1
        if only < 0:
            only = home_of[op]
        best, chosen, least_over = FAR, -1, FAR
        for device in range(devices):
            if not able[op, device] or (only >= 0 and device != only and able[op, only]):
                continue
            ready = max(base, arrival(layout, op, device, made_ns, home, there, channel_free, added, contention))
            time = layout.op_ns[op * devices + device]
            finish = gap(busy_from[device], busy_to[device], count[device], ready, time) + time
            if thrift > 0:
                finish = thrifty(layout, op, device, finish, home, there, channel_free, thrift)
            over = max(0, used[device] + new_bytes(layout, op, device, fixed_start, fixed, there, has) - limits[device])
            if over < least_over or (over == least_over and finish < best):
                best, chosen, least_over = finish, device, over
        ready = max(
            base,
            commit(
                layout, op, chosen, made_ns, home, there, channel_free, contention, home_of, colocate, groups, where
            ),
        )
        time = layout.op_ns[op * devices + chosen]
        begin[op] = gap(busy_from[chosen], busy_to[chosen], count[chosen], ready, time)
        end[op] = begin[op] + time
        if time > 0:  # what has no length takes no room
            count[chosen] = occupy(busy_from[chosen], busy_to[chosen], count[chosen], begin[op], end[op])
        settle(layout, op, chosen, end[op], made_ns, home, there, colocate, groups, where)
        account(layout, op, chosen, fixed_start, fixed, has, used, left, home)


# Steps of every list scheduler. Asking (`arrival`) writes nothing but tentative use of channels; `commit` and `settle`
# are for good.


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
