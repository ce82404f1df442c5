"""In which orders blocks are placed by first fit, and what they are told by: how full it is while each is there."""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Ints, ints


def peak_of(begin: Ints, end: Ints, nbytes: Ints) -> int:
    """Most bytes alive at once."""
    instant = np.concatenate([begin, end])
    change = np.concatenate([nbytes, -nbytes])
    order = np.lexsort((change, instant))  # what ends at an instant ends before anything begins
    return int(np.cumsum(change[order]).max(initial=0))


def fullest_time(begin: Ints, end: Ints, nbytes: Ints) -> int:
    """The first time at which most bytes are alive."""
    times, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, place, np.concatenate([nbytes, -nbytes]))
    return int(times[np.argmax(np.cumsum(change))]) if len(times) else 0


def orders_of(begin: Ints, end: Ints, nbytes: Ints) -> list[Ints]:
    """Blocks by size, by size x life, by life, and by first use; the same with blocks of the fullest times before all
    others, and with those first that end last."""
    life = (end - begin).astype(np.float64)
    full = fullest(begin, end, nbytes)
    keys = [
        (begin, -life, -nbytes),
        (begin, -life * nbytes),
        (begin, -nbytes, -life),
        (-nbytes, begin),
        (begin, -life, -nbytes, -full),
        (begin, -np.sqrt(life) * nbytes),
        (-nbytes, -end),
        (-end, -life, -nbytes),
        (begin, -nbytes, -life, -full),
    ]
    return [ints(np.lexsort(key)) for key in keys]


def fullest(begin: Ints, end: Ints, nbytes: Ints) -> Ints:
    """[blocks] most bytes alive at once while the block is."""
    times, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
    change = np.zeros(len(times) + 1, np.int64)
    np.add.at(change, place, np.concatenate([nbytes, -nbytes]))
    most = [np.cumsum(change)[: len(times)]]  # [k][i]: of the 2^k times from i on
    while 2 ** len(most) <= len(times):
        half = 2 ** (len(most) - 1)
        most.append(np.maximum(most[-1][:-half], most[-1][half:]))
    low, high = place[: len(begin)], np.maximum(place[len(begin) :], place[: len(begin)] + 1)
    level = np.log2(high - low).astype(np.int64)
    found = np.zeros(len(begin), np.int64)
    for k, table in enumerate(most):
        mine = level == k
        found[mine] = np.maximum(table[low[mine]], table[high[mine] - 2**k])
    return ints(found)
