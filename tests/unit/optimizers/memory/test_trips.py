"""Trips over links that carry one thing at a time, worked out by hand."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.optimizers.memory.draft import Draft, Job, Version, draft_of
from loadmaster.optimizers.memory.trips import (
    NEVER,
    SLACK_NS,
    Trip,
    back_starts,
    begin_positions,
    hosts_of,
    one_computes,
    out_ends,
    send_away,
    time_returns,
    waited_ns,
)
from loadmaster.plans import Plan
from tests.graphs.tiny import pair

MS = 10 * SLACK_NS  # a kernel of the row below


def row_of(kernels: int, lead: float = inf, **more: Any) -> Any:
    """A draft of kernels of `MS` each, one after the other."""
    starts = MS * np.arange(kernels)
    return SimpleNamespace(start_ns=starts, end_ns=starts + MS, lead=lead, **more)


def due(position: int, back_ns: int) -> Trip:
    """What must be back for the kernel at a position."""
    return Trip(0, 0, position * MS - SLACK_NS, back_ns)


def test_ways_out_go_one_after_the_other_as_tensors_are_made() -> None:
    trips = [Trip(5, 10, 0, 0), Trip(0, 8, 0, 0), Trip(30, 3, 0, 0), Trip(5, 4, 0, 0)]
    assert out_ends(trips) == [8 + 10, 8, 30 + 3, 18 + 4]
    assert out_ends([]) == []


@pytest.mark.parametrize(
    ("lead", "starts"), [(inf, [30, 40, 95]), (1.0, [40, 40, 95]), (1.5, [35, 40, 95]), (9.0, [30, 40, 95])]
)
def test_ways_back_set_out_as_late_as_all_are_in_time(lead: float, starts: list[int]) -> None:
    """The last one is due at 100; those due at 50 and 60 share the link before that."""
    trips = [Trip(0, 0, 50, 10), Trip(0, 0, 60, 20), Trip(0, 0, 100, 5)]
    assert back_starts(trips, lead) == starts
    assert back_starts(trips) == [30, 40, 95]


@pytest.mark.parametrize(
    ("trips", "lead", "waited"),
    [
        ([(30, 10), (35, 20)], inf, 0),
        ([(5, 10)], inf, 5),  # it cannot set out before the step
        ([(5, 10), (28, 20)], inf, 5),  # what is awaited moves what comes after it, which is late by as much
        ([(5, 10), (28, 20), (33, 5)], inf, 5),
        ([(20, 10), (25, 10)], inf, 0),
        ([(20, 10), (25, 10)], 1.0, 5),  # the first may not set out before 10
        ([(20, 10), (3, 0), (25, 10)], 1.0, 5),  # what does not come back is not awaited
        ([(5, 10), (40, 10), (45, 10)], 1.0, 10),  # late by 5, the second comes at 45, and the third at 55
        ([], inf, 0),
    ],
)
def test_how_long_the_step_waits(trips: list[tuple[int, int]], lead: float, waited: int) -> None:
    assert waited_ns([Trip(0, 0, *each) for each in trips], lead) == waited


def test_where_each_is_on_its_way() -> None:
    """As late as it can be: that due at kernel 2 for half a kernel sets out while kernel 1 runs; one that takes all but
    the slack, as kernel 0 ends, and counts from there."""
    row = row_of(4)
    assert begin_positions(row, [due(2, MS // 2)]) == [1]
    assert begin_positions(row, [due(2, MS - SLACK_NS)]) == [0]
    assert begin_positions(row, [due(2, MS - SLACK_NS - 1)]) == [1]
    assert begin_positions(row, []) == []


def test_what_would_set_out_before_the_step_comes_after_what_is_awaited_before_it() -> None:
    """Of two that are due at kernel 1 and take longer, the second once the first is awaited; one that can just
    set out with the step does. What goes home is due never, and holds nobody up."""
    row = row_of(4)
    assert begin_positions(row, [due(1, MS), due(1, MS)]) == [0, 1]
    assert begin_positions(row, [due(1, MS), Trip(0, 3, NEVER, 0), due(1, MS)]) == [0, 0, 1]
    just = 2 * MS - SLACK_NS
    assert begin_positions(row, [due(1, MS), due(2, just)]) == [0, 0]
    assert begin_positions(row, [due(1, MS), due(2, just + 1)]) == [0, 1]
    assert begin_positions(row_of(4, lead=1.0), [due(1, 8), due(1, 8)]) == [0, 0]
    short = SimpleNamespace(start_ns=SLACK_NS * np.arange(5), end_ns=SLACK_NS * np.arange(1, 6), lead=inf)
    late: Any = [Trip(0, 0, 2 * SLACK_NS, 9 * SLACK_NS)] * 2
    assert begin_positions(short, late) == [0, 3], "due before kernel 3, which begins a slack later"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "made", "back_ns", "trigger"),
    [
        (3, 0, MS // 2, 1),  # after kernel 1, while kernel 2 runs
        (3, 2, MS // 2, 2),  # not before it is made
        (3, 0, MS - SLACK_NS, 1),  # just as kernel 1 ends
        (3, 0, MS - SLACK_NS + 1, 0),
        (1, 0, MS // 2, 0),  # before the kernel that it is there for
        (2, 0, MS // 2, 1),
    ],
)
def test_a_stay_ends_after_the_last_kernel_before_it_must_set_out(
    at: int, made: int, back_ns: int, trigger: int
) -> None:
    job = Job(-1, at, stay=0)
    draft = row_of(5, trips={0: due(3, back_ns)}, jobs=[job], versions=[Version(7, made)])
    time_returns(draft)
    assert job.trigger == trigger


@pytest.mark.parametrize(
    ("at", "back_ns", "trigger"),
    [
        (3, MS // 2, 1),
        (1, MS // 2, 0),
        (3, 3 * MS - SLACK_NS, -1),  # with the step
        (3, 4 * MS, -1),  # sooner than that cannot be
        (3, 0, -9),  # it goes home: nobody waits for it
    ],
)
def test_what_lives_on_a_host_comes_in_time(at: int, back_ns: int, trigger: int) -> None:
    job = Job(-1, at, given=0, trigger=-9)
    time_returns(row_of(5, trips={0: due(3, back_ns)}, jobs=[job], versions=[]))
    assert job.trigger == trigger


def test_what_can_just_set_out_with_the_step_comes_after_a_kernel_that_takes_no_time() -> None:
    job, ends = Job(-1, 2, given=0), np.array([0, MS, 2 * MS])
    draft: Any = SimpleNamespace(
        start_ns=np.array([0, 0, MS]), end_ns=ends, lead=inf, trips={0: Trip(0, 0, MS, MS)}, jobs=[job], versions=[]
    )
    time_returns(draft)
    assert job.trigger == 0


def test_of_two_that_are_late_the_second_comes_once_the_first_is_awaited() -> None:
    jobs = [Job(-1, 1, given=4), Job(-1, 3, given=0)]
    time_returns(row_of(5, trips={0: due(1, MS), 1: due(3, 9 * MS)}, jobs=jobs, versions=[]))
    assert [job.trigger for job in jobs] == [-1, 0]


def of_kinds(kinds: str) -> Any:
    return SimpleNamespace(devices=[SimpleNamespace(kind=kind) for kind in kinds.split()], num_devices=kinds.count("u"))


@pytest.mark.parametrize(
    ("kinds", "hosts", "alone"),
    [
        ("gpu", {}, True),
        ("gpu cpu", {0: 1}, True),
        ("cpu gpu", {1: 0}, True),
        ("cpu cpu gpu", {2: 0}, True),
        ("gpu gpu", {}, False),
        ("cpu gpu gpu", {1: 0, 2: 0}, False),
        ("cpu cpu", {}, False),
    ],
)
def test_the_host_of_a_device_and_whether_one_computes(kinds: str, hosts: dict[int, int], alone: bool) -> None:
    problem: Any = SimpleNamespace(cluster=of_kinds(kinds))
    assert hosts_of(problem.cluster) == hosts and one_computes(problem) is alone


def long_lived() -> Draft:
    """Tensor 0 is made first and read by the third, the fifth and the last of six ops; 100 bytes each."""
    g = GraphBuilder("long")
    kept, last = g.tensor(100), g.tensor(100)
    g.op("op0", "any", [], [kept, last], time_ns=10)
    for at in range(1, 6):
        made = g.tensor(100, "output" if at == 5 else "activation")
        g.op(f"op{at}", "any", [last, kept] if at in (2, 4, 5) else [last], [made], time_ns=10)
        last = made
    problem = price(g.build(), pair())
    return draft_of(problem, Plan.of(problem, np.zeros(6, np.int64)))


def test_what_is_sent_away_is_held_until_it_is_gone_and_from_when_it_is_back() -> None:
    draft = long_lived()
    before = draft.memory.copy()
    uses = sorted(draft.versions[0].uses)
    assert uses == [(2, 2), (4, 4), (5, 5)] and before[0].tolist() == [200, 300, 300, 300, 300, 300]
    back = send_away(draft, 0, uses[1:], 1, Trip(10, 5, 30, 5), 0, 4)
    assert draft.memory[0].tolist() == [200, 300, 300, 200, 300, 300], "gone after its first reader"
    other = send_away(draft, 1, [(1, 1)], 1, Trip(10, 5, 30, 5), 0, 1)
    assert draft.source[7, 1] == 1 and draft.source[1, 1] == len(draft.versions) - 1
    other()
    assert (7, 1) not in draft.source and draft.source[6, 0] == 0
    copy = draft.versions[-1]
    assert (copy.tensor, copy.made, copy.job, sorted(copy.uses)) == (0, 4, 0, uses[1:])
    assert draft.versions[0].uses == uses[:1] and draft.jobs[0].makes == (len(draft.versions) - 1,)
    assert (draft.jobs[0].stay, draft.jobs[0].trigger, draft.hosts[0]) == (0, 3, 1)
    assert draft.source[4, 0] == draft.source[5, 0] == len(draft.versions) - 1 and draft.source[2, 0] == 0
    assert draft.source[6, 0] == 0, "the stay reads what goes away"
    back()
    assert draft.memory.tolist() == before.tolist() and not draft.jobs and not draft.trips
    assert sorted(draft.versions[0].uses) == uses and all(draft.source[op, 0] == 0 for op in (2, 4, 5))
    assert (6, 0) not in draft.source and draft.of[0] == [0]


@pytest.mark.parametrize(("gone", "held"), [(2, [0, 0, 0, 1]), (3, [0, 0, 0, 0])])
def test_what_leaves_late_is_held_until_then(gone: int, held: list[int]) -> None:
    draft = long_lived()
    before = draft.memory[0].copy()
    send_away(draft, 0, [(4, 4), (5, 5)], 1, Trip(10, 5, 30, 5), gone, 4)
    assert ((before - draft.memory[0]) // 100).tolist() == [*held, 0, 0]


def test_what_comes_back_before_it_is_made_waits_for_that() -> None:
    draft = long_lived()
    send_away(draft, 0, [(5, 5)], 1, Trip(10, 5, 30, 5), 1, 0)
    assert draft.jobs[0].trigger == 0
