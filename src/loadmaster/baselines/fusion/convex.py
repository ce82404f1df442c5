"""Compiled: whether two kernels can become one without waiting for themselves, and their order afterwards.

Kernels stand in an order in which each comes after those it waits for, as in Pearce and Kelly, "A dynamic topological
sort algorithm for directed acyclic graphs" (2007). A way from the first out and back into the second would lie between
their positions. It is looked for from both ends at once; the end that comes to a stop first says what has to move.
"""

from __future__ import annotations

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints32, Whole

BLOCKED, AHEAD, BEHIND = 0, 1, 2
MOST_VISITS = 400  # kernels looked at from each end; a merge that needs more is not made


@compiled(_nrt=False, forceinline=True)
def find(parent: Ints32, op: Whole) -> Whole:
    """The kernel that an op is in by now."""
    while parent[op] != op:
        parent[op] = parent[parent[op]]
        op = parent[op]
    return op


@compiled(_nrt=False)
def search_both_ways(
    forward: tuple[Ints32, Ints32, Ints32, Ints32, Ints32, Ints32, Ints32, Ints32],
    backward: tuple[Ints32, Ints32, Ints32, Ints32, Ints32, Ints32, Ints32, Ints32],
    a: Whole,
    b: Whole,
    mark: Whole,
) -> Whole:
    """Which search came to a stop: AHEAD, and all that a leads to before b is stamped, or BEHIND, and all that leads to
    b after a is; BLOCKED where they meet, or there is too much to look at."""
    position, ahead, behind = forward[4], forward[5], forward[6]
    stack, other_stack = forward[7], backward[7]
    low, high = position[a], position[b]
    ahead[a] = behind[b] = mark
    found = _look(forward, a, b, low, high, 0, mark)
    if found <= 0:
        return AHEAD if found == 0 else BLOCKED
    met = _look(backward, b, a, low, high, 0, mark)
    if met <= 0:
        return BEHIND if met == 0 else BLOCKED
    for turn in range(MOST_VISITS):
        found = _look(forward, stack[turn], -1, low, high, found, mark)
        if found < 0 or found == turn + 1:
            return BLOCKED if found < 0 else AHEAD
        met = _look(backward, other_stack[turn], -1, low, high, met, mark)
        if met < 0 or met == turn + 1:
            return BLOCKED if met < 0 else BEHIND
    return BLOCKED


@compiled(_nrt=False)
def _look(
    way: tuple[Ints32, Ints32, Ints32, Ints32, Ints32, Ints32, Ints32, Ints32],
    here: Whole,
    spared: Whole,
    low: Whole,
    high: Whole,
    size: Whole,
    mark: Whole,
) -> Whole:
    """Puts the neighbours of a kernel between the two positions on the stack; -1 where the other search has been."""
    start, others, parent, ring, position, mine, theirs, stack = way
    op = here
    while True:
        for index in range(start[op], start[op + 1]):
            other = find(parent, others[index])
            if other == spared or mine[other] == mark or not low <= position[other] <= high:
                continue
            if theirs[other] == mark:
                return -1
            mine[other] = mark
            stack[size] = other
            size += 1
        op = ring[op]
        if op == here:
            return size


@compiled(_nrt=False)
def close_up(
    at: Ints32,
    position: Ints32,
    first: Whole,
    last: Whole,
    step: Whole,
    stamps: Ints32,
    mark: Whole,
    moved: Ints32,
    merged: Whole,
) -> None:
    """Puts the merged kernel between those that are stamped, which go towards `last`, and those that are not."""
    free, count = first, 0
    for place in range(first + step, last, step):
        here = at[place]
        if here >= 0 and stamps[here] == mark:
            moved[count] = here
            count += 1
        elif here >= 0:
            at[free], position[here] = here, free
            free += step
    at[free], position[merged] = merged, free
    for index in range(count):
        free += step
        at[free], position[moved[index]] = moved[index], free
    for place in range(free + step, last + step, step):
        at[place] = -1
