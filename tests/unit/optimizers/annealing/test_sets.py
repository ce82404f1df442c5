"""Which ops a move is about, worked out by hand with draws that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import sets
from loadmaster.optimizers.annealing.state import NEAR, SCOPE, SHIFT, SINGLE, SLICE, SWAP, WINDOW
from tests.unit.optimizers.annealing.told import Draws, plain

MIRROR = [3, 1, 0, 2, 5, 4, 7, 6]  # ops in the mirrored order


def terrain() -> Any:
    """Eight ops; groups (2, 0, 4) and (4, 5). Op 0 makes tensor 0, which 1 and 2 read; op 3 reads an input, tensor 1,
    which nobody makes and 4 reads too; op 5 makes tensor 2, which nobody reads; op 2 makes tensor 3, which 6 reads; 7
    has to do with none."""
    mirror_at = np.empty(8, np.int64)
    mirror_at[MIRROR] = np.arange(8)
    return SimpleNamespace(
        group_start=np.array([0, 3, 5]),
        group_ops=np.array([2, 0, 4, 4, 5]),
        group_at=np.array([0, 0, 0, 1, 1]),
        within_start=np.array([0, 1, 1, 2, 2, 4, 5, 5, 5]),
        within=np.array([1, 0, 2, 3, 4]),
        by_mirror=np.array(MIRROR),
        mirror_at=mirror_at,
        read_start=np.array([0, 0, 1, 2, 3, 4, 4, 5, 5]),
        reads=np.array([0, 0, 1, 1, 3]),
        producer=np.array([0, -1, 5, 2]),
    )


def layout() -> Any:
    return SimpleNamespace(
        make_start=np.array([0, 1, 1, 2, 2, 2, 3, 3, 3]),
        makes=np.array([0, 3, 2]),
        reader_start=np.array([0, 2, 4, 4, 5]),
        readers=np.array([1, 2, 3, 4, 6]),
    )


def scratch() -> Any:
    turns = np.array([7, 6, 5, 4, 3, 2, 1, 0])  # the last op ran first
    return SimpleNamespace(
        members=np.full(8, -9), stamp=np.zeros(8, np.int64), mark=np.zeros(1, np.int64), turns=turns, turn_of=turns
    )


@pytest.mark.parametrize(
    ("op", "draws", "other"),
    [
        (1, [0], 0),  # it reads what op 0 makes, the first of all
        (0, [0, 0], 1),  # and that feeds two
        (0, [0, 1], 2),
        (3, [0, 1], 4),  # of an input another reader
        (3, [0, 0], 3),
        (5, [0], -1),  # what it makes nobody reads
        (2, [0], 0),
        (2, [1, 0], 6),  # of two, what it makes comes after what it reads
        (6, [0], 2),
        (7, [], -1),
    ],
)
def test_a_neighbour_is_one_that_it_reads_from_or_feeds(
    op: int, draws: list[int], other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Draws(monkeypatch, sets, *draws)
    assert plain(sets.next_to)(layout(), terrain(), op, None) == other and not told.unused


@pytest.mark.parametrize(
    ("seed", "draws", "members", "toward"),
    [
        # Along the mirrored order devices are 0 0 0 1 1 1 0 0: borders are behind the third and the sixth of it.
        (3, [2, 0], [2, 5], 0),  # two behind the first border, to where those before it are
        (3, [2, 1], [1, 0], 1),  # or two before it
        (0, [1, 1], [0], 1),  # here already
        (0, [1, 0], [2], 0),
        (2, [3, 0], [7, 6], 1),  # the second border; no more than there are
        (7, [3, 0], [2, 5, 4], 0),  # from the end it is looked for at the beginning
        (3, [8, 1], [3, 1, 0], 1),
    ],
)
def test_a_border_is_where_the_mirrored_order_changes_device(
    seed: int, draws: list[int], members: list[int], toward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = np.empty(8, np.int32)
    place[MIRROR] = [0, 0, 0, 1, 1, 1, 0, 0]
    told = Draws(monkeypatch, sets, *draws)
    monkeypatch.setattr(sets, "length", lambda state, most: told._next("length", 8, 1))
    space = scratch()
    count, found = plain(sets._border)(terrain(), place, space.members, seed, None)
    assert space.members[:count].tolist() == members and found == toward


def test_the_end_of_the_mirrored_order_has_a_border_with_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    place = np.empty(8, np.int32)
    place[MIRROR] = [0, 1, 1, 1, 1, 1, 1, 1]
    Draws(monkeypatch, sets, 1, 0)
    space = scratch()
    assert plain(sets._border)(terrain(), place, space.members, 6, None) == (1, 1) and space.members[0] == 3


def test_a_border_is_an_eighth_wide_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for ops, most in ((8, 1), (16, 2), (4, 1)):
        order = np.arange(ops)
        space = SimpleNamespace(by_mirror=order, mirror_at=order)
        told = Draws(monkeypatch, sets, 1, 0)
        place = np.zeros(ops, np.int32)
        members = np.empty(ops, np.int64)
        assert plain(sets._border)(space, place, members, 1, None) == (1, 0), "of one device any op"
        assert told.asked[0] == ("length", most)


def test_parts_of_groups_are_drawn_from_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Draws(monkeypatch, sets, 1, 1, 2, 0)
    assert plain(sets._group)(terrain(), scratch().members, True, 4, True, None) == 2
    assert told.asked == [("below", 2), ("below", 2), ("length", 2), ("below", 2)]
    told = Draws(monkeypatch, sets, 1, 1, 1)
    assert plain(sets._group)(terrain(), scratch().members, True, 4, False, None) == 1
    assert told.asked == [("below", 2), ("length", 2), ("below", 2)]


@pytest.mark.parametrize(
    ("sliced", "seed", "aimed", "draws", "members"),
    [
        (False, 0, False, [1], [4, 5]),
        (False, 0, False, [0], [2, 0, 4]),
        (False, 4, True, [0, 1], [4, 5]),  # of the two that hold it the second
        (False, 4, True, [0, 0], [2, 0, 4]),
        (True, 0, False, [0, 2, 1], [0, 4]),
        (True, 0, False, [0, 3, 2], [4]),  # no farther than the group
        (True, 4, True, [1, 0, 2, 1], [0, 4]),
        (True, 2, True, [0, 0, 3, 2], [2, 0, 4]),  # nor before it
        (True, 5, True, [0, 0, 2, 0], [5]),
    ],
)
def test_a_group_or_a_part_of_one(
    sliced: bool, seed: int, aimed: bool, draws: list[int], members: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Draws(monkeypatch, sets, *draws)
    space = scratch()
    count = plain(sets._group)(terrain(), space.members, sliced, seed, aimed, None)
    assert space.members[:count].tolist() == members and not told.unused


@pytest.mark.parametrize(
    ("kind", "seed", "aimed", "draws", "members"),
    [
        (WINDOW, 2, False, [3, 0], [2, 3, 4]),  # of the program
        (WINDOW, 2, False, [3, 1], [2, 5, 4]),  # of the mirrored order
        (WINDOW, 7, False, [3, 0], [7]),
        (SWAP, 2, False, [2], [2, 5]),  # which is always of that
        (SHIFT, 2, False, [2, 1], [2, 5]),
        (SHIFT, 2, False, [2, 0], [2, 3]),
        (WINDOW, 4, True, [3, 0, 2, 0], [2, 3, 4]),  # some before it
        (WINDOW, 1, True, [4, 0, 3, 0], [0, 1, 2, 3]),  # no farther back than the first
        (SWAP, 2, True, [2, 1], [0, 2]),
        (SHIFT, 4, True, [2, 0, 1], [3, 4]),
        # What its device ran about that time: ops 6 and 5 are elsewhere.
        (WINDOW, 4, True, [4, 0, 2, 1], [4, 3]),
        (WINDOW, 7, True, [4, 0, 3, 1], [7, 4]),
        (WINDOW, 0, True, [4, 0, 0, 1], [0]),
    ],
)
def test_a_window_is_a_stretch_of_the_program_of_its_mirror_or_of_what_ran(
    kind: int, seed: int, aimed: bool, draws: list[int], members: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, space = Draws(monkeypatch, sets, *draws), scratch()
    place = np.zeros(8, np.int32)
    place[[5, 6]] = 1
    count = plain(sets._window)(terrain(), place, space, kind, seed, aimed, None)
    assert space.members[:count].tolist() == members and not told.unused
    assert told.asked[0] == ("length", 4)


def test_a_neighbourhood_is_grown_from_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    told, space = Draws(monkeypatch, sets, 3, 0, 0, 0, 1), scratch()
    monkeypatch.setattr(sets, "next_to", lambda layout, terrain, op, state: {2: 0, 0: 1}[int(op)])
    count = plain(sets._grow)(layout(), terrain(), space, 2, None)
    assert space.members[:count].tolist() == [2, 0, 1] and space.stamp.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert told.asked == [("length", 8), ("below", 1), ("below", 2), ("below", 2), ("below", 2)], "one of them twice"


def test_it_ends_where_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (-1, 0):  # none, or one that it has
        told, space = Draws(monkeypatch, sets, 2, *[0] * 8), scratch()
        monkeypatch.setattr(sets, "next_to", lambda layout, terrain, op, state, found=found: found)
        assert plain(sets._grow)(layout(), terrain(), space, 0, None) == 1 and not told.unused
    space = scratch()
    Draws(monkeypatch, sets, 1)
    assert plain(sets._grow)(layout(), terrain(), space, 5, None) == 1 and space.members[0] == 5


def drawn(
    monkeypatch: pytest.MonkeyPatch, kind: int, seed: int, aimed: bool, *draws: int, groups: int = 2
) -> tuple[str, int, int]:
    """(what was asked for, how many ops, toward which device)."""
    asked = list[str]()

    def part(name: str, count: Any) -> Any:
        def of(*given: Any) -> Any:
            asked.append(name + (" sliced" if name == "group" and given[2] else ""))
            return count

        return of

    Draws(monkeypatch, sets, *draws)
    monkeypatch.setattr(sets, "_group", part("group", 3))
    monkeypatch.setattr(sets, "_window", part("window", 4))
    monkeypatch.setattr(sets, "_grow", part("grown", 5))
    monkeypatch.setattr(sets, "next_to", plain(sets.next_to))
    space = terrain()
    space.group_start = space.group_start[: groups + 1]
    place = np.arange(8, dtype=np.int32)
    count, toward = plain(sets.draw_set)(layout(), space, place, scratch(), kind, seed, aimed, None)
    return " ".join(asked), int(count), int(toward)


def test_what_is_drawn_for_which_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    anywhere = sets.ANYWHERE
    assert drawn(monkeypatch, NEAR, 1, False) == ("grown", 5, anywhere)
    assert drawn(monkeypatch, WINDOW, 1, False) == drawn(monkeypatch, SWAP, 1, False) == ("window", 4, anywhere)
    assert drawn(monkeypatch, SCOPE, 1, False) == ("group", 3, anywhere)
    assert drawn(monkeypatch, SLICE, 1, False) == ("group sliced", 3, anywhere)
    assert drawn(monkeypatch, SHIFT, 1, False, 0) == ("group", 3, anywhere)
    assert drawn(monkeypatch, SHIFT, 1, False, 1) == ("window", 4, anywhere)
    assert drawn(monkeypatch, SCOPE, 1, True) == ("window", 4, anywhere), "it is in no group"
    assert drawn(monkeypatch, SCOPE, 0, True) == ("group", 3, anywhere)
    assert drawn(monkeypatch, SCOPE, 1, False, groups=0) == ("window", 4, anywhere)
    assert drawn(monkeypatch, SCOPE, 1, False, groups=1) == ("group", 3, anywhere)


def test_an_op_alone_goes_to_a_neighbour_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, SINGLE, 1, False, 0) == ("", 1, 0), "the first op, on the first device"
    assert drawn(monkeypatch, SINGLE, 0, False, 0, 1) == ("", 1, 2)
    assert drawn(monkeypatch, SINGLE, 7, False) == ("", 1, sets.ANYWHERE)
