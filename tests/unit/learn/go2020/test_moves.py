"""Changes of a plan one by one: what is drawn, what it leaves, and what scores lose by it, worked out by hand."""

from __future__ import annotations

from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import moves
from loadmaster.learn.go2020.moves import LEAST, Moves
from loadmaster.learn.go2020.policy import OFF, Decided


class Drawn:
    """A generator whose next numbers are told."""

    def __init__(self, first: int = 0, power: float = 0.0) -> None:
        self.first, self.power, self.offered = first, power, list[list[int]]()

    def integers(self, most: int) -> int:
        assert self.first < most
        return self.first

    def uniform(self, low: float, high: float) -> float:
        assert (low, high) == (0, 8)
        return self.power

    def choice(self, some: Any) -> int:
        self.offered.append(some.tolist())
        return int(some[-1])


def decided(*device: int) -> Decided:
    return Decided(ints(device), ints([7] * len(device)), ints([]))


def problem(groups: int, devices: int = 3) -> Any:
    able = np.ones((groups, devices), bool)
    return SimpleNamespace(mirror=np.arange(groups), able=able, num_devices=devices)


@pytest.mark.parametrize(("power", "members"), [(1.0, [1, 2, 3]), (1.01, [0, 1, 2, 3]), (0.0, [2])])
def test_every_second_change_is_some_of_what_a_better_plan_has_otherwise(
    power: float, members: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups 0 to 3 and 5 go from 0 to 2 there, 4 goes elsewhere: those nearer than two to the power go together."""
    units = np.array([OFF, OFF, OFF, OFF, OFF, OFF, 0])
    monkeypatch.setattr(moves, "draw_units", lambda one, order, whole, rng: units)
    here, better = decided(0, 0, 0, 0, 0, 0, 1), ints([2, 2, 2, 2, 1, 2, 1])
    rng: Any = Drawn(2, power)
    found = moves.draw_moves(problem(7), here, better, 3, rng)
    assert [found.members_of(move).tolist() for move in range(3)] == [[6], members, [6]]
    assert found.device.tolist() == [2, 2, 2] and rng.offered == [[0, 2], [0, 2]]
    assert found.gain.tolist() == [0, 0, 0]


def test_where_no_better_plan_is_known_all_changes_are_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def draw_units(one: Any, order: Any, whole: bool, rng: Any) -> Any:
        asked.append((order.tolist(), whole))
        return np.array([0, OFF, 1])

    monkeypatch.setattr(moves, "draw_units", draw_units)
    one, rng = problem(3), Drawn()
    one.mirror = np.array([2, 0, 1])
    found = moves.draw_moves(one, decided(0, 1, 0), ints([0, 1, 0]), 2, rng)  # type: ignore[arg-type]
    assert asked == [([1, 2, 0], False)] * 2
    assert (found.member.tolist(), found.move.tolist()) == ([0, 2, 0, 2], [0, 0, 1, 1])
    assert moves.draw_moves(one, decided(0, 1, 0), ints([0, 1, 0]), 0, rng).device.tolist() == []  # type: ignore[arg-type]


def test_another_device_is_one_that_all_members_can_run_on_but_that_of_most() -> None:
    one, rng = problem(3, 4), Drawn()
    members, where = ints([0, 1, 2]), decided(0, 0, 2)
    assert moves._another(one, where, members, rng) == 3  # type: ignore[arg-type]
    one.able[1, 3] = one.able[2, 2] = False
    assert moves._another(one, where, members, rng) == 1  # type: ignore[arg-type]
    one.able[0, 1] = False
    assert moves._another(one, where, members, rng) == 0  # type: ignore[arg-type]
    assert rng.offered == [[1, 2, 3], [1]]


def test_each_change_alone_leaves_all_else() -> None:
    many = Moves(ints([0, 2, 1]), ints([0, 0, 1]), ints([2, 0]), np.zeros(2, np.float32))
    stands = decided(1, 1, 1)
    assert [each.device.tolist() for each in moves.all_changes(stands, many)] == [[2, 1, 2], [1, 0, 1]]
    assert moves.changed(stands, many, [0, 1]).device.tolist() == [2, 0, 2]
    assert stands.device.tolist() == [1, 1, 1]


def test_the_loss_is_of_the_mean_lead_of_the_new_device_and_weighs_by_what_is_gained() -> None:
    """Two plans of three groups; the second change of the second plan has no members, so that it has no lead."""
    place = torch.tensor([[[1.0, 3.0], [0.5, -1.5], [9.0, 9.0]], [[30.0, 2.0], [-50.0, 0.25], [9.0, 9.0]]])
    outputs: Any = SimpleNamespace(place=place)
    first = Moves(ints([0, 0, 1]), ints([0, 1, 1]), ints([1, 1]), np.array([0.02, LEAST], np.float32))
    second = Moves(ints([0, 1]), ints([0, 2]), ints([1, 0, 0]), np.array([0.3, 0.0, -0.005], np.float32))
    found = float(moves.move_loss(outputs, [decided(0, 0, 0), decided(0, 1, 0)], [first, second]))

    def loss(lead: float, gains: bool) -> float:
        return log(1 + exp(-lead if gains else lead))

    # leads: 3 - 1; (2 - 2) / 2; 2 - 30 and -50 - 0.25, which count as 20 at most
    each = [loss(2, True), loss(0, False), loss(-20, True), loss(0, False), loss(-20, False)]
    weight = [0.1 + 2, 0.1 + 0.1, 0.1 + 4, 0.1, 0.1 + 0.5]
    wanted = sum(a * b for a, b in zip(each, weight, strict=True)) / sum(weight)
    assert found == pytest.approx(wanted, rel=1e-5)
    place[1, 0] = torch.tensor([2.0, 30.0])
    found = float(moves.move_loss(outputs, [decided(1, 0, 0), decided(0, 1, 0)], [first, second]))
    each = [loss(0, True), loss(-1, False), loss(20, True), loss(0, False), loss(-20, False)]
    assert found == pytest.approx(sum(a * b for a, b in zip(each, weight, strict=True)) / sum(weight), rel=1e-5)
