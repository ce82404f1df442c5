"""What it takes to have tensors again, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.optimizers.memory import closures
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


def test_what_a_kernel_of_copies_takes() -> None:
    """The longest launch; arithmetic or traffic, whichever is more; and what was measured beside that."""
    draft: Any = SimpleNamespace(
        device=[0, 0], launch=[30, 50], compute=[10, 20], fixed=[3, -8], traffic=[100, 60], nbytes=[0, 40, 7],
        makes=[[1], [2]], reads=[[], [1]], read_bytes=[[], [40]], problem=SimpleNamespace(bytes_per_s=[10**9]),
    )  # fmt: skip
    assert closures._time(draft, [0, 1], set(), 0.0, 0.0, 0.0, 0) == 50 + 160 - 5
    assert closures._time(draft, [0, 1], {1}, 0.0, 0.0, 0.0, 0) == 50 + 80 - 5, "40 neither written nor read"
    assert closures._time(draft, [0, 1], {1}, 90.0, 5.0, 2.0, 70) == 70 + (90 + 30) - 3
    assert closures._time(draft, [1], {1, 2}, 0.0, 0.0, -99.0, 0) == 50, "no less than a launch"
    assert closures.moved_bytes(draft, [0, 1], {1}) == 60 + 20
    draft.traffic = [30, 60]
    assert closures.moved_bytes(draft, [0], {1}) == 0, "no less than nothing"


@pytest.mark.parametrize(("lodged", "there", "found"), [(False, -1, True), (True, 0, True), (True, -1, False)])
def test_what_lives_on_a_host_is_read_where_it_is_here(
    lodged: bool, there: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = draft_of_two()
    draft.lodged = {0} if lodged else set()
    monkeypatch.setattr(draft, "there", lambda tensor, at: there if tensor == 0 else -1)
    assert (closure_of(draft, (2,), 3, np.ones(4, bool), False) is not None) is found


@pytest.mark.parametrize(("updated", "found"), [(2, False), (3, True), (4, True)])
def test_what_is_updated_before_is_not_what_was_read(updated: int, found: bool) -> None:
    draft = draft_of_two()
    draft.updated_at = {0: updated}
    assert (closure_of(draft, (2,), 3, np.ones(4, bool), False) is not None) is found


def test_a_kernel_takes_in_so_many_members_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ops that run again, and those it has."""
    monkeypatch.setattr(closures, "_may_join", lambda *_: True)
    monkeypatch.setattr(closures, "_joined_ns", lambda *_: 7)
    draft, every = draft_of_two(), np.ones(4, bool)
    for members, found in ((closures.MOST_MEMBERS - 2, True), (closures.MOST_MEMBERS - 1, False)):
        draft.members[3] = members
        closure = closure_of(draft, (1, 2), 3, every, True)
        assert (closure is not None) is found and (closure is None or closure.cost_ns == 7)
        assert closure_of(draft, (1, 2), 3, every, False) is not None, "beside it, as many as there are"
    draft.members[3] = 1
    draft.device[3] = 1
    assert closure_of(draft, (1, 2), 3, every, True) is None, "a kernel of the other device"


def test_what_may_not_join_or_be_overwritten_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, every = draft_of_two(), np.ones(4, bool)
    draft.overwritten = {2}
    assert closure_of(draft, (2,), 3, every, False) is None
    draft.overwritten = set()
    monkeypatch.setattr(closures, "_may_join", lambda draft, op, at: op != 0)
    monkeypatch.setattr(closures, "_joined_ns", lambda *_: 7)
    assert closure_of(draft, (2,), 3, every, True) is None
    assert closure_of(draft, (1,), 3, every, True, {2}) is None, "nor what it is made from"
    alone = closure_of(draft, (1,), 3, np.array([False, True, True, True]), True, {2})
    assert alone is not None and alone.ops == (1,) and alone.keeps == (draft.of[2][0],), "it is kept for it"


def test_what_stays_inside_the_kernels_that_run_again() -> None:
    """Ops 0 and 1 were one kernel, op 2 another: tensor 0, which op 1 alone reads, is never written; tensor 1 is."""
    draft: Any = SimpleNamespace(makes=[[0], [1], [2]], reads=[[], [0], [1]], at=[4, 4, 5], producer=[0, 1, 2])
    apart, within = closures.Closure((0, 1, 2), (), False, 0), closures.Closure((0, 1, 2), (), True, 0)
    assert closures.vanishing(draft, apart, {2}) == {0}
    assert closures.vanishing(draft, apart, {0, 2}) == set()
    assert closures.vanishing(draft, within, {2}) == {0, 1, 2}
    draft.reads[2] = [1, 0]
    assert closures.vanishing(draft, apart, {2}) == set()
