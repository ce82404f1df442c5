"""Compiled loops over orders of ops on one device: how much is alive when, and orders by simple rules.

On one device an order is all there is to decide for memory, and what is alive follows from it by adding up: no
simulation. `profile` is that sum; the others make orders, each in one walk: what adds least first, depth first, breadth
first, and reverse post-order as compilers use it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole


class Flow(NamedTuple):
    """What comes alive and what ends with each op, on one device. Only made tensors; in-place outputs are folded into
    their base.

    Attributes:
        read_start: made tensors each op reads or keeps in use.
        stays: 1: alive to the end.
        before_start: ops that must come first.
    """

    read_start: np.ndarray
    reads: np.ndarray
    make_start: np.ndarray
    makes: np.ndarray
    reader_start: np.ndarray
    readers: np.ndarray
    maker: np.ndarray
    nbytes: np.ndarray
    stays: np.ndarray
    workspace: np.ndarray
    before_start: np.ndarray
    before: np.ndarray
    follow_start: np.ndarray
    follow: np.ndarray


@compiled
def profile(flow: Flow, order: Ints, total: Ints) -> Whole:
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
def greedy(flow: Flow, look: Whole) -> Ints:
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
def depth_first(flow: Flow, from_last: bool) -> Ints:
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
def breadth_first(flow: Flow) -> Ints:
    """Finishes what became ready first (a queue of ready ops)."""
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
def post_order(flow: Flow) -> Ints:
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
