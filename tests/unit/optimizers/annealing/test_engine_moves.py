"""What a move asks of its parts, and gives back, as plain Python with draws that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import engine
from loadmaster.optimizers.annealing.proposals import DEVICE, FUSION, LEVEL
from loadmaster.optimizers.annealing.sets import ANYWHERE
from loadmaster.optimizers.annealing.state import (
    BESIDE,
    CRITICAL,
    FUSE_WINDOW,
    OVERTAKE,
    SHIFT,
    SINGLE,
    SWAP,
    WAYS,
    WINDOW,
)
from tests.unit.optimizers.annealing.told import Draws, plain


class Moved:
    """One move of three ops on two devices, whose parts are told."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        arm: int,
        *draws: int,
        waited: int = 0,
        evicting: bool = False,
        toward: int = ANYWHERE,
        moved: int = 2,
        by: tuple[int, int] = (1, 5),
        ranks: int = 3,
    ) -> None:
        self.asked = dict[str, Any]()
        told = Draws(monkeypatch, engine, *draws)
        chain = SimpleNamespace(place=np.zeros(3, int), rank=np.zeros(ranks, int), counts=np.array([0, 0, 0, waited]))
        scratch = SimpleNamespace(critical=np.array([2, 1, 0]))

        def note(name: str, found: Any, *at: int) -> Any:
            def part(*given: Any) -> Any:
                self.asked[name] = tuple(given[index] for index in at)
                return found

            return part

        monkeypatch.setattr(engine, "_crowded", note("crowded", 1, 3))
        monkeypatch.setattr(engine, "draw_set", note("set", (2, toward), 4, 5, 6))
        monkeypatch.setattr(engine, "device_of", note("device", 1))
        monkeypatch.setattr(engine, "_roomiest", note("roomiest", 0))
        monkeypatch.setattr(engine.place, "apply", note("place", (moved, 7), 4, 5, 6))
        monkeypatch.setattr(engine.order, "follow", note("follow", None))
        monkeypatch.setattr(engine.order, "apply", note("shift", None, 2, 3))
        monkeypatch.setattr(engine, "_order_move", note("order", (*by, 9), 5, 6, 7))
        given = (SimpleNamespace(devices=2), None, chain, scratch, None, None, arm, evicting, None)
        self.found = tuple(map(int, plain(engine._move)(*given)))
        assert not told.unused
        self.drawn = [most for _, most in told.asked]


def test_a_move_of_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Moved(monkeypatch, WINDOW * WAYS, 2)
    assert told.asked == {"set": (WINDOW, 2, False), "device": (), "place": (2, 1, ANYWHERE)}
    assert told.found == (DEVICE, 2, 1, 2, 7, 0, 0)
    anew = Moved(monkeypatch, SINGLE * WAYS + 2, 2)
    assert "follow" in anew.asked and anew.found == (DEVICE, 2, 1, 2, 7, 0, 1)
    for same in (Moved(monkeypatch, SINGLE * WAYS + 2, 2, moved=0), Moved(monkeypatch, SINGLE * WAYS + 2, 2, ranks=0)):
        assert "follow" not in same.asked and same.found[6] == 0, "nothing moved, or there are no ranks"
    assert "follow" in Moved(monkeypatch, SINGLE * WAYS + 2, 2, moved=1, ranks=1).asked
    swap = Moved(monkeypatch, SWAP * WAYS, 2, 1)
    assert swap.drawn == [3, 2]
    assert swap.asked["place"] == (2, 1, 1)


def test_an_aimed_move_is_about_an_op_that_the_step_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Moved(monkeypatch, WINDOW * WAYS + 1, 0, waited=2).asked["set"] == (WINDOW, 2, True)
    assert Moved(monkeypatch, WINDOW * WAYS + 1, 0).asked["set"] == (WINDOW, 0, False), "none is known"
    assert Moved(monkeypatch, WINDOW * WAYS + 2, 0, waited=2).asked["set"] == (WINDOW, 0, False)
    assert Moved(monkeypatch, WINDOW * WAYS + 3, 1, waited=2).asked["set"] == (WINDOW, 1, True)


