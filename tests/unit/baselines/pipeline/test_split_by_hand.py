"""What the split of a line is made from, worked out by hand; op 0 and tensor 0 among what is special."""

from __future__ import annotations

import numpy as np

from loadmaster import GraphBuilder, price
from loadmaster.baselines.pipeline import split
from loadmaster.graph.columns import ints
from tests.graphs.tiny import pair


def test_neighbours_with_little_work_are_one_slot() -> None:
    slot, work = ints([0, 5, 9, 9]), np.ones(4)
    assert split.merged_slots(slot, work, 3).tolist() == [0, 1, 2, 2]
    assert split.merged_slots(slot, work, 2).tolist() == [0, 0, 1, 1]
    assert split.merged_slots(slot, np.array([8.0, 1, 1, 1]), 2).tolist() == [0, 1, 1, 1]
    assert split.merged_slots(slot, work, 1).tolist() == [0, 0, 0, 0]


def test_ops_without_a_module_go_with_what_they_read_or_with_the_next() -> None:
    g = GraphBuilder("scopes")
    x = g.tensor(1, "input")
    a, b, c, d, e = (g.tensor(1) for _ in range(5))
    g.op("none yet", "any", [x], [a], time_ns=1)
    g.op("first", "any", [a], [b], time_ns=1, scope="first")
    g.op("of first", "any", [b], [c], time_ns=1)
    g.op("second", "any", [c], [d], time_ns=1, scope="second")
    g.op("of both", "any", [d, b], [e], time_ns=1)
    g.op("first again", "any", [e], [], time_ns=1, scope="first")
    g.op("nothing", "any", [], [], time_ns=1)
    problem = price(g.build(), pair())
    assert split.scope_slots(problem).tolist() == [0, 0, 0, 1, 1, 0, 0]
