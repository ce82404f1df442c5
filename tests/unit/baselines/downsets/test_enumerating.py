"""Downsets where every hash is the same, so that words decide, and where there are more than are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.downsets.enumerating import BITS, enumerated
from loadmaster.graph.columns import Ints, ints, ragged


def waits(*lengths: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Rows of units beside each other, each unit after the one before it in its row."""
    before: list[list[int]] = []
    after: list[list[int]] = []
    for length in lengths:
        first = len(before)
        before += [[] if at == 0 else [first + at - 1] for at in range(length)]
        after += [[first + at + 1] if at + 1 < length else [] for at in range(length)]
    return (*ragged(before), *ragged(after))


def members(words: Ints, count: int) -> list[int]:
    return [sum(word << BITS * at for at, word in enumerate(row)) for row in words.reshape(count, -1).tolist()]


@pytest.mark.parametrize("lengths", [(1, 1, 1), (3, 2), (BITS + 2, 1), (BITS - 1, 1), (BITS,)])
@pytest.mark.parametrize("alike", [False, True])
def test_every_downset_once_whatever_the_hashes(lengths: tuple[int, ...], alike: bool) -> None:
    units, many = sum(lengths), int(np.prod([length + 1 for length in lengths]))
    key = np.zeros(units, np.int64) if alike else np.random.default_rng(1).integers(0, 2**62, units)
    words, start, unit, larger = enumerated(*waits(*lengths), ints(key), many)
    found = members(words, len(start) - 1)
    assert len(found) == len(set(found)) == many and found[0] == 0 and found[-1] == (1 << units) - 1
    for at, here in enumerate(found):
        for way in range(start[at], start[at + 1]):
            assert found[larger[way]] == here | 1 << int(unit[way]) != here
    assert len(larger) == start[-1] == sum(many // (length + 1) * length for length in lengths)


def test_nothing_is_given_where_there_are_too_many() -> None:
    key = ints(np.arange(1, 6))
    assert [len(column) for column in enumerated(*waits(3, 2), key, 11)] == [0, 0, 0, 0]
    assert len(enumerated(*waits(3, 2), key, 12)[1]) == 13
