"""What it takes to have tensors again, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.methods.memory.closures import closure_of
from loadmaster.methods.memory.draft import Draft, draft_of
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


def draft_of_a_row(ops: int) -> Draft:
    """Ops in a row, each of what the one before it makes, and one at the end that reads the last of them again."""
    g = GraphBuilder("row")
    made = [g.tensor(8, "input")]
    for at in range(ops):
        made.append(g.tensor(4))
        g.op(f"op{at}", "aten.relu.default", made[-2:-1], made[-1:], time_ns=2)
    g.op("between", "any", [made[0]], [g.tensor(1, "output")], time_ns=1)
    g.op("last", "any", [made[-1]], [g.tensor(1, "output")], time_ns=1)
    problem = price(g.build(), pair())
    return draft_of(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))


@pytest.mark.parametrize(("ops", "found"), [(200, True), (201, False)])
def test_no_more_than_so_many_run_again_one_after_the_other(ops: int, found: bool) -> None:
    """All that is made on the way is gone, so that it has to be made, too."""
    draft = draft_of_a_row(ops)
    gone = set(range(1, ops + 1))
    closure = closure_of(draft, (ops,), ops + 1, np.ones(ops + 2, bool), False, gone)
    assert (closure is not None and len(closure.ops) == ops) == found
    assert closure is None or found or closure.keeps, "what is too far back is kept"


@pytest.mark.parametrize(("wide", "found"), [(400, True), (401, False)])
def test_no_more_than_so_many_run_again_for_one_tensor(wide: int, found: bool) -> None:
    g = GraphBuilder("wide")
    x, parts = g.tensor(8, "input"), [g.tensor(4) for _ in range(wide)]
    for at, part in enumerate(parts):
        g.op(f"op{at}", "aten.relu.default", [x], [part], time_ns=2)
    total = g.tensor(4)
    g.op("sum", "any", parts, [total], time_ns=2)
    g.op("between", "any", [x], [g.tensor(1, "output")], time_ns=1)
    g.op("last", "any", [total], [g.tensor(1, "output")], time_ns=1)
    problem = price(g.build(), pair())
    draft = draft_of(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    closure = closure_of(draft, (total,), wide + 2, np.ones(wide + 3, bool), False, {*parts})
    assert closure is not None
    assert (len(closure.ops) == wide + 1 and not closure.keeps) == found
    assert len(closure.ops) == 400 + 1, "its own op beside them"


@pytest.mark.parametrize(("updated", "found"), [(2, False), (3, True), (4, True)])
def test_what_is_updated_before_is_not_what_was_read(updated: int, found: bool) -> None:
    draft = draft_of_two()
    draft.updated_at = {0: updated}
    assert (closure_of(draft, (2,), 3, np.ones(4, bool), False) is not None) is found
