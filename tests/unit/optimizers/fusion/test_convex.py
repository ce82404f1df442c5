"""Whether two kernels can be one, and where it then stands, on a few kernels in a row; as plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.fusion import between, convex
from loadmaster.optimizers.fusion.convex import AHEAD, BEHIND, BLOCKED
from tests.unit.optimizers.annealing.told import plain


class Row:
    """Kernels 0 to count - 1, of one op each and in this order, with arrows from one to another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, *arrows: tuple[int, int]) -> None:
        monkeypatch.setattr(convex, "find", plain(convex.find))
        monkeypatch.setattr(convex, "_look", plain(convex._look))
        own = np.arange(count)
        self.parent, self.ring, self.position = own.copy(), own.copy(), own.copy()
        self.ahead, self.behind = np.full(count, -1), np.full(count, -1)
        stacks = np.zeros((2, count), np.int64)
        ways = []
        for pairs in (arrows, [(b, a) for a, b in arrows]):
            rows = [sorted(b for a, b in pairs if a == op) for op in range(count)]
            ways.append((np.cumsum([0, *map(len, rows)]), np.array([b for row in rows for b in row], np.int64)))
        shared = (self.parent, self.ring, self.position)
        self.forward = (*ways[0], *shared, self.ahead, self.behind, stacks[0])
        self.backward = (*ways[1], *shared, self.behind, self.ahead, stacks[1])

    def join(self, low: int, high: int) -> None:
        """Two of them are one kernel, which stands where the first does."""
        self.parent[high] = low
        self.ring[low], self.ring[high] = self.ring[high], self.ring[low]

    def ended(self, a: int, b: int) -> int:
        return int(plain(convex.search_both_ways)(self.forward, self.backward, a, b, 7))

    def stamped(self, stamps: Any) -> list[int]:
        return np.flatnonzero(stamps == 7).tolist()  # type: ignore[no-any-return]


def test_a_kernel_that_leads_to_no_other_before_the_second_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(monkeypatch, 4, (0, 3), (1, 3), (2, 3))
    assert row.ended(0, 3) == AHEAD and row.stamped(row.ahead) == [0]
    other = Row(monkeypatch, 4, (0, 3), (0, 1), (0, 2))
    assert other.ended(0, 3) == BEHIND and other.stamped(other.behind) == [3]


