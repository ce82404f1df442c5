"""Offsets within a capacity: equal to brute force on tiny sets of blocks, and found where a cut of a whole says they
are there."""

from __future__ import annotations

import csv
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.graph.columns import ints
from loadmaster.simulator.arenas import fit_in

Block = tuple[int, int, int]  # first time, time after the last, bytes
blocks = st.tuples(st.integers(0, 6), st.integers(1, 4), st.sampled_from([1, 2, 3, 5, 8])).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)


def together(one: Block, other: Block) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def least_arena(given_: list[Block]) -> int:
    """Some order in which each block is stacked on all it meets gives the smallest arena: a layout with offsets that
    nothing can lower, read from the bottom up, is one."""
    best = sum(size for _, _, size in given_)
    for order in permutations(given_):
        top: list[tuple[Block, int]] = []
        for block in order:
            top.append((block, block[2] + max((high for other, high in top if together(block, other)), default=0)))
        best = min(best, max((high for _, high in top), default=0))
    return best


def assert_apart(given_: list[Block], offset: list[int], capacity: int) -> None:
    assert all(low >= 0 and low + size <= capacity for low, (_, _, size) in zip(offset, given_, strict=True))
    for (one, at), (other, place) in combinations(zip(given_, offset, strict=True), 2):
        if together(one, other):
            assert at + one[2] <= place or place + other[2] <= at


def columns(given_: list[Block]) -> list[np.ndarray]:
    return [ints(column) for column in np.array(given_, np.int64).reshape(-1, 3).T]


@settings(max_examples=150, deadline=None)
@given(given_=st.lists(blocks, min_size=1, max_size=6))
def test_a_search_finds_the_smallest_arena_and_proves_that_there_is_none_smaller(given_: list[Block]) -> None:
    least = least_arena(given_)
    found = fit_in(*columns(given_), least)
    assert found.offset is not None
    assert_apart(given_, found.offset.tolist(), least)
    under = fit_in(*columns(given_), least - 1)
    assert under.offset is None and under.sure


FULL = [  # at every instant to the last byte, and yet there is no way to lay them out
    [(1, 3, 1), (3, 6, 2), (0, 1, 2), (2, 4, 1), (4, 6, 2), (2, 3, 1), (0, 2, 2), (1, 4, 1)],
    [(1, 4, 3), (2, 4, 1), (4, 6, 4), (2, 3, 1), (0, 1, 4), (0, 2, 3), (2, 3, 1), (1, 3, 1), (3, 6, 3)],
]


def can_lie(given_: list[Block], capacity: int, placed: tuple[tuple[Block, int], ...] = ()) -> bool:
    """Tries every place of every block."""
    if len(placed) == len(given_):
        return True
    block = given_[len(placed)]
    taken = [(low, low + other[2]) for other, low in placed if together(block, other)]
    return any(
        can_lie(given_, capacity, (*placed, (block, low)))
        for low in range(capacity - block[2] + 1)
        if all(low + block[2] <= under or over <= low for under, over in taken)
    )


@pytest.mark.parametrize("given_", FULL)
def test_it_is_proved_where_what_is_alive_is_not_enough_to_see_it(given_: list[Block]) -> None:
    peak = max(sum(size for begin, end, size in given_ if begin <= now < end) for now in range(6))
    assert not can_lie(given_, peak) and can_lie(given_, peak + 1)
    under, found = (fit_in(*columns(given_), capacity) for capacity in (peak, peak + 1))
    assert under.offset is None and under.sure
    assert found.offset is not None
    assert_apart(given_, found.offset.tolist(), peak + 1)


def cut_up(rng: np.random.Generator, count: int, times: int, capacity: int) -> list[Block]:
    """A rectangle of time x bytes cut up again and again: every instant is full to the last byte."""
    pieces = [(0, times, capacity)]
    while len(pieces) < count:
        begin, end, size = pieces.pop(int(np.argmax([(e - b) * s for b, e, s in pieces])))
        if end - begin > 1 and (size < 2 or rng.random() < 0.5):
            middle = int(rng.integers(begin + 1, end))
            pieces += [(begin, middle, size), (middle, end, size)]
        else:
            low = int(rng.integers(1, size))
            pieces += [(begin, end, low), (begin, end, size - low)]
    return [pieces[place] for place in rng.permutation(count)]


@pytest.mark.parametrize("seed", range(12))
def test_blocks_cut_from_a_whole_are_put_together_again(seed: int) -> None:
    given_ = cut_up(np.random.default_rng(seed), 24, 40, 1000)
    found = fit_in(*columns(given_), 1000)
    assert found.offset is not None
    assert_apart(given_, found.offset.tolist(), 1000)
    assert fit_in(*columns(given_), 999).sure


def test_equal_input_and_work_give_equal_offsets_and_little_work_gives_none() -> None:
    given_ = columns(cut_up(np.random.default_rng(3), 60, 90, 10_000))
    one, other = (fit_in(*given_, 10_100, work=3_000_000) for _ in range(2))
    assert one.work == other.work
    assert (one.offset is None) == (other.offset is None)
    if one.offset is not None and other.offset is not None:
        assert one.offset.tolist() == other.offset.tolist()
    stopped = fit_in(*given_, 10_000, work=10)
    assert stopped.offset is None and not stopped.sure


def test_blocks_of_no_length_or_size_lie_anywhere() -> None:
    found = fit_in(ints([0, 2, 5]), ints([4, 2, 9]), ints([10, 99, 0]), 10)
    assert found.offset is not None and found.offset[0] == 0
    assert fit_in(ints([]), ints([]), ints([]), 0).offset is not None


def test_the_verb_writes_offsets_that_keep_blocks_apart(tmp_path: Path) -> None:
    given_ = [(0, 3, 4), (3, 9, 4), (0, 9, 4), (9, 21, 4), (0, 21, 4)]
    lines = [f"b{number},{size},{begin},{end}" for number, (begin, end, size) in enumerate(given_)]
    (tmp_path / "lives.csv").write_text("id,size,lower,upper\n" + "\n".join(lines) + "\n")
    out = tmp_path / "offsets.csv"
    command = ["lab", "pack", str(tmp_path / "lives.csv"), "--out", str(out), "--capacity"]
    answer = CliRunner().invoke(app, [*command, "12"])
    assert answer.exit_code == 0 and "12 are alive at once" in answer.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["id"] for row in rows] == ["b0", "b1", "b2", "b3", "b4"]
    assert_apart(given_, [int(row["offset"]) for row in rows], 12)
    out.unlink()
    answer = CliRunner().invoke(app, [*command, "11"])
    assert answer.exit_code == 3 and "--capacity 12" in answer.output and not out.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,lower,upper\n1,2,3\n", "no column 'size'"),
        ("", "no column 'id'"),
        ("id,lower,upper,size\na,0,1\n", "a row of 3 fields"),
        ("id,lower,upper,size\na,0,1,x\n", "block 'a'"),
        ("id,lower,upper,size\na,3,1,5\n", "lives from 3 to 1"),
        ("id,lower,upper,size\na,0,1,-5\n", "-5 bytes"),
        ("id,lower,upper,size\na,0,1,5\na,1,2,5\n", "two blocks are called 'a'"),
    ],
)
def test_a_file_that_is_not_one_of_lifetimes_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "lives.csv").write_text(text)
    command = ["lab", "pack", str(tmp_path / "lives.csv"), "--out", str(tmp_path / "o.csv"), "--capacity", "9"]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 1 and said in answer.output
    assert not (tmp_path / "o.csv").exists()
