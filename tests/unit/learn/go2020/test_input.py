"""What GO sees of groups, worked out by hand on tiny graphs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import input as inputs
from loadmaster.problem import CANNOT
from tests.graphs.tiny import diamond, join, pair, shared_weight


def edges(count: int, *ends: tuple[int, int]) -> Any:
    before, after = np.array(ends).T
    return SimpleNamespace(num_ops=count, before=before, after=after)


def test_traffic_is_the_root_of_what_is_sent_against_the_mean() -> None:
    """a's 100 bytes take 15 ns and are read twice, b's 50 take 10, c's 40 take 9."""
    problem = price(diamond(), pair())
    apart = inputs._traffic(problem, ints(range(4)), edges(4, (0, 1), (0, 2), (1, 3), (2, 3)))
    np.testing.assert_allclose(apart, np.sqrt(np.array([16, 16, 11, 10]) / 13.25), rtol=1e-6)
    two = inputs._traffic(problem, ints([0, 1, 1, 0]), edges(2, (0, 1), (1, 0)))
    np.testing.assert_allclose(two, np.sqrt(np.array([31, 20]) / 25.5), rtol=1e-6)


@pytest.mark.parametrize("free", [False, True])
def test_waiting_without_a_tensor_sends_nothing(free: bool) -> None:
    """a, b and c send 10, 20 and 30 bytes to d, which waits for e, too."""
    problem = price(join(), pair(link=Link(None, 0) if free else None))
    ends = edges(5, (0, 4), (1, 4), (2, 4), (3, 4))
    assert problem.graph.op_name == ("a", "b", "c", "e", "d")
    sent = np.zeros(4) if free else np.array([6.0, 7.0, 8.0, 0.0])
    wanted = np.sqrt((sent + 1) / (sent.mean() + 1))
    np.testing.assert_allclose(inputs._traffic(problem, ints(range(5)), ends), wanted, rtol=1e-6)
    many = edges(5, (0, 4), *[(3, 4)] * 200)
    most = inputs._traffic(replace(problem, send_ns=problem.send_ns * 1_000), ints(range(5)), many).max()
    assert most == (1 if free else 8)


def test_where_nothing_passes_between_ops_all_edges_are_alike() -> None:
    graph = GraphBuilder("waits")
    graph.op("a", "any", [graph.tensor(8, "input")], time_ns=1)
    graph.op("b", "any", time_ns=1, after=["a"])
    assert inputs._traffic(price(graph.build(), pair()), ints([0, 1]), edges(2, (0, 1))).tolist() == [1]
    none = GraphBuilder("nothing")
    none.op("a", "any", time_ns=1)
    none.op("b", "any", time_ns=1, after=["a"])
    assert inputs._traffic(price(none.build(), pair()), ints([0, 1]), edges(2, (0, 1))).tolist() == [1]


def test_bytes_of_groups_are_made_there_or_first_read_there() -> None:
    """a reads the weight (200) and the input (16) first; a and b make 40 each; the new weight is the old one."""
    problem = price(shared_weight(), pair())
    assert inputs.group_bytes(problem, ints([0, 1, 2]), 3).tolist() == [40 + 216 + 1, 40 + 1, 1]
    assert inputs.group_bytes(problem, ints([1, 0, 1]), 2).tolist() == [40 + 1, 40 + 216 + 1]


def test_shares_of_a_placement_are_by_time_and_the_majority_has_most() -> None:
    problem, label = price(diamond(), pair()), ints([0, 1, 1, 0])
    shares = inputs.group_shares(problem, label, ints([0, 1, 0, 1]))
    np.testing.assert_allclose(shares, [[0.5, 0.5], [31 / 52, 21 / 52]], rtol=1e-6)
    assert inputs.group_majority(problem, label, ints([0, 1, 0, 1])).tolist() == [0, 0]
    assert inputs.group_majority(problem, label, ints([0, 0, 1, 1])).tolist() == [0, 1]


def test_groups_run_where_all_their_ops_can_and_slow_devices_count_tenfold() -> None:
    problem = price(diamond(), pair())
    times = problem.op_ns.copy()
    times[0, 0] = times[1, 0] = times[2, 1] = CANNOT
    some, label = replace(problem, op_ns=ints(times)), ints([0, 1, 1, 2])
    assert inputs._able(some, label, 3).tolist() == [[False, True], [True, True], [True, True]]
    wanted = np.array([[100, 10], [230, 320], [10, 10]]) / 70 * 2
    np.testing.assert_allclose(inputs._times(some, label, 3), wanted, rtol=1e-6)


def test_sizes_and_capacities_are_shares_of_all_bytes() -> None:
    problem = price(shared_weight(), pair(memory_bytes=598))
    one = inputs.go_input(problem, 0, offered=False)
    np.testing.assert_allclose(one.size, np.array([257, 41, 1]) / 299, rtol=1e-6)
    assert one.capacity.tolist() == [2, 2]
    plenty = inputs.go_input(price(shared_weight(), pair()), 0, offered=False)
    assert plenty.capacity.tolist() == [16, 16]
    assert len(one.single) == len(one.kind) == 0 and len(one.candidates) == 0
    assert inputs.go_input(problem, 0, kernels=True, offered=False).kind.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("asked", "groups"), [(0, 4), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_no_more_groups_than_asked_for_and_no_more_than_ops(asked: int, groups: int) -> None:
    assert inputs.go_input(price(diamond(), pair()), asked, offered=False).num_groups <= groups
    if asked in (0, 4, 9):
        assert inputs.go_input(price(diamond(), pair()), asked, offered=False).label.tolist() == [0, 1, 2, 3]


def test_neighbours_are_both_ends_of_edges() -> None:
    one = inputs.go_input(price(diamond(), pair()), 0, offered=False)
    start, ends = one.neighbours
    assert [sorted(ends[start[g] : start[g + 1]].tolist()) for g in range(4)] == [[1, 2], [0, 3], [0, 3], [1, 2]]
    picked = replace(one, candidate_groups=ints([[0, 0, 0, 0], [0, 1, 0, 1]]))
    assert picked.candidate_shares(1).tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
