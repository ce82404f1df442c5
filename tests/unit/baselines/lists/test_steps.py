"""Thrift with links: what a send costs an op that chooses its device, and what a shared way out costs what it makes."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.baselines.lists import loop as steps
from loadmaster.cluster import Cluster
from loadmaster.compiled import compiled
from loadmaster.simulator.rules import layout
from tests.problems import wired


@compiled
def thrifty(plain, op, device, finish, home, there, channel_free, thrift):  # type: ignore[no-untyped-def]
    return steps.thrifty(plain, op, device, finish, home, there, channel_free, thrift)


def cluster_of(count: int, shared: bool) -> Cluster:
    def wire(one: int, two: int) -> int:
        return one if shared else one * count + two

    return wired((1e12,) * count, lambda one, two: True, wire)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("free_ns", [0, 50_000])
def test_an_op_pays_for_what_is_sent_to_it_and_for_a_way_out_that_all_share(
    count: int, shared: bool, free_ns: int
) -> None:
    graph = GraphBuilder("two")
    one, two = graph.tensor(20_000), graph.tensor(40_000)
    graph.op("first", "any", [], [one, two], time_ns=1_000)
    graph.op("second", "any", [one, two], [graph.tensor(1)], time_ns=1_000)
    problem = price(graph.build(), cluster_of(count, shared))
    plain = layout(problem)
    home, there = np.array([0, 0, -1]), np.full(3 * count, -1)
    there[[0, count, 1]] = 1_000  # both are where they were made, and the first on device 1 too
    channels = int(problem.cluster.channel.max()) + 1
    found = thrifty(plain, 1, 1, 10_000, home, there, np.full(channels, free_ns), 0.5)
    wanted = 10_000 + int(0.5 * problem.send_ns[1, problem.send_class[0, 1]])
    if shared and count > 2 and free_ns > wanted:  # of two devices the other is the only one that is sent to
        wanted += int(0.5 * (free_ns - wanted))
    assert found == wanted
