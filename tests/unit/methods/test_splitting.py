"""Ops split over devices: never worse than the plan of whole ops, and what was found is a plan of the graph that it
says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadmaster import Budget, GraphBuilder, price, solve
from loadmaster.graph import Graph
from loadmaster.methods.splitting import solve_split
from loadmaster.plans import check
from loadmaster.problem import Problem


def towers(wide: int) -> Graph:
    """A product that all else waits for, of 4,096 samples: on one device the others stand idle meanwhile."""
    build = GraphBuilder("towers")
    x = build.tensor(4 * 4096 * wide, "input", shape=(4096, wide), dtype="float32")
    weight = build.tensor(4 * wide * wide, "weight", shape=(wide, wide), dtype="float32")
    out = build.tensor(4 * 4096 * wide, "output", shape=(4096, wide), dtype="float32")
    build.op("mm", "aten.mm.default", [x, weight], [out], flops=2 * 4096 * wide * wide)
    return build.build()


def on(cluster: str) -> Callable[[Graph], Problem]:
    return lambda graph: price(graph, cluster)


@pytest.mark.parametrize("method", ["placement", "heft"])
def test_it_is_never_worse_than_whole_ops_and_gives_what_it_says(method: str) -> None:
    reprice = on("2xa100-nvlink")
    problem = reprice(towers(8192))
    found = solve_split(problem, reprice, method, Budget(None, 60), seed=1)
    assert found.result.score <= found.before.score
    assert found.before.score <= solve(problem, "one-device", Budget(None, 1)).score
    assert found.result.simulations <= 60
    check(found.result.plan, found.result.problem)
    assert found.splits or found.way == "samples"
    assert found.result.value < 0.55 * found.before.value, "two halves side by side"


def test_one_device_has_nothing_to_split_for() -> None:
    reprice = on("1xa100-nvlink")
    found = solve_split(reprice(towers(512)), reprice, "placement", Budget(None, 20))
    assert found.splits == () and found.way is None and found.result.score == found.before.score
