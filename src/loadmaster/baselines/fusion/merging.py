"""The compiled loop of fusion: tries merges one by one and keeps every kernel convex.

Two kernels of which one reads the other may become one if no way leads from the first out and back into the second
(below), their loops can be one (`spaces`), and nothing bars two of their ops from sharing a kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.baselines.fusion.spaces import MOST_VISITS, fits
from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Floats, Ints, Ints32, Whole
from loadmaster.graph.order import sort_by

BLOCKED, AHEAD, BEHIND = 0, 1, 2


class Rules(Struct):
    """What merging needs to know of a problem.

    Attributes:
        before_start: [ops + 1] ops that each op waits for.
        follow_start: [ops + 1] ops that wait for each op.
        pair_start: [ops + 1] rows of `consumer`: those that a producer may share a kernel with, ascending.
        given_start: [ops + 1] rows of `given`: the pairs of which each op is the consumer.
        barred_start: [ops + 1] rows of `barred`: ops that it reads, or that read it, in no kernel with it.
        points: [ops] the loop of each op, as in `spaces`.
        able: [ops, devices] where it can run; no columns where everything can run everywhere.
    """

    before_start: np.ndarray  # [ops + 1]
    before: np.ndarray
    follow_start: np.ndarray  # [ops + 1]
    follow: np.ndarray
    pair_start: np.ndarray  # [ops + 1]
    consumer: np.ndarray
    producer: np.ndarray  # [pairs]
    given_start: np.ndarray  # [ops + 1]
    given: np.ndarray
    barred_start: np.ndarray  # [ops + 1]
    barred: np.ndarray
    points: np.ndarray  # [ops]
    rows: np.ndarray
    apart: np.ndarray
    able: np.ndarray  # [ops, devices]
    most_members: int


class Kernels(Struct):
    """Kernels in the making, and scratch. A kernel goes by its lowest op.

    Attributes:
        ring: the members of a kernel in a circle.
        position: of each kernel in the order.
        at: kernel at each position, -1 where one has gone.
        ahead: stamps of the search from the producer.
        behind: stamps of the search from the consumer.
        chosen: [pairs] those that are to be tried.
        sort_key: [pairs] the priority below 0: sorted by it, the highest comes first.
    """

    parent: np.ndarray
    ring: np.ndarray
    members: np.ndarray
    can: np.ndarray
    points: np.ndarray
    rows: np.ndarray
    apart: np.ndarray
    position: np.ndarray
    at: np.ndarray
    ahead: np.ndarray
    behind: np.ndarray
    stack: np.ndarray
    other_stack: np.ndarray
    chosen: np.ndarray  # [pairs]
    spare: np.ndarray  # [pairs]
    sort_key: np.ndarray  # [pairs]


def make_kernels(rules: Rules) -> Kernels:
    """Scratch for merging, made once."""
    ops, pairs = len(rules.points), len(rules.consumer)

    sizes: dict[str, Any] = {"can": rules.able.shape, "chosen": pairs, "spare": pairs, "sort_key": pairs}
    kinds: dict[str, Any] = {"can": np.bool_, "apart": np.bool_, "points": np.int64, "rows": np.int64}
    kinds["sort_key"] = np.float64
    return Kernels._make(np.empty(sizes.get(name, ops), kinds.get(name, np.int32)) for name in Kernels._fields)


@compiled(_nrt=False)
def _reset(rules: Rules, kernels: Kernels) -> None:
    parent, ring, members, can, able = kernels.parent, kernels.ring, kernels.members, kernels.can, rules.able
    position, at, ahead, behind = kernels.position, kernels.at, kernels.ahead, kernels.behind
    points, rows, apart = kernels.points, kernels.rows, kernels.apart
    for op in range(len(parent)):
        parent[op] = ring[op] = position[op] = at[op] = op
        members[op] = 1
        ahead[op] = behind[op] = -1
        points[op], rows[op], apart[op] = rules.points[op], rules.rows[op], rules.apart[op]
        for device in range(able.shape[1]):
            can[op, device] = able[op, device]


def merge(rules: Rules, producers: Ints, consumers: Ints) -> np.ndarray:
    """[ops] the lowest member of each op's kernel, after trying the pairs in order."""
    kernel = np.empty(len(rules.points), np.int32)
    pairs = (producers.astype(np.int32), consumers.astype(np.int32))
    _merge(rules, make_kernels(rules), *pairs, len(producers), kernel)
    return kernel


def merge_many(rules: Rules, places: np.ndarray, priorities: np.ndarray, low: int, high: int, out: np.ndarray) -> None:
    """[candidates, ops] kernels: producers in order of priority, highest first and none below 0, join their readers on
    the same device; among equal ones, pairs go by reader, then by producer."""
    pairs = (np.empty(len(rules.consumer), np.int32), np.empty(len(rules.consumer), np.int32))
    _merge_many(rules, make_kernels(rules), places, priorities, low, high, *pairs, out)


