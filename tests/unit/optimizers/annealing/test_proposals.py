"""Chances of what a set may take, what it takes, and what of it is written down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import proposals
from loadmaster.optimizers.annealing.moves.order import TOP_RANK
from loadmaster.optimizers.annealing.proposals import DEVICE, NOBODY, make_log
from loadmaster.optimizers.annealing.sets import ANYWHERE
from loadmaster.optimizers.annealing.state import FUSE_ALIKE, FUSE_SHIFT, FUSE_WINDOW, LEVELS
from tests.unit.optimizers.annealing.told import Draws, plain


@pytest.mark.parametrize("scale", [1.0, 900.0, -900.0])
@pytest.mark.parametrize("toward", [-1, 2])
def test_by_the_mean_scores_of_its_ops_however_large_they_are(scale: float, toward: int) -> None:
    scores = np.array([[0.0, 1.0, -1.0], [2.0, 0.5, 0.0], [9.0, 9.0, 9.0]]) + scale
    label, members = np.array([0, 1, 2], np.int32), np.array([0, 1, 2], np.int32)
    chance = np.empty(3)
    proposals.weigh(label, scores, members, 2, toward, 0.1, chance)
    mean = scores[:2].mean(axis=0)
    plain = np.exp(mean - mean.max()) / np.exp(mean - mean.max()).sum()
    wanted = 0.9 * plain + 0.1 / 3 if toward < 0 else 0.5 * plain + 0.5 * (np.arange(3) == toward)
    np.testing.assert_allclose(chance, wanted)


# What a set is to become, with draws that are told


def space(**given: Any) -> Any:
    columns = {"members": np.array([2, 0, 1]), "itself": np.arange(4), "chance": np.zeros(3)}
    return SimpleNamespace(**(columns | {"level_chance": np.zeros(LEVELS)} | given))


@pytest.mark.parametrize(
    ("toward", "aimed", "devices", "other", "draws", "device"),
    [
        (0, True, 3, 1, [], 0),  # the first device suggests itself
        (ANYWHERE, False, 3, 1, [2], 2),
        (ANYWHERE, True, 3, 1, [1], 7),  # beside a neighbour of the op that the step waits for
        (ANYWHERE, True, 3, 0, [1], 5),
        (ANYWHERE, True, 3, -1, [1, 2], 2),  # it has none
        (ANYWHERE, True, 3, 1, [0, 2], 2),
        (ANYWHERE, True, 2, 1, [1], 1),  # of two devices any
    ],
)
def test_where_a_set_goes_by_hand(
    toward: int, aimed: bool, devices: int, other: int, draws: list[int], device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Draws(monkeypatch, proposals, *draws)
    monkeypatch.setattr(proposals, "next_to", lambda *_: other)
    layout, place = SimpleNamespace(devices=devices), np.array([5, 7, 9])
    assert plain(proposals.device_of)(layout, None, place, None, None, 1, toward, 0, aimed, None) == device
    assert not told.unused


def test_how_far_ranks_are_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "distance", lambda ops, state: 40)
    for draw, by in ((1, 40), (0, -40)):
        Draws(monkeypatch, proposals, draw)
        assert plain(proposals.shift_of)(None, None, 1, 8, None) == (by, NOBODY)
    policy: Any = SimpleNamespace(label=None, level=None, uniform=0.1)
    monkeypatch.setattr(proposals, "weigh", lambda *_: None)
    monkeypatch.setattr(proposals, "unit", lambda state: 0.0)
    middle = LEVELS // 2
    for level, share in ((middle, 0.0), (0, -1.0), (middle + middle // 2, 0.25), (middle - middle // 2, -0.25)):
        monkeypatch.setattr(proposals, "pick", lambda chances, total, state, level=level: level)
        by, said = plain(proposals.shift_of)(space(), policy, 1, 8, None)
        assert by == int(0.5 * TOP_RANK * share) and said == level
    monkeypatch.setattr(proposals, "unit", lambda state: 1.0)
    monkeypatch.setattr(proposals, "pick", lambda *_: 0)
    assert plain(proposals.shift_of)(space(), policy, 1, 8, None)[0] == int(-0.5 * TOP_RANK / 16)


class Priorities:
    """Priorities of pairs 3, 1 and 0, whose producers are ops 2, 2 and 1, by a column that is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: int, column: int, *draws: int, count: int = 3) -> None:
        told, units = Draws(monkeypatch, proposals, *draws), iter([0.5, 0.25, 0.125, 0.75])
        monkeypatch.setattr(proposals, "unit", lambda state: next(units))
        monkeypatch.setattr(proposals, "pick", lambda *_: column)
        monkeypatch.setattr(proposals, "weigh", lambda *_: None)
        monkeypatch.setattr(proposals, "shift", lambda *_: None)
        monkeypatch.setattr(proposals, "_one_each", lambda *_: 11)
        rules = SimpleNamespace(producer=np.array([1, 2, 0, 2]))
        fusing = SimpleNamespace(drawn=np.array([3, 1, 0]), old_priority=np.zeros(4), rules=rules)
        chain, self.scratch = SimpleNamespace(priority=np.full(4, 9.0)), space()
        policy = SimpleNamespace(fusion=None, uniform=0.0)
        given = (policy, fusing, chain, self.scratch, kind, count, ANYWHERE, None)
        self.found = tuple(map(int, plain(proposals.priorities_of)(*given)))
        self.priority = chain.priority.tolist()
        assert fusing.old_priority.tolist() == [9.0] * 4 and not told.unused


