"""The compiled enumeration of downsets: breadth first, each found once by a table of hashes.

A set is a row of words of `BITS` units each. Its hash is that of the set it came from and the key of the unit more, so
that it is worked out in one step; where hashes are equal, words decide.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Truth, Whole

BITS = 62  # units in a word, so that all words are numbers of at least 0


@compiled
def enumerated(
    before_start: Ints, before: Ints, after_start: Ints, after: Ints, key: Ints, most: Whole
) -> tuple[Ints, Ints, Ints, Ints]:
    """(words, start, unit, larger): every downset, the smaller first, what each may be extended by and which that
    makes; all empty where there are more than `most`.

    Units wait for `before` and are waited for by `after`, ragged columns; `key` has a random number for each.
    """
    units = len(key)
    wide = units // BITS + 1
    words, hashes, table = np.zeros(16 * wide, np.int64), np.zeros(16, np.int64), np.full(64, -1, np.int64)
    start, unit, larger = np.zeros(17, np.int64), np.zeros(units + 64, np.int64), np.zeros(units + 64, np.int64)
    count, filled, at = 1, 0, 0
    for first in range(units):
        if before_start[first] == before_start[first + 1]:
            unit[filled] = first
            filled += 1
    start[1] = filled
    while at < count:
        for place in range(start[at], start[at + 1]):
            more = unit[place]
            mixed = hashes[at] ^ key[more]
            slot = _slot_of(table, hashes, words, wide, at, more, mixed)
            if table[slot] < 0:
                if count >= most:
                    return words[:0], start[:0], unit[:0], larger[:0]
                if count == len(hashes):
                    words, hashes, start = _doubled(words), _doubled(hashes), _doubled(start)
                if filled + units > len(unit):
                    unit, larger = _doubled(unit), _doubled(larger)
                for word in range(wide):
                    words[count * wide + word] = words[at * wide + word]
                words[count * wide + more // BITS] |= np.int64(1) << (more % BITS)
                hashes[count] = mixed
                table[slot] = count
                for still in range(start[at], start[at + 1]):
                    if unit[still] != more:
                        unit[filled] = unit[still]
                        filled += 1
                for way in range(after_start[more], after_start[more + 1]):
                    freed = after[way]
                    if _holds_all(words, count * wide, before, before_start[freed], before_start[freed + 1]):
                        unit[filled] = freed
                        filled += 1
                larger[place] = count
                count += 1
                start[count] = filled
                if 2 * count > len(table):
                    table = _wider(table, hashes, count)
            else:
                larger[place] = table[slot]
        at += 1
    return words[: count * wide], start[: count + 1], unit[:filled], larger[:filled]


@compiled(_nrt=False)
def _slot_of(table: Ints, hashes: Ints, words: Ints, wide: Whole, at: Whole, more: Whole, mixed: Whole) -> Whole:
    """Where the set `at` with a unit more is in the table, or where it would be put."""
    last = len(table) - 1
    slot = mixed & last
    while table[slot] >= 0:
        other = table[slot]
        if hashes[other] == mixed and _is_with(words, wide, at, more, other):
            break
        slot = (slot + 1) & last
    return slot


@compiled(_nrt=False)
def _is_with(words: Ints, wide: Whole, at: Whole, more: Whole, other: Whole) -> Truth:
    """Whether a set is another one with a unit more."""
    for word in range(wide):
        bit = np.int64(1) << (more % BITS) if word == more // BITS else np.int64(0)
        if words[at * wide + word] | bit != words[other * wide + word]:
            return False
    return True


@compiled(_nrt=False)
def _holds_all(words: Ints, row: Whole, some: Ints, first: Whole, end: Whole) -> Truth:
    """Whether the set whose words begin at `row` holds some[first:end]."""
    for place in range(first, end):
        unit = some[place]
        if words[row + unit // BITS] >> (unit % BITS) & 1 == 0:
            return False
    return True


@compiled
def _doubled(column: Ints) -> Ints:
    longer = np.zeros(2 * len(column), np.int64)
    longer[: len(column)] = column
    return longer


@compiled
def _wider(table: Ints, hashes: Ints, count: Whole) -> Ints:
    """The table with twice the slots; the empty set is never looked for."""
    wider = np.full(2 * len(table), -1, np.int64)
    last = len(wider) - 1
    for other in range(1, count):
        slot = hashes[other] & last
        while wider[slot] >= 0:
            slot = (slot + 1) & last
        wider[slot] = other
    return wider