@compiled(_nrt=False)
def _merge_many(
    rules: Rules,
    kernels: Kernels,
    places: Ints32,
    priorities: Floats,
    low: Whole,
    high: Whole,
    producers: Ints32,
    consumers: Ints32,
    out: Ints32,
) -> None:
    for k in range(low, high):
        place = places[k if len(places) > 1 else 0]
        count = wanted_pairs(rules, kernels, place, priorities[k], producers, consumers)
        _merge(rules, kernels, producers, consumers, count, out[k])


@compiled(_nrt=False)
def wanted_pairs(
    rules: Rules, kernels: Kernels, place: Ints32, priority: Floats, producers: Ints32, consumers: Ints32
) -> Whole:
    """Writes the pairs in the order in which they are tried; returns how many."""
    producer, consumer, given = rules.producer, rules.consumer, rules.given  # given: by reader, then by producer
    chosen, sort_key, count = kernels.chosen, kernels.sort_key, 0
    for index in range(len(given)):
        pair = given[index]
        maker = producer[pair]
        if priority[maker] >= 0 and place[consumer[pair]] == place[maker]:
            chosen[count], sort_key[pair] = pair, -priority[maker]
            count += 1
    sort_by(sort_key, chosen, count, kernels.spare)
    for index in range(count):
        producers[index], consumers[index] = producer[chosen[index]], consumer[chosen[index]]
    return count


@compiled(_nrt=False)
def _merge(rules: Rules, kernels: Kernels, producers: Ints32, consumers: Ints32, count: Whole, out: Ints32) -> None:
    """Writes the lowest op of each op's kernel."""
    _reset(rules, kernels)
    merge_on(rules, kernels, producers, consumers, count)
    for op in range(len(out)):
        out[op] = find(kernels.parent, op)


@compiled(_nrt=False, apart=True, no_cpython_wrapper=True)
def merge_on(rules: Rules, kernels: Kernels, producers: Ints32, consumers: Ints32, count: Whole) -> None:
    """Tries the pairs in order, from the kernels there are. Arrays are taken out of their tuples once: reading one
    inside the loop would count its references."""
    most_members = rules.most_members
    parent, ring, members, can = kernels.parent, kernels.ring, kernels.members, kernels.can
    points, rows, apart = kernels.points, kernels.rows, kernels.apart
    position, at, ahead, behind, stack = kernels.position, kernels.at, kernels.ahead, kernels.behind, kernels.stack
    forward = (rules.follow_start, rules.follow, parent, ring, position, ahead, behind, stack)
    backward = (rules.before_start, rules.before, parent, ring, position, behind, ahead, kernels.other_stack)
    for pair in range(count):
        a, b = find(parent, producers[pair]), find(parent, consumers[pair])
        if a == b or members[a] + members[b] > most_members:
            continue
        if not fits(points[a], rows[a], apart[a], points[b], rows[b]):
            continue
        common = can.shape[1] == 0
        for device in range(can.shape[1]):
            common = common or (can[a, device] and can[b, device])
        if not common or _barred(rules.barred_start, rules.barred, parent, ring, a, b):
            continue
        ended = search_both_ways(forward, backward, a, b, pair)
        if ended == BLOCKED:
            continue
        low, high = min(a, b), max(a, b)
        if ended == AHEAD:
            close_up(at, position, position[a], position[b], 1, ahead, pair, stack, low)
        else:
            close_up(at, position, position[b], position[a], -1, behind, pair, stack, low)
        parent[high] = low
        ring[low], ring[high] = ring[high], ring[low]
        members[low] += members[high]
        points[low], rows[low] = max(points[low], points[high]), max(rows[low], rows[high])
        apart[low] = apart[low] or apart[high]
        for device in range(can.shape[1]):
            can[low, device] = can[low, device] and can[high, device]


@compiled(_nrt=False)
def _barred(start: Ints32, barred: Ints32, parent: Ints32, ring: Ints32, a: Whole, b: Whole) -> bool:
    """Whether an op of the one kernel may share none with an op of the other."""
    op = a
    while True:
        for index in range(start[op], start[op + 1]):
            if find(parent, barred[index]) == b:
                return True
        op = ring[op]
        if op == a:
            return False


# Convexity: kernels stand in an order in which each comes after those it waits for, as in Pearce and Kelly, "A dynamic
# topological sort algorithm for directed acyclic graphs" (2007). A way from the first out and back into the second
# would lie between their positions. It is looked for from both ends at once; the end that stops first says what moves.


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
