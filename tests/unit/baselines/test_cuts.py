"""Cuts by what devices hold: in one piece along the mirrored order, and every device about as full."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import Cluster, price
from loadmaster.baselines.cuts import cut_by_held, held_bytes
from loadmaster.passes.groups import mirrored_position, turning_point
from loadmaster.problem import Problem
from loadmaster.zoo.shelf import load_zoo


def problem(devices: int = 2) -> Problem:
    return price(load_zoo("resnet50/train"), Cluster.preset(f"{devices}xp100-pcie"), objective="peak-memory")


@pytest.mark.parametrize("turn", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_hold_equal_shares_of_one_stretch_each(devices: int, turn: float) -> None:
    given = problem(devices)
    (device,) = cut_by_held(given, [(turn, 0.0)])
    held = held_bytes(given)
    shares = np.bincount(device, held, devices) / held.sum()
    assert np.abs(shares - 1 / devices).max() <= held.max() / held.sum()
    along = device[np.lexsort((np.arange(given.num_ops), mirrored_position(given)))]
    assert (np.diff(along) != 0).sum() == devices - (turn == 0)


def test_a_tilt_gives_the_first_device_less() -> None:
    given = problem()
    held = held_bytes(given)
    even, tilted = (np.bincount(device, held) for device in cut_by_held(given, [(0.0, 0.0), (0.0, 0.2)]))
    assert tilted[0] < even[0] and tilted[1] > even[1]


def test_what_is_held_is_what_is_alive_at_the_turning_point_and_residents() -> None:
    """Counted tensor by tensor."""
    given = problem()
    graph, turn, total = given.graph, turning_point(given), 0
    for tensor in range(graph.num_tensors):
        maker, readers = int(graph.producer[tensor]), graph.readers_of(tensor).tolist()
        if given.resident[tensor]:
            total += int(graph.nbytes[tensor]) if readers or given.updater[tensor] >= 0 else 0
        elif 0 <= maker <= turn and max([maker, *readers]) >= turn and graph.alias_of[tensor] < 0:
            total += 0 if given.stays[tensor] else int(graph.nbytes[tensor])
    assert held_bytes(given).sum() == total