def test_where_memory_is_short_half_of_the_moves_are_about_what_is_too_full(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Moved(monkeypatch, WINDOW * WAYS, 0, 1, 1, evicting=True)
    assert told.drawn == [3, 2, 2] and told.asked["crowded"] == (0,) and told.asked["set"] == (WINDOW, 1, False)
    assert told.asked["place"][1] == 0, "to the roomiest device"
    other = Moved(monkeypatch, WINDOW * WAYS, 0, 0, 0, evicting=True)
    assert "crowded" not in other.asked and other.asked["place"][1] == 1
    toward = Moved(monkeypatch, WINDOW * WAYS, 0, 1, evicting=True, toward=0)
    assert "roomiest" not in toward.asked, "a device suggests itself"


def test_a_move_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Moved(monkeypatch, SHIFT * WAYS, 1)
    assert told.asked["order"] == (SHIFT, 1, False) and told.asked["shift"] == (1, 5)
    assert told.found == (LEVEL, 1, 9, 0, -1, 0, 1)
    for by in ((0, 5), (1, 0)):
        none = Moved(monkeypatch, SHIFT * WAYS, 1, by=by)
        assert "shift" not in none.asked and none.found[3] == none.found[5] == none.found[6] == 0
    all_anew = Moved(monkeypatch, CRITICAL * WAYS, 1)
    assert set(all_anew.asked) == {"follow"} and all_anew.found == (LEVEL, 0, -1, 0, -1, 0, 1)


def test_without_kernels_there_is_no_move_of_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Moved(monkeypatch, FUSE_WINDOW * WAYS, 1).found == (FUSION, 0, -1, 0, -1, 0, 0)


class Ordered:
    """What is shifted, and by how much, of ops with ranks 10, 30, 30 and 70."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: int, seed: int, aimed: bool, other: int, *draws: int, op: int = 3
    ) -> None:
        told = Draws(monkeypatch, engine, *draws)
        monkeypatch.setattr(engine, "next_to", lambda layout, terrain, op, state: other)
        monkeypatch.setattr(engine, "overtaking", lambda *_: (op, other))
        chain = SimpleNamespace(rank=np.array([10, 30, 30, 70]), place=None, counts=np.zeros(4, int))
        scratch = SimpleNamespace(members=np.full(4, -9), record=None, critical=None, queued=None)
        found = plain(engine._order_move)(None, None, chain, scratch, None, kind, seed, aimed, None)
        self.count, self.by, self.first = int(found[0]), int(found[1]), int(scratch.members[0])
        assert not told.unused


def test_one_op_goes_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (Ordered(monkeypatch, BESIDE, 3, False, 0, draw) for draw in (0, 1))
    assert (before.count, before.by, before.first) == (1, -61, 3) and after.by == -59
    assert Ordered(monkeypatch, BESIDE, 1, False, 2, 0).count == 0, "it is there"
    assert Ordered(monkeypatch, BESIDE, 1, False, -1).count == 0, "there is none"


def test_one_op_goes_before_what_it_waited_behind_or_that_goes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (Ordered(monkeypatch, OVERTAKE, 1, True, 0, draw) for draw in (0, 1))
    assert (before.count, before.first, before.by) == (1, 3, -61), "just before 10"
    assert (after.count, after.first, after.by) == (1, 0, 61), "just after 70"
    first = Ordered(monkeypatch, OVERTAKE, 1, True, 1, 0, op=0)
    assert (first.count, first.first, first.by) == (1, 0, 19)
    assert Ordered(monkeypatch, OVERTAKE, 1, False, 0).count == 0, "it is not known what it waited behind"
    assert Ordered(monkeypatch, OVERTAKE, 1, True, 0, op=-1).count == 0


def test_all_that_was_changed_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    undone = list[str]()
    monkeypatch.setattr(engine.place, "undo", lambda *given: undone.append(f"places {given[4:]}"))
    monkeypatch.setattr(engine.order, "undo", lambda *_: undone.append("ranks"))
    monkeypatch.setattr(engine.fusion, "undo", lambda *_: undone.append("kernels"))
    fusing = object()
    for pairs, ranked, what in ((0, False, []), (1, False, ["kernels"]), (0, True, ["ranks"])):
        undone.clear()
        plain(engine._undo)(None, None, None, None, fusing, 2, 5, pairs, ranked)
        assert undone == ["places (2, 5)", *what]
    undone.clear()
    plain(engine._undo)(None, None, None, None, None, 0, -1, 1, False)
    assert undone == ["places (0, -1)"]
