"""Features: sizes, finite numbers, and what they mean on a graph counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.baselines.cuts import fair_share
from loadmaster.cost import price
from loadmaster.papers.features import (
    DEVICES_WIDTH,
    GRAPH_WIDTH,
    OPS_WIDTH,
    PAIRS_WIDTH,
    features_of,
)
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
        for column in (seen.ops, seen.devices, seen.pairs, seen.graph):
            assert np.isfinite(column).all() and np.abs(column).max() <= 8


def test_edges_are_the_dependencies_and_orders_are_permutations() -> None:
    seen = features_of(price(diamond(), pair()))
    assert sorted(zip(seen.before.tolist(), seen.after.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    orders = (seen.ops[:, 38:42] + 1) / 2
    for column in orders.T:
        np.testing.assert_allclose(np.sort(column), (np.arange(4) + 0.5) / 4)
    critical = orders[:, 2]  # a, then c (30 ns and its sends) before b (20 ns), then d
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


def test_scopes_can_be_dropped_without_touching_the_rest() -> None:
    graph = replace(diamond(), scope=("m.a", "m.b", "m.b", "m.c"))
    seen = features_of(price(graph, pair()))
    assert seen.ops[:, -5:].any()
    assert not seen.without_scopes().ops[:, -5:].any()
    np.testing.assert_array_equal(seen.without_scopes().ops[:, :-5], seen.ops[:, :-5])