def test_a_way_out_and_back_in_is_found_from_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Row(monkeypatch, 3, (0, 2), (0, 1), (1, 2)).ended(0, 2) == BLOCKED
    long = ((0, 5), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert Row(monkeypatch, 6, *long).ended(0, 5) == BLOCKED
    assert Row(monkeypatch, 6, *(pair for pair in long if pair != (2, 3))).ended(0, 5) != BLOCKED


def test_what_lies_before_the_first_or_behind_the_second_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(monkeypatch, 6, (1, 4), (1, 5), (0, 4), (5, 5))
    assert row.ended(1, 4) == AHEAD and row.stamped(row.ahead) == [1]
    edge = Row(monkeypatch, 5, (0, 4), (0, 1), (1, 2), (3, 4))
    # Forward: 1, then 2, then nothing; backward: 3 and nothing more, which is known first.
    assert edge.ended(0, 4) == BEHIND and edge.stamped(edge.behind) == [3, 4]
    even = Row(monkeypatch, 5, (0, 4), (0, 1), (2, 3), (3, 4))
    assert even.ended(0, 4) == AHEAD and even.stamped(even.ahead) == [0, 1], "of both the first is asked"


def test_members_of_a_kernel_are_looked_at_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(monkeypatch, 4, (0, 3), (1, 2), (2, 3))
    row.join(0, 1)
    assert row.ended(0, 3) == BLOCKED
    free = Row(monkeypatch, 4, (0, 3), (1, 2))
    free.join(0, 1)
    assert free.ended(0, 3) == BEHIND


def test_with_more_to_look_at_than_is_allowed_they_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    arrows = [(0, 9), *((at, at + 1) for at in range(3)), *((at, at + 1) for at in range(5, 9))]
    for most, found in ((3, AHEAD), (4, AHEAD), (2, BLOCKED)):
        monkeypatch.setattr(convex, "MOST_VISITS", most)
        assert Row(monkeypatch, 10, *arrows).ended(0, 9) == found


@pytest.mark.parametrize(
    ("first", "last", "step", "stamped", "at"),
    [
        # From the first on: what it leads to (2) goes behind it, what it does not (1, 3) before.
        (0, 4, 1, [0, 2], [1, 3, 0, 2, -1]),
        (0, 4, 1, [0], [1, 2, 3, 0, -1]),
        (0, 4, 1, [0, 1, 2, 3], [0, 1, 2, 3, -1]),
        # From the second back: what leads to it (2) goes before it, the others behind.
        (4, 0, -1, [4, 2], [-1, 2, 0, 1, 3]),
        (4, 0, -1, [4], [-1, 0, 1, 2, 3]),
    ],
)
def test_where_a_merged_kernel_stands(first: int, last: int, step: int, stamped: list[int], at: list[int]) -> None:
    """Kernels 0 and 4 of five become kernel 0."""
    row, position, stamps = np.arange(5), np.arange(5), np.full(5, -1)
    stamps[stamped] = 7
    plain(convex.close_up)(row, position, first, last, step, stamps, 7, np.zeros(5, np.int64), 0)
    assert row.tolist() == at
    assert all(position[kernel] == place for place, kernel in enumerate(at) if kernel >= 0)


# What lies between a producer and a reader


def can(monkeypatch: pytest.MonkeyPatch, arrows: list[tuple[int, int]], bars: list[int], most: int = 64) -> bool:
    """Whether ops 0 and 5 of six may ever share a kernel; `bars`: ops that share none."""
    for name in ("_spread", "_fits", "_fit_behind"):
        monkeypatch.setattr(between, name, plain(getattr(between, name)))

    def sorted_by(key: Any, what: Any, count: int, spare: Any) -> None:
        what[:count] = sorted(what[:count], key=lambda op: key[op])

    monkeypatch.setattr(between, "sort_by", sorted_by)
    ways = []
    for pairs in ([(b, a) for a, b in arrows], arrows):
        rows = [sorted(b for a, b in pairs if a == op) for op in range(6)]
        ways += [np.cumsum([0, *map(len, rows)]), np.array([b for row in rows for b in row], np.int64)]
    free = np.ones(6, bool)
    free[bars] = False
    return bool(plain(between.possible)(*ways, np.array([0]), np.array([5]), free, most)[0])


def test_a_kernel_holds_all_that_lies_between_its_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, around = [(0, 5)], [(0, 5), (0, 2), (2, 5), (1, 5), (0, 3)]
    assert can(monkeypatch, alone, [1, 2, 3, 4]), "others are on no way"
    assert can(monkeypatch, around, [1, 3, 4]) and not can(monkeypatch, around, [2])
    assert can(monkeypatch, around, [], most=3) and not can(monkeypatch, around, [], most=2)
    assert can(monkeypatch, alone, [], most=2) and not can(monkeypatch, alone, [], most=1)
    long = [(0, 5), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert can(monkeypatch, long, [], most=6) and not can(monkeypatch, long, [], most=5)
    assert not can(monkeypatch, long, [3])
    assert not can(monkeypatch, alone, [0]) and not can(monkeypatch, alone, [5])


def test_either_end_may_know_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [(0, 5), (0, 1), (0, 2), (0, 3), (1, 4), (3, 5)]  # forward much, backward little
    assert can(monkeypatch, wide, [1, 2, 4]) and not can(monkeypatch, wide, [3])
    deep = [(0, 5), (0, 1), (1, 5), (2, 5), (3, 5), (4, 5), (2, 3)]  # backward much, forward little
    assert can(monkeypatch, deep, [2, 3, 4]) and not can(monkeypatch, deep, [1])
    for arrows in (wide, deep):
        assert can(monkeypatch, arrows, [], most=3) and not can(monkeypatch, arrows, [], most=2)


def test_with_too_much_between_they_count_as_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [(0, 5), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    for most, found in ((3, False), (9, True)):
        monkeypatch.setattr(between, "MOST_BETWEEN", most)
        assert can(monkeypatch, long, []) is found
