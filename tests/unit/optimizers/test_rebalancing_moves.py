"""Moves of rebalancing and of balancing, each by itself as plain Python, with draws and values that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers import balancing, rebalancing
from tests.unit.optimizers.annealing.told import Draws, plain


def needs(able: Any = None) -> Any:
    """Five ops in a row; 0 and 3 share a device."""
    return SimpleNamespace(
        before_start=np.array([0, 0, 1, 2, 3, 4]),
        before=np.array([0, 1, 2, 3]),
        after_start=np.array([0, 1, 2, 3, 4, 4]),
        after=np.array([1, 2, 3, 4]),
        group=np.array([0, 1, 2, 0, 3]),
        mate_start=np.array([0, 2, 3, 4, 5]),
        mates=np.array([0, 3, 1, 2, 4]),
        held=SimpleNamespace(able=np.ones((5, 3), bool) if able is None else able),
    )


def test_a_place_in_the_order_is_between_what_an_op_waits_for_and_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = needs()
    # Of seven, op 0 is at 1, 1 at 3, 2 at 6; others have nothing to do with them.
    at = np.array([1, 3, 6, 9, 9, 0, 2])
    for op, draw, count, place in ((1, 0, 4, 2), (1, 3, 4, 5), (0, 2, 3, 2)):
        told = Draws(monkeypatch, rebalancing, draw)
        assert plain(rebalancing._somewhere)(some, at, op, None) == place and told.asked == [("below", count)]
    last = needs()
    last.before_start = last.after_start = np.zeros(8, np.int64)
    told = Draws(monkeypatch, rebalancing, 6)
    assert plain(rebalancing._somewhere)(last, at, 6, None) == 6 and told.asked == [("below", 7)]


def test_an_op_can_go_where_all_that_share_its_device_can() -> None:
    able = np.ones((5, 3), bool)
    able[3, 1] = able[1, 0] = False
    found = [[bool(plain(rebalancing._able)(needs(able), op, there)) for there in range(3)] for op in (0, 1, 3, 4)]
    assert found == [[True, False, True], [False, True, True], [True, False, True], [True, True, True]]


def test_a_partner_is_there_and_can_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancing, "_able", lambda needs, op, there: op != 1)
    place = np.array([1, 1, 0, 1])
    for draws, found in (([2, 1, 3], 3), ([0], 0), ([2] * rebalancing.TRIES, -1)):
        told = Draws(monkeypatch, rebalancing, *draws)
        assert plain(rebalancing._partner)(needs(), place, 0, 1, None) == found and not told.unused
        assert told.asked[0] == ("below", 4)


class Moved:
    """A move of op 2, on device 1 of three and third of five, that is worth what it is told."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, move: Any, value: int, *draws: int, new: int = 4, able: bool = True
    ) -> None:
        self.did, told = list[Any](), Draws(monkeypatch, rebalancing, *draws)

        def put(needs: Any, profile: Any, place: Any, at: Any, op: int, there: int) -> None:
            self.did.append(("put", int(op), int(there)))

        def shift(needs: Any, profile: Any, place: Any, order: Any, at: Any, old: int, new: int) -> None:
            self.did.append(("shift", int(old), int(new)))

        def measure(profile: Any, order: Any, here: int) -> None:
            profile.top[here] = 70 + here

        monkeypatch.setattr(rebalancing, "_put", put)
        monkeypatch.setattr(rebalancing, "_shift", shift)
        monkeypatch.setattr(rebalancing, "_measure", measure)
        monkeypatch.setattr(rebalancing, "_value", lambda needs, profile: value)
        monkeypatch.setattr(rebalancing, "_somewhere", lambda *_: new)
        monkeypatch.setattr(rebalancing, "_partner", lambda needs, place, here, there, state: 0)
        monkeypatch.setattr(rebalancing, "_able", lambda *_: able)
        self.profile = SimpleNamespace(top=np.array([5, 6, 7]), old_top=np.array([5, 6, 7]))
        place, order = np.array([0, 0, 1, 2, 2]), np.arange(5)
        self.worth = int(plain(move)(needs(), self.profile, place, order, np.arange(5), 2, 100, None))
        self.top = self.profile.top.tolist()
        assert not told.unused


