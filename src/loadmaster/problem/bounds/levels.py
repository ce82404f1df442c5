"""Compiled walks for the bound on step time: how early an op can start, and how much must follow it. What ops that are
in each other's way add to that is in `crowds`.

A critical path that pays for sends: what an op reads was made on its own device, one op at a time, or came from another
kind of device or another device of the kind, after a send (Papadimitriou and Yannakakis, 1990). Two tables come out,
heads and tails by op and kind of device, each from one walk along the program.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Floats, Ints, Whole

FAR = np.iinfo(np.int64).max // 4
FEW = 12  # ops before or after an op that are told apart by where they run

# What `heads` and `tails` are given, but for what is known already.
Ahead: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Bools, Bools, Ints, Whole]
Behind: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Bools, Bools, Ints, Whole]


@compiled
def bottlenecks(start: Ints, before: Ints) -> Bools:
    """[ops] every other op is its ancestor or its descendant.

    All earlier ops are ancestors of op c when each has a follower at or before c, and likewise backwards.
    """
    ops = len(start) - 1
    first_follower = np.full(ops, ops, np.int64)
    last_before = np.full(ops, -1, np.int64)
    for op in range(ops):
        for at in range(start[op], start[op + 1]):
            earlier = before[at]
            if op < first_follower[earlier]:
                first_follower[earlier] = op
            if earlier > last_before[op]:
                last_before[op] = earlier
    joins = np.zeros(ops, np.bool_)
    latest = np.int64(0)
    for op in range(ops):
        joins[op] = latest <= op
        latest = max(latest, first_follower[op])
    earliest = np.int64(ops)
    for op in range(ops - 1, -1, -1):
        joins[op] &= earliest >= op
        earliest = min(earliest, last_before[op])
    return joins


@compiled
def prices(times: Ints, count: Ints, most_ops: Whole, turns: Whole) -> Floats:
    """[kinds] prices of device time, 1 over all devices, under which the ops cost much at their cheapest places.

    Multiplicative weights, over the given number of ops evenly spread.
    """
    ops, kinds = times.shape
    stride = max(1, ops // most_ops)
    price, kept, load = np.ones(kinds), np.ones(kinds), np.zeros(kinds)
    best = -1.0
    for turn in range(turns):
        whole, total, most = 0.0, 0.0, 0.0
        for kind in range(kinds):
            whole += price[kind] * count[kind]
        for kind in range(kinds):
            price[kind] /= whole
            load[kind] = 0.0
        for op in range(0, ops, stride):
            least, chosen = np.inf, 0
            for kind in range(kinds):
                if times[op, kind] >= 0 and times[op, kind] * price[kind] < least:
                    least, chosen = times[op, kind] * price[kind], kind
            total += least
            load[chosen] += times[op, chosen]
        for kind in range(kinds):
            load[kind] /= count[kind]
            most = max(most, load[kind])
            if total > best:
                kept[kind] = price[kind]
        best = max(best, total)
        if most <= 0:
            break
        # A kind that draws too much work is priced higher, so that the others look better.
        for kind in range(kinds):
            price[kind] *= np.exp(0.5 / (1 + turn / 8) * load[kind] / most)
    return kept


@compiled
def cheapest(times: Ints, price: Floats, scale: Whole) -> Ints:
    """[ops] price x time at the cheapest kind, in whole parts of 1 / scale, rounded down."""
    work = np.empty(len(times), np.int64)
    for op in range(len(times)):
        least = np.inf
        for kind in range(len(price)):
            if times[op, kind] >= 0:
                least = min(least, times[op, kind] * price[kind])
        # A part in 10^12 for the rounding of the product.
        work[op] = np.int64(np.floor(least * scale * (1 - 1e-12)))
    return work


@compiled(inline="always")
def _from_afar(
    finish: Ints, sends: Ints, column: Ints, several: Bools, tensor: Whole, op: Whole, kind: Whole, kinds: Whole
) -> Whole:
    """When what the op makes can be on a device of that kind that does not run the op itself."""
    best = FAR
    for other in range(kinds):
        if other != kind or several[kind]:
            best = min(best, finish[op, other] + sends[tensor, column[other, kind]])
    return best


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


@compiled(inline="always")
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


@compiled
def heads(
    read_start: Ints,
    reads: Ints,
    producer: Ints,
    after_start: Ints,
    after: Ints,
    times: Ints,
    sends: Ints,
    column: Ints,
    several: Bools,
    joins: Bools,
    work: Ints,
    share: Whole,
    known: Ints,
) -> Ints:
    """[ops, kinds] no op starts sooner on a device of that kind; `known`: [ops] what was found out before.

    `sends[tensor, column[from, to]]`: least time between kinds; `several`: kinds of more than one device; `joins`: ops
    that all earlier ones lead to, so that all work since the last such op is done before them, which takes at least
    work ÷ share.
    """
    between: Whole
    count: Whole
    floor: Whole
    ops, kinds = times.shape
    start = np.zeros((ops, kinds), np.int64)
    finish = np.zeros((ops, kinds), np.int64)
    far, begin, time, of = np.empty((4, FEW), np.int64)
    floor, between = np.int64(0), np.int64(0)
    for op in range(ops):
        base = known[op]
        for at in range(after_start[op], after_start[op + 1]):
            soonest = FAR
            for kind in range(kinds):
                soonest = min(soonest, finish[after[at], kind])
            base = max(base, soonest)
        if joins[op]:
            base = max(base, floor + (between + share - 1) // share)
        least = FAR
        for kind in range(kinds):
            start[op, kind] = base
            count = 0
            for at in range(read_start[op], read_start[op + 1]):
                maker = producer[reads[at]]
                if maker >= 0:
                    late = _from_afar(finish, sends, column, several, reads[at], maker, kind, kinds)
                    start[op, kind] = max(start[op, kind], min(late, finish[maker, kind]))
                    long = FAR if times[maker, kind] < 0 else times[maker, kind]
                    count = _keep(far, begin, time, of, count, late, start[maker, kind], long, maker)
            start[op, kind] = max(start[op, kind], _near_or_far(far, begin, time, count))
            finish[op, kind] = FAR if times[op, kind] < 0 else min(FAR, start[op, kind] + times[op, kind])
            least = min(least, finish[op, kind])
        between += work[op]
        if joins[op]:
            floor, between = least, np.int64(0)
    return start


@compiled
def tails(
    reader_start: Ints,
    readers: Ints,
    makes: Ints,
    make_start: Ints,
    next_start: Ints,
    nexts: Ints,
    times: Ints,
    sends: Ints,
    column: Ints,
    several: Bools,
    joins: Bools,
    work: Ints,
    share: Whole,
    known: Ints,
) -> Ints:
    """[ops, kinds] the step does not end sooner than this after the op's end on a device of that kind; `known`: [ops]
    what was found out before."""
    between: Whole
    count: Whole
    floor: Whole
    ops, kinds = times.shape
    left, whole = np.zeros((ops, kinds), np.int64), np.zeros((ops, kinds), np.int64)
    far, begin, time, of = np.empty((4, FEW), np.int64)
    floor, between = np.int64(0), np.int64(0)
    for op in range(ops - 1, -1, -1):
        base = known[op]
        if joins[op]:
            base = max(base, floor + (between + share - 1) // share)
        for at in range(next_start[op], next_start[op + 1]):
            soonest = FAR
            for kind in range(kinds):
                soonest = min(soonest, whole[nexts[at], kind])
            base = max(base, soonest)
        least = FAR
        for kind in range(kinds):
            left[op, kind] = base
            count = 0
            for make in range(make_start[op], make_start[op + 1]):
                tensor = makes[make]
                for at in range(reader_start[tensor], reader_start[tensor + 1]):
                    reader, late = readers[at], FAR
                    for other in range(kinds):
                        if other != kind or several[kind]:
                            late = min(late, whole[reader, other] + sends[tensor, column[kind, other]])
                    left[op, kind] = max(left[op, kind], min(late, whole[reader, kind]))
                    long = FAR if times[reader, kind] < 0 else times[reader, kind]
                    count = _keep(far, begin, time, of, count, late, left[reader, kind], long, reader)
            left[op, kind] = max(left[op, kind], _near_or_far(far, begin, time, count))
            whole[op, kind] = FAR if times[op, kind] < 0 else min(FAR, left[op, kind] + times[op, kind])
            least = min(least, whole[op, kind])
        between += work[op]
        if joins[op]:
            floor, between = least, np.int64(0)
    return left
