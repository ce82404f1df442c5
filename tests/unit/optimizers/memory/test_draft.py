"""Versions of tensors, and where they are; op 0, tensor 0 and job 0 among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.optimizers.memory.draft import Draft, Job, Version, draft_of
from loadmaster.plans import Plan
from tests.graphs.tiny import pair


def bare(**given: Any) -> Draft:
    draft = Draft.__new__(Draft)
    vars(draft).update(given)
    return draft


def of_one(lasting: bool) -> Draft:
    """Tensor 0 is made at 1 and read until 4; a copy of it is made at 3 within a kernel, another by job 0 at 6."""
    versions = [
        Version(0, 1, uses=[(4, 9)]),
        Version(0, 6, job=0, uses=[(8, 9)]),
        Version(0, 3, job=1, uses=[(5, 9)], inner=True),
    ]
    return bare(versions=versions, of={0: [0, 1, 2]}, lasting=[lasting])


def test_a_version_is_there_after_it_is_made_until_its_last_reader() -> None:
    """A copy is made before the kernel at its position, and there for it."""
    draft = of_one(lasting=False)
    assert [draft.there(0, at) for at in range(10)] == [-1, -1, 0, 0, 0, -1, 1, 1, 1, -1]


def test_what_lives_to_the_end_is_there_and_its_copies_are_not() -> None:
    draft = of_one(lasting=True)
    assert [draft.there(0, at) for at in range(10)] == [-1, -1, 0, 0, 0, 0, 1, 1, 1, 0]


def test_the_last_version_that_could_be_kept() -> None:
    draft = of_one(lasting=False)
    assert [draft.latest(0, at) for at in range(9)] == [-1, -1, 0, 0, 0, 0, 0, 1, 1]


def test_the_last_use_of_a_version_that_nobody_reads_is_where_it_is_made() -> None:
    assert Version(3, 5).last() == 5 and Version(3, 5, uses=[(9, 1), (7, 2)]).last() == 9


def dropped(
    uses: list[tuple[int, int]], *, is_open: bool = False, may_leave: bool = True, inner: bool = False
) -> Draft:
    """Tensor 0, made by op 0 at 1; op 3 is on the other device; kernels are open, or none is."""
    return bare(
        versions=[Version(0, 1, uses=uses, inner=inner)], may_leave=[may_leave], producer=[0], device=[0, 0, 0, 1],
        at=[1, 4, 8, 8], open=np.full(12, is_open),
    )  # fmt: skip


def test_what_can_be_dropped_at_a_position() -> None:
    """What is there and needed by nobody, or by a kernel that can make it itself."""
    uses = [(4, 1), (8, 2)]
    closed, light = dropped(uses), dropped(uses, is_open=True)
    assert [at for at in range(11) if closed.droppable(0, at)] == [2, 3, 5, 6, 7]
    assert [at for at in range(11) if light.droppable(0, at)] == [2, 3, 4, 5, 6, 7, 8]
    for other in (dropped(uses, inner=True), dropped(uses, may_leave=False), dropped([(4, 1), (8, 3)])):
        assert not any(other.droppable(0, at) for at in range(11))


def test_the_device_of_a_reader_is_that_of_its_op() -> None:
    """Readers 2 and 3 are jobs: op 0 again, and the stay of a tensor that op 1 makes."""
    draft = bare(
        device=[1, 0], at=[0, 1], jobs=[Job(0, 3), Job(-1, 3, stay=0)], versions=[Version(5, 0)], producer=[0] * 5 + [1]
    )
    assert [draft.reader_device(reader) for reader in range(4)] == [1, 0, 1, 0]


def test_the_home_of_a_tensor_is_where_it_is_made_or_first_read() -> None:
    draft = bare(device=[1, 0], producer=[0, -1], given={1: [(3, 1), (4, 0)]})
    assert [draft.home_of(tensor) for tensor in (0, 1)] == [1, 0] and draft.home(Version(0, 2)) == 1


def test_an_op_takes_something() -> None:
    problem = SimpleNamespace(op_ns=np.array([[0, 5], [1, 9], [5, 2]]))
    draft = bare(problem=problem, producer=[0, 1, 2], device=[0, 0, 1])
    assert [draft.op_ns(tensor) for tensor in range(3)] == [1, 1, 2]


def test_bytes_are_held_from_one_position_to_another() -> None:
    draft = bare(_held=np.zeros((2, 4), np.int64), device=[1], producer=[0], nbytes=[7], changed=set())
    draft.hold(Version(0, 1), 1, 2, 1)
    draft.hold(Version(0, 1, inner=True), 0, 3, 1)
    draft.hold_bytes(0, 3, 3, 5)
    draft.hold_bytes(0, 2, 1, 5)
    assert draft.memory.tolist() == [[0, 0, 0, 5], [0, 7, 7, 0]]


def test_copies_whose_readers_change_are_noted() -> None:
    draft = bare(changed=set())
    draft.note(Version(0, 1), Version(0, 6, job=0), Version(2, 8, job=3))
    assert draft.changed == {6, 8}


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
