"""How early an op can start, and how much must follow it, for the bound on step time. What ops that are in each other's
way add to that is in `crowds`.

A critical path that pays for sends: what an op reads was made on its own device, one op at a time, or came from another
kind of device or another device of the kind, after a send (Papadimitriou and Yannakakis, 1990). Out comes a table by op
and kind of device, from one compiled walk along the program, or against it.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import Struct, compiled
from loadmaster.graph import Graph
from loadmaster.graph.columns import Bools, Floats, Ints, Whole, ints, inverse, rows_of

FAR = np.iinfo(np.int64).max // 4
FEW = 12  # ops before or after an op that are told apart by where they run


class Ways(Struct):
    """The program as a walk from one of its ends meets it: for each op those that are met before it.

    Attributes:
        start: [ops + 1] of others and tensors.
        others: ops that make what it reads; backwards, that read what it makes.
        tensors: what lies between.
        after_start: [ops + 1] of after.
        after: ops that it waits for without data; backwards, that wait for it.
        times: [ops, kinds] below 0: cannot run there.
        sends: [tensors, columns] least times between kinds.
        column: [kinds, kinds] from the other op's kind to its own.
        several: [kinds] of more than one device.
        joins: [ops] that all met before lead to, so that all work since the last such op is done before them.
        work: [ops] of which a set takes at least the sum ÷ share.
    """

    start: np.ndarray  # [ops + 1]
    others: np.ndarray
    tensors: np.ndarray
    after_start: np.ndarray  # [ops + 1]
    after: np.ndarray
    times: np.ndarray  # [ops, kinds]
    sends: np.ndarray  # [tensors, columns]
    column: np.ndarray  # [kinds, kinds]
    several: np.ndarray  # [kinds]
    joins: np.ndarray  # [ops]
    work: np.ndarray  # [ops]
    share: int
    forward: bool


def ways_of(
    graph: Graph, times: Ints, sends: Ints, column: Ints, several: Bools, joins: Bools, work: Ints, share: int
) -> tuple[Ways, Ways]:
    """(along the program, against it)."""
    times, sends, work = (np.ascontiguousarray(table) for table in (times, sends, work))
    maker = graph.producer[graph.reads]
    made = maker >= 0
    start = _starts(rows_of(graph.read_start)[made], graph.num_ops)
    others, tensors, waits = ints(maker[made]), ints(graph.reads[made]), (graph.after_start, graph.after)
    along = Ways(start, others, tensors, *waits, times, sends, ints(column), several, joins, work, share, True)
    reader_start, readers = graph.readers
    count = np.diff(reader_start)[graph.makes]
    places = np.arange(count.sum()) + np.repeat(reader_start[graph.makes] - (np.cumsum(count) - count), count)
    start = _starts(np.repeat(rows_of(graph.make_start), count), graph.num_ops)
    nexts = inverse(graph.after_start, graph.after, graph.num_ops)
    others, tensors = ints(readers[places]), ints(np.repeat(graph.makes, count))
    return along, Ways(
        start, others, tensors, *nexts, times, sends, np.ascontiguousarray(column.T), several, joins, work, share, False
    )


def _starts(rows: np.ndarray, count: int) -> Ints:
    return ints(np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]))


def soonest(ways: Ways, known: Ints) -> Ints:
    """[ops, kinds] no op starts sooner on a device of that kind; against the program: the step does not end
    sooner after the op's end there. `known`: [ops] what was found out before."""
    begin, finish = np.zeros(ways.times.shape, np.int64), np.zeros(ways.times.shape, np.int64)
    _walk(ways, known, begin, finish, *np.empty((4, FEW), np.int64))
    return ints(begin)


def bottlenecks(start: Ints, before: Ints) -> Bools:
    """[ops] every other op is its ancestor or its descendant.

    All earlier ops are ancestors of op c when each has a follower at or before c, and likewise backwards.
    """
    ops, row = len(start) - 1, rows_of(start)
    first_follower, last_before = np.full(ops, ops), np.full(ops, -1)
    np.minimum.at(first_follower, before, row)
    np.maximum.at(last_before, row, before)
    latest = np.maximum.accumulate(np.concatenate([[0], first_follower]))[:-1]
    earliest = np.minimum.accumulate(np.concatenate([[ops], last_before[::-1]]))[:-1][::-1]
    joins: Bools = (latest <= np.arange(ops)) & (earliest >= np.arange(ops))
    return joins


