"""What Placeto sees of groups, worked out op by op."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.learn.placeto2019 import board
from loadmaster.passes.groups import group_ops
from tests.graphs.tiny import pair
from tests.problems import layers, unlike


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


@pytest.mark.parametrize(("ops", "scopes", "joined"), [(8, 2, True), (8, 4, False), (3, 2, True), (2, 2, False)])
def test_modules_that_are_no_more_than_devices_are_joined_by_tensors_instead(
    ops: int, scopes: int, joined: bool
) -> None:
    """Unless every op is a module."""
    graph = GraphBuilder("modules")
    read = graph.tensor(8, "input")
    for op in range(ops):
        made = graph.tensor(8 * (op + 1))
        graph.op(f"op{op}", "any", [read], [made], time_ns=10, scope=f"m{op * scopes // ops}")
        read = made
    problem = price(graph.build(), pair())
    label = board.groups_of(problem, 128)
    by = group_ops(problem, board.MOST_JOINED if joined else 128, "edges" if joined else "scope")
    assert label.tolist() == by.tolist()
    assert (int(label.max()) + 1 == scopes) != joined


def test_columns_of_devices_are_their_speed_memory_and_links() -> None:
    """Of two devices whose links differ by their direction; bytes that cannot be sent count as none."""
    problem: Any = SimpleNamespace(
        num_devices=2,
        send_ns=np.array([[10, 30], [-1, 50]]),
        send_class=np.array([[0, 0], [1, 1]]),
        memory_bytes=np.array([100, 900]),
    )
    time, need = np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([60.0, 40.0])
    wanted = [[0.0, 0.5, 0.0], [-1 / 4, 2.0, np.log2(41 / 6) / 4]]
    np.testing.assert_allclose(board._device_columns(problem, time, need), wanted, atol=1e-9)
    problem.send_ns = np.zeros((0, 2), np.int64)  # without a tensor there is nothing to be sent
    assert board._device_columns(problem, time, need)[:, 2].tolist() == [0.0, 0.0]
    problem.send_ns = np.array([[1 << 40, 0]])
    far = board._device_columns(problem, np.array([[1e-20, 1e20]]), need)
    assert far[:, 0].tolist() == [0.0, -8.0] and far[:, 2].tolist() == [8.0, 0.0]
    three: Any = SimpleNamespace(
        num_devices=3,
        send_ns=np.array([[6, 12]]),
        send_class=np.array([[0, 0, 1], [1, 0, 1], [0, 0, 0]]),
        memory_bytes=np.array([8, 8, 8]),
    )
    found = board._device_columns(three, np.ones((1, 3)), need)[:, 2]
    np.testing.assert_allclose(found, np.log2(np.array([9 + 1, 12 + 1, 6 + 1]) / 7) / 4)


def test_columns_of_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "upward_rank", lambda problem: np.array([16, 4]))
    problem: Any = SimpleNamespace(
        num_devices=4,
        best_ns=np.array([40, 24]),
        memory_bytes=np.array([300, 100]),
        objective=SimpleNamespace(of_memory=False),
    )
    tie, need = np.array([[0.0, 3.0], [7.0, 8.0]]), np.array([50.0, 50.0])
    found = board._graph_columns(problem, None, tie, need)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [2 / 3, 2 / 4, (0.5 + 1.0) / 2, np.log2(4.001) / 8, 1.0])
    problem.objective.of_memory, problem.best_ns = True, np.array([1 << 62, 0])
    assert board._graph_columns(problem, None, tie, need)[[1, 4]].tolist() == [8.0, 0.0]  # type: ignore[arg-type]
    problem.best_ns = np.array([1, 0])
    monkeypatch.setattr(board, "upward_rank", lambda problem: np.array([1 << 60]))
    assert board._graph_columns(problem, None, tie, need)[1] == -8.0  # type: ignore[arg-type]


def test_columns_of_groups_end_at_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "upward_rank", lambda problem: np.array([9, 3]))
    monkeypatch.setattr(board, "downward_rank", lambda problem: np.array([2, 8]))
    problem: Any = SimpleNamespace(best_ns=np.array([3, 4]))
    related = np.zeros((3, 2, 2))
    edges = np.array([[False, True], [False, False]])
    made = board._group_columns(
        problem, ints([0, 1]), np.full((2, 1), 1e12), np.zeros((2, 2)), np.ones(2), edges, related
    )
    assert made[:, 0].tolist() == [8.0, 8.0]
    assert made[:, 3].tolist() == [0.0, 0.5] and made[:, 4].tolist() == [0.25, 1.0]
    np.testing.assert_allclose(made[:, 5], [1.0, 1 / 3])


def test_a_group_starts_where_most_of_its_time_is() -> None:
    problem: Any = SimpleNamespace(num_devices=3, best_ns=np.array([0, 0, 1, 5]))
    label = ints([0, 0, 0, 1])
    assert board.group_start(problem, label, ints([2, 2, 1, 0])).tolist() == [1, 0]  # two of no time against one
    assert board.group_start(problem, label, ints([2, 1, 2, 2])).tolist() == [2, 2]


def test_groups_in_a_ring_come_by_their_number_and_others_when_they_can() -> None:
    edges = np.zeros((4, 4), bool)
    edges[3, 0] = edges[0, 2] = edges[2, 0] = edges[3, 1] = True
    assert board.topological(edges).tolist() == [2, 3, 0, 1]  # 0 and 2 wait for each other, 0 for 3 as well
    assert board.topological(np.zeros((3, 3), bool)).tolist() == [0, 1, 2]
    made: Any = SimpleNamespace(order=ints([2, 0, 1]), num_groups=3)
    rng = np.random.default_rng(4)
    assert board.visits(made, "topological", rng).tolist() == [2, 0, 1]
    assert board.visits(made, "reverse", rng).tolist() == [1, 0, 2]
    drawn = {tuple(board.visits(made, "random", rng).tolist()) for _ in range(60)}
    assert len(drawn) == 6
