"""Compiled bounds by work: sets of ops that all start late, or all have much after them, share the devices between.

`crowd` looks at all that leads to an op, `apart` also at the time that is lost by sending, `least_span` at sets of ops
of the whole step. Starts and what follows come from `levels`.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Ints, Whole
from loadmaster.problem.bounds.levels import FAR

WIDTHS = 14  # classes of how long sends take, each twice the one before, from 4 us on

DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
PLACES = np.argsort([(int(DE_BRUIJN) << place) % 2**64 >> 58 for place in range(64)])


@compiled
def crowd(start: Ints, near: Ints, far: Ints, work: Ints, share: Whole, cells: Whole, forward: bool) -> Ints:
    """[ops] when each op can start at the soonest for the work of all that leads to it: of its ancestors that start
    late, no sooner than the first of them and their work ÷ share.

    `near` are the ops before each op and `far` how early each can start; backwards, the ops after it and how much
    follows each. Of their starts, `cells` thresholds are tried. Sets of ancestors are bits, in the order of their
    starts; a word is of one cell, so that of a word whose ops all are ancestors, as most are, the sum is known.
    """
    ops = len(start) - 1
    bit_of, op_at, opens = _in_words(far, cells)
    words = len(opens)
    above, every, total = np.zeros((ops, words), np.uint64), np.zeros(words, np.uint64), np.zeros(words, np.int64)
    one = np.uint64(1)
    for op in range(ops):
        every[bit_of[op] >> 6] |= one << np.uint64(bit_of[op] & 63)
        total[bit_of[op] >> 6] += work[op]
    soonest = np.zeros(ops, np.int64)
    for turn in range(ops):
        op = turn if forward else ops - 1 - turn
        mine = above[op]
        for at in range(start[op], start[op + 1]):
            other = bit_of[near[at]]
            theirs = above[near[at]]
            for word in range(words):
                mine[word] |= theirs[word]
            mine[other >> 6] |= one << np.uint64(other & 63)
        sum_of, first, latest = np.int64(0), np.int64(0), np.int64(0)
        for word in range(words - 1, -1, -1):
            bits = mine[word]
            if bits:
                first = far[op_at[64 * word + _place_of(bits & (~bits + one))]]
                if bits == every[word]:
                    sum_of += total[word]
                    bits = np.uint64(0)
                while bits:
                    rest = bits & (bits - one)
                    sum_of += work[op_at[64 * word + _place_of(bits ^ rest)]]
                    bits = rest
            if opens[word] and sum_of > 0:
                latest = max(latest, first + (sum_of + share - 1) // share)
        soonest[op] = latest
    return soonest


@compiled
def _in_words(far: Ints, cells: Whole) -> tuple[Ints, Ints, Bools]:
    """([ops] its bit, [bits] its op, [words] whether it is the first of its cell): ops in the order of their starts,
    those of each of so many cells in words of their own."""
    ops = len(far)
    order = np.argsort(far)
    wide = far[order[-1]] // cells + 1 if ops else np.int64(1)
    bit_of = np.empty(ops, np.int64)
    words, bit, cell = np.int64(0), np.int64(0), np.int64(-1)
    for op in order:
        if far[op] // wide != cell:
            cell, bit = far[op] // wide, 64 * words
        bit_of[op] = bit
        words, bit = bit // 64 + 1, bit + 1
    op_at, opens = np.zeros(64 * words, np.int64), np.zeros(words, np.bool_)
    cell = np.int64(-1)
    for op in order:
        op_at[bit_of[op]] = op
        if far[op] // wide != cell:
            cell = far[op] // wide
            opens[bit_of[op] >> 6] = True
    return bit_of, op_at, opens


@compiled
def apart(
    start: Ints, near: Ints, wide: Ints, far: Ints, work: Ints, devices: Whole, cells: Whole, forward: bool
) -> Ints:
    """[ops] as `crowd`, on that many equal devices, with the time that is lost by sending: what runs on another device
    than the op is sent to it, or to what leads to it.

    If x runs elsewhere, every way from x to the op has a send, so that between x and the op lies at least the widest
    of the ways, each as wide as its shortest send. Ops that start no sooner than t0 with at least `lost` to the op
    therefore have T on its own device and T - lost on others: T >= min(work, (work + (devices - 1) lost) / devices).

    `near` are the ops after each op and `wide` how long the sends to them take at least; `far` how early each can
    start. Backwards: the ops before each op, and how much follows each.
    """
    ops = len(start) - 1
    soonest, widest, cell_of = np.zeros(ops, np.int64), np.empty(ops, np.int64), np.empty(ops, np.int64)
    highest = np.int64(0)
    for op in range(ops):
        highest = max(highest, far[op])
    step = highest // cells + 1
    for op in range(ops):
        cell_of[op] = far[op] // step
    total, low = np.zeros((WIDTHS, cells), np.int64), np.full((WIDTHS, cells), FAR, np.int64)
    least, any_there = np.empty(WIDTHS, np.int64), np.zeros(WIDTHS, np.bool_)
    for op in range(ops):
        least[:] = FAR
        any_there[:] = False
        widest[op] = FAR
        count = op if forward else ops - 1 - op
        for turn in range(count):
            other = op - 1 - turn if forward else op + 1 + turn
            best = np.int64(-1)
            for at in range(start[other], start[other + 1]):
                via = near[at]
                if (via <= op if forward else via >= op) and widest[via] >= 0:
                    best = max(best, min(wide[at], widest[via]))
            widest[other] = best
            if best >= 0:
                width, left = 0, best >> 12
                while left > 0 and width < WIDTHS - 1:
                    width += 1
                    left >>= 1
                cell = cell_of[other]
                total[width, cell] += work[other]
                low[width, cell] = min(low[width, cell], far[other])
                least[width] = min(least[width], best)
                any_there[width] = True
        soonest[op] = _with_sends(total, low, least, any_there, devices, cells)
    return soonest


@compiled(_nrt=False)
def _with_sends(total: Ints, low: Ints, least: Ints, any_there: Bools, devices: Whole, cells: Whole) -> Whole:
    """The largest of `apart` over widths and starts; empties what it was given."""
    latest, lost = np.int64(0), FAR
    for width in range(WIDTHS - 1, -1, -1):
        if not any_there[width]:
            continue
        lost = min(lost, least[width])
        sum_of, first = np.int64(0), FAR
        for cell in range(cells - 1, -1, -1):
            if low[width, cell] == FAR:  # nothing starts there
                continue
            sum_of += total[width, cell]
            first = min(first, low[width, cell])
            if sum_of > 0:
                shared = (sum_of + (devices - 1) * min(lost, sum_of) + devices - 1) // devices
                latest = max(latest, first + min(sum_of, shared))
            # What has more to lose counts among what has less.
            if width > 0:
                total[width - 1, cell] += total[width, cell]
                low[width - 1, cell] = min(low[width - 1, cell], low[width, cell])
            total[width, cell], low[width, cell] = 0, FAR
        if width > 0:
            any_there[width - 1] = True
    return latest


@compiled(inline="always")
def _place_of(bit: np.uint64) -> Whole:
    """Of the only bit that is set: products with this number differ in their highest six bits (Leiserson, Prokop and
    Randall 1998)."""
    return PLACES[(bit * DE_BRUIJN) >> np.uint64(58)]  # type: ignore[no-any-return]


@compiled
def _used(values: Ints, wide: Whole, cells: Whole) -> tuple[Ints, Whole]:
    """([ops] number of its cell among those that are used, how many are): empty ones add no set of ops."""
    number, cell = np.full(cells, -1, np.int64), np.empty(len(values), np.int64)
    for op in range(len(values)):
        number[values[op] // wide] = 0
    count = 0
    for at in range(cells):
        if number[at] == 0:
            number[at] = count
            count += 1
    for op in range(len(values)):
        cell[op] = number[values[op] // wide]
    return cell, count


@compiled
def least_span(start: Ints, left: Ints, times: Ints, work: Ints, share: Whole, cells: Whole) -> Whole:
    """The largest of: start + time + what follows of one op; and over sets of ops that all start late and all have
    much after them, their least start + their work ÷ share + the least that follows.

    Sets are the corners of a grid of `cells` x `cells` over (start, what follows), of which used rows and columns are
    kept.
    """
    longest: Whole
    through: Whole
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
    row_of, rows = _used(head, top_head // cells + 1, cells)
    column_of, columns = _used(tail, top_tail // cells + 1, cells)
    total = np.zeros((rows + 1, columns + 1), np.int64)
    low_head = np.full((rows + 1, columns + 1), FAR, np.int64)
    low_tail = np.full((rows + 1, columns + 1), FAR, np.int64)
    for op in range(ops):
        row, column = row_of[op], column_of[op]
        total[row, column] += work[op]
        low_head[row, column] = min(low_head[row, column], head[op])
        low_tail[row, column] = min(low_tail[row, column], tail[op])
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            total[row, column] += total[row + 1, column] + total[row, column + 1] - total[row + 1, column + 1]
            low_head[row, column] = min(low_head[row, column], low_head[row + 1, column], low_head[row, column + 1])
            low_tail[row, column] = min(low_tail[row, column], low_tail[row + 1, column], low_tail[row, column + 1])
            if total[row, column] > 0:
                span = low_head[row, column] + (total[row, column] + share - 1) // share + low_tail[row, column]
                longest = max(longest, span)
    return longest
