"""Features: sizes, finite numbers, and what they mean on a graph counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn import features
from loadmaster.learn.features import (
    DEVICES_WIDTH,
    GRAPH_WIDTH,
    OPS_WIDTH,
    PAIRS_WIDTH,
    device_class,
    features_of,
)
from loadmaster.optimizers.cuts import fair_share
from loadmaster.problem import CANNOT, Problem
from loadmaster.zoo.synthetic import generate
from tests.graphs.tiny import chain, diamond, pair

CLUSTERS = ("regal", "placeto-4", "2xp100-pcie+1xcpu")


def test_every_cluster_gives_columns_of_the_promised_width_and_finite_numbers() -> None:
    graph = next(generate("layered", 1, 0, (60, 60)))
    for cluster in CLUSTERS:
        problem = price(graph, cluster)
        seen = features_of(problem)
        assert seen.ops.shape == (problem.num_ops, OPS_WIDTH)
        assert seen.devices.shape == (problem.num_devices, DEVICES_WIDTH)
        assert seen.pairs.shape == (problem.num_ops * problem.num_devices, PAIRS_WIDTH)
        assert seen.graph.shape == (GRAPH_WIDTH,)
        for column in (seen.ops, seen.devices, seen.pairs, seen.graph, seen.orders, seen.weight):
            assert np.isfinite(column).all() and np.abs(column).max() <= 8


def test_edges_are_the_dependencies_and_orders_are_permutations() -> None:
    seen = features_of(price(diamond(), pair()))
    assert sorted(zip(seen.before.tolist(), seen.after.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    for column in seen.orders.T:
        np.testing.assert_allclose(np.sort(column), (np.arange(4) + 0.5) / 4)
    critical = seen.orders[:, 2]  # a, then c (30 ns and its sends) before b (20 ns), then d
    assert critical[0] < critical[2] < critical[1] < critical[3]


def test_shares_along_a_chain_by_hand() -> None:
    # Ops of 10, 20 and 5 ns: their middles lie at 5, 20 and 32.5 of 35; each of two equal devices gets half.
    problem = price(chain(), pair())
    low, high = fair_share(problem)
    np.testing.assert_allclose([*low, *high], [0, 0.5, 0.5, 1])
    from_middle = features_of(problem).pairs.reshape(3, 2, -1)[
        :, :, -1
    ]  # share of time less the middle of the device's
    middles = np.array([5, 20, 32.5]) / 35
    np.testing.assert_allclose(from_middle, middles[:, None] - np.array([[0.25, 0.75]]), atol=1e-6)


def test_equal_devices_are_found_and_unlike_ones_are_not() -> None:
    graph = diamond()
    assert device_class(price(graph, "2xp100-pcie+1xcpu")).tolist() == [0, 0, 2]
    two = pair()
    more = replace(two, devices=(two.devices[0], replace(two.devices[1], memory_bytes=2**31)))
    assert device_class(price(graph, two)).tolist() == [0, 0]
    assert device_class(price(graph, more)).tolist() == [0, 1]


def test_scopes_can_be_dropped_without_touching_the_rest() -> None:
    graph = replace(diamond(), scope=("m.a", "m.b", "m.b", "m.c"))
    seen = features_of(price(graph, pair()))
    assert seen.ops[:, -5:].any()
    assert not seen.without_scopes().ops[:, -5:].any()
    np.testing.assert_array_equal(seen.without_scopes().ops[:, :-5], seen.ops[:, :-5])


def test_columns_end_at_eight_either_way() -> None:
    found = features._narrow(np.array([-9.0, -8.5, -7.9, 7.9, 8.5, 9.0]))
    assert found.dtype == np.float32 and found.tolist() == pytest.approx([-8.0, -8.0, -7.9, 7.9, 8.0, 8.0])


def unlike_pair() -> Problem:
    """The diamond on d0 and on d1, which is half as fast, cannot run d, and has half the bytes and half their rate."""
    two = pair(memory_bytes=396)
    slow = replace(two.devices[1], memory_bytes=198, bytes_per_s=5e8)
    problem = price(diamond(), replace(two, devices=(two.devices[0], slow)))
    return replace(problem, op_ns=ints([[10, 20], [20, 40], [30, 60], [10, CANNOT]]))


def test_columns_of_devices_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ops take 70 ns on d0 and 120 on d1, with ten times 10 for d; the tensors, of 198 bytes, take 15, 10, 9 and 6
    ns to send."""
    monkeypatch.setattr(features, "device_order", lambda problem: ints([1, 0]))
    speed = np.array([1, 71 / 221])
    link = np.log2(1e-3 + 10 / (71 / 4)) / 10
    wanted = np.stack(
        [
            np.log2(speed) / 4,
            speed / speed.sum() * 2 - 1,
            [0, -1 / 4],
            [1, 0.5],
            [0, -1 / 4],
            [link, link],
            [0.5, -0.5],
            [0.5, 0.5],
            [0, 1],
        ],
        axis=1,
    )
    np.testing.assert_allclose(features._device_columns(unlike_pair()), wanted, atol=1e-6)


