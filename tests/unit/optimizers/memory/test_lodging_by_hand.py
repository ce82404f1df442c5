"""When what lives on a host comes and goes, on a row of ten kernels; tensor 0 is the one that does."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import lodging
from loadmaster.optimizers.memory.draft import Draft, Job
from loadmaster.optimizers.memory.lodging import APART, OVERLAPPED, SHARE, Lodging, Visit
from loadmaster.optimizers.memory.trips import NEVER, SLACK_NS, Trip

MS = 10 * SLACK_NS
NONE = Trip(0, 0, 0, 0)


def row(**given: Any) -> Any:
    """Kernels of `MS` each on device 1, op by op; device 0 is the host; tensor 0 is of 100 bytes, and tensor 1, which
    is written over it, made by op 8."""
    draft: Any = Draft.__new__(Draft)
    starts = MS * np.arange(10)
    vars(draft).update(
        heads=np.arange(10), at=list(range(10)), device=[1] * 10, producer=[-1, 8], owner=[0, 0], nbytes=[100, 100],
        start_ns=starts, end_ns=starts + MS, lead=inf, follows=False, trips={}, jobs=[], hosts={}, versions=[], of={},
        given={0: [(2, 5), (3, 4), (8, 9)]}, updates=[-1, -1], source={}, lodged=set(), changed=set(), chains={},
        _passed={}, _held=np.full((2, 10), 1_000),
    )  # fmt: skip
    vars(draft).update(given)
    return draft


def sending(draft: Any, out: int, back: int) -> Any:
    draft.problem = SimpleNamespace(send_ns=np.array([[back, out], [9, 9]]), send_class=np.array([[7, 0], [1, 7]]))
    return draft


def test_uses_that_are_near_each_other_are_one_visit() -> None:
    """Four kernels lie between those at 3 and 8."""
    draft = row()
    assert lodging._stretches(draft, 0, 4 * MS - 1) == [[(2, 5), (3, 4)], [(8, 9)]]
    assert lodging._stretches(draft, 0, 4 * MS) == [[(2, 5), (3, 4), (8, 9)]]
    draft.given[0] = [(8, 9), (2, 5)]
    assert lodging._stretches(draft, 0, -1) == [[(2, 5)], [(8, 9)]], "in their order"


def test_a_weight_comes_for_its_readers() -> None:
    """It takes half a kernel: once while kernel 1 runs, once while 7 does."""
    back = MS // 2
    found = lodging.lodging_of(sending(row(), 5, back), 0, 0)
    due = [2 * MS - SLACK_NS, 8 * MS - SLACK_NS]
    visits = [
        Visit([(2, 5), (3, 4)], 1, Trip(0, 0, due[0], back)),
        Visit([(8, 9)], 7, Trip(0, 0, due[1], back)),
    ]
    assert found == Lodging(visits, None, -1, 2 * back // OVERLAPPED)
    near = 4 * MS - 2 * SLACK_NS
    assert len(lodging.lodging_of(sending(row(), 5, near // APART), 0, 0).visits) == 1
    assert len(lodging.lodging_of(sending(row(), 5, near // APART - 1), 0, 0).visits) == 2


@pytest.mark.parametrize(("out", "left", "late"), [(MS // 2, 9, 0), (MS, 9, 0), (3 * MS, 9, 2 * MS)])
def test_what_is_updated_goes_back_and_may_hold_up_the_end(out: int, left: int, late: int) -> None:
    """Updated by op 8, which ends when kernel 9 begins."""
    back = 40
    found = lodging.lodging_of(sending(row(updates=[1, -1]), out, back), 0, 0)
    assert found.back == Trip(9 * MS, out, NEVER, 0) and found.left == left
    assert found.cost_ns == late + (2 * back + out) // OVERLAPPED
    early = lodging.lodging_of(sending(row(updates=[1, -1], producer=[-1, 4]), MS // 2, back), 0, 0)
    assert early.left == 5, "it has left while kernel 5 runs"


def test_what_others_carry_already_is_not_its_cost() -> None:
    """Another is late by a kernel; this one, due later, by nothing more."""
    before = {3: Trip(0, 0, 0, MS), 4: Trip(0, 11 * MS, NEVER, 0)}
    plain = lodging.lodging_of(sending(row(), 5, 40), 0, 0)
    beside = lodging.lodging_of(sending(row(trips=before), 5, 40), 0, 0)
    assert [visit.uses for visit in beside.visits] == [visit.uses for visit in plain.visits]
    assert beside.cost_ns == plain.cost_ns == 2 * 40 // OVERLAPPED


def test_what_is_not_updated_pays_for_the_ways_here_alone() -> None:
    """A part of 59 ns, and of no more."""
    found = lodging.lodging_of(sending(row(given={0: [(8, 9)]}), 5, 3 * OVERLAPPED - 1), 0, 0)
    assert found.cost_ns == 2


def test_the_least_it_costs_is_one_way_or_both() -> None:
    assert lodging.least_cost_ns(sending(row(), 300, 519), 0, 0) == 25 == 519 // OVERLAPPED
    for update in (0, 1):
        assert lodging.least_cost_ns(sending(row(updates=[update]), 300, 500), 0, 0) == 800 // OVERLAPPED


def test_how_long_the_step_waits_for_what_goes_back() -> None:
    draft = row()
    assert lodging._held_up(draft, [], []) == 0
    assert lodging._held_up(draft, [], [5, 10 * MS + 7]) == 7
    assert lodging._held_up(draft, [Trip(0, 0, 0, 30)], [5]) == 30


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, [0]), ({"given": {0: [(2, 5), (3, 4)], 1: []}, "device": [1, 1, 1, 1, 0, 1]}, []),
        ({"limit": 100 * SHARE}, [0]), ({"limit": 100 * SHARE + 1}, []), ({"able": False}, []), ({"hosts": {0: 1}}, []),
        ({"nbytes": 0, "limit": 0}, []),
    ],
)  # fmt: skip
def test_which_tensors_may_live_on_a_host(change: Any, found: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that one device reads, which has a host, and that are not too small to be worth a thought."""
    able = np.array([change.pop("able", True), False])
    monkeypatch.setattr(lodging, "may_live_elsewhere", lambda _: able)
    limit, hosts = change.pop("limit", 5), change.pop("hosts", {1: 0})
    size = change.pop("nbytes", 100)
    draft = row(**change, problem=SimpleNamespace(graph=SimpleNamespace(nbytes=np.array([size, 100]))))
    assert lodging.lodgers(draft, hosts, ints([5, limit])) == found


