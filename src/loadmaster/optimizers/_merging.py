# mypy: ignore-errors
"""The compiled loop of fusion: tries merges one by one and keeps every kernel convex."""

from __future__ import annotations

import numpy as np
from numba import njit

from loadmaster._order import followers

MOST_VISITS = 400  # of the search for a way around; a merge that needs more is not tried


@njit(inline="always")
def _find(parent, op):
    while parent[op] != op:
        parent[op] = parent[parent[op]]
        op = parent[op]
    return op


@njit(cache=True, nogil=True)
def merge(start, before, producers, consumers, heavy, able, most_members, sole_reader):
    """[ops] the lowest member of each op's kernel."""
    ops = len(start) - 1
    follow_start, follow = followers(start, before)
    parent, ring = np.arange(ops), np.arange(ops)  # ring: the members of a kernel in a circle
    members, heavies, top = np.ones(ops, np.int64), heavy.astype(np.int64), np.arange(ops)
    can = able.copy()
    stamp, stack = np.full(ops, -1, np.int64), np.empty(ops, np.int64)
    for pair in range(len(producers)):
        a, b = _find(parent, producers[pair]), _find(parent, consumers[pair])
        if a == b or members[a] + members[b] > most_members or heavies[a] + heavies[b] > 1:
            continue
        common = False
        for device in range(can.shape[1]):
            common = common or (can[a, device] and can[b, device])
        if not common or _blocked(follow_start, follow, parent, ring, top, a, b, stamp, stack, pair, sole_reader):
            continue
        low, high = min(a, b), max(a, b)
        parent[high] = low
        ring[low], ring[high] = ring[high], ring[low]
        members[low] += members[high]
        heavies[low] += heavies[high]
        top[low] = max(top[low], top[high])
        for device in range(can.shape[1]):
            can[low, device] = can[low, device] and can[high, device]
    kernel = np.empty(ops, np.int64)
    for op in range(ops):
        kernel[op] = _find(parent, op)
    return kernel


@njit(inline="always")
def _blocked(follow_start, follow, parent, ring, top, a, b, stamp, stack, mark, sole_reader):
    """Whether a way leads from kernel a out and back into kernel b; with sole_reader, whether anything but b follows
    a."""
    size, visits, limit = 0, 0, top[b]
    stamp[a] = mark
    op = a
    while True:
        for at in range(follow_start[op], follow_start[op + 1]):
            other = _find(parent, follow[at])
            if other != a and other != b and stamp[other] != mark:
                if sole_reader:
                    return True
                if other <= limit:
                    stamp[other] = mark
                    stack[size] = other
                    size += 1
        op = ring[op]
        if op == a:
            break
    while size > 0:
        size -= 1
        here = stack[size]
        visits += 1
        if visits > MOST_VISITS:
            return True
        op = here
        while True:
            for at in range(follow_start[op], follow_start[op + 1]):
                other = _find(parent, follow[at])
                if other == b:
                    return True
                if other <= limit and stamp[other] != mark:
                    stamp[other] = mark
                    stack[size] = other
                    size += 1
            op = ring[op]
            if op == here:
                break
    return False
