"""Work at prices of device time: never more than sharing it out in fractions takes, in parts of a ns where they fit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from loadmaster import GraphBuilder, price
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.problem.bounds.kinds import Kinds, kinds_of, work_of


def kinds(times: np.ndarray, count: tuple[int, int]) -> Kinds:
    return Kinds(ints(times), ints(count), ints([1, 1]), ints(np.zeros((0, 1))), ints(np.zeros((2, 2))))


@pytest.mark.parametrize(("longest", "scale"), [(10**6, 1024), (2**48, 1)])
@pytest.mark.parametrize("count", [(1, 1), (2, 3)])
def test_work_is_near_the_least_that_fractions_take(longest: int, scale: int, count: tuple[int, int]) -> None:
    times = np.random.default_rng(4).integers(longest // 9, longest, (12, 2))
    work, share = work_of(kinds(times, count))
    assert share == scale
    # x[op, kind] of each op on each kind; the busiest device has least to do.
    goal = np.append(np.zeros(24), 1.0)
    rows = np.zeros((2, 25))
    rows[0, 0:24:2], rows[1, 1:24:2], rows[:, -1] = times[:, 0] / longest, times[:, 1] / longest, np.negative(count)
    each = np.hstack([np.kron(np.eye(12), np.ones(2)), np.zeros((12, 1))])
    least = linprog(goal, rows, np.zeros(2), each, np.ones(12)).fun * longest
    assert 0.98 * least <= int(work.sum()) / share <= least * (1 + 1e-9)


def test_between_kinds_it_takes_as_long_as_by_the_quickest_link() -> None:
    build = GraphBuilder("one tensor")
    build.op("op", "any", [build.tensor(8, "input")], [build.tensor(100, "output")], flops=9_000)
    devices = tuple(Device(f"d{at}", f"k{at // 2}", 2**30, 1e9 * (1 + at // 2), 1e9) for at in range(3))
    latency = {(0, 1): 1, (1, 0): 2, (0, 2): 30, (1, 2): 4, (2, 0): 50, (2, 1): 60}
    wires = dense_channels(np.arange(9).reshape(3, 3) - 9 * np.eye(3, dtype=np.int64))
    cluster = Cluster("three", devices, {pair: Link(1e9, time) for pair, time in latency.items()}, wires)
    kinds = kinds_of(price(build.build(), cluster), False, False)
    assert kinds.count.tolist() == [2, 1]
    sends = kinds.sends[1][kinds.column]  # of 100 bytes, a byte each ns
    assert [sends[0, 0], sends[0, 1], sends[1, 0]] == [101, 104, 150]
