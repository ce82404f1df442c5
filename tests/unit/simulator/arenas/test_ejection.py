"""Offsets by ejection: blocks are painted into a grid of rounds and bytes, where no cell may be painted twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.graph.columns import Ints, ints
from loadmaster.simulator.arenas.ejection import eject, mates_of
from loadmaster.simulator.arenas.rounding import eject_in, quanta_of
from tests.unit.simulator.arenas.test_capacity import columns, cut_up

LIVES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(0, 9)), min_size=1, max_size=24)
Columns = tuple[Ints, Ints, Ints]


def blocks_of(lives: list[tuple[int, int, int]]) -> Columns:
    begin, life, size = (ints(column) for column in zip(*lives, strict=True))
    return begin, ints(begin + life), size


def painted(blocks: Columns, offset: Ints) -> int:
    """The first byte above all blocks; a cell that two of them want is a mistake."""
    cells = Counter[tuple[int, int]]()
    for begin, end, size, low in zip(*(column.tolist() for column in blocks), offset.tolist(), strict=True):
        assert low >= 0
        cells.update((now, byte) for now in range(begin, end) for byte in range(low, low + size))
    assert max(cells.values(), default=0) <= 1
    return max((byte + 1 for _, byte in cells), default=0)


def most_alive(blocks: Columns) -> int:
    begin, end, size = blocks
    return max(int(size[(begin <= now) & (now < end)].sum()) for now in range(int(end.max())))


@settings(max_examples=60, deadline=None)
@given(LIVES, st.integers(0, 3), st.integers(0, 6))
def test_no_two_blocks_share_a_byte_and_the_arena_is_told_as_it_is(
    lives: list[tuple[int, int, int]], seed: int, above: int
) -> None:
    blocks = blocks_of(lives)
    peak = most_alive(blocks)
    once, again = (eject_in(*blocks, peak + above, work=30_000, seed=seed) for _ in range(2))
    assert (once.top, once.work) == (again.top, again.work)
    assert (once.offset is None) == (again.offset is None)
    if once.offset is not None and again.offset is not None:
        assert once.offset.tolist() == again.offset.tolist()
        assert painted(blocks, once.offset) == once.top >= peak
        assert once.top <= peak + above or once.work >= 30_000, "it stops at the goal or when the work is done"


@given(LIVES, st.integers(0, 30), st.integers(0, 3))
def test_what_has_a_place_lies_apart_and_under_the_goal_and_the_rest_is_counted(
    lives: list[tuple[int, int, int]], goal: int, seed: int
) -> None:
    begin, end, size = blocks_of(lives)
    goal = max(goal, int(size.max()))
    offset = np.zeros(len(size), np.int64)
    offset[1:] = -1
    waiting, _ = eject(mates_of(begin, end, size), offset, goal, ints(1 + size), 2, 2_000, seed)
    there = offset >= 0
    assert waiting == (~there).sum()
    assert painted((begin[there], end[there], size[there]), ints(offset[there])) <= goal


@pytest.mark.parametrize("seed", range(8))
def test_blocks_cut_from_a_whole_are_put_together_again(seed: int) -> None:
    given_ = cut_up(np.random.default_rng(seed), 12, 40, 1000)
    begin, end, size = columns(given_)
    found = eject_in(ints(begin), ints(end), ints(size), 1000, work=20_000_000)
    assert found.offset is not None and found.top == 1000
    assert painted((ints(begin), ints(end), ints(size)), found.offset) == 1000


def test_large_blocks_lie_as_their_rounded_sizes_say_and_small_ones_between() -> None:
    """Bricks of whole 1000 bytes cut from a full wall, some a byte larger: 12 bytes more than the peak will do."""
    rng = np.random.default_rng(5)
    bricks = [(begin, end, 1000 * size) for begin, end, size in cut_up(rng, 40, 60, 12)]
    odd = [(begin, end, size + int(rng.integers(0, 2))) for begin, end, size in bricks]
    odd += [(int(begin), int(begin) + 20, 1) for begin in rng.integers(0, 40, 8)]
    begin, end, size = (ints(column) for column in columns(odd))
    blocks = (begin, end, size)
    goal = most_alive(blocks) + 12
    found = eject_in(*blocks, goal, work=20_000_000)
    assert quanta_of(*blocks)[0] == 1000
    assert found.offset is not None and painted(blocks, found.offset) == found.top <= goal
