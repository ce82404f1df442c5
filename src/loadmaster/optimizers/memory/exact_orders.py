# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Compiled loops over orders of ops on one device: how much is alive when, and annealing with exact differences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.optimizers.annealing.acceptance import slack_of
from loadmaster.optimizers.annealing.xorshift import below, unit


class Flow(NamedTuple):
    """What comes alive and what ends with each op, on one device. Only made tensors; in-place outputs are folded
    into their base."""

    read_start: np.ndarray  # made tensors each op reads or keeps in use
    reads: np.ndarray
    make_start: np.ndarray
    makes: np.ndarray
    reader_start: np.ndarray
    readers: np.ndarray
    maker: np.ndarray
    nbytes: np.ndarray
    stays: np.ndarray  # 1: alive to the end
    workspace: np.ndarray
    before_start: np.ndarray  # ops that must come first
    before: np.ndarray
    follow_start: np.ndarray
    follow: np.ndarray


@compiled
def profile(flow, order, total):
    """Writes the bytes alive while each position of the order runs; returns the largest."""
    left = np.diff(flow.reader_start)
    alive, peak = np.int64(0), np.int64(0)
    for at in range(len(order)):
        op = order[at]
        for make in range(flow.make_start[op], flow.make_start[op + 1]):
            alive += flow.nbytes[flow.makes[make]]
        total[at] = alive + flow.workspace[op]
        peak = max(peak, total[at])
        for read in range(flow.read_start[op], flow.read_start[op + 1]):
            tensor = flow.reads[read]
            left[tensor] -= 1
            if left[tensor] == 0 and flow.stays[tensor] == 0:
                alive -= flow.nbytes[tensor]
        for make in range(flow.make_start[op], flow.make_start[op + 1]):
            tensor = flow.makes[make]
            if flow.reader_start[tensor + 1] == flow.reader_start[tensor] and flow.stays[tensor] == 0:
                alive -= flow.nbytes[tensor]
    return peak


@compiled
def greedy(flow, look):
    """Of the ready ops, the one that adds least; among the `look` oldest ready ones at most."""
    ops = len(flow.workspace)
    left, waits = np.diff(flow.reader_start), np.diff(flow.before_start)
    ready, order = np.empty(ops, np.int64), np.empty(ops, np.int64)
    count = 0
    for op in range(ops):
        if waits[op] == 0:
            ready[count] = op
            count += 1
    for at in range(ops):
        best, chosen = np.int64(2**62), 0
        for index in range(min(count, look)):
            op = ready[index]
            change = np.int64(0)
            for make in range(flow.make_start[op], flow.make_start[op + 1]):
                tensor = flow.makes[make]
                if flow.reader_start[tensor + 1] > flow.reader_start[tensor] or flow.stays[tensor]:
                    change += flow.nbytes[tensor]
            for read in range(flow.read_start[op], flow.read_start[op + 1]):
                tensor = flow.reads[read]
                if left[tensor] == 1 and flow.stays[tensor] == 0:
                    change -= flow.nbytes[tensor]
            if change < best or (change == best and op < ready[chosen]):
                best, chosen = change, index
        op = ready[chosen]
        order[at] = op
        for index in range(chosen, count - 1):
            ready[index] = ready[index + 1]
        count -= 1
        for read in range(flow.read_start[op], flow.read_start[op + 1]):
            left[flow.reads[read]] -= 1
        for index in range(flow.follow_start[op], flow.follow_start[op + 1]):
            later = flow.follow[index]
            waits[later] -= 1
            if waits[later] == 0:
                ready[count] = later
                count += 1
    return order


@compiled
def depth_first(flow, from_last):
    """Finishes what was begun last (a stack of ready ops); `from_last`: newest follower on top."""
    ops = len(flow.workspace)
    waits = np.diff(flow.before_start)
    stack, order = np.empty(ops, np.int64), np.empty(ops, np.int64)
    count = 0
    for op in range(ops - 1, -1, -1):
        if waits[op] == 0:
            stack[count] = op
            count += 1
    for at in range(ops):
        count -= 1
        op = stack[count]
        order[at] = op
        low, high = flow.follow_start[op], flow.follow_start[op + 1]
        for index in range(high - low):
            later = flow.follow[low + index] if from_last else flow.follow[high - 1 - index]
            waits[later] -= 1
            if waits[later] == 0:
                stack[count] = later
                count += 1
    return order


@compiled
def breadth_first(flow):
    ops = len(flow.workspace)
    waits = np.diff(flow.before_start)
    order = np.empty(ops, np.int64)
    count = 0
    for op in range(ops):
        if waits[op] == 0:
            order[count] = op
            count += 1
    at = 0
    while at < count:
        op = order[at]
        at += 1
        for index in range(flow.follow_start[op], flow.follow_start[op + 1]):
            later = flow.follow[index]
            waits[later] -= 1
            if waits[later] == 0:
                order[count] = later
                count += 1
    return order


