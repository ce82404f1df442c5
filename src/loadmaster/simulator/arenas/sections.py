"""Blocks as a search under a capacity sees them. A section is a largest set of blocks alive at one time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.graph.columns import Ints, ints


class Blocks(NamedTuple):
    """What lives when, in sections.

    Attributes:
        size: [blocks] bytes.
        first: [blocks] first section.
        last: [blocks] first section after it.
        twin: [blocks] the last block before it that has the same size and lives in the same sections, or -1.
    """

    size: Ints  # [blocks]
    first: Ints  # [blocks]
    last: Ints  # [blocks]
    twin: Ints  # [blocks]

    @property
    def sections(self) -> int:
        return int(self.last.max(initial=0))

    @property
    def pairs(self) -> int:
        """How many pairs of blocks have a section in common."""
        begun = np.searchsorted(np.sort(self.first), self.last)  # what begins before each one ends
        over = np.searchsorted(np.sort(self.last), self.first, side="right")  # what ends before each one begins
        return int((begun - over - 1).sum()) // 2


def blocks_of(begin: Ints, end: Ints, nbytes: Ints) -> Blocks:
    """Lives that are half-open in any unit of time."""
    first, last = _sections(begin, end)
    size = ints(nbytes)
    return Blocks(size, ints(first), ints(last), _twins(size, first, last))


def _sections(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Sections end where the first of their blocks does."""
    times = np.concatenate([begin, end])
    is_end = np.repeat([0, 1], len(begin))
    order = np.lexsort((1 - is_end, times))  # what ends at an instant ends before anything begins
    ends = is_end[order]
    closes = np.zeros(len(order), np.int64)  # an end after a begin closes a section
    closes[1:] = (ends[1:] == 1) & (ends[:-1] == 0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(closes)
    return number[: len(begin)], number[len(begin) :]


def _twins(size: Ints, first: Ints, last: Ints) -> Ints:
    order = np.lexsort((np.arange(len(size)), size, last, first))
    alike = np.ones(len(order) - 1, bool)
    for column in (size, last, first):
        alike &= np.diff(column[order]) == 0
    twin = np.full(len(order), -1, np.int64)
    twin[order[1:][alike]] = order[:-1][alike]
    return ints(twin)