def test_priorities_by_scores_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Priorities(monkeypatch, FUSE_ALIKE, 4, 1, 1)
    assert same.found == (3, 4) and same.priority == [4.5, 4.5, 9.0, 4.5]
    assert same.scratch.members.tolist() == [2, 2, 1]
    each = Priorities(monkeypatch, FUSE_ALIKE, 4, 1, 0)
    assert each.priority == [4.75, 4.125, 9.0, 4.25]
    assert Priorities(monkeypatch, FUSE_ALIKE, 4, 1, 2).priority == [4.0, 4.0, 9.0, 4.0]
    assert Priorities(monkeypatch, FUSE_ALIKE, 0, 1, 1).priority == [-1.0, -1.0, 9.0, -1.0], "not at all"
    assert Priorities(monkeypatch, FUSE_ALIKE, 4, 1, count=1).priority == [9.0, 9.0, 9.0, 4.5]


def test_one_for_each_or_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Priorities(monkeypatch, FUSE_ALIKE, 4, 0).found == (1, 11)
    assert Priorities(monkeypatch, FUSE_WINDOW, 4, 1).found == (1, 11)
    assert Priorities(monkeypatch, FUSE_WINDOW, 4, 0, 1).found == (3, 4)
    assert Priorities(monkeypatch, FUSE_SHIFT, 4).found == (0, NOBODY)


@pytest.mark.parametrize(
    ("policy", "column", "gain", "draw", "filled", "written"),
    [
        (True, 1, 0.5, 7, 0, True),
        (True, 0, 0.5, 7, 0, True),
        (True, 1, 0.0, 8, 0, True),  # one in four
        (True, 1, 0.0, 7, 0, False),
        (False, 1, 0.5, 8, 0, False),
        (True, NOBODY, 0.5, 8, 0, False),
        (True, 1, 0.5, 8, 1, True),
        (True, 1, 0.5, 8, 2, False),  # there is no space
    ],
)
def test_what_is_written_down(policy: bool, column: int, gain: float, draw: int, filled: int, written: bool) -> None:
    log = make_log(2, 3)
    log.every[0], log.filled[0] = 4, filled
    scratch = space(chance=np.array([0.125, 0.25, 0.0]))
    said: Any = SimpleNamespace(label=np.array([0, 0, 2, 1])) if policy else None
    plain(proposals.write_down)(log, said, scratch, DEVICE, 2, column, gain, draw)
    assert log.filled[0] == filled + written
    if written:
        assert (log.kind[filled], log.pick[filled], log.gain[filled]) == (DEVICE, column, gain)
        assert log.share[filled].tolist() == [0.5, 0.0, 0.5], "of ops 2 and 0"
        assert log.chance[filled] == pytest.approx(np.log(scratch.chance[column]))
