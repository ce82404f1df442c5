# mypy: ignore-errors
"""Compiled walks for the bound on step time: how early an op can start, how much must follow it, and what lies
between."""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled

FAR = np.iinfo(np.int64).max // 4


@compiled
def bottlenecks(start, before):
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
def prices(times, count, most_ops, turns):
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
def cheapest(times, price, scale):
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
def _soonest(finish, sends, column, op, tensor, kind, kinds):
    """When what the op makes can be on a device of that kind."""
    best = finish[op, kind]
    for other in range(kinds):
        if other != kind:
            best = min(best, finish[op, other] + sends[tensor, column[other, kind]])
    return best


@compiled
def heads(read_start, reads, producer, after_start, after, times, sends, column, joins, work, share):
    """[ops, kinds] no op starts sooner on a device of that kind.

    `sends[tensor, column[from, to]]`: least time between kinds; `joins`: ops that all earlier ones lead to, so that
    all work since the last such op is done before them, which takes at least work ÷ share.
    """
    ops, kinds = times.shape
    start = np.zeros((ops, kinds), np.int64)
    finish = np.zeros((ops, kinds), np.int64)
    floor, between = np.int64(0), np.int64(0)
    for op in range(ops):
        base = np.int64(0)
        for at in range(after_start[op], after_start[op + 1]):
            soonest = FAR
            for kind in range(kinds):
                soonest = min(soonest, finish[after[at], kind])
            base = max(base, soonest)
        if joins[op]:
            base = max(base, floor + (between + share - 1) // share)
        for kind in range(kinds):
            start[op, kind] = base
        for at in range(read_start[op], read_start[op + 1]):
            maker = producer[reads[at]]
            if maker < 0:
                continue
            for kind in range(kinds):
                start[op, kind] = max(start[op, kind], _soonest(finish, sends, column, maker, reads[at], kind, kinds))
        least = FAR
        for kind in range(kinds):
            finish[op, kind] = FAR if times[op, kind] < 0 else min(FAR, start[op, kind] + times[op, kind])
            least = min(least, finish[op, kind])
        between += work[op]
        if joins[op]:
            floor, between = least, np.int64(0)
    return start


@compiled
def tails(read_start, reads, producer, after_start, after, times, sends, column, joins, work, share):
    """[ops, kinds] the step does not end sooner than this after the op's end on a device of that kind."""
    ops, kinds = times.shape
    left = np.zeros((ops, kinds), np.int64)
    floor, between = np.int64(0), np.int64(0)
    for op in range(ops - 1, -1, -1):
        if joins[op]:
            base = floor + (between + share - 1) // share
            for kind in range(kinds):
                left[op, kind] = max(left[op, kind], base)
        least = FAR
        with_op = np.empty(kinds, np.int64)
        for kind in range(kinds):
            with_op[kind] = FAR if times[op, kind] < 0 else min(FAR, left[op, kind] + times[op, kind])
            least = min(least, with_op[kind])
        for at in range(after_start[op], after_start[op + 1]):
            for kind in range(kinds):
                left[after[at], kind] = max(left[after[at], kind], least)
        for at in range(read_start[op], read_start[op + 1]):
            maker = producer[reads[at]]
            if maker < 0:
                continue
            for kind in range(kinds):
                way = with_op[kind]
                for other in range(kinds):
                    if other != kind:
                        way = min(way, with_op[other] + sends[reads[at], column[kind, other]])
                left[maker, kind] = max(left[maker, kind], way)
        between += work[op]
        if joins[op]:
            floor, between = least, np.int64(0)
    return left


@compiled
def least_span(start, left, times, work, share, cells):
    """The largest of: start + time + what follows of one op; and over sets of ops that all start late and all have
    much after them, their least start + their work ÷ share + the least that follows.

    Sets are the corners of a grid of `cells` x `cells` over (start, what follows).
    """
    ops, kinds = times.shape
    head, tail = np.empty(ops, np.int64), np.empty(ops, np.int64)
    longest, top_head, top_tail = np.int64(0), np.int64(0), np.int64(0)
    for op in range(ops):
        through, head[op], tail[op] = FAR, FAR, FAR
        for kind in range(kinds):
            if times[op, kind] >= 0:
                through = min(through, start[op, kind] + times[op, kind] + left[op, kind])
                head[op] = min(head[op], start[op, kind])
                tail[op] = min(tail[op], left[op, kind])
        longest = max(longest, through)
        top_head, top_tail = max(top_head, head[op]), max(top_tail, tail[op])
    total = np.zeros((cells + 1, cells + 1), np.int64)
    low_head = np.full((cells + 1, cells + 1), FAR, np.int64)
    low_tail = np.full((cells + 1, cells + 1), FAR, np.int64)
    wide_head, wide_tail = top_head // cells + 1, top_tail // cells + 1
    for op in range(ops):
        row, column = head[op] // wide_head, tail[op] // wide_tail
        total[row, column] += work[op]
        low_head[row, column] = min(low_head[row, column], head[op])
        low_tail[row, column] = min(low_tail[row, column], tail[op])
    for row in range(cells - 1, -1, -1):
        for column in range(cells - 1, -1, -1):
            total[row, column] += total[row + 1, column] + total[row, column + 1] - total[row + 1, column + 1]
            low_head[row, column] = min(low_head[row, column], low_head[row + 1, column], low_head[row, column + 1])
            low_tail[row, column] = min(low_tail[row, column], low_tail[row + 1, column], low_tail[row, column + 1])
            if total[row, column] > 0:
                span = low_head[row, column] + (total[row, column] + share - 1) // share + low_tail[row, column]
                longest = max(longest, span)
    return longest
