"""The compiled loops of the list schedulers: arrays in, arrays out.

Two of them: `in_order` (HEFT's kind) takes ops in a given order and asks every device when it would end, in the
earliest gap; `earliest_first` (ETF's kind) takes of all ready ops and devices the pair that starts soonest. Both take
time in ops x devices x reads, the second a heap besides. Memory, where it counts, is added up roughly: made tensors
until their last reader is placed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Bools, Ints, Whole
from loadmaster.graph.order import followers
from loadmaster.optimizers.lists.steps import FAR, arrival, commit, gap, occupy, settle, thrifty
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


@compiled(_nrt=False)
def _push(heap_ns: Ints, heap_level: Ints, heap_op: Ints, size: Whole, ns: Whole, level: Whole, op: Whole) -> None:
    here = size
    while here > 0:
        parent = (here - 1) >> 1
        if heap_ns[parent] < ns or (heap_ns[parent] == ns and heap_level[parent] >= level):
            break
        heap_ns[here], heap_level[here], heap_op[here] = heap_ns[parent], heap_level[parent], heap_op[parent]
        here = parent
    heap_ns[here], heap_level[here], heap_op[here] = ns, level, op


@compiled(_nrt=False)
def _pop(heap_ns: Ints, heap_level: Ints, heap_op: Ints, size: Whole) -> None:
    """Removes the first entry, `size` remaining."""
    ns, level, op = heap_ns[size], heap_level[size], heap_op[size]
    here = 0
    while True:
        child = 2 * here + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            heap_ns[right] < heap_ns[child]
            or (heap_ns[right] == heap_ns[child] and heap_level[right] > heap_level[child])
        ):
            child = right
        if heap_ns[child] > ns or (heap_ns[child] == ns and heap_level[child] <= level):
            break
        heap_ns[here], heap_level[here], heap_op[here] = heap_ns[child], heap_level[child], heap_op[child]
        here = child
    heap_ns[here], heap_level[here], heap_op[here] = ns, level, op


class Heaps(Struct):
    """Of each device: what waits there, by time or by level."""

    ns: np.ndarray  # [devices, ops]
    level: np.ndarray
    op: np.ndarray
    size: np.ndarray  # [devices]


def _heaps(devices: int, ops: int) -> Heaps:
    ns, level, op = (np.empty((devices, ops), np.int64) for _ in range(3))
    return Heaps(ns, level, op, np.zeros(devices, np.int64))


def earliest_first(
    layout: Layout,
    start: Ints,
    before: Ints,
    fixed_reads: tuple[Ints, Ints],
    colocate: Ints,
    able: Bools,
    level: Ints,
    favourite: Ints,
    limits: Ints,
    contention: bool,
) -> tuple[Ints, Ints]:
    """Of all ready ops and devices, the pair that can start soonest; ties by level.

    Two heaps per device: ops whose data will come (by time), ops that could start as soon as it is free (by level).
    Entries go stale as channels fill and groups settle; they are looked at again when they surface.
    """
    devices, ops = layout.devices, len(layout.waits)
    state = fresh_state(layout, colocate, np.full(ops, -1, np.int64))
    scratch = (
        np.zeros(devices, np.int64),  # when it is free
        np.full(devices, -1, np.int64),  # what ran there last
        np.diff(start),
        np.zeros(ops, np.int64),  # when all that an op waits for has ended
        np.empty(ops, np.int64),
    )
    follow = followers(start, before)
    given = (*fixed_reads, colocate, able, level, favourite, limits, contention)
    _earliest_first(layout, *follow, *given, state, _heaps(devices, ops), _heaps(devices, ops), *scratch)  # type: ignore[arg-type]
    return state.where, state.begin


@compiled(_nrt=False)
def _earliest_first(
    layout: Layout,
    follow_start: Ints,
    follow: Ints,
    fixed_start: Ints,
    fixed: Ints,
    colocate: Ints,
    able: Bools,
    level: Ints,
    favourite: Ints,
    limits: Ints,
    contention: bool,
    state: ListState,
    soon_heaps: Heaps,
    now_heaps: Heaps,
    free: Ints,
    last_op: Ints,
    waiting: Ints,
    base: Ints,
    fresh: Ints,
) -> None:
    chosen_op: Whole
    full_op: Whole
    best: Whole
    full_best: Whole
    op: Whole
    devices, ops, made_ns, home, there = layout.devices, len(layout.waits), state.made_ns, state.home, state.there
    channel_free, added, where, begin, end = state.channel_free, state.added, state.where, state.begin, state.end
    groups, home_of, has, left, used = state.groups, state.home_of, state.has, state.left, state.used
    soon_ns, soon_level, soon_op, soon = soon_heaps.ns, soon_heaps.level, soon_heaps.op, soon_heaps.size
    now_ns, now_level, now_op, now = now_heaps.ns, now_heaps.level, now_heaps.op, now_heaps.size
    news = 0
    for op in range(ops):
        if waiting[op] == 0:
            fresh[news] = op
            news += 1
    placed = 0
    while placed < ops:
        for index in range(news):
            op = fresh[index]
            for device in range(devices):
                if able[op, device]:
                    ready = max(
                        base[op], arrival(layout, op, device, made_ns, home, there, channel_free, added, contention)
                    )
                    _push(soon_ns[device], soon_level[device], soon_op[device], soon[device], ready, level[op], op)
                    soon[device] += 1
        news = 0
        best, best_level, best_time, chosen, chosen_op = FAR, np.int64(-1), FAR, -1, np.int64(-1)
        full_best, full_device, full_op, full_over = FAR, -1, np.int64(-1), FAR
        for device in range(devices):
            while soon[device] > 0 and soon_ns[device, 0] <= free[device]:
                op, value = soon_op[device, 0], soon_level[device, 0]
                soon[device] -= 1
                _pop(soon_ns[device], soon_level[device], soon_op[device], soon[device])
                if where[op] < 0:
                    if last_op[device] >= 0 and favourite[last_op[device]] == op:
                        value += FAR
                    _push(now_ns[device], now_level[device], now_op[device], now[device], 0, value, op)
                    now[device] += 1
            while True:
                if now[device] > 0:
                    op, ns, from_now = now_op[device, 0], free[device], True
                elif soon[device] > 0:
                    op, ns, from_now = soon_op[device, 0], soon_ns[device, 0], False
                else:
                    break
                only = groups[colocate[op]] if colocate[op] >= 0 else -1
                if only < 0:
                    only = home_of[op]
                stale = where[op] >= 0 or (only >= 0 and only != device and able[op, only])
                ready = ns
                if not stale:
                    ready = max(
                        base[op], arrival(layout, op, device, made_ns, home, there, channel_free, added, contention)
                    )
                if not stale and ready <= ns:
                    over = max(
                        0,
                        used[device] + new_bytes(layout, op, device, fixed_start, fixed, there, has) - limits[device],
                    )
                    if over == 0:
                        # Of unlike devices on which it could start at once, the one where it ends first.
                        time = layout.op_ns[op * devices + device]
                        better = level[op] > best_level or (op == chosen_op and time < best_time)
                        if ns < best or (ns == best and better):
                            best, best_level, best_time, chosen, chosen_op = ns, level[op], time, device, op
                        break
                    if over < full_over or (over == full_over and ns < full_best):
                        full_best, full_device, full_op, full_over = ns, device, op, over
                    break
                if from_now:
                    now[device] -= 1
                    _pop(now_ns[device], now_level[device], now_op[device], now[device])
                else:
                    soon[device] -= 1
                    _pop(soon_ns[device], soon_level[device], soon_op[device], soon[device])
                if not stale:
                    _push(soon_ns[device], soon_level[device], soon_op[device], soon[device], ready, level[op], op)
                    soon[device] += 1
        if chosen < 0:
            chosen, chosen_op = full_device, full_op
        op = chosen_op
        ready = max(
            base[op],
            commit(
                layout, op, chosen, made_ns, home, there, channel_free, contention, home_of, colocate, groups, where
            ),
        )
        begin[op] = max(ready, free[chosen])
        end[op] = begin[op] + layout.op_ns[op * devices + chosen]
        free[chosen] = end[op]
        last_op[chosen] = op
        settle(layout, op, chosen, end[op], made_ns, home, there, colocate, groups, where)
        account(layout, op, chosen, fixed_start, fixed, has, used, left, home)
        placed += 1
        for at in range(follow_start[op], follow_start[op + 1]):
            later = follow[at]
            base[later] = max(base[later], end[op])
            waiting[later] -= 1
            if waiting[later] == 0:
                fresh[news] = later
                news += 1
