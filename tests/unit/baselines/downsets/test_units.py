"""Units of ops and the order among them, on graphs of a few ops."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.baselines.downsets.units import Units, joined, units_of
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from tests.graphs.tiny import pair


def problem_of(reads: list[list[int]], times: list[int] | None = None) -> Problem:
    """Ops that each read what those ops make."""
    g = GraphBuilder("few")
    made = [g.tensor(1) for _ in reads]
    for op, earlier in enumerate(reads):
        g.op(f"op{op}", "any", [made[e] for e in earlier], [made[op]], time_ns=1 if times is None else times[op])
    return price(g.build(), pair())


def test_the_order_among_units() -> None:
    """Ops 1 and 2 are one unit: what it waits for and what waits for it, as bits; numbered from the first op on."""
    found = units_of(problem_of([[], [0], [0], [1], [2, 3]]), ints([5, 1, 1, 0, 3]))
    assert found.unit.tolist() == [0, 1, 1, 2, 3] and found.count == 4
    assert found.before == (0b0, 0b1, 0b10, 0b110) and found.after == (0b10, 0b1100, 0b1000, 0b0)


def test_units_that_wait_for_each_other_are_one() -> None:
    """Op 0 feeds op 1 and op 2 feeds op 3; 0 and 3 are one unit, 1 and 2 another."""
    found = units_of(problem_of([[], [0], [], [2]]), ints([0, 1, 1, 0]))
    assert found.count == 1 and found.unit.tolist() == [0, 0, 0, 0]


def test_an_op_of_the_backward_pass_alone_takes_its_place_as_if_it_ran_forward() -> None:
    """Ops 0, 1, 2 forward; 3 comes back to 1 and 5 to 0; 4, between them, is alone: so it lies between 0 and 1."""
    found = units_of(problem_of([[], [0], [1], [2], [3], [4]]), ints([0, 1, 2, 1, 3, 0]))
    assert found.unit.tolist() == [0, 2, 3, 2, 1, 0]
    assert found.before == (0b0, 0b1, 0b11, 0b100)


def row(count: int) -> Units:
    """Units in a row."""
    before = tuple(1 << (unit - 1) if unit else 0 for unit in range(count))
    after = tuple(1 << (unit + 1) if unit + 1 < count else 0 for unit in range(count))
    return Units(ints(np.arange(count)), before, after)


@pytest.mark.parametrize(
    ("weights", "light", "label"),
    [
        ([1, 1, 1], 1.9, [0, 1, 2]),
        ([1, 1, 1], 2, [0, 0, 2]),
        ([1, 1, 1], 3, [0, 0, 0]),
        ([5, 1, 1], 3, [0, 1, 1]),
        ([1, 5, 1], 5, [0, 1, 2]),
    ],
)
def test_light_units_join_a_neighbour(weights: list[int], light: float, label: list[int]) -> None:
    assert joined(row(3), np.array(weights), light).tolist() == label


def test_a_unit_with_several_neighbours_on_a_side_joins_on_the_other() -> None:
    """0 and 1 feed 2, which feeds 3 and 4: none of these is its only one, but it is theirs."""
    star = Units(ints(np.arange(5)), (0, 0, 0b11, 0b100, 0b100), (0b100, 0b100, 0b11000, 0, 0))
    assert joined(star, np.ones(5), 2).tolist() == [0, 1, 0, 3, 4]
    assert joined(star, np.ones(5), 9).tolist() == [0, 0, 0, 0, 0]
    apart = Units(ints(np.arange(2)), (0, 0), (0, 0))
    assert joined(apart, np.ones(2), 9).tolist() == [0, 1]
