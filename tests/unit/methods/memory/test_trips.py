"""Trips over links that carry one thing at a time, worked out by hand."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.methods.memory.draft import Draft, draft_of
from loadmaster.methods.memory.trips import (
    Trip,
    back_starts,
    out_ends,
    send_away,
    waited_ns,
)
from loadmaster.plans import Plan
from tests.graphs.tiny import pair


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
