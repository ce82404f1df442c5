"""Groups of bounded time, worked out by hand: which join first, at the bound, and what has changed since."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.passes.groups import join_edges, join_in_a_row, join_neighbours


@pytest.mark.parametrize(
    ("time", "most", "label"),
    [
        ([1, 1, 5, 1, 1], 5, [0, 1, 2, 3, 4]),
        ([1, 1, 5, 1, 1], 4, [0, 0, 1, 2, 3]),  # of two that are as short, the first
        ([1, 1, 5, 1, 1], 3, [0, 0, 1, 2, 2]),
        ([1, 1, 5, 1, 1], 2, [0, 0, 0, 1, 1]),
        ([1, 1, 5, 1, 1], 1, [0, 0, 0, 0, 0]),
        ([4, 1, 1, 9], 2, [0, 0, 0, 1]),  # the run of the ones goes to the left
        ([9, 1, 1, 4], 2, [0, 1, 1, 1]),  # and to the right
        # 1 and 1, then 4 with them: the last 1 with 9 would be 10, but is 15 now, so that 6 and 6 are next.
        ([4, 1, 1, 9, 6, 6], 3, [0, 0, 0, 1, 2, 2]),
        ([6, 6, 9, 1, 1, 4], 3, [0, 0, 1, 2, 2, 2]),
        ([0, 0, 0, 7], 2, [0, 0, 0, 1]),
        ([9, 5, 0, 0], 1, [0, 0, 0, 0]),  # what takes no time joins as often as it is told of
        ([3], 1, [0]),
    ],
)
def test_the_shortest_neighbours_are_joined_first(time: list[float], most: int, label: list[int]) -> None:
    assert join_neighbours(np.array(time, float), most).tolist() == label


@pytest.mark.parametrize(
    ("edges", "forced", "time", "most", "label"),
    [
        # At first no group may take more than half an equal share, 1; then 2, which two of them take.
        ([(0, 1), (1, 2), (2, 3)], 0, [1, 1, 1, 1], 2, [0, 0, 2, 2]),
        ([(0, 1), (1, 2), (2, 3)], 0, [1, 1, 1, 1], 3, [0, 0, 2, 3]),
        ([(0, 1), (1, 2), (2, 3)], 0, [1, 1, 1, 1], 1, [0, 0, 0, 0]),
        ([(2, 3), (0, 1)], 0, [1, 1, 1, 1], 3, [0, 1, 2, 2]),
        ([(3, 2), (3, 1)], 0, [1, 1, 1, 1], 2, [0, 1, 1, 1]),  # the lowest stands for all
        ([(0, 3), (1, 2)], 1, [9, 1, 1, 9], 4, [0, 1, 2, 0]),  # what must be together is, however long it takes
        ([(0, 3), (1, 2)], 2, [9, 1, 1, 9], 4, [0, 1, 1, 0]),
        ([(0, 3), (3, 0), (1, 2)], 2, [9, 1, 1, 9], 3, [0, 1, 2, 0]),  # the same twice is one group less, not two
        ([], 0, [1, 1], 1, [0, 1]),
        ([(0, 1)], 0, [1, 1], 0, [0, 0]),
    ],
)
def test_edges_join_in_turn(
    edges: list[tuple[int, int]], forced: int, time: list[float], most: int, label: list[int]
) -> None:
    heads, tails = (ints([edge[side] for edge in edges]) for side in (0, 1))
    assert join_edges(heads, tails, forced, np.array(time, float), most).tolist() == label


def row(
    edges: list[tuple[int, int]],
    time: list[int],
    most: float,
    colocate: list[int] | None = None,
    able: list[int] | None = None,
) -> list[int]:
    count = len(time)
    before, later = (ints([edge[side] for edge in edges]) for side in (0, 1))
    groups, kinds = ints(colocate or [-1] * count), ints(able or [0] * count)
    found: list[int] = join_in_a_row(before, later, ints(time), groups, kinds, most).tolist()
    return found


def test_a_chain_becomes_groups_of_bounded_time() -> None:
    chain = [(0, 1), (1, 2), (2, 3)]
    assert row(chain, [1, 1, 1, 1], 1.9) == [0, 1, 2, 3]
    assert row(chain, [1, 1, 1, 1], 2) == [0, 0, 2, 2]
    assert row(chain, [1, 1, 1, 1], 3) == [0, 0, 2, 2]
    assert row(chain, [1, 1, 1, 1], 4) == [0, 0, 0, 0]
    assert row([*chain, *chain], [1, 1, 1, 1], 4) == [0, 0, 0, 0]  # who reads twice is one reader
    assert row(chain, [5, 1, 1, 5], 2) == [0, 1, 1, 3]


def test_who_has_several_readers_is_joined_by_one_that_reads_nothing_else() -> None:
    """In the fork 2 joins 0, which is taken then; in the next round 1 does. Where 3 reads both, 2 joins its only
    reader, and 1, whose reader is taken, joins what it reads. Where all have several, nobody is joined."""
    fork = [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert row(fork[:2], [1, 1, 1], 2) == [0, 1, 0]
    assert row(fork[:2], [1, 1, 1], 3) == [0, 0, 0]
    assert row(fork, [1, 1, 1, 1], 2) == [0, 0, 3, 3]
    assert row(fork[2:], [9, 1, 1, 1], 2) == [0, 1, 3, 3]
    assert row([(0, 2), (0, 2), (1, 2)], [1, 1, 1], 2, able=[0, 1, 0]) == [2, 1, 2]
    assert row([(0, 1), (0, 2), (3, 1), (3, 2)], [1, 1, 1, 1], 9) == [0, 1, 2, 3]


def test_only_ops_that_can_be_together_are_joined() -> None:
    """An op of a group joins none that is not in it; one of no group joins any."""
    assert row([(0, 1)], [1, 1], 2, colocate=[-1, -1]) == [0, 0]
    assert row([(0, 1)], [1, 1], 2, colocate=[0, 0]) == [0, 0]
    assert row([(0, 1)], [1, 1], 2, colocate=[1, 0]) == [0, 1]
    assert row([(0, 1)], [1, 1], 2, colocate=[0, -1]) == [0, 0]
    assert row([(0, 1)], [1, 1], 2, colocate=[-1, 0]) == [1, 1]  # of the two, the one of no group joins
    assert row([(0, 1)], [1, 1], 2, able=[0, 1]) == [0, 1]