def lodged(begin: int = 1, left: int = -1) -> Any:
    """Here for kernels 2 and 3 and for 8, where it is updated if it leaves afterwards."""
    draft = row(updates=[1, -1])
    visits = [Visit([(2, 5), (3, 4)], begin, Trip(0, 0, 5, 9)), Visit([(8, 9)], 7, Trip(0, 0, 6, 9))]
    way_back = Trip(0, 4, NEVER, 0) if left >= 0 else None
    return draft, lodging.lodge(draft, 0, 0, Lodging(visits, way_back, left, 0))


def test_it_is_here_for_its_visits_alone_and_until_it_has_left() -> None:
    draft, undo = lodged(left=9)
    here = [1, 2, 3, 7, 8, 9]
    assert draft.memory[1].tolist() == [1_000 if at in here else 900 for at in range(10)]
    assert [job.given for job in draft.jobs] == [0, 0, 1] and draft.jobs[2].left == 9 and draft.jobs[2].at == 9
    assert set(draft.hosts.values()) == {0} and len(draft.trips) == 3 and draft.lodged == {0}
    assert draft.source == {(5, 0): 0, (4, 0): 0, (9, 0): 1}
    assert [job.makes for job in draft.jobs] == [(0,), (1,), ()]
    undo()
    assert (draft.memory == 1_000).all() and not draft.jobs and not draft.trips and not draft.hosts
    assert not draft.source and not draft.versions and not draft.of and not draft.lodged


def test_it_lives_here_after_all_where_that_fits() -> None:
    draft, _ = lodged(left=9)
    draft.jobs.append(Job(-1, 3, stay=0))
    draft.trips[3] = NONE  # a stay of another tensor, which is not touched
    for at, size in ((0, 901), (4, 901), (9, 1_001)):
        draft._held[1, at] = size
        lodging.bring_home(draft, 0, 1_000)
        assert draft.lodged == {0}, "a byte too much, at one position"
        draft._held[1, at] = size - 1
    lodging.bring_home(draft, 0, 1_000)
    assert not draft.lodged and list(draft.trips) == [3] and not draft.source
    assert (draft.memory[1] == 1_000).all() and (draft.memory[0] == 1_000).all()


def test_where_each_is_here() -> None:
    draft, _ = lodged(left=9)
    assert [lodging._span_of(draft, job) for job in range(3)] == [(1, 3), (7, 8), (9, 9)]


