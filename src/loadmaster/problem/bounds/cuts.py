"""Compiled minimum cuts for the bound on peak memory: arrays in, numbers out.

Plain loops instead of array expressions: those take seconds to compile.

When op v starts, the ops that have ended are a set closed under "what it waits for" that holds all v waits for and
not v. Alive are at least: every tensor made by the set that some op outside it still needs, and what v makes. So the
minimum of that over all such sets is a bound, and a minimum cut finds it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole

FREE, BEFORE, AFTER = 0, 1, 2  # of an op as seen from v: may have ended or not; must have; cannot have
ENDLESS = np.iinfo(np.int64).max // 4


class CutView(NamedTuple):
    """A problem as cuts see it. A storage is a made tensor with all that is written over it in place.

    Attributes:
        waits: ops that op i waits for.
        follows: ops that wait for op i.
        maker: [storages] op that makes it.
        stays: [storages] alive to the end.
        users: ops that need it.
        own: [ops] bytes that appear when the op starts.
    """

    wait_start: np.ndarray  # [ops + 1]
    waits: np.ndarray
    follow_start: np.ndarray  # [ops + 1]
    follows: np.ndarray
    tensor: np.ndarray  # [storages]
    maker: np.ndarray  # [storages]
    nbytes: np.ndarray  # [storages]
    stays: np.ndarray  # [storages]
    user_start: np.ndarray  # [storages + 1]
    users: np.ndarray
    own: np.ndarray  # [ops]


class FlowNetwork(NamedTuple):
    """Scratch for one flow network: nodes are ops, then storages, then source and sink; arcs in pairs.

    Attributes:
        head: [nodes] first arc out.
        near: [nodes] arc to try next.
        path: [nodes] arcs.
        after: [arcs] next arc out of the same node.
    """

    head: np.ndarray  # [nodes]
    near: np.ndarray  # [nodes]
    level: np.ndarray  # [nodes]
    queue: np.ndarray  # [nodes]
    path: np.ndarray  # [nodes]
    after: np.ndarray  # [arcs]
    to: np.ndarray  # [arcs]
    room: np.ndarray  # [arcs]


@compiled
def make_flow(net: CutView) -> FlowNetwork:
    """Memory for one flow network, made once."""
    nodes = len(net.own) + len(net.nbytes) + 2
    arcs = 2 * (len(net.waits) + len(net.users) + len(net.nbytes))
    return FlowNetwork(
        np.empty(nodes, np.int32),
        np.empty(nodes, np.int32),
        np.empty(nodes, np.int32),
        np.empty(nodes, np.int32),
        np.empty(nodes, np.int32),
        np.empty(arcs, np.int32),
        np.empty(arcs, np.int32),
        np.empty(arcs, np.int64),
    )


@compiled
def live_bytes(net: CutView, order: Ints) -> Ints:
    """[ops] bytes of storages alive while each op runs, when ops run one at a time in this order."""
    ops = len(order)
    place = np.empty(ops, np.int64)
    for turn in range(ops):
        place[order[turn]] = turn
    change = np.zeros(ops + 1, np.int64)
    for storage in range(len(net.nbytes)):
        if net.stays[storage]:
            change[place[net.maker[storage]] + 1] += net.nbytes[storage]
            continue
        last = np.int64(-1)
        for at in range(net.user_start[storage], net.user_start[storage + 1]):
            last = max(last, place[net.users[at]])
        if last >= 0:
            change[place[net.maker[storage]] + 1] += net.nbytes[storage]
            change[last + 1] -= net.nbytes[storage]
    live = np.empty(ops, np.int64)
    total = np.int64(0)
    for turn in range(ops):
        total += change[turn]
        live[order[turn]] = total + net.own[order[turn]]
    return live


@compiled
def _mark(net: CutView, op: Whole, side: NDArray[np.int8], stack: Ints) -> Whole:
    """Which ops must have ended when `op` starts, and which cannot have; returns how many arcs it looked at."""
    for other in range(len(side)):
        side[other] = FREE
    looked = len(side)
    for mark in (BEFORE, AFTER):
        start = net.wait_start if mark == BEFORE else net.follow_start
        others = net.waits if mark == BEFORE else net.follows
        stack[0] = op
        size = 1
        while size:
            size -= 1
            here = stack[size]
            for at in range(start[here], start[here + 1]):
                looked += 1
                if side[others[at]] == FREE:
                    side[others[at]] = mark
                    stack[size] = others[at]
                    size += 1
    side[op] = AFTER
    return looked


@compiled(inline="always")
def _arc(flow: FlowNetwork, arcs: Whole, tail: Whole, tip: Whole, room: Whole) -> Whole:
    flow.to[arcs], flow.room[arcs], flow.after[arcs] = tip, room, flow.head[tail]
    flow.head[tail] = arcs
    flow.to[arcs + 1], flow.room[arcs + 1], flow.after[arcs + 1] = tail, 0, flow.head[tip]
    flow.head[tip] = arcs + 1
    return arcs + 2


@compiled
def _build(net: CutView, flow: FlowNetwork, side: NDArray[np.int8]) -> tuple[Whole, Whole]:
    """The network over ops that are free; returns (bytes alive whatever the choice, arcs)."""
    arcs: Whole
    ops, storages = len(side), len(net.nbytes)
    source, sink = ops + storages, ops + storages + 1
    for node in range(len(flow.head)):
        flow.head[node] = -1
    forced, arcs = np.int64(0), 0
    for storage in range(storages):
        maker, size = net.maker[storage], net.nbytes[storage]
        made = side[maker]
        if made == AFTER or size == 0:
            continue
        frees, late = 0, net.stays[storage]
        for at in range(net.user_start[storage], net.user_start[storage + 1]):
            late |= side[net.users[at]] == AFTER
            frees += side[net.users[at]] == FREE
        if made == BEFORE:
            if late:
                forced += size
                continue
            if frees == 0:
                continue
            arcs = _arc(flow, arcs, source, ops + storage, size)
        elif late:
            arcs = _arc(flow, arcs, maker, sink, size)
            continue
        elif frees == 0:
            continue
        else:
            arcs = _arc(flow, arcs, maker, ops + storage, size)
        for at in range(net.user_start[storage], net.user_start[storage + 1]):
            if side[net.users[at]] == FREE:
                arcs = _arc(flow, arcs, ops + storage, net.users[at], ENDLESS)
    for op in range(ops):
        if side[op] == FREE:
            for at in range(net.wait_start[op], net.wait_start[op + 1]):
                if side[net.waits[at]] == FREE:
                    arcs = _arc(flow, arcs, op, net.waits[at], ENDLESS)
    return forced, arcs


@compiled
def _levels(flow: FlowNetwork, source: Whole, sink: Whole) -> Whole:
    """Distances from the source in arcs with room; returns how many arcs it looked at, under 0 if it met no sink."""
    for node in range(len(flow.level)):
        flow.level[node] = -1
    flow.level[source] = 0
    flow.queue[0] = source
    first, last, looked = 0, 1, 0
    while first < last:
        here = flow.queue[first]
        first += 1
        arc = flow.head[here]
        while arc >= 0:
            looked += 1
            tip = flow.to[arc]
            if flow.room[arc] > 0 and flow.level[tip] < 0:
                flow.level[tip] = flow.level[here] + 1
                if tip == sink:
                    return looked
                flow.queue[last] = tip
                last += 1
            arc = flow.after[arc]
    return -looked - 1


@compiled
def _push(flow: FlowNetwork, source: Whole, sink: Whole, work: Whole) -> tuple[Whole, Whole]:
    """One blocking flow along rising levels; returns (flow, work left)."""
    total, length, here = np.int64(0), 0, source
    while work > 0:
        if here == sink:
            least = ENDLESS
            for step in range(length):
                least = min(least, flow.room[flow.path[step]])
            back = length
            for step in range(length - 1, -1, -1):
                arc = flow.path[step]
                flow.room[arc] -= least
                flow.room[arc ^ 1] += least
                if flow.room[arc] == 0:
                    back = step
            total += least
            work -= length
            length = back
            here = flow.to[flow.path[back] ^ 1]
            continue
        arc = flow.near[here]
        while arc >= 0:
            work -= 1
            tip = flow.to[arc]
            if flow.room[arc] > 0 and flow.level[tip] == flow.level[here] + 1:
                break
            arc = flow.after[arc]
        flow.near[here] = arc
        if arc >= 0:
            flow.path[length] = arc
            length += 1
            here = flow.to[arc]
            continue
        if here == source:
            break
        flow.level[here] = -1
        length -= 1
        here = flow.to[flow.path[length] ^ 1]
    return total, work


@compiled
def _run(flow: FlowNetwork, source: Whole, sink: Whole, enough: Whole, work: Whole) -> tuple[Whole, Whole, bool]:
    """Dinic's maximum flow (1970), up to `enough`; returns (flow, work left, whether it is the maximum).

    Stopped early, the flow is still no more than the minimum cut.
    """
    total = np.int64(0)
    while work > 0 and total < enough:
        looked = _levels(flow, source, sink)
        if looked < 0:
            return total, work + looked, True
        work -= looked
        for node in range(len(flow.head)):
            flow.near[node] = flow.head[node]
        more, work = _push(flow, source, sink, work)
        total += more
    return total, work, False


@compiled
def _order_after(flow: FlowNetwork, side: NDArray[np.int8], best: Ints, op: Whole) -> Ints:
    """The known order, but first all that the cut says has ended, then `op`, then the rest."""
    ops = len(side)
    order = np.empty(ops, np.int64)
    count = 0
    for want in (True, False):
        for turn in range(ops):
            ended = side[best[turn]] == BEFORE or (side[best[turn]] == FREE and flow.level[best[turn]] >= 0)
            if best[turn] != op and ended == want:
                order[count] = best[turn]
                count += 1
        if want:
            order[count] = op
            count += 1
    return order


@compiled(inline="always")
def _largest(values: Ints) -> tuple[Whole, Whole]:
    """(place, value) of the first of the largest."""
    place = 0
    for other in range(len(values)):
        if values[other] > values[place]:
            place = other
    return place, values[place]


@compiled
def largest_cut(net: CutView, order: Ints, floor: Whole, work: Whole) -> tuple[Whole, Ints, Whole]:
    """The largest minimum cut over all ops, at least `floor`; returns it, the best order met, and the work left: 0 or
    less where it was cut short.

    Ops are tried by the bytes alive at them in the orders known so far, which is no less than their minimum cut; each
    cut gives a new order. `work`: how many arcs may be looked at.
    """
    ops, storages = len(net.own), len(net.nbytes)
    source, sink = ops + storages, ops + storages + 1
    flow = make_flow(net)
    side, stack = np.empty(ops, np.int8), np.empty(ops, np.int64)
    most = live_bytes(net, order)
    best, peak = order, _largest(most)[1]
    bound = floor
    while work > 0:
        op, _ = _largest(most)
        if most[op] <= bound:
            break
        work -= _mark(net, op, side, stack)
        forced, arcs = _build(net, flow, side)
        work -= len(side) + storages + arcs
        forced += net.own[op]
        got, work, done = _run(flow, source, sink, most[op] - forced, work)
        bound = max(bound, forced + got)
        most[op] = min(most[op], bound)
        if done and work > 0:
            trial = _order_after(flow, side, best, op)
            live = live_bytes(net, trial)
            work -= 4 * ops + len(net.users)
            trial_peak = _largest(live)[1]
            if trial_peak < peak:
                best, peak = trial, trial_peak
            for other in range(ops):
                most[other] = min(most[other], live[other])
    return bound, best, work
