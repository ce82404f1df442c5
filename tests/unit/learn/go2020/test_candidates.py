"""What is said of placements that GO chooses from, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import candidates
from loadmaster.learn.go2020.candidates import BOUND, OVER, SLOTS, class_of
from tests.graphs.tiny import chain, diamond, pair, shared_weight


def test_rules_are_lists_cuts_or_splits() -> None:
    kinds = ["cut stacks".find(name[:3]) >= 0 for name in SLOTS]
    splits = [name.startswith("split") for name in SLOTS]
    wanted = [2 if split else int(cut) for cut, split in zip(kinds, splits, strict=True)]
    assert class_of(ints(range(len(SLOTS)))).tolist() == wanted and {0, 1, 2} == set(wanted)


def test_the_ideal_is_the_longest_path_or_an_equal_share() -> None:
    assert candidates._ideal_ns(price(diamond(), pair())) == 50
    assert candidates._ideal_ns(price(chain(), pair())) == 35
    assert candidates._ideal_ns(price(diamond(), "1xp100-pcie")) == 70


def test_paths_under_a_placement_have_sends() -> None:
    problem = price(diamond(), pair())
    assert candidates.path_under(problem, ints([0, 1, 0, 0])).tolist() == [65, 40, 40, 10]
    assert candidates.path_under(problem, ints([0, 0, 0, 0])).tolist() == [50, 30, 40, 10]


def test_what_devices_hold_is_saved_resident_and_received_once() -> None:
    """a on d0, b and u on d1: both hold the weight (200) and the input (16); what is sent of the new weight, which is
    the old one, counts nothing."""
    problem, device = price(shared_weight(), pair()), ints([0, 1, 1])
    left, new = 2, 4
    sent = ints([left * 2 + 1, new * 2 + 0])
    assert candidates._held(problem, device, np.array([7.0, 5.0, 3.0]), sent).tolist() == [7 + 216, 8 + 216 + 40]


def test_measures_of_the_diamond_with_b_apart() -> None:
    """a's 100 bytes take 15 ns one way, b's 50 take 10 the other; devices have 80 bytes each."""
    problem = price(diamond(), pair(memory_bytes=80))
    found = candidates._measured(problem, ints([0, 1, 0, 0]), np.zeros(4), 50.0)
    assert found == pytest.approx([65 / 50, 50 / 50, 15 / 50, 25 / 50, 35 / 50, 1.0, 100 / 80 / 2, 0.25, 0.5])
    alone = candidates._measured(problem, ints([0, 0, 0, 0]), np.array([1000.0, 0, 0, 0]), 50.0)
    assert alone == pytest.approx([1, 70 / 50, 0, 0, 35 / 50, 0.5, 2.0, 4.0, 0.0])


def test_one_bus_is_as_busy_as_all_that_goes_over_it() -> None:
    problem = price(shared_weight(), pair())
    # The weight lives with u: d1 is sent it once, for a and b, which send 40 bytes each.
    found = candidates._measured(problem, ints([1, 1, 0]), np.zeros(3), 1.0)
    assert found[2:4] == pytest.approx([25, 25 + 9 + 9])
    assert found[8] == pytest.approx(4 / 7)


def test_summaries_are_logarithms_against_the_least_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        0: [4.0, 2.0, 1.0, 0.0, 1.0, 0.5, 0.25, 0.0, 0.1],
        1: [1.0, 2.0, 8.0, 4.0, 1.0, 1.0, 0.5, 3.0, 0.2],
        2: [2.0**20, 1.0, 1.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.3],
    }
    monkeypatch.setattr(candidates, "_ideal_ns", lambda problem: 1.0)
    monkeypatch.setattr(candidates, "_size", lambda features, column: None)
    monkeypatch.setattr(candidates, "_measured", lambda problem, device, saved, ideal: rows[device])
    problem: Any = SimpleNamespace(num_devices=8)
    found = candidates.summaries(problem, None, [0, 1, 2])  # type: ignore[arg-type]
    assert found.shape == (3, candidates.SUMMARY_WIDTH)
    # bound, both, path and load, each less the least of all; then bound and both themselves
    np.testing.assert_allclose(found[0, :6], [0, 0, 2, 1, 2, np.log2(7)], rtol=1e-6)
    np.testing.assert_allclose(found[1, :6], [1, np.log2(11 / 7), 0, 1, 3, np.log2(11)], rtol=1e-6)
    np.testing.assert_allclose(found[0, 6:], [2, 1, 0, -8, 0, 0.5, 0.25, 0.0, 0.1, 1], rtol=1e-6)
    assert found[1, [BOUND, OVER]].tolist() == [1, 3] and found[2, 4] == found[2, 6] == 8


def test_sizes_come_back_from_their_logarithms() -> None:
    ops = np.zeros((2, 20), np.float32)
    ops[:, 10] = np.log2([1 + 7, 1 + 1023]) / 16
    seen: Any = SimpleNamespace(ops=ops)
    assert candidates._size(seen, 5).tolist() == pytest.approx([7, 1023], rel=1e-4)
