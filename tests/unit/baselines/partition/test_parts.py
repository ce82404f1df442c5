"""A problem as partitioners see it: a small one with every unit, net, share and distance worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from loadmaster import Cluster, GraphBuilder, price
from loadmaster.baselines.partition.parts import Parts, op_bytes, op_times, parts_of, seat
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem

MEMORY = (2**30, 2**30)


def cluster(ways: Mapping[tuple[int, int], Link], memory: tuple[int, ...] = MEMORY) -> Cluster:
    """Devices of those sizes, and the links between them."""
    channel = np.full((len(memory), len(memory)), -1)
    for wire, way in enumerate(ways):
        channel[way] = wire
    devices = tuple(Device(f"d{i}", "toy", size, 1e9, 1e9, 0) for i, size in enumerate(memory))
    return Cluster("toy", devices, dict(ways), dense_channels(channel))


def ways(out: Link, back: Link | None = None) -> dict[tuple[int, int], Link]:
    return {(0, 1): out, (1, 0): back or out}


def updated(on: Cluster, objective: str = "step-time") -> Problem:
    """Tensor 0 is a weight that the last op updates; ops 1 and 3 share a group; the second device cannot run op 0."""
    g = GraphBuilder("updated")
    w, x = g.tensor(100, "weight"), g.tensor(8, "input")
    a, b, c, d = (g.tensor(size) for size in (40, 20, 30, 10))
    new = g.tensor(100, "weight", alias_of=w)
    g.tensor(1_000, "weight")  # nobody reads it
    g.op("first", "any", [x], [a], time_ns=[12, None])
    g.op("one of the group", "any", [a], [b], time_ns=[10, 21], colocate="group")
    g.op("reader", "any", [a, w], [c], time_ns=[10, 20])
    g.op("other of the group", "any", [b, c], [d], time_ns=[1, 2], colocate="group")
    g.op("update", "any", [w, d], [new], time_ns=[4, 5])
    return price(g.build(), on, objective=objective)


def scaled(*weights: float) -> list[int]:
    return [round(weight * 10**8 / sum(weights)) for weight in weights]


def test_units_nets_and_weights_by_hand() -> None:
    """The weight is with its update, and goes from there to its reader; what a group keeps to itself is no net, nor is
    an input. A send takes 5 or 7 ns and one for every ten bytes."""
    parts = parts_of(updated(cluster(ways(Link(1e10, 5), Link(1e10, 7)))))
    assert parts.unit.tolist() == [0, 1, 2, 1, 3]
    assert parts.weight.tolist() == scaled(12, 15.5 + 1.5, 15, 4.5)
    assert parts.net_start.tolist() == [0, 2, 5, 7, 9]
    assert parts.pins.tolist() == [3, 2, 0, 1, 2, 2, 1, 1, 3]
    assert parts.cost.tolist() == scaled(16, 10, 9, 7)
    slow = 100 * 12 + 21 + 20 + 2 + 5  # what it cannot run counts as a hundred times the best
    assert parts.share.tolist() == pytest.approx([slow / (37 + slow), 37 / (37 + slow)])
    assert not parts.alike and (parts.num_units, parts.num_devices) == (4, 2)


def test_weights_by_memory_and_shares_of_it() -> None:
    on = cluster(ways(Link(1e10, 5)), (300, 700))
    for parts in (parts_of(updated(on, "peak-memory")), parts_of(updated(on), "memory")):
        assert parts.weight.tolist() == scaled(48, 30, 30, 100)
        assert parts.share.tolist() == pytest.approx([0.3, 0.7])
    by_time = parts_of(updated(on, "peak-memory"), "time")
    assert by_time.weight.tolist() == parts_of(updated(on)).weight.tolist() == scaled(12, 17, 15, 4.5)
    assert parts_of(updated(cluster(ways(Link(1e10, 5)))), "memory").alike


def test_what_ops_take_and_hold() -> None:
    """A resident is held by the op that updates it, or by its first reader; one that nobody reads by none."""
    problem = updated(cluster(ways(Link(1e10, 5))))
    assert op_times(problem).tolist() == [12, 15.5, 15, 1.5, 4.5]
    assert op_bytes(problem).tolist() == [40 + 8, 20, 30, 10, 100]


def by_hand(pins: list[list[int]], cost: list[int]) -> Parts:
    units = max(max(net) for net in pins) + 1
    start = np.concatenate([[0], np.cumsum([len(net) for net in pins])])
    flat = [pin for net in pins for pin in net]
    each = np.ones(units, np.int64)
    return Parts(
        ints(np.arange(units)),
        ints(each),
        ints(start),
        ints(flat),
        ints(cost),
        np.array([0.5, 0.5]),
        ints(1 - np.eye(2)),
    )


def test_nets_are_stars_whose_edges_add_up() -> None:
    """Each of two spokes weighs 1 ÷ √2 of its net; two nets join units 1 and 2, one each way."""
    parts = by_hand([[3, 2], [0, 1, 2], [2, 1], [1, 2], [1, 3], [0, 3]], [15, 9, 8, 30, 6, 0])
    start, others, weight = parts.edges
    found = {
        (unit, int(others[at])): int(weight[at]) for unit in range(4) for at in range(start[unit], start[unit + 1])
    }
    one_way = {(2, 3): 15, (0, 1): 6, (0, 2): 6, (1, 2): 38, (1, 3): 6, (0, 3): 1}
    assert found == one_way | {(b, a): size for (a, b), size in one_way.items()}
    assert start.tolist() == [0, 3, 6, 9, 12] and len(others) == 12


def test_traffic_goes_from_the_first_pin_to_every_other_block_once() -> None:
    parts = by_hand([[3, 2], [0, 1, 2], [2, 1], [1, 3]], [15, 9, 8, 6])
    assert parts.traffic(ints([0, 1, 1, 0]), 2).tolist() == [[0, 15 + 9], [6, 0]]
    assert parts.traffic(ints([0, 1, 2, 0]), 3).tolist() == [[0, 9, 9 + 15], [6, 0, 0], [0, 8, 0]]
    assert parts.traffic(ints([2, 1, 2, 1]), 3).tolist() == [[0, 0, 0], [0, 0, 15], [0, 9 + 8, 0]]


@pytest.mark.parametrize(
    ("out", "back", "costs"),
    [
        (Link(None, 1), Link(None, 0), (1, 1, 1, 1)),  # half a nanosecond on average is not nothing
        (Link(None, 0), Link(None, 0), (100, 40, 30, 10)),  # where all is free, bytes are kept low
    ],
)
def test_what_nets_cost_where_links_are_nearly_free(out: Link, back: Link, costs: tuple[int, ...]) -> None:
    assert parts_of(updated(cluster(ways(out, back)))).cost.tolist() == scaled(*costs)


def line_of(latencies: dict[tuple[int, int], int]) -> Problem:
    """Three devices and one tensor, which takes those times."""
    g = GraphBuilder("one")
    made = g.tensor(4)
    g.op("make", "any", [], [made], time_ns=1)
    g.op("read", "any", [made], [], time_ns=1)
    links = {(a, b): Link(None, ns) for pair, ns in latencies.items() for a, b in (pair, pair[::-1])}
    return price(g.build(), cluster(links, (1, 1, 1)))


@pytest.mark.parametrize(
    ("latencies", "distance"),
    [
        ({(0, 1): 10, (0, 2): 25, (1, 2): 40}, [[0, 16, 40], [16, 0, 64], [40, 64, 0]]),
        ({(0, 1): 1, (0, 2): 1_001, (1, 2): 999}, [[0, 16, 16_000], [16, 0, 15_984], [16_000, 15_984, 0]]),
        ({(0, 1): 0, (0, 2): 0, (1, 2): 2}, [[0, 1, 1], [1, 0, 32], [1, 32, 0]]),
    ],
)
def test_distances_are_sixteenths_of_the_nearest_and_no_less_than_one(
    latencies: dict[tuple[int, int], int], distance: list[list[int]]
) -> None:
    assert parts_of(line_of(latencies)).distance.tolist() == distance


def test_distances_are_of_both_ways() -> None:
    """Two devices, which one tensor reaches in 6 and comes back from in 2 ns: each of both is the nearest pair."""
    assert parts_of(updated(cluster(ways(Link(None, 6), Link(None, 2))))).distance.tolist() == [[0, 16], [16, 0]]
    alone = GraphBuilder("alone")
    alone.op("op", "any", [], [alone.tensor(4)], time_ns=1)
    parts = parts_of(price(alone.build(), cluster({}, (10,))))
    assert parts.distance.tolist() == [[0]] and not len(parts.cost)


def test_a_block_goes_where_it_is_sent_to_and_sends_to() -> None:
    """Block 0 is sent much by block 2 and sends little to block 1: 0 and 2 are put side by side. Only the sum of both
    ways tells: each alone would leave them."""
    traffic = np.zeros((3, 3))
    traffic[2, 0], traffic[0, 1], traffic[1, 0] = 6.0, 5.0, 0.5
    far = ints([[0, 1, 9], [1, 0, 9], [9, 9, 0]])
    every = np.ones((3, 3), bool)
    device = seat(traffic, ints([0, 1, 2]), far, every).tolist()
    assert {device[0], device[2]} == {0, 1} and device[1] == 2
    assert seat(traffic, ints([0, 1, 2]), far, np.eye(3, dtype=bool)).tolist() == [0, 1, 2], "nobody may move"
    assert seat(traffic, ints([0, 0, 1]), ints([[0, 9], [9, 0]]), every).tolist() == [0, 1, 0], (
        "two seats of one device"
    )


def test_a_swap_that_changes_nothing_is_not_made() -> None:
    """All are as far from each other: the first seats are kept, and the search for swaps ends."""
    assert seat(np.ones((3, 3)), ints([0, 1, 2]), ints(5 * (1 - np.eye(3))), np.ones((3, 3), bool)).tolist() == [
        0,
        1,
        2,
    ]