@pytest.mark.parametrize(("value", "stays"), [(99, True), (100, True), (101, False)])
def test_an_op_goes_elsewhere_in_the_order_unless_that_is_worse(
    value: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Moved(monkeypatch, rebalancing._reorder, value)
    assert told.did == [("shift", 2, 4), ("shift", 4, 2)][: 1 if stays else 2]
    assert told.worth == (value if stays else 100) and told.top == ([70, 71, 72] if stays else [5, 6, 7])
    same = Moved(monkeypatch, rebalancing._reorder, 1, new=2)
    assert same.did == [] and same.worth == 100


@pytest.mark.parametrize(("value", "stays"), [(99, True), (100, True), (101, False)])
def test_an_op_goes_to_another_device_or_changes_places_unless_that_is_worse(
    value: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Moved(monkeypatch, rebalancing._replace, value, 0, 0)
    assert alone.did == [("put", 2, 0), ("put", 2, 1)][: 1 if stays else 2]
    assert alone.worth == (value if stays else 100) and alone.top == ([70, 71, 7] if stays else [5, 6, 7])
    both = Moved(monkeypatch, rebalancing._replace, value, 1, 1)
    there, back = [("put", 2, 2), ("put", 0, 1)], [("put", 0, 2), ("put", 2, 1)]
    assert both.did == there + ([] if stays else back), "the first op takes its place"
    assert both.top == ([5, 71, 72] if stays else [5, 6, 7])
    unable = Moved(monkeypatch, rebalancing._replace, value, 1, able=False)
    assert unable.did == [] and unable.worth == 100


def test_three_of_ten_moves_are_about_the_order_and_some_must_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = SimpleNamespace(top=np.zeros(2, np.int64), old_top=np.zeros(2, np.int64))
    for values, paid in (([99, 98], True), ([100, 100], False)):
        told, left, did = Draws(monkeypatch, rebalancing, 4, 2, 0, 3), iter(values), list[tuple[str, int, int]]()
        monkeypatch.setattr(rebalancing, "profile_of", lambda *_: profile)
        monkeypatch.setattr(rebalancing, "_value", lambda *_: 100)

        def noted(name: str, did: Any = did, left: Any = left) -> Any:
            def move(needs: Any, profile: Any, place: Any, order: Any, at: Any, op: int, now: int, state: Any) -> int:
                did.append((name, op, now))
                return next(left)  # type: ignore[no-any-return]

            return move

        monkeypatch.setattr(rebalancing, "_reorder", noted("order"))
        monkeypatch.setattr(rebalancing, "_replace", noted("place"))
        found = plain(rebalancing.improve)(None, np.arange(5), None, 2, None)
        assert bool(found) is paid and not told.unused
        assert did == [("order", 4, 100), ("place", 0, values[0])]
        assert told.asked == [("below", 5), ("below", 10)] * 2


# Balancing: groups of a pool


def test_a_group_moves_if_all_of_it_can_run_there() -> None:
    able = np.ones((4, 2), bool)
    able[3, 1] = False
    held, ops = SimpleNamespace(able=able), np.array([2, 0, 3])
    device, changed, before = np.array([0, 0, 0, 0]), np.full(8, -9), np.full(8, -9)
    assert plain(balancing._move)(held, 0, 3, ops, device, 1, changed, before, 0) == -1 and not device.any()
    assert plain(balancing._move)(held, 0, 2, ops, device, 1, changed, before, 1) == 3
    assert device.tolist() == [1, 0, 1, 0]
    assert changed[:3].tolist() == [-9, 2, 0] and before[:3].tolist() == [-9, 0, 0]


class Balanced:
    """Groups (0, 1), (2) and (3) of one pool on two devices, of which the last is on the second; placements that were
    judged, and the best."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, values: list[int], *draws: int, devices: int = 2) -> None:
        self.judged, left = list[list[int]](), iter(values)
        told = Draws(monkeypatch, balancing, *draws)

        def value(held: Any, device: Any, change: Any, last: Any) -> int:
            assert change.shape == (devices, 5) and len(last) == devices
            self.judged.append(device.tolist())
            return next(left)

        monkeypatch.setattr(balancing, "_value", value)
        monkeypatch.setattr(balancing, "_move", plain(balancing._move))
        held = SimpleNamespace(memory=np.zeros(devices), able=np.ones((4, devices), bool))
        given = (np.array([0, 3]), np.array([0, 2, 3, 4]), np.arange(4), np.array([0, 0, 0, devices - 1]))
        self.best = plain(balancing.balance)(held, *given, len(values) - 1, None).tolist()
        assert not told.unused
        self.asked = told.asked


def test_groups_are_moved_or_swapped_and_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first group goes over, then the third one comes back for the second.
    told = Balanced(monkeypatch, [900, 800, 700], 0, 0, 0, 0, 0, 1, 0, 1, 2)
    assert told.judged == [[0, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 0]] and told.best == [1, 1, 1, 0]
    assert told.asked[:4] == [("below", 1), ("below", 3), ("below", 1), ("below", 2)]
    alone = Balanced(monkeypatch, [900, 800], 0, 1, 0, 1, *[0] * balancing.TRIES)
    assert alone.judged[1] == [0, 0, 1, 1], "none was found to swap with"


def test_a_little_worse_is_gone_on_from_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a 256th of 2,560, and half of that in the second of two."""
    worse = Balanced(monkeypatch, [2_560, 2_570, 2_575], 0, 0, 0, 0, 0, 1, 0, 0)
    assert worse.judged[2] == [1, 1, 1, 1] and worse.best == [0, 0, 0, 1]
    much = Balanced(monkeypatch, [2_560, 2_571, 2_500], 0, 0, 0, 0, 0, 1, 0, 0)
    assert much.judged[2] == [0, 0, 1, 1] and much.best == [0, 0, 1, 1], "the first was taken back"
    back = Balanced(monkeypatch, [2_560, 2_560, 2_566, 2_500], 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0)
    assert back.judged[3] == [1, 1, 1, 0], "two thirds of ten are six"
    late = Balanced(monkeypatch, [2_560, 2_560, 2_567, 2_500], 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0)
    assert late.judged[3] == [1, 1, 0, 0] and late.best == [1, 1, 0, 0]


def test_on_one_device_nothing_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Balanced(monkeypatch, [900, 1], devices=1)
    assert alone.best == [0, 0, 0, 0] and len(alone.judged) == 1


@pytest.mark.parametrize(
    ("peaks", "value"), [((100, 140, 0), 8 * 100 + 70), ((101, 140, 3), 8 * 101 + 70 + 64 * 3), ((0, 0, 0), 0)]
)
def test_the_fullest_counts_most_and_what_is_short_far_more(
    peaks: tuple[int, int, int], value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "_peaks", lambda *_: peaks)
    assert plain(balancing._value)(None, None, None, np.zeros(2)) == value
