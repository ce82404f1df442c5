"""What storages hold, counted by hand."""

from __future__ import annotations

from loadmaster import GraphBuilder, price
from loadmaster.problem.bounds.holding import Storages
from tests.graphs.tiny import pair


def test_residents_count_where_they_are_read_or_updated() -> None:
    graph = GraphBuilder("residents")
    unread, read, idle = graph.tensor(100, "weight"), graph.tensor(30, "weight"), graph.tensor(7, "weight")
    graph.op("reset", "any", [], [graph.tensor(100, "weight", alias_of=unread)], time_ns=1)
    graph.op("use", "any", [read], [graph.tensor(5, "output")], time_ns=1)
    problem = price(graph.build(), pair())
    assert problem.updater[unread] == 0 and problem.updater[idle] == -1
    memory = Storages(problem)
    assert memory.resident_bytes == 100 + 30, "what nobody reads is updated by the first op; the last is not used"
    assert memory.kept_bytes == 5


def test_ops_without_bytes_hold_none() -> None:
    graph = GraphBuilder("nothing")
    graph.op("first", "any", [], [], time_ns=1)
    graph.op("second", "any", [], [], time_ns=1, after=["first"])
    memory = Storages(price(graph.build(), pair()))
    assert (memory.resident_bytes, memory.kept_bytes, memory.last_bytes) == (0, 0, 0)
    assert memory.appears.tolist() == [0, 0]