def test_what_links_carry_most_of_comes_home_first() -> None:
    """Tensor 0 has two visits and a way back, tensor 2 one of as many bytes in all, and is read first."""
    draft, _ = lodged(left=9)
    draft.owner, draft.nbytes, draft.producer = [0, 0, 2, 3], [100, 100, 300, 300], [-1, 8, -1, -1]
    draft.given |= {2: [(1, 1)], 3: [(1, 1), (4, 4)]}
    for tensor in (3, 2):
        draft.lodged.add(tensor)
        draft.trips[len(draft.jobs)] = NONE
        draft.jobs.append(Job(-1, 3, given=tensor))
    draft.trips[len(draft.jobs)] = NONE
    draft.jobs.append(Job(-1, 3, stay=0))
    assert lodging.heaviest(draft) == [2, 3, 0]
    draft.given[2], draft.given[3] = [(1, 2), (4, 4)], [(1, 1), (9, 9)]
    assert lodging.heaviest(draft) == [3, 2, 0]
    draft.given[0] = [(0, 0)]
    assert lodging.heaviest(draft) == [0, 3, 2]


@pytest.mark.parametrize(("begin", "here"), [(0, [0, 1, 2, 3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_a_visit_is_moved(begin: int, here: list[int]) -> None:
    draft, _ = lodged()
    before = lodging._put(draft, {0: (begin, -1)})
    assert before == {0: (1, -1)} and draft.jobs[0].at == draft.versions[0].made == begin
    assert draft.memory[1].tolist() == [1_000 if at in (*here, 7, 8) else 900 for at in range(10)]
    lodging._put(draft, before)
    assert draft.memory[1].tolist() == [1_000 if at in (1, 2, 3, 7, 8) else 900 for at in range(10)]


@pytest.mark.parametrize(("left", "here"), [(9, [5, 6, 7, 8, 9]), (4, []), (5, [5]), (7, [5, 6, 7])])
def test_a_way_back_is_moved(left: int, here: list[int]) -> None:
    """Updated at 4: from 5 on it is here until it has left, at first at 6."""
    draft = row(updates=[1, -1], producer=[-1, 4], given={0: [(4, 4)]})
    visits = [Visit([(4, 4)], 4, Trip(0, 0, 5, 9))]
    lodging.lodge(draft, 0, 0, Lodging(visits, Trip(0, 4, NEVER, 0), 6, 0))
    lodging._put(draft, {1: (9, left)})
    assert draft.memory[1].tolist() == [1_000 if at in (4, *here) else 900 for at in range(10)]
    assert draft.jobs[1].left == left


def test_all_that_travels_is_moved_to_when_the_links_carry_it() -> None:
    """Due at 2 and 8 for half a kernel each: from 1 and 7 on; what goes back takes until 9.5 kernels."""
    draft, _ = lodged(begin=2, left=8)
    draft.trips = {
        0: Trip(0, 0, 2 * MS - SLACK_NS, MS // 2), 1: Trip(0, 0, 8 * MS - SLACK_NS, MS // 2),
        2: Trip(9 * MS, MS // 2, NEVER, 0),
    }  # fmt: skip
    before = lodging._follow_links(draft)
    assert before == {0: (2, -1), 1: (7, -1), 2: (9, 8)}
    assert [version.made for version in draft.versions] == [1, 7] and draft.jobs[2].left == 9
    draft.trips[0] = Trip(0, 0, 5 * MS, 1)
    lodging._follow_links(draft)
    assert draft.versions[0].made == 2, "no later than its first reader"


@pytest.mark.parametrize(("full", "begin"), [([], 1), ([1], 2), ([2], 3), ([3], 4), ([1, 3], 4), ([4], 1), ([0], 1)])
def test_a_visit_sets_out_early_where_there_is_room(full: list[int], begin: int) -> None:
    """It is due at 6 and takes 4.5 kernels, so that it would leave during kernel 1; so far it is here from 4 on."""
    draft = row(given={0: [(6, 6)]})
    lodging.lodge(draft, 0, 0, Lodging([Visit([(6, 6)], 4, Trip(0, 0, 6 * MS - SLACK_NS, 9 * MS // 2))], None, -1, 0))
    draft.jobs += [Job(-1, 3, stay=0), Job(-1, 3, given=1)]
    draft.trips |= {1: Trip(0, 0, 6 * MS, 0), 2: Trip(0, 0, NEVER, 0)}
    draft._held[1] = 900
    draft._held[1, full] = 901
    lodging.set_out_early(draft, ints([0, 1_000]))
    assert draft.versions[0].made == draft.jobs[0].at == begin
