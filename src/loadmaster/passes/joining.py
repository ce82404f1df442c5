"""Compiled: groups of bounded time, grown along the heaviest edges or along chains of single readers.

Union-find with a bound on what a group may take: at first half of an equal share of the time, then twice as much from
round to round until there are few enough. `groups` and `chaining` say which edges, and in which order.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, ints

ROUNDS = 6  # the bound on a group's time doubles from one to the next


@compiled
def join_edges(heads: Ints, tails: Ints, forced: int, time: NDArray[np.float64], most: int) -> Ints:
    """[ops] a label for each op. The first `forced` edges always join; the others in the order given, as long as both
    ends together take no more than a bound that starts at half an equal share of the time; until there are few enough.
    """
    count = len(time)
    parent = np.arange(count)
    load = time.copy()
    groups = count
    for at in range(forced):
        groups -= _join(parent, load, heads[at], tails[at], np.inf)
    bound = 0.5 * time.sum() / max(1, most)
    for _ in range(ROUNDS):
        for at in range(forced, len(heads)):
            if groups <= most:
                break
            groups -= _join(parent, load, heads[at], tails[at], bound)
        bound *= 2
    return np.array([_root(parent, op) for op in range(count)])


def join_neighbours(time: NDArray[np.float64], most: int) -> Ints:
    """[rows] runs of neighbouring rows, at most so many: the two runs that take the least together are joined first.
    In Python: 40,000 rows take a tenth of the time that numba takes to compile the loop with its heap."""
    count = len(time)
    load: list[float] = time.tolist()
    after, before, gone = list(range(1, count + 1)), list(range(-1, count - 1)), [False] * count
    heap = [(load[row] + load[row + 1], row, load[row], load[row + 1]) for row in range(count - 1)]
    heapq.heapify(heap)
    runs = count
    while runs > most:
        _, row, mine, theirs = heapq.heappop(heap)
        nearest = after[row]
        if gone[row] or nearest >= count or load[row] != mine or load[nearest] != theirs:
            continue  # one of the two has grown since
        load[row] += load[nearest]
        gone[nearest] = True
        after[row] = after[nearest]
        if after[row] < count:
            before[after[row]] = row
            heapq.heappush(heap, (load[row] + load[after[row]], row, load[row], load[after[row]]))
        if before[row] >= 0:
            heapq.heappush(heap, (load[before[row]] + load[row], before[row], load[before[row]], load[row]))
        runs -= 1
    return ints(np.cumsum(~np.array(gone)) - 1)


@compiled(_nrt=False)
def _root(parent: Ints, op: int) -> int:
    while parent[op] != op:
        parent[op] = parent[parent[op]]
        op = parent[op]
    return op


@compiled(_nrt=False)
def _join(parent: Ints, load: NDArray[np.float64], one: int, two: int, bound: float) -> int:
    """1 where two groups became one."""
    first, second = _root(parent, one), _root(parent, two)
    if first == second or load[first] + load[second] > bound:
        return 0
    low, high = min(first, second), max(first, second)
    parent[high] = low
    load[low] += load[high]
    return 1


@compiled
def join_in_a_row(before: Ints, later: Ints, time: Ints, colocate: Ints, able: Ints, most: float) -> Ints:
    """[ops] a label for each op. In each round a group may join the only group that follows it, or the only one it
    follows, where both can run on the same devices and together take at most so much time."""
    count = len(time)
    label, load = np.arange(count), time.astype(np.float64)
    for _ in range(ROUNDS):
        follower, maker = np.full(count, -1), np.full(count, -1)  # -2: several
        for at in range(len(before)):
            one, other = label[before[at]], label[later[at]]
            if one != other:
                follower[one] = other if follower[one] == -1 or follower[one] == other else -2
                maker[other] = one if maker[other] == -1 or maker[other] == one else -2
        into, taken, joined = np.arange(count), np.zeros(count, np.bool_), 0
        for op in range(count - 1, -1, -1):
            if label[op] != op or taken[op]:
                continue
            for mate in (follower[op], maker[op]):
                free = mate >= 0 and not taken[mate] and load[op] + load[mate] <= most and able[op] == able[mate]
                if free and (colocate[op] < 0 or colocate[op] == colocate[mate]):
                    into[op] = mate
                    load[mate] += load[op]
                    taken[op] = taken[mate] = True
                    joined += 1
                    break
        for op in range(count):
            label[op] = into[label[op]]
        if joined == 0:
            break
    return label
