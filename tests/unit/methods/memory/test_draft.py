"""Versions of tensors, and where they are; op 0, tensor 0 and job 0 among them."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.methods.memory.draft import Job, Version, draft_of
from loadmaster.plans import Plan
from tests.graphs.tiny import pair


def test_the_last_use_of_a_version_that_nobody_reads_is_where_it_is_made() -> None:
    assert Version(3, 5).last() == 5 and Version(3, 5, uses=[(9, 1), (7, 2)]).last() == 9


def test_a_draft_of_an_update_by_hand() -> None:
    """Op 0 updates tensor 0 in place; op 1 makes 40 and 60 bytes with a workspace of 8, of which op 2, elsewhere, reads
    the 40 and op 3, at home, the 60; what op 3 makes stays."""
    g = GraphBuilder("update")
    w = g.tensor(100, "weight")
    new, sent, kept, last = g.tensor(100, "weight", alias_of=w), g.tensor(40), g.tensor(60), g.tensor(5, "output")
    far = g.tensor(3)
    g.op("update", "any", [w], [new], time_ns=10)
    g.op("make", "any", [], [sent, kept], time_ns=10, workspace_bytes=8)
    g.op("far", "any", [sent], [far], time_ns=1)
    g.op("near", "any", [kept], [last], time_ns=50)
    problem = price(g.build(), pair())
    draft = draft_of(problem, Plan.of(problem, [0, 0, 1, 0]))
    assert draft.heads.tolist() == [0, 1, 3, 2] and draft.at == [0, 1, 3, 2]
    assert draft.updated_at == {0: 0} and draft.overwritten == {w, new}
    assert draft.given == {w: [(0, 0)]} and draft.reads[0] == [w] and draft.makes[1] == [sent, kept]
    assert [(v.tensor, v.made, v.uses) for v in draft.versions] == [
        (new, 0, []), (sent, 1, [(3, 2)]), (kept, 1, [(2, 3)]), (last, 2, []), (far, 3, []),
    ]  # fmt: skip
    assert draft.begins.tolist() == [0, 108, 5, 3], "with each kernel, workspace included"
    home, away = draft.memory.tolist()
    # Device 0 holds the weight; 40 + 60 + 8; then what is read later, and the result.
    assert home == [100, 100 + 108, 100 + 40 + 60 + 5, 100 + 40 + 5] and away == [0, 40, 40, 43]
    assert draft.source == {(2, sent): 1, (3, kept): 2} and draft.members.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("changed", [0, 1])
def test_copies_that_are_never_there_at_once_are_taken_off_again(changed: int) -> None:
    """Two copies of 100 bytes at position 3, one of which the other alone reads: held twice only while it is made, when
    the kernel, which makes 200 bytes, has not begun."""
    g = GraphBuilder("row")
    x, first, second = g.tensor(8, "input"), g.tensor(100), g.tensor(100)
    g.op("first", "any", [x], [first], time_ns=1)
    g.op("second", "any", [first], [second], time_ns=1)
    g.op("between", "any", [x], [g.tensor(1)], time_ns=1)
    g.op("last", "any", [second], [g.tensor(200, "output")], time_ns=1)
    problem = price(g.build(), pair())
    draft = draft_of(problem, Plan.of(problem, np.zeros(4, np.int64)))
    before = draft.memory[0].tolist()
    assert draft.source == {(1, first): 0, (3, second): 1} and draft.given == {x: [(0, 0), (2, 2)]}
    draft.jobs += [Job(0, 3), Job(1, 3)]
    assert draft.extra_ns == 0
    copies = [draft.add(Version(tensor, 3, job)) for job, tensor in enumerate((first, second))]
    for job, copy in enumerate(copies):
        draft.jobs[job].makes = (copy,)
        draft.hold(draft.versions[copy], 3, 3, 1)
    draft.use(copies[0], 3, 4 + 1)
    draft.use(copies[1], 3, 3)
    draft.chains[3] = [range(2)]
    draft.changed.add(3)
    if changed:
        assert draft.memory[0, 3] == before[3] + 100, "it is brought up to date when it is asked for"
        draft.changed.add(3)
    assert draft.memory[0].tolist() == [*before[:3], before[3] + 100]
