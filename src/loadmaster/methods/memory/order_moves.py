"""Compiled: annealing over orders of one device. A move takes one op to another place; what is alive at every position
is known exactly before the move is made, so that it costs a look at the ops between the two places and no simulation.

What makes a move worse acceptable, its random numbers and its cooling are the annealing engine's. There is nothing to
undo: a move is made once it is accepted, and taken back by the move to where the op was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.baselines.exact_orders import Flow, profile
from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole
from loadmaster.methods.annealing.choice import slack_of
from loadmaster.search.xorshift import RandomState, below, unit


class OrderStanding(NamedTuple):
    """An order, and what is alive when.

    Attributes:
        order: [ops] as they run.
        position: [ops] of each op in the order.
        total: [ops] bytes alive while each position runs.
        trial: [ops] those bytes after the move that is looked at, from one of its ends to the other.
        tree: [2 * leaves] total as leaves; above two nodes, the larger.
        kept: [ops] bytes an op makes that live on.
        dropped: [ops] bytes that end with it.
    """

    order: np.ndarray  # [ops]
    position: np.ndarray  # [ops]
    total: np.ndarray  # [ops]
    trial: np.ndarray  # [ops]
    tree: np.ndarray  # [2 * leaves]
    kept: np.ndarray  # [ops]
    dropped: np.ndarray  # [ops]


@compiled
def anneal(
    flow: Flow, order: Ints, best_order: Ints, moves: Whole, window: Whole, temperature: float, state: RandomState
) -> tuple[Whole, Whole]:
    """So many moves at one temperature, a share of the first peak. `order` is changed in place, `best_order` gets the
    best met; returns (best peak, peak at the end)."""
    standing = standing_of(flow, order)
    tree, position = standing.tree, standing.position
    best = peak = tree[1]
    first = np.float64(max(1, peak))
    best_order[:] = order
    for _ in range(moves):
        op, there = draw(flow, standing, window, state)
        here = position[op]
        if there == here:
            continue
        if there > here:
            look_later(flow, standing, op, there)
        else:
            look_sooner(flow, standing, op, there)
        now = peak_after(standing, min(here, there), max(here, there))
        if now > peak and now - peak > first * slack_of(temperature, state):
            continue
        apply(standing, op, there)
        peak = tree[1]
        if peak < best:
            best = peak
            best_order[:] = order
    return best, peak


@compiled
def standing_of(flow: Flow, order: Ints) -> OrderStanding:
    """Of an order, which is not copied: moves change it."""
    ops, leaves = len(order), 1
    while leaves < ops:
        leaves *= 2
    position, total, trial = np.empty(ops, np.int64), np.empty(ops, np.int64), np.empty(ops, np.int64)
    for at in range(ops):
        position[order[at]] = at
    kept, dropped = np.zeros(ops, np.int64), np.zeros(ops, np.int64)
    for op in range(ops):
        for make in range(flow.make_start[op], flow.make_start[op + 1]):
            tensor = flow.makes[make]
            if flow.reader_start[tensor + 1] > flow.reader_start[tensor] or flow.stays[tensor]:
                kept[op] += flow.nbytes[tensor]
            else:
                dropped[op] += flow.nbytes[tensor]
    profile(flow, order, total)
    tree = np.zeros(2 * leaves, np.int64)
    _write(tree, leaves, 0, ops - 1, total)
    return OrderStanding(order, position, total, trial, tree, kept, dropped)


@compiled(_nrt=False)
def draw(flow: Flow, standing: OrderStanding, window: Whole, state: RandomState) -> tuple[Whole, Whole]:
    """(An op, a place at most a window away, behind all it waits for and before all that wait for it); its own place
    where it can go nowhere."""
    position = standing.position
    ops = len(position)
    op = below(state, ops)
    here = position[op]
    if unit(state) < 0.5:
        last = min(ops - 1, here + window)
        for at in range(flow.follow_start[op], flow.follow_start[op + 1]):
            last = min(last, position[flow.follow[at]] - 1)
        return op, (here + 1 + below(state, last - here) if last > here else here)
    first = max(0, here - window)
    for at in range(flow.before_start[op], flow.before_start[op + 1]):
        first = max(first, position[flow.before[at]] + 1)
    return op, (first + below(state, here - first) if first < here else here)


@compiled(_nrt=False)
def look_later(flow: Flow, standing: OrderStanding, op: Whole, there: Whole) -> None:
    """Writes what would be alive if the op came later: what it makes comes later too, what it reads lives longer."""
    position, total, trial, here = standing.position, standing.total, standing.trial, standing.position[op]
    for at in range(here + 1, there + 1):
        trial[at - 1] = total[at] - standing.kept[op]
    for read in range(flow.read_start[op], flow.read_start[op + 1]):
        tensor = flow.reads[read]
        if flow.stays[tensor]:
            continue
        last = _last_use(flow, position, tensor, op)
        if last < there:
            for at in range(max(last, here) + 1, there + 1):
                trial[at - 1] += flow.nbytes[tensor]
    # What is alive while op runs at its new place: what its new predecessor leaves behind, plus its own.
    other = standing.order[there]
    value = trial[there - 1] - flow.workspace[other] - standing.dropped[other]
    for read in range(flow.read_start[other], flow.read_start[other + 1]):
        tensor = flow.reads[read]
        if flow.stays[tensor] == 0 and _ends_there(flow, position, tensor, op, there):
            value -= flow.nbytes[tensor]
    trial[there] = value + standing.kept[op] + standing.dropped[op] + flow.workspace[op]


@compiled(_nrt=False)
def look_sooner(flow: Flow, standing: OrderStanding, op: Whole, there: Whole) -> None:
    """Writes what would be alive if the op came sooner: what it makes lives longer, what only it reads ends sooner."""
    position, total, trial, here = standing.position, standing.total, standing.trial, standing.position[op]
    kept, dropped = standing.kept, standing.dropped
    for at in range(there, here):
        trial[at + 1] = total[at] + kept[op]
    for read in range(flow.read_start[op], flow.read_start[op + 1]):
        tensor = flow.reads[read]
        if flow.stays[tensor]:
            continue
        last = _last_use(flow, position, tensor, op)
        if last < here:
            for at in range(max(last, there - 1) + 1, here):
                trial[at + 1] -= flow.nbytes[tensor]
    other = standing.order[there]
    trial[there] = total[there] - flow.workspace[other] - kept[other] - dropped[other]
    trial[there] += kept[op] + dropped[op] + flow.workspace[op]


@compiled(_nrt=False)
def peak_after(standing: OrderStanding, low: Whole, high: Whole) -> Whole:
    """The peak after the move that was looked at, which changes positions low … high."""
    inside = np.int64(0)
    for at in range(low, high + 1):
        inside = max(inside, standing.trial[at])
    return max(inside, _outside(standing.tree, len(standing.tree) >> 1, low, high))


@compiled(_nrt=False)
def apply(standing: OrderStanding, op: Whole, there: Whole) -> None:
    """Makes the move that was looked at."""
    order, position, here = standing.order, standing.position, standing.position[op]
    step = 1 if there > here else -1
    for at in range(here, there, step):
        order[at] = order[at + step]
        position[order[at]] = at
    order[there], position[op] = op, there
    low, high = min(here, there), max(here, there)
    for at in range(low, high + 1):
        standing.total[at] = standing.trial[at]
    _write(standing.tree, len(standing.tree) >> 1, low, high, standing.trial)


@compiled(inline="always")
def _ends_there(flow: Flow, position: Ints, tensor: Whole, op: Whole, there: Whole) -> bool:
    """Whether nobody but those up to the place reads the tensor, the op that moves apart."""
    for at in range(flow.reader_start[tensor], flow.reader_start[tensor + 1]):
        reader = flow.readers[at]
        if reader == op or position[reader] > there:
            return False
    return True


@compiled(inline="always")
def _last_use(flow: Flow, position: Ints, tensor: Whole, but: Whole) -> Whole:
    """The last position that needs the tensor when op `but` is taken away."""
    last = position[flow.maker[tensor]]
    for at in range(flow.reader_start[tensor], flow.reader_start[tensor + 1]):
        op = flow.readers[at]
        if op != but and position[op] > last:
            last = position[op]
    return last  # type: ignore[no-any-return]


@compiled(inline="always")
def _write(tree: Ints, size: Whole, low: Whole, high: Whole, values: Ints) -> None:
    """Sets leaves low … high of a max tree and repairs what is above them."""
    for at in range(low, high + 1):
        tree[size + at] = values[at]
    left, right = (size + low) >> 1, (size + high) >> 1
    while left > 0:
        for node in range(left, right + 1):
            tree[node] = max(tree[2 * node], tree[2 * node + 1])
        left >>= 1
        right >>= 1


@compiled(inline="always")
def _outside(tree: Ints, size: Whole, low: Whole, high: Whole) -> Whole:
    """The largest leaf before low or after high."""
    best = np.int64(0)
    for part in range(2):
        left, right = (size, size + low) if part == 0 else (size + high + 1, 2 * size)
        while left < right:
            if left & 1:
                best = max(best, tree[left])
                left += 1
            if right & 1:
                right -= 1
                best = max(best, tree[right])
            left >>= 1
            right >>= 1
    return best
