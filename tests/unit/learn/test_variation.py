"""Graphs made of graphs: pieces are what their ops were, sizes grow as batches, widths and precisions make them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph import INPUT, Graph, GraphBuilder
from loadmaster.learn import variation
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


def told(choices: list[float], normal: float = 0.0) -> Any:
    """A generator that draws no piece, and chooses what it is told; what it chooses from is kept."""
    asked = list[Any]()
    return SimpleNamespace(
        random=lambda: 0.31,
        choice=lambda some: (asked.append(some), choices.pop(0))[1],
        standard_normal=lambda count: np.full(count, normal),
        asked=asked,
    )


def each_role() -> Graph:
    graph = GraphBuilder("roles")
    sizes = {"input": 100, "weight": 200, "state": 300}
    reads = [graph.tensor(size, role) for role, size in sizes.items()]
    made = [graph.tensor(400), graph.tensor(500, "output")]
    graph.op("a", "any", reads, made, flops=1_000, bytes_moved=60)
    return graph.build()


def test_batches_widths_and_precisions_make_tensors_and_work_larger() -> None:
    """Twice as wide: activations and inputs twice as large, weights and gradients four times; half as precise."""
    rng = told([0.0, 4.0, 2.0, 0.5])
    made = vary(each_role(), rng)
    assert rng.asked == [[0.0, 0.1, 0.3], [1, 1, 1, 4, 16], [1, 1, 1, 0.5, 2], [1, 1, 0.5]]
    assert made.nbytes.tolist() == [100 * 4, 200 * 2, 150, 400 * 4, 500 * 2]
    assert (made.flops.tolist(), made.bytes_moved.tolist()) == ([16_000], [960])


def test_nothing_grows_beyond_64_times() -> None:
    made = vary(each_role(), told([0.3, 16.0, 2.0, 1.0], normal=10.0))  # e cubed times as large, by noise
    assert made.nbytes.tolist() == [6_400, 12_800, int(np.ceil(300 * np.exp(3))), 25_600, 32_000]
    assert (made.flops.tolist(), made.bytes_moved.tolist()) == ([64_000], [3_840])


def test_three_graphs_in_ten_are_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variation, "piece", lambda graph, rng: next(generate("layered", 1, 5, (50, 50))))
    rng = told([0.0, 1.0, 1.0, 1.0])
    rng.random = lambda: 0.29
    assert vary(each_role(), rng).num_ops > 1


def chain_of(ops: int, updates: bool = False) -> Graph:
    graph = GraphBuilder("chain")
    weight = graph.tensor(8, "weight")
    last = graph.tensor(8, "input")
    for op in range(ops):
        made = graph.tensor(8)
        graph.op(f"op{op}", "any", [weight, last], [made], flops=1)
        last = made
    if updates:
        graph.op("update", "any", [weight, last], [graph.tensor(8, "weight", alias_of=weight)], flops=1)
    return graph.build()


@pytest.mark.parametrize(
    ("share", "first", "names"), [(0.6, 40, range(40, 100)), (0.7, 0, range(70)), (0.599, 0, None)]
)
def test_a_piece_is_a_run_of_the_mirrored_order(
    share: float, first: int, names: range | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variation, "mirrored_position", lambda problem: np.arange(problem.num_ops))
    asked = list[Any]()
    rng: Any = SimpleNamespace(
        uniform=lambda low, high: (asked.append((low, high)), share)[1],
        integers=lambda low, high: (asked.append((low, high)), first)[1],
    )
    graph = chain_of(100)
    found = piece(graph, rng)
    assert asked == [(0.35, 0.9), (0, 100 - int(100 * share) + 1)]
    assert found is graph if names is None else set(found.op_name) == {f"op{op}" for op in names}


def test_where_memory_is_shared_there_are_no_pieces() -> None:
    graph = chain_of(100, updates=True)
    assert all(piece(graph, np.random.default_rng(seed)) is graph for seed in range(3))