def prices(times: Ints, count: Ints, most_ops: int, turns: int) -> Floats:
    """[kinds] prices of device time, 1 over all devices, under which the ops cost much at their cheapest places.

    Multiplicative weights, over the given number of ops evenly spread.
    """
    some = times[:: max(1, len(times) // most_ops)]
    able = np.where(some < 0, np.inf, some)
    price, kept, best = np.ones(len(count)), np.ones(len(count)), -1.0
    for turn in range(turns):
        price = price / (price @ count)
        cost = able * price
        chosen, total = cost.argmin(axis=1), float(cost.min(axis=1).sum())
        if total > best:
            kept, best = price, total
        load = np.bincount(chosen, able[np.arange(len(able)), chosen], len(count)) / count
        if load.max() <= 0:
            break
        # A kind that draws too much work is priced higher, so that the others look better.
        price = price * np.exp(0.5 / (1 + turn / 8) * load / load.max())
    return kept


def cheapest(times: Ints, price: Floats, scale: int) -> Ints:
    """[ops] price x time at the cheapest kind, in whole parts of 1 / scale, rounded down."""
    least = np.where(times < 0, np.inf, times * price).min(axis=1)
    return ints(np.floor(least * scale * (1 - 1e-12)))  # a part in 10^12 for the rounding of the product


# Compiled


@compiled(_nrt=False)
def _near_or_far(far: Ints, begin: Ints, time: Ints, count: Whole) -> Whole:
    """The soonest that an op can have what some others make: each runs on the op's own device, one at a time, from
    `begin` on for `time`, or elsewhere, and then its result is there at `far`.

    If the op starts at t, those that would come later from afar are all on its device (Papadimitriou and Yannakakis,
    1990), so that only sets of those with the latest `far` need be tried.
    """
    done: Whole
    best: Whole
    for at in range(1, count):
        late, first, long, here = far[at], begin[at], time[at], at
        while here > 0 and far[here - 1] < late:
            far[here], begin[here], time[here] = far[here - 1], begin[here - 1], time[here - 1]
            here -= 1
        far[here], begin[here], time[here] = late, first, long
    best = FAR
    for near in range(count + 1):
        done = np.int64(0)
        for here in range(near):
            done = min(FAR, max(done, begin[here]) + time[here])
        best = min(best, max(done, far[near] if near < count else 0))
        if done >= best or near == count:
            break
        # The first few by when they can begin.
        late, first, long, here = far[near], begin[near], time[near], near
        while here > 0 and begin[here - 1] > first:
            far[here], begin[here], time[here] = far[here - 1], begin[here - 1], time[here - 1]
            here -= 1
        far[here], begin[here], time[here] = late, first, long
    return best


@compiled(_nrt=False)
def _keep(
    far: Ints, begin: Ints, time: Ints, of: Ints, count: Whole, late: Whole, first: Whole, long: Whole, op: Whole
) -> Whole:
    """One more of the few with the latest `far`, each op once; returns how many there are."""
    for here in range(count):
        if of[here] == op:
            far[here] = max(far[here], late)
            return count
    if count < len(far):
        far[count], begin[count], time[count], of[count] = late, first, long, op
        return count + 1
    least = 0
    for here in range(1, count):
        if far[here] < far[least]:
            least = here
    if far[least] < late:
        far[least], begin[least], time[least], of[least] = late, first, long, op
    return count


@compiled(_nrt=False)
def _walk(ways: Ways, known: Ints, begin: Ints, finish: Ints, far: Ints, first: Ints, time: Ints, of: Ints) -> None:
    """Writes when each op can begin and finish on each kind. `far`, `first`, `time` and `of` are room for a few ops."""
    between: Whole
    count: Whole
    floor: Whole
    ops, kinds, times = len(known), len(ways.several), ways.times
    floor, between = np.int64(0), np.int64(0)
    for turn in range(ops):
        op = turn if ways.forward else ops - 1 - turn
        base = known[op]
        for at in range(ways.after_start[op], ways.after_start[op + 1]):
            soon = FAR
            for kind in range(kinds):
                soon = min(soon, finish[ways.after[at], kind])
            base = max(base, soon)
        if ways.joins[op]:
            base = max(base, floor + (between + ways.share - 1) // ways.share)
        least = FAR
        for kind in range(kinds):
            begin[op, kind] = base
            count = 0
            for at in range(ways.start[op], ways.start[op + 1]):
                other, late = ways.others[at], FAR
                for there in range(kinds):
                    if there != kind or ways.several[kind]:
                        late = min(late, finish[other, there] + ways.sends[ways.tensors[at], ways.column[there, kind]])
                begin[op, kind] = max(begin[op, kind], min(late, finish[other, kind]))
                long = FAR if times[other, kind] < 0 else times[other, kind]
                count = _keep(far, first, time, of, count, late, begin[other, kind], long, other)
            begin[op, kind] = max(begin[op, kind], _near_or_far(far, first, time, count))
            finish[op, kind] = FAR if times[op, kind] < 0 else min(FAR, begin[op, kind] + times[op, kind])
            least = min(least, finish[op, kind])
        between += ways.work[op]
        if ways.joins[op]:
            floor, between = least, np.int64(0)
