"""Ops of one graph found in another."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from loadmaster.graph import Graph
from loadmaster.methods.experience.likeness import ROUNDS, Sight, classes, match, matches
from tests.strategies import graphs
from tests.unit.methods.experience.stacks import stack


def test_another_width_changes_nothing() -> None:
    like, close = match(Sight.of(stack(5, 64)), Sight.of(stack(5, 256)))
    assert like.tolist() == list(range(16))
    assert close.all()


def test_a_deeper_stack_is_stretched_layer_by_layer() -> None:
    known, new = stack(4), stack(8)
    like, _ = match(Sight.of(known), Sight.of(new))
    for layer in range(8):
        for name in ("mm", "norm", "add"):
            there = known.op_name[like[new.op_name.index(f"{name}{layer}")]]
            assert there == f"{name}{layer // 2}"


def test_what_is_nowhere_else_has_no_like() -> None:
    build_a, build_b = stack(1), stack(2)
    like, close = match(Sight.of(build_a), Sight.of(build_b))
    assert (like >= 0).all()
    foreign = Sight(np.full((len(ROUNDS), 2), 7, np.uint32), build_a.colocate[:2] * 0, build_a.colocate[:1] * 0)
    like, close = match(Sight.of(build_a), foreign)
    assert like.tolist() == [-1, -1]
    assert not close.any()


@given(graphs(max_ops=12))
def test_a_round_tells_apart_what_has_other_neighbours_and_nothing_else(graph: Graph) -> None:
    network = nx.DiGraph()
    network.add_nodes_from((op, {"kind": graph.kind[op]}) for op in range(graph.num_ops))
    start, before = graph.dependencies
    for op in range(graph.num_ops):
        network.add_edges_from((int(other), op) for other in before[start[op] : start[op + 1]])
    one_round = classes(graph)[1]
    for a in network:
        for b in network:
            same = look(graph, a) == look(graph, b) and all(
                sorted(look(graph, n) for n in way(a)) == sorted(look(graph, n) for n in way(b))
                for way in (network.predecessors, network.successors)
            )
            assert (one_round[a] == one_round[b]) == same


def look(graph: Graph, op: int) -> tuple[str, str]:
    return graph.kind[op], "".join(letter for letter in graph.scope[op] if not letter.isdigit())


@pytest.mark.parametrize(
    ("lean", "layers"), [("middle", [0, 1, 2, 2, 3]), ("first", [0, 0, 1, 2, 3]), ("last", [0, 1, 2, 3, 3])]
)
def test_a_stack_that_grew_by_a_layer_has_two_on_the_first_the_middle_or_the_last(lean: Any, layers: list[int]) -> None:
    four, five = stack(4), stack(5)
    like, _ = match(Sight.of(four), Sight.of(five), lean)
    assert [four.scope[like[five.op_name.index(f"add{layer}")]] for layer in range(5)] == [
        f"layers.{i}" for i in layers
    ]


def test_what_has_as_many_layers_is_laid_over_in_one_way() -> None:
    same, deeper = (list(matches(Sight.of(stack(4)), Sight.of(stack(layers, 512)))) for layers in (4, 5))
    assert len(same) == 1 and len(deeper) == 3
    assert np.array_equal(same[0][0], np.arange(stack(4).num_ops))
