"""Where tensors lie and until when, by hand; the first op, tensor and device among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import MOST_RANK, Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate, simulate_many
from loadmaster.simulator.lives import depth_of, last_needed, residents
from tests.graphs import pair
from tests.unit.simulator.by_hand import curve, run, spans


@pytest.mark.parametrize(
    ("alias", "depth"),
    [([], []), ([-1, 0, 1, 0], [0, 1, 2, 1]), ([1, 2, -1], [2, 1, 0]), ([-1, -1], [0, 0]), ([1, -1], [1, 0])],
)
def test_how_deep_a_tensor_lies_over_others(alias: list[int], depth: list[int]) -> None:
    assert depth_of(ints(alias)).tolist() == depth


def overwriting() -> GraphBuilder:
    """a makes A, the first tensor, b writes B over it, c makes the output C of B; X is there before."""
    g = GraphBuilder("over")
    a, x = g.tensor(100, name="A"), g.tensor(10, "input", name="X")
    b, c = g.tensor(100, name="B", alias_of=a), g.tensor(8, "output", name="C")
    g.op("a", "any", [x], [a], time_ns=10)
    g.op("b", "any", [a], [b], time_ns=20)
    g.op("c", "any", [b], [c], time_ns=5)
    return g


def test_what_is_written_over_lives_as_long_as_what_was_written() -> None:
    """B is read on d1 until 55, and sent there until 50: so long does A live on d0."""
    problem = price(overwriting().build(), pair())
    last = last_needed(problem, ints([0, 0, 1]), ints([10, 30, 55]), (ints([2]), ints([50])), 99)
    assert last.tolist() == [[50, -1], [10, -1], [50, 55], [-1, 99]]


def test_what_nobody_reads_is_needed_while_it_is_made() -> None:
    g = GraphBuilder("unread")
    unread, out = g.tensor(7), g.tensor(8, "output")
    g.op("a", "any", [], [unread], time_ns=10)
    g.op("b", "any", [], [out], time_ns=10)
    problem = price(g.build(), pair())
    nothing = ints([]), ints([])
    assert last_needed(problem, ints([1, 0]), ints([10, 10]), nothing, 99).tolist() == [[-1, 10], [99, -1]]


def test_the_bytes_of_what_is_written_over_go_with_the_last_of_both() -> None:
    assert curve(run(overwriting(), [0, 0, 0]), 0) == [(0, 10), (0, 110), (30, 118), (35, 18)]
    apart = run(overwriting(), [0, 0, 1])
    assert curve(apart, 0) == [(0, 10), (0, 110), (45, 10)]
    assert curve(apart, 1) == [(0, 0), (30, 100), (45, 108), (50, 8)]


def test_a_kernel_that_writes_one_over_the_other_keeps_both() -> None:
    """a and b as one kernel, on either device: A is in memory with B in its place."""
    for device in (0, 1):
        line = run(overwriting(), [device] * 3, kernel=[0, 0, 2])
        assert [held for _, held in curve(line, device)] == [10, 110, 118, 18]


def updated() -> Problem:
    """u, the first op, updates W, the first tensor; X is read by u and f, V by f and g."""
    g = GraphBuilder("updated")
    w, x, v = g.tensor(100, "weight"), g.tensor(10, "input"), g.tensor(30, "weight")
    g.op("u", "any", [w, x], [g.tensor(100, "state", alias_of=w)], time_ns=5)
    g.op("f", "any", [x, v], [g.tensor(8, "output")], time_ns=5)
    g.op("g", "any", [v], [g.tensor(8, "output")], time_ns=5)
    return price(g.build(), pair())


def test_what_is_updated_lives_where_that_happens_and_the_rest_where_it_is_read() -> None:
    moved, fixed = residents(updated(), ints([1, 0, 1]))
    assert [column.tolist() for column in moved] == [[0], [1]]
    assert list(zip(*(column.tolist() for column in fixed), strict=True)) == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_step_whose_weights_alone_take_too_much_is_stopped_at_once() -> None:
    problem = updated()
    device = np.array([[0, 0, 0], [0, 1, 1]])
    assert simulate_many(problem, device, most_bytes=130).step_ns.tolist() == [-1, 10]
    assert simulate_many(problem, device, most_bytes=109).step_ns.tolist() == [-1, -1]


def test_the_highest_rank_is_the_last() -> None:
    g = GraphBuilder("ranks")
    for name in "abc":
        g.op(name, "any", [], [g.tensor(4, "output")], time_ns=10)
    assert spans(run(g, [0, 0, 0], rank=[MOST_RANK, 1, 0])) == [(20, 30), (10, 20), (0, 10)]


def test_the_host_asks_for_the_lowest_rank_first_and_without_ranks_in_program_order() -> None:
    g = GraphBuilder("hosted")
    for name in "abc":
        g.op(name, "any", [], [g.tensor(4, "output")], time_ns=10)
    problem = price(g.build(), pair())
    hosted = replace(problem, dispatch_ns=ints([3, 4, 5]))
    plan = Plan.of(hosted, [0, 0, 0], rank=[MOST_RANK, 1, 0])
    assert spans(simulate(hosted, plan)) == [(25, 35), (15, 25), (5, 15)]
    assert simulate_many(hosted, np.array([[0, 0, 0]])).step_ns.tolist() == [33]
