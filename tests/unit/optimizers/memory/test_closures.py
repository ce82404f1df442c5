"""What it takes to have tensors again, by hand."""

from __future__ import annotations

import numpy as np

from loadmaster import GraphBuilder, price
from loadmaster.optimizers.memory.closures import closure_of
from loadmaster.optimizers.memory.draft import Draft, draft_of
from loadmaster.plans import Plan
from tests.graphs.tiny import pair


def draft_of_two() -> Draft:
    """Two ops in a row, of which the second makes the tensor of the lower number, and two that read both later."""
    g = GraphBuilder("turned")
    x, second, first, between = g.tensor(8, "input"), g.tensor(100), g.tensor(70), g.tensor(30)
    g.op("first", "any", [x], [first], time_ns=10)
    g.op("second", "any", [first], [second], time_ns=20)
    g.op("between", "any", [x], [between], time_ns=5)
    g.op("last", "any", [first, second, between], [g.tensor(1, "output")], time_ns=5)
    problem = price(g.build(), pair())
    return draft_of(problem, Plan.of(problem, np.zeros(4, np.int64)))


def test_tensors_that_are_made_from_each_other_are_both_made_again() -> None:
    """In whichever order they are asked for: what is to be dropped is no source of the other."""
    draft = draft_of_two()
    every = np.ones(4, bool)
    for tensors in ((1, 2), (2, 1)):
        closure = closure_of(draft, tensors, 3, every, False)
        assert closure is not None and closure.ops == (0, 1) and not closure.keeps
        assert closure.cost_ns == 10 + 20
    alone = closure_of(draft, (1,), 3, every, False)
    assert alone is not None and alone.ops == (1,), "what is there need not be made again"
