"""Which devices can change names: by their times, their links and the wires that pairs share."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.problem.symmetry import alike_devices


def three(wires: list[list[int]], far: tuple[int, int] = (9, 9), kinds: str = "aaa") -> np.ndarray:
    """Devices of the kinds with such wires; one link, `far`, is slower."""
    build = GraphBuilder("one op")
    build.op("op", "any", [build.tensor(8, "input")], [build.tensor(8, "output")], flops=100)
    devices = tuple(Device(f"d{at}", kind, 2**30, 1e9 * (1 + (kind == "b")), 1e9) for at, kind in enumerate(kinds))
    pairs = [(one, two) for one in range(3) for two in range(3) if one != two]
    links = {pair: Link(1e9, 50 if pair == far else 5) for pair in pairs}
    cluster = Cluster("three", devices, links, dense_channels(np.array(wires)))
    return alike_devices(price(build.build(), cluster))


OWN = [[-1, 0, 1], [2, -1, 3], [4, 5, -1]]


@pytest.mark.parametrize(
    ("wires", "far", "kinds", "alike"),
    [
        (OWN, (9, 9), "aaa", {(0, 1), (0, 2), (1, 2)}),
        (OWN, (9, 9), "aba", {(0, 2)}),
        (OWN, (0, 1), "aaa", set()),
        # A wire for all that a device sends, or for all that it receives: any two change names.
        ([[-1, 0, 0], [1, -1, 1], [2, 2, -1]], (9, 9), "aaa", {(0, 1), (0, 2), (1, 2)}),
        ([[-1, 1, 2], [0, -1, 2], [0, 1, -1]], (9, 9), "aaa", {(0, 1), (0, 2), (1, 2)}),
        # Only what the first sends shares a wire.
        ([[-1, 0, 0], [1, -1, 2], [3, 4, -1]], (9, 9), "aaa", {(1, 2)}),
        # Only what goes to the last does.
        ([[-1, 0, 1], [2, -1, 1], [3, 4, -1]], (9, 9), "aaa", {(0, 1)}),
    ],
)
def test_devices_change_names_where_nothing_tells_them_apart(
    wires: list[list[int]], far: tuple[int, int], kinds: str, alike: set[tuple[int, int]]
) -> None:
    found = three(wires, far, kinds)
    assert (found == found.T).all() and not found.diagonal().any()
    assert {(one, two) for one, two in zip(*np.nonzero(np.triu(found)), strict=True)} == alike
