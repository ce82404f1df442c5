"""Bounds by work: sets of ops that all start late, or all have much after them, share the devices between.

`crowd` looks at all that leads to an op, `apart` also at the time that is lost by sending, `least_span` at sets of ops
of the whole step. Starts and what follows come from `levels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Ints, Whole, ints
from loadmaster.problem.bounds.levels import FAR

WIDTHS = 14  # classes of how long sends take, each twice the one before, from 4 us on

DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
PLACES = np.argsort([(int(DE_BRUIJN) << place) % 2**64 >> 58 for place in range(64)])


def crowd(start: Ints, near: Ints, far: Ints, work: Ints, share: int, cells: int, forward: bool) -> Ints:
    """[ops] when each op can start at the soonest for the work of all that leads to it: of its ancestors that start
    late, no sooner than the first of them and their work ÷ share.

    `near` are the ops before each op and `far` how early each can start; backwards, the ops after it and how much
    follows each. Of their starts, `cells` thresholds are tried. Sets of ancestors are bits, in the order of their
    starts; a word is of one cell, so that of a word whose ops all are ancestors, as most are, the sum is known.
    """
    bit_of, op_at, opens = _in_words(far, cells)
    above, every = np.zeros((len(far), len(opens)), np.uint64), np.zeros(len(opens), np.uint64)
    np.bitwise_or.at(every, bit_of >> 6, np.uint64(1) << (bit_of & 63).astype(np.uint64))
    total, latest = np.zeros(len(opens), np.int64), np.zeros(len(far), np.int64)
    np.add.at(total, bit_of >> 6, work)
    _crowd(start, near, far, work, share, forward, bit_of, op_at, opens, above, every, total, latest)
    return ints(latest)


def _in_words(far: Ints, cells: int) -> tuple[Ints, Ints, Bools]:
    """([ops] its bit, [bits] its op, [words] whether it is the first of its cell): ops in the order of their starts,
    those of each of so many cells in words of their own."""
    order = np.argsort(far, kind="stable")
    cell = far[order] // (int(far.max(initial=0)) // cells + 1)
    first = np.flatnonzero(np.diff(cell, prepend=-1))  # of each cell that is used
    count = np.diff(np.append(first, len(far)))
    words = -(-count // 64)
    begin = np.cumsum(words) - words  # its first word
    bit = np.repeat(64 * begin - first, count) + np.arange(len(far))
    bit_of, op_at = np.empty(len(far), np.int64), np.zeros(64 * int(words.sum()), np.int64)
    bit_of[order], op_at[bit] = bit, order
    opens = np.zeros(int(words.sum()), bool)
    opens[begin] = True
    return ints(bit_of), ints(op_at), opens


@compiled(_nrt=False)
def _crowd(
    start: Ints,
    near: Ints,
    far: Ints,
    work: Ints,
    share: Whole,
    forward: bool,
    bit_of: Ints,
    op_at: Ints,
    opens: Bools,
    above: NDArray[np.uint64],
    every: NDArray[np.uint64],
    total: Ints,
    soonest: Ints,
) -> None:
    """Writes `soonest` and, as bits, what leads to each op."""
    ops, words, one = len(start) - 1, len(opens), np.uint64(1)
    for turn in range(ops):
        op = turn if forward else ops - 1 - turn
        for at in range(start[op], start[op + 1]):
            other = bit_of[near[at]]
            for word in range(words):
                above[op, word] |= above[near[at], word]
            above[op, other >> 6] |= one << np.uint64(other & 63)
        sum_of, first, latest = np.int64(0), np.int64(0), np.int64(0)
        for word in range(words - 1, -1, -1):
            bits = above[op, word]
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


def apart(start: Ints, near: Ints, wide: Ints, far: Ints, work: Ints, devices: int, cells: int, forward: bool) -> Ints:
    """[ops] as `crowd`, on that many equal devices, with the time that is lost by sending: what runs on another device
    than the op is sent to it, or to what leads to it.

    If x runs elsewhere, every way from x to the op has a send, so that between x and the op lies at least the widest
    of the ways, each as wide as its shortest send. Ops that start no sooner than t0 with at least `lost` to the op
    therefore have T on its own device and T - lost on others: T >= min(work, (work + (devices - 1) lost) / devices).

    `near` are the ops after each op and `wide` how long the sends to them take at least; `far` how early each can
    start. Backwards: the ops before each op, and how much follows each.
    """
    cell_of, latest = far // (int(far.max(initial=0)) // cells + 1), np.zeros(len(far), np.int64)
    total, low = np.zeros((WIDTHS, cells), np.int64), np.full((WIDTHS, cells), FAR, np.int64)
    widest, least, any_there = np.empty(len(far), np.int64), np.empty(WIDTHS, np.int64), np.zeros(WIDTHS, np.bool_)
    scratch = (ints(cell_of), widest, total, low, least, any_there, latest)
    _apart(start, near, wide, far, work, devices, cells, forward, *scratch)
    return ints(latest)


@compiled(_nrt=False)
def _apart(
    start: Ints,
    near: Ints,
    wide: Ints,
    far: Ints,
    work: Ints,
    devices: Whole,
    cells: Whole,
    forward: bool,
    cell_of: Ints,
    widest: Ints,
    total: Ints,
    low: Ints,
    least: Ints,
    any_there: Bools,
    soonest: Ints,
) -> None:
    ops = len(start) - 1
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


@compiled(_nrt=False)
def _place_of(bit: np.uint64) -> Whole:
    """Of the only bit that is set: products with this number differ in their highest six bits (Leiserson, Prokop and
    Randall 1998)."""
    return PLACES[(bit * DE_BRUIJN) >> np.uint64(58)]  # type: ignore[no-any-return]


def least_span(start: Ints, left: Ints, times: Ints, work: Ints, share: int, cells: int) -> int:
    """The largest of: start + time + what follows of one op; and over sets of ops that all start late and all have
    much after them, their least start + their work ÷ share + the least that follows.

    Sets are the corners of a grid of `cells` x `cells` over (start, what follows), of which used rows and columns are
    kept.
    """
    able = times >= 0
    head, tail = (np.where(able, column, FAR).min(axis=1) for column in (start, left))
    longest = int(np.where(able, start + times + left, FAR).min(axis=1).max())
    row, column = (np.unique(side // (int(side.max()) // cells + 1), return_inverse=True)[1] for side in (head, tail))
    shape = (int(row.max()) + 1, int(column.max()) + 1)
    total, low_head, low_tail = np.zeros(shape, np.int64), np.full(shape, FAR), np.full(shape, FAR)
    np.add.at(total, (row, column), work)
    np.minimum.at(low_head, (row, column), head)
    np.minimum.at(low_tail, (row, column), tail)
    total = _from_corner(np.cumsum, total)
    spans = (
        _from_corner(np.minimum.accumulate, low_head)
        + -(-total // share)
        + _from_corner(np.minimum.accumulate, low_tail)
    )
    return max(longest, int(spans[total > 0].max(initial=0)))


def _from_corner(over: Any, grid: Ints) -> Ints:
    """[rows, columns] over all later rows and columns."""
    found: Ints = over(over(grid[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    return found
