"""The compiled loop of HEFT and its kind, and what list schedulers keep account of: arrays in, arrays out.

`in_order` takes ops in a given order and asks every device when each would end, in the earliest gap; `earliest` has the
loop that chooses the op, too. Time in ops x devices x reads. Memory, where it counts, is added up roughly: made tensors
until their last reader is placed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.lists.steps import FAR, arrival, commit, gap, occupy, settle, thrifty
from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Bools, Ints, Whole
from loadmaster.simulator.state import MADE, UPDATED, Layout


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
