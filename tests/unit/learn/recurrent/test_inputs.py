"""What the recurrent placers read of a grouped problem, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.learn.recurrent import inputs
from loadmaster.learn.recurrent.inputs import DIMS, KINDS, SHAPES, published_vectors
from loadmaster.problem import CANNOT
from tests.graphs.tiny import chain, diamond, pair, shared_weight


def test_published_vectors_count_kinds_and_neighbours() -> None:
    problem = price(diamond(), pair())
    vectors = published_vectors(problem, ints([0, 1, 1, 2]), 5)
    assert vectors.shape == (3, KINDS + SHAPES + 10)
    np.testing.assert_allclose(np.expm1(vectors[:, :KINDS]).sum(axis=1), [1, 2, 1], rtol=1e-5)
    beside = vectors[:, KINDS + SHAPES :].reshape(3, 2, 5)
    assert beside[:, 0, :3].tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert beside[:, 1, :3].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_kinds_are_logarithms_of_counts_and_shapes_of_sums() -> None:
    graph = GraphBuilder("two")
    made = [graph.tensor(8, shape=(2, 3)), graph.tensor(12)]
    graph.op("a", "one", [], made, time_ns=1)
    graph.op("b", "one", made, [graph.tensor(8, shape=(1, 2, 3, 4, 5, 6))], time_ns=1)
    problem = price(graph.build(), pair())
    assert inputs.output_shapes(problem)[0].tolist() == [2, 3, 0, 0, 0, 12, *[0] * (SHAPES - 6)]
    assert inputs.output_shapes(problem)[1].tolist() == [1, 2, 3, 4, 5, *[0] * (SHAPES - DIMS)]
    [both] = published_vectors(problem, ints([0, 0]), 1)
    assert both[:KINDS].max() == pytest.approx(np.log(3))
    assert both[KINDS : KINDS + 3].tolist() == pytest.approx(np.log2([1 + 3, 1 + 5, 1 + 3]) / 8)


def test_only_five_outputs_of_an_op_are_told() -> None:
    graph = GraphBuilder("many")
    graph.op("a", "one", [], [graph.tensor(size) for size in range(1, 8)], time_ns=1)
    shapes = inputs.output_shapes(price(graph.build(), pair())).reshape(-1, DIMS)
    assert shapes[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_wires_are_between_two_groups_once() -> None:
    problem = price(diamond(), pair())
    assert inputs.wires(problem, ints([0, 1, 1, 0])).tolist() == [[0, 1], [1, 0]]
    assert inputs.wires(problem, ints([0, 0, 1, 1])).tolist() == [[0, 1]]
    assert inputs.wires(problem, ints([0, 0, 0, 0])).tolist() == []


@pytest.mark.parametrize(("turn", "held"), [(0, [256, 216, 200]), (1, [256, 256, 200]), (2, [216, 216, 200])])
def test_a_group_holds_what_it_reads_and_what_it_makes_for_after_the_turn(
    turn: int, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """a and b read the weight (200) and the input (16) and make 40 bytes that u reads; the new weight is the old."""
    monkeypatch.setattr(inputs, "turning_point", lambda problem: turn)
    problem = price(shared_weight(), pair())
    assert inputs._held_bytes(problem, ints([0, 1, 2]), 3).tolist() == held
    together = [216 + held[0] - 216 + held[1] - 216, 200]
    assert inputs._held_bytes(problem, ints([0, 0, 1]), 2).tolist() == together


def test_what_stays_is_held_whenever_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "turning_point", lambda problem: 1)
    assert inputs._held_bytes(price(chain(), pair()), ints([0, 1, 2]), 3).tolist() == [8, 50, 8]


def test_sends_are_each_tensor_once_for_each_group_that_reads_it() -> None:
    """The weight is sent by who updates it: 5 ns and 20 for its 200 bytes; what a and b make takes 5 and 4."""
    problem = price(shared_weight(), pair())
    sends = inputs._sends(problem, ints([0, 1, 2]), 3)
    wanted = np.zeros((3, 2, 3, 2))
    wanted[0, 0, 2, 1] = wanted[0, 1, 2, 0] = wanted[1, 0, 2, 1] = wanted[1, 1, 2, 0] = 25 + 9
    np.testing.assert_array_equal(sends, wanted)
    together = inputs._sends(problem, ints([0, 0, 1]), 2)
    assert together[0, 0, 1, 1] == together[0, 1, 1, 0] == 25 + 9 + 9
    assert together.sum() == 2 * 43


def test_loads_are_shares_of_the_step_and_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(diamond(), pair(memory_bytes=200))
    times = problem.op_ns.copy()
    times[0, 1] = CANNOT
    loads = inputs.loads_of(replace(problem, op_ns=ints(times)), ints([0, 1, 1, 2]))
    np.testing.assert_allclose(loads.time, np.array([[10, 1000], [50, 50], [10, 10]]) * 2 / 70)
    assert loads.send[0, 0, 1, 1] == pytest.approx(15 * 3 / 70)  # a's 100 bytes once, in shares of a group's time
    monkeypatch.setattr(inputs, "_held_bytes", lambda problem, label, count: np.array([100.0, 50.0, 0.0]))
    tiny = replace(problem, memory_bytes=ints([200, 0]))
    np.testing.assert_allclose(inputs.loads_of(tiny, ints([0, 1, 1, 2])).held, [[0.5, 100], [0.25, 50], [0, 0]])
    one: Any = replace(problem, memory_bytes=ints([1, 2]))
    np.testing.assert_allclose(inputs.loads_of(one, ints([0, 1, 1, 2])).held, [[100, 50], [50, 25], [0, 0]])


def test_a_group_can_run_where_all_its_ops_can_and_else_anywhere() -> None:
    problem = price(diamond(), pair())
    times = problem.op_ns.copy()
    times[0, 0] = times[1, 0] = times[2, 1] = CANNOT
    some = replace(problem, op_ns=ints(times))
    assert inputs.able_groups(some, ints([0, 1, 1, 2]), 3).tolist() == [[False, True], [True, True], [True, True]]


def test_the_twin_of_a_device_is_the_equal_one_before_it() -> None:
    assert inputs._twins(price(diamond(), "3xp100-pcie")).tolist() == [3, 0, 1]
    assert inputs._twins(price(diamond(), "2xp100-pcie+1xcpu")).tolist() == [3, 0, 3]
