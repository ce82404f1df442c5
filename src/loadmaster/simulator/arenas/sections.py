"""Blocks as a search under a capacity sees them. A section is a largest set of blocks alive at one time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole


class Blocks(NamedTuple):
    """Blocks as the search sees them: what lives when, in sections.

    Attributes:
        size: [blocks] bytes.
        first: [blocks] first section.
        last: [blocks] first section after it.
        mates: blocks alive at some time together with block i.
        members: blocks of section i.
    """

    size: np.ndarray  # [blocks]
    first: np.ndarray  # [blocks]
    last: np.ndarray  # [blocks]
    mate_start: np.ndarray  # [blocks + 1]
    mates: np.ndarray
    member_start: np.ndarray  # [sections + 1]
    members: np.ndarray
    sections: int


def blocks_of(begin: Ints, end: Ints, nbytes: Ints) -> Blocks:
    """Lives that are half-open in any unit of time."""
    first, last, sections = _sections(begin, end)
    start, mates = _mates(first, last, sections)
    return Blocks(np.asarray(nbytes, np.int64), first, last, start, mates, *_members(first, last, sections), sections)


def _sections(begin: Ints, end: Ints) -> tuple[Ints, Ints, int]:
    """Sections end where the first of their blocks does."""
    times = np.concatenate([begin, end])
    is_end = np.repeat([0, 1], len(begin))
    order = np.lexsort((1 - is_end, times))  # what ends at an instant ends before anything begins
    ends = is_end[order]
    closes = np.zeros(len(order), np.int64)  # an end after a begin closes a section
    closes[1:] = (ends[1:] == 1) & (ends[:-1] == 0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(closes)
    count = len(begin)
    return number[:count], number[count:], int(closes.sum())


@compiled
def _mates(first: Ints, last: Ints, sections: Whole) -> tuple[Ints, Ints]:
    """Pairs of blocks with a section in common, block by block."""
    count = len(first)
    fill = np.zeros(sections + 1, np.int64)
    for block in range(count):
        fill[first[block] + 1] += 1
    for section in range(sections):
        fill[section + 1] += fill[section]
    starting, at = np.empty(count, np.int64), fill[:-1].copy()
    for block in range(count):
        starting[at[first[block]]] = block
        at[first[block]] += 1
    start = np.zeros(count + 1, np.int64)
    for turn in range(2):
        if turn == 1:
            for block in range(count):
                start[block + 1] += start[block]
            at = start[:-1].copy()
            mates = np.empty(start[count], np.int32)
        for block in range(count):
            for place in range(fill[first[block]], fill[last[block]]):
                other = starting[place]
                if other == block or (first[other] == first[block] and other < block):
                    continue
                if turn == 0:
                    start[block + 1] += 1
                    start[other + 1] += 1
                else:
                    mates[at[block]] = other
                    mates[at[other]] = block
                    at[block] += 1
                    at[other] += 1
    return start, mates


@compiled
def _members(first: Ints, last: Ints, sections: Whole) -> tuple[Ints, Ints]:
    start = np.zeros(sections + 1, np.int64)
    for block in range(len(first)):
        for section in range(first[block], last[block]):
            start[section + 1] += 1
    for section in range(sections):
        start[section + 1] += start[section]
    members, fill = np.empty(start[sections], np.int32), start[:-1].copy()
    for block in range(len(first)):
        for section in range(first[block], last[block]):
            members[fill[section]] = block
            fill[section] += 1
    return start, members
