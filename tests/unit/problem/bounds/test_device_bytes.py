"""What the device of an op must hold, counted by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.problem.bounds import holding
from tests.graphs.tiny import pair

PLACES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12)


@given(PLACES, st.integers(1, 4))
def test_a_tensor_of_a_row_counts_once(places: list[tuple[int, int]], tensors: int) -> None:
    places = [(row, tensor % tensors) for row, tensor in places]
    nbytes = [7, 11, 13, 17][:tensors]
    found = holding.sum_once(ints([row for row, _ in places]), ints([tensor for _, tensor in places]), ints(nbytes), 5)
    assert found.tolist() == [sum(nbytes[t] for t in range(tensors) if (row, t) in places) for row in range(5)]


def test_what_the_first_op_updates_is_on_its_device() -> None:
    graph = GraphBuilder("update first")
    weight = graph.tensor(100, "weight")
    graph.op("update", "any", [weight], [graph.tensor(100, "weight", alias_of=weight)], time_ns=1, colocate=0)
    read = graph.tensor(30, "input")
    graph.op("read", "any", [read, weight], [graph.tensor(5, "output")], time_ns=1)
    graph.op("mate", "any", [], [graph.tensor(7)], time_ns=1, colocate=0)
    problem = price(graph.build(), pair())
    assert problem.updater.max() == 0
    found = holding.device_bytes(problem, False)
    assert found[0] == 100, "the weight, once: it is written over"
    assert found[1] == np.sum([30, 100, 5]), "what it reads, here or copied, and what it makes"
    assert found[2] == 100 + 7, "what it makes, beside what its group updates"