@compiled
def post_order(flow):
    """Reverse post-order from the ends: each op's inputs, heaviest first, right before it."""
    ops = len(flow.workspace)
    done, stack, at = np.zeros(ops, np.int8), np.empty(ops + 1, np.int64), np.zeros(ops, np.int64)
    order = np.empty(ops, np.int64)
    count = 0
    for root in range(ops):
        if flow.follow_start[root + 1] > flow.follow_start[root]:
            continue
        stack[0], size = root, 1
        done[root] = 1
        while size > 0:
            op = stack[size - 1]
            low, high = flow.before_start[op], flow.before_start[op + 1]
            while at[op] < high - low and done[flow.before[high - 1 - at[op]]]:
                at[op] += 1
            if at[op] < high - low:
                earlier = flow.before[high - 1 - at[op]]
                done[earlier] = 1
                stack[size] = earlier
                size += 1
            else:
                order[count] = op
                count += 1
                size -= 1
    return order


@compiled(inline="always")
def _last_use(flow, position, tensor, but):
    """The last position that needs the tensor when op `but` is taken away."""
    last = position[flow.maker[tensor]]
    for at in range(flow.reader_start[tensor], flow.reader_start[tensor + 1]):
        op = flow.readers[at]
        if op != but and position[op] > last:
            last = position[op]
    return last


@compiled(inline="always")
def _write(tree, size, low, high, values):
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
def _outside(tree, size, low, high):
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


@compiled
def anneal(flow, order, best_order, moves, window, temperature, state):
    """Moves one op at a time within what its neighbours allow, with the exact change of the profile.

    `order` is changed in place, `best_order` gets the best met; returns (best peak, peak at the end).
    """
    ops = len(order)
    position, total, trial = np.empty(ops, np.int64), np.empty(ops, np.int64), np.empty(ops, np.int64)
    for at in range(ops):
        position[order[at]] = at
    kept, dropped = np.zeros(ops, np.int64), np.zeros(ops, np.int64)  # bytes an op makes that live on, that end with it
    for op in range(ops):
        for make in range(flow.make_start[op], flow.make_start[op + 1]):
            tensor = flow.makes[make]
            if flow.reader_start[tensor + 1] > flow.reader_start[tensor] or flow.stays[tensor]:
                kept[op] += flow.nbytes[tensor]
            else:
                dropped[op] += flow.nbytes[tensor]
    peak = profile(flow, order, total)
    size = 1
    while size < ops:
        size *= 2
    tree = np.zeros(2 * size, np.int64)
    _write(tree, size, 0, ops - 1, total)
    best = peak
    best_order[:] = order
    first = np.float64(max(1, peak))
    for _ in range(moves):
        op = below(state, ops)
        here = position[op]
        if unit(state) < 0.5:
            limit = min(ops - 1, here + window)
            for at in range(flow.follow_start[op], flow.follow_start[op + 1]):
                limit = min(limit, position[flow.follow[at]] - 1)
            if limit <= here:
                continue
            there = here + 1 + below(state, limit - here)
            low, high = here, there
            for at in range(here + 1, there + 1):
                trial[at - 1] = total[at] - kept[op]
            for read in range(flow.read_start[op], flow.read_start[op + 1]):
                tensor = flow.reads[read]
                if flow.stays[tensor]:
                    continue
                last = _last_use(flow, position, tensor, op)
                if last < there:
                    for at in range(max(last, here) + 1, there + 1):
                        trial[at - 1] += flow.nbytes[tensor]
            # What is alive while op runs at its new place: what its new predecessor leaves behind, plus its own.
            other = order[there]
            value = trial[there - 1] - flow.workspace[other] - dropped[other]
            for read in range(flow.read_start[other], flow.read_start[other + 1]):
                tensor = flow.reads[read]
                if flow.stays[tensor]:
                    continue
                ends = True
                for at in range(flow.reader_start[tensor], flow.reader_start[tensor + 1]):
                    reader = flow.readers[at]
                    if reader == op or position[reader] > there:
                        ends = False
                        break
                if ends:
                    value -= flow.nbytes[tensor]
            trial[there] = value + kept[op] + dropped[op] + flow.workspace[op]
        else:
            limit = max(0, here - window)
            for at in range(flow.before_start[op], flow.before_start[op + 1]):
                limit = max(limit, position[flow.before[at]] + 1)
            if limit >= here:
                continue
            there = limit + below(state, here - limit)
            low, high = there, here
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
            other = order[there]
            trial[there] = total[there] - flow.workspace[other] - kept[other] - dropped[other]
            trial[there] += kept[op] + dropped[op] + flow.workspace[op]
        inside = np.int64(0)
        for at in range(low, high + 1):
            inside = max(inside, trial[at])
        now = max(inside, _outside(tree, size, low, high))
        if now > peak and now - peak > first * slack_of(temperature, state):
            continue
        if there > here:
            for at in range(here, there):
                order[at] = order[at + 1]
                position[order[at]] = at
        else:
            for at in range(here, there, -1):
                order[at] = order[at - 1]
                position[order[at]] = at
        order[there] = op
        position[op] = there
        for at in range(low, high + 1):
            total[at] = trial[at]
        _write(tree, size, low, high, trial)
        peak = tree[1]
        if peak < best:
            best = peak
            best_order[:] = order
    return best, peak