def test_a_device_of_next_to_no_memory_and_one_of_plenty() -> None:
    problem = replace(unlike_pair(), memory_bytes=ints([2**30, 1]))
    found = features._device_columns(problem)
    assert found[:, 2].tolist() == [0, -4] and found[0, 3] == 2 and found[1, 3] == pytest.approx(1 / 198 / 2)


def test_columns_of_pairs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = np.array([0.0, 0.7]), np.array([0.7, 1.0])
    monkeypatch.setattr(features, "fair_share", lambda problem: (low, high))
    shares = np.tile(np.array([[0.1], [0.5], [0.8], [0.75]]), (1, features.SHARES))
    found = features._pair_columns(unlike_pair(), shares).reshape(4, 2, -1)
    times = np.array([[11, 21], [21, 41], [31, 61], [11, 1001]])
    np.testing.assert_allclose(found[:, :, 0], np.log2(times / times[:, :1]) / 4, rtol=1e-5)
    np.testing.assert_allclose(found[:, :, 1], times / times.mean() / 4, rtol=1e-5)
    np.testing.assert_allclose(found[:, :, 2], [[0.7, 0.3]] * 4, rtol=1e-5)
    # 0.1 lies 0.1 inside d0's share and 0.6 outside d1's; each counts twice, for two devices, and fourfold, up to 2.
    np.testing.assert_allclose(found[:, 0, 3], [0.8, 1.6, -0.8, -0.4], atol=1e-5)
    np.testing.assert_allclose(found[:, 1, 3], [-2, -1.6, 0.8, 0.4], atol=1e-5)
    np.testing.assert_allclose(found[:, 1, 4], np.array([0.1, 0.5, 0.8, 0.75]) - 0.85, atol=1e-5)


def test_alike_are_devices_of_one_kind_over_equal_links() -> None:
    def of(kinds: list[int], links: list[list[int]]) -> list[int]:
        problem: Any = SimpleNamespace(
            num_devices=len(kinds), device_kind=np.array(kinds), send_class=np.array(links), num_ops=1
        )
        return device_class(problem).tolist()

    assert of([0, 0, 0], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]) == [0, 0, 0]
    assert of([0, 0, 1], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]) == [0, 0, 2]
    assert of([0, 0], [[0, 1], [2, 0]]) == [0, 1]  # one way is unlike the other
    assert of([0, 0, 0], [[0, 1, 1], [1, 0, 2], [1, 1, 0]]) == [0, 1, 2]  # what 1 sends to 2 takes longer
    assert of([0, 0, 0], [[0, 1, 1], [1, 0, 1], [2, 1, 0]]) == [0, 1, 2]  # what 2 sends to 0 takes longer
    assert of([0, 0, 0, 0], [[0, 2, 1, 1], [2, 0, 1, 1], [1, 1, 0, 2], [1, 1, 2, 0]]) == [0, 0, 2, 2]
