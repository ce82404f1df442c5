"""The compiled loop of ETF: of all ready ops and devices, the pair that can start soonest.

Time in ops x devices x reads, and a heap besides. What is decided so far, and memory, is as in `loop`.
"""

from __future__ import annotations

import numpy as np

from loadmaster.baselines.lists.loop import FAR, ListState, account, arrival, commit, fresh_state, new_bytes, settle
from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Bools, Ints, Whole, inverse
from loadmaster.simulator.state import Layout


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
    follow = inverse(start, before, ops)
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
