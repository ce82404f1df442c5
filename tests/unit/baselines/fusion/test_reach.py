"""How far merging looks, and how large kernels become: at the limits and one beyond them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from loadmaster.baselines.fusion import merging, spaces
from loadmaster.baselines.fusion.greedy import greedy_kernels, narrow
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem


def in_a_row(count: int) -> Problem:
    build = GraphBuilder("row")
    last = build.tensor(64, "input", shape=(16,))
    for at in range(count):
        last, read = build.tensor(64, shape=(16,)), last
        build.op(f"op{at}", "aten.relu.default", [read], [last], flops=16)
    return price(build.build(), "2xp100-pcie")


@pytest.mark.parametrize(("count", "sizes"), [(63, [63]), (64, [64]), (65, [64, 1]), (128, [64, 64])])
def test_a_kernel_has_at_most_64_ops(count: int, sizes: list[int]) -> None:
    kernels = Counter(greedy_kernels(in_a_row(count)).tolist())
    assert sorted(kernels.values(), reverse=True) == sizes


def ways(count: int, *, both: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of ops in a row, of which the last also waits for the first; `both`: each also waits for the one two before, so
    that neither search is over sooner."""
    pairs = [(at, at + 1) for at in range(count - 1)] + [(0, count - 1)]
    pairs += [(at, at + 2) for at in range(count - 2)] if both else []
    pairs = sorted(set(pairs), key=lambda pair: pair[::-1])
    before = [[one for one, two in pairs if two == at] for at in range(count)]
    follow = [[two for one, two in pairs if one == at] for at in range(count)]
    found = []
    for rows in (before, follow):
        ops = np.array([each for row in rows for each in row])
        found.append((narrow(np.cumsum([0, *map(len, rows)])), narrow(ops)))
    return found


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("count", "able"), [(399, True), (400, True), (401, False), (402, False)])
def test_pairs_with_too_much_between_them_count_as_impossible(count: int, able: bool, both: bool) -> None:
    free = np.ones(count, bool)
    assert spaces.possible(*ways(count, both=both), ints([0]), ints([count - 1]), free, 10_000).tolist() == [able]
    free[count // 2] = False  # in the way
    assert spaces.possible(*ways(count, both=both), ints([0]), ints([count - 1]), free, 10_000).tolist() == [False]


@pytest.mark.parametrize(("count", "most", "able"), [(9, 9, True), (9, 8, False), (9, 10, True)])
def test_all_that_lies_between_must_be_in_the_kernel(count: int, most: int, able: bool) -> None:
    free = np.ones(count, bool)
    assert spaces.possible(*ways(count, both=False), ints([0]), ints([count - 1]), free, most).tolist() == [able]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_merge_that_needs_too_many_visits_is_not_made(beyond: int) -> None:
    """Between two kernels that do not meet lie two rows, one that the first leads to and one that leads to the second:
    whichever is shorter tells that they may be merged, if it is not too long."""
    long, row = 409, 400 + beyond
    count = 2 + row + long
    first, second = range(1, 1 + row), range(1 + row, 1 + row + long)
    pairs = [(0, count - 1), (0, first[0]), (second[-1], count - 1)]
    pairs += [(at, at + 1) for part in (first, second) for at in part[:-1]]
    before = [sorted(one for one, two in pairs if two == at) for at in range(count)]
    follow = [sorted(two for one, two in pairs if one == at) for at in range(count)]
    columns = []
    for rows in (follow, before):
        columns.append([narrow(np.cumsum([0, *map(len, rows)])), narrow(np.array([x for row in rows for x in row]))])
    every = np.arange(count, dtype=np.int32)
    stamps = [np.full(count, -1, np.int32) for _ in range(2)]
    stacks = [np.empty(count, np.int32) for _ in range(2)]
    forward = (*columns[0], every.copy(), every.copy(), every.copy(), stamps[0], stamps[1], stacks[0])
    backward = (*columns[1], forward[2], forward[3], forward[4], stamps[1], stamps[0], stacks[1])
    ended = merging.search_both_ways(forward, backward, 0, count - 1, 7)
    assert ended == (merging.BLOCKED if beyond else merging.AHEAD)
    assert beyond or np.flatnonzero(stamps[0] == 7).tolist() == [0, *first]
