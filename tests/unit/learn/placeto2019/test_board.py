"""What Placeto sees of groups, worked out op by op."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.learn.placeto2019 import board
from loadmaster.passes.groups import group_ops
from tests.golden.plans import layers, unlike
from tests.graphs.tiny import pair


def test_columns_of_groups() -> None:
    problem = unlike()
    label = ints(np.arange(problem.num_ops) // 3)
    made = board.board_of(problem, label)
    count = int(label.max()) + 1
    time = np.array([[problem.op_ns[label == g, d].sum() for d in range(3)] for g in range(count)], float)
    unit = np.mean([problem.best_ns[label == g].sum() for g in range(count)])
    np.testing.assert_allclose(made.time, time / unit)
    best = (time / unit).min(axis=1)
    np.testing.assert_allclose(made.groups[:, 0], np.log2(1 + best) / 4)
    sizes = np.bincount(label)
    np.testing.assert_allclose(made.groups[:, 7], np.log2(1 + sizes / sizes.mean()) / 4)
    reach = reachable(made.edges)
    apart = ~np.eye(count, dtype=bool)
    np.testing.assert_array_equal(made.related, [reach.T & apart, reach & apart, apart & ~reach & ~reach.T])
    np.testing.assert_allclose(made.groups[:, 8], (apart & ~reach & ~reach.T) @ best / best.sum())
    np.testing.assert_allclose(made.groups[:, 9], np.log2(1 + made.edges.sum(axis=0)) / 4)
    np.testing.assert_allclose(made.groups[:, 10], np.log2(1 + made.edges.sum(axis=1)) / 4)
    np.testing.assert_allclose(made.groups[:, 11], (reach & apart).sum(axis=1) / count)


def reachable(edges: np.ndarray) -> np.ndarray:
    """By the steps of Warshall."""
    reach = edges.copy()
    for middle in range(len(reach)):
        reach |= reach[:, [middle]] & reach[[middle], :]
    return reach


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_chain_is_followed_to_its_end(count: int) -> None:
    edges = np.eye(count, k=1, dtype=bool)
    ancestors, descendants, unrelated = board.relations(edges)
    np.testing.assert_array_equal(descendants, np.triu(np.ones((count, count)), 1))
    np.testing.assert_array_equal(ancestors, np.tril(np.ones((count, count)), -1))
    assert not unrelated.any()


def test_bytes_of_groups_are_made_ones_and_residents_where_first_read() -> None:
    problem = price(layers(2, 3, 5), "2xp100-pcie")
    label = ints(np.arange(problem.num_ops) // 2)
    graph, need, seen = problem.graph, np.zeros(int(label.max()) + 1), set()
    for op in range(problem.num_ops):
        need[label[op]] += sum(int(graph.nbytes[t]) for t in graph.makes_of(op))
        for tensor in graph.reads_of(op).tolist():
            if problem.resident[tensor] and tensor not in seen:
                seen.add(tensor)
                need[label[op]] += int(graph.nbytes[tensor])
    np.testing.assert_array_equal(board.board_of(problem, label).need, need)


@pytest.mark.parametrize(("scopes", "joined"), [(2, True), (4, False)])
def test_modules_that_are_no_more_than_devices_are_joined_by_tensors_instead(scopes: int, joined: bool) -> None:
    graph = GraphBuilder("modules")
    read = graph.tensor(8, "input")
    for op in range(8):
        made = graph.tensor(8 * (op + 1))
        graph.op(f"op{op}", "any", [read], [made], time_ns=10, scope=f"m{op * scopes // 8}")
        read = made
    problem = price(graph.build(), pair())
    label = board.groups_of(problem, 128)
    by = group_ops(problem, board.MOST_JOINED if joined else 128, "edges" if joined else "scope")
    assert label.tolist() == by.tolist()
    assert (int(label.max()) + 1 == scopes) != joined
