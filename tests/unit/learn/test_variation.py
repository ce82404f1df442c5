"""Graphs made of graphs: pieces are what their ops were, sizes grow as batches, widths and precisions make them."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph import INPUT, Graph
from loadmaster.learn.variation import kept, piece, vary
from loadmaster.optimizers.simple import OneDevice
from loadmaster.plans import check
from loadmaster.search import Budget, Search
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate


@pytest.fixture(scope="module")
def graph() -> Graph:
    return next(generate("layered", 1, 5, (200, 200)))


def by_name(graph: Graph) -> dict[str, tuple[str, int, tuple[str, ...]]]:
    makers = [graph.op_name[op] if op >= 0 else "" for op in graph.producer.tolist()]
    return {
        graph.op_name[op]: (
            graph.kind[op],
            int(graph.flops[op]),
            tuple(sorted(makers[t] for t in graph.reads_of(op).tolist() if makers[t])),
        )
        for op in range(graph.num_ops)
    }


def test_a_piece_has_its_ops_and_what_they_read_of_each_other(graph: Graph) -> None:
    keep = np.random.default_rng(1).random(graph.num_ops) < 0.5
    small, whole = by_name(kept(graph, keep)), by_name(graph)
    names = {graph.op_name[op] for op in np.flatnonzero(keep)}
    assert small.keys() == names
    for name, (kind, flops, makers) in small.items():
        assert whole[name][:2] == (kind, flops)
        assert makers == tuple(maker for maker in whole[name][2] if maker in names)


def test_what_others_made_is_an_input_of_a_piece(graph: Graph) -> None:
    keep = np.arange(graph.num_ops) >= graph.num_ops // 2
    part = kept(graph, keep)
    size = dict(zip(graph.tensor_name, graph.nbytes.tolist(), strict=True))
    makers = dict(zip(graph.tensor_name, graph.producer.tolist(), strict=True))
    foreign = {name for name, maker in makers.items() if maker >= 0 and not keep[maker]}
    found = [tensor for tensor, name in enumerate(part.tensor_name) if name in foreign]
    assert found
    for tensor in found:
        assert part.producer[tensor] < 0 and part.role[tensor] == INPUT
        assert part.nbytes[tensor] == size[part.tensor_name[tensor]]


@pytest.mark.parametrize("seed", range(6))
def test_every_variant_can_be_priced_and_run_and_depends_on_the_draws_alone(graph: Graph, seed: int) -> None:
    made = vary(graph, np.random.default_rng(seed))
    assert made.digest == vary(graph, np.random.default_rng(seed)).digest
    problem = price(made, "regal", objective="peak-memory")
    plan = OneDevice().optimize(Search(problem, Budget(None, 5), 0))
    check(plan, problem)
    assert simulate(problem, plan).step_ns > 0


def test_pieces_are_shallower_and_not_too_small(graph: Graph) -> None:
    sizes = [piece(graph, np.random.default_rng(seed)).num_ops for seed in range(12)]
    assert min(sizes) >= 60 and max(sizes) <= 0.9 * graph.num_ops and len(set(sizes)) > 6
    little = next(generate("layered", 1, 5, (50, 50)))
    assert piece(little, np.random.default_rng(0)) is little
