"""What follows from a step of at most some time, on a few ops that are done by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadmaster import Cluster, GraphBuilder, price
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem
from loadmaster.problem.bounds import levels, step, together, turns
from loadmaster.problem.bounds.allowed import Work
from loadmaster.problem.bounds.kinds import kinds_of, work_of
from loadmaster.problem.bounds.together import Implications
from loadmaster.problem.bounds.turns import EqualDeviceFacts


def equal(count: int) -> Cluster:
    """Devices of which each pair has a wire of its own: 5 ns, and 10 bytes a ns."""
    devices = tuple(Device(f"d{at}", "toy", 2**30, 1e9, 1e9, 0) for at in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    wires = np.array([[-1 if a == b else a * count + b for b in range(count)] for a in range(count)])
    return Cluster("equal", devices, {pair: Link(1e10, 5) for pair in pairs}, dense_channels(wires))


def crossing(devices: int = 2) -> Problem:
    """Two chains, a0 a1 and b0 b1, of long sends, that meet in an op at the end; beside them an op by itself."""
    g = GraphBuilder("crossing")
    a, b, c, d = (g.tensor(size) for size in (300, 200, 40, 20))
    g.op("a0", "any", [], [a], time_ns=10)
    g.op("b0", "any", [], [b], time_ns=20)
    g.op("a1", "any", [a], [c], time_ns=30)
    g.op("b1", "any", [b], [d], time_ns=25)
    g.op("alone", "any", [], [g.tensor(1, "output")], time_ns=15)
    g.op("end", "any", [c, d], [g.tensor(1, "output")], time_ns=5)
    return price(g.build(), equal(devices))


def facts_of(problem: Problem, **given: Any) -> EqualDeviceFacts:
    kinds, graph = kinds_of(problem, False, False), problem.graph
    work, share = work_of(kinds)
    joins = levels.bottlenecks(*graph.dependencies)
    common = (kinds.times, kinds.sends, kinds.column, kinds.count > 1, joins, work, share)
    ahead, behind = levels.ways_of(graph, *common)
    nothing = np.zeros(problem.num_ops, np.int64)
    head, tail = levels.soonest(ahead, nothing)[:, 0], levels.soonest(behind, nothing)[:, 0]
    later, earlier = step._ways(problem, kinds)
    time = ints(np.ascontiguousarray(kinds.times[:, 0]))
    return EqualDeviceFacts(
        time, work, share, problem.num_devices, problem.leader, later, earlier, ahead, behind, ints(head), ints(tail),
        **given,
    )  # fmt: skip


@pytest.mark.parametrize("true", [100, 101, 117, 124, 125, 400])
def test_halving_comes_to_the_least_that_is_not_refuted(true: int) -> None:
    asked = list[int]()

    def refuted(most: int) -> bool:
        asked.append(most)
        return most < true

    assert turns.halved(100, 125, 8, Work(), refuted) == min(true, 126), "one more than what was refuted"
    assert asked[0] == 112 and len(asked) == 8
    few = turns.halved(100, 125, 1, Work(), refuted)
    assert few == (113 if true > 112 else 100)
    assert turns.halved(100, 125, 8, Work(0.0), refuted) == 100, "no work is left"


def test_groups_by_their_latest_and_those_of_pairs_made_one() -> None:
    start, order = turns.members(ints([0, 1, 0, 2, 1]), ints([3, 4, 9, 1, 4]))
    assert start.tolist() == [0, 2, 4, 5] and order.tolist() == [2, 0, 1, 4, 3]
    assert turns.merged(ints([0, 3]), ints([2, 3]), 5).tolist() == [0, 1, 0, 2, 3]


def test_ways_and_sends_that_come_too_late() -> None:
    """The send of 300 bytes takes 35 ns, of 200 bytes 25, of 40 and 20 bytes 9 and 7."""
    facts = facts_of(crossing())
    sender, reader, wide = (each.tolist() for each in facts.sends)
    assert list(zip(sender, reader, wide, strict=True)) == [(0, 2, 35), (1, 3, 25), (2, 5, 9), (3, 5, 7)]
    assert facts.earlier[1].tolist() == [0, 1, 2, 3] and facts.earlier[2].tolist() == [35, 25, 9, 7]
    assert facts.head.tolist() == [0, 0, 10, 20, 0, 49] and facts.tail.tolist() == [35, 30, 5, 5, 0, 0]
    # Over a0's send: 0 + 10 + 35 + 30 + 5 = 80; b0's: 0 + 20 + 25 + 25 + 5 = 75; 10 + 30 + 9 + 5; 20 + 25 + 7 + 5.
    for most, late in ((80, [0, 0, 0, 0]), (79, [1, 0, 0, 0]), (74, [1, 1, 0, 0]), (56, [1, 1, 0, 1]), (53, [1] * 4)):
        assert facts.late_sends(facts.head, facts.tail, most).tolist() == [bool(each) for each in late]
    assert facts.reach[0][5].tolist() == [True, True, True, True, False, False]
    assert (facts.reach[1] == facts.reach[0].T).all()
    # The end cannot start before 49, when a1's 40 bytes are there.
    assert [facts.too_long(facts.head, facts.tail, most) for most in (53, 54, 55)] == [True, False, False]
    assert not facts.too_long(ints(np.zeros(6)), ints(np.zeros(6)), 53), "105 ns of work on two devices"
    assert facts.too_long(ints(np.zeros(6)), ints(np.zeros(6)), 52)


def test_a_step_that_is_too_short_is_refuted_and_one_that_there_is_not() -> None:
    """By hand: a0 and a1 on one device, b0, b1 and the end on the other, which a1's 40 bytes reach at 49: 54. Of two
    devices, the first has `alone` after a1: 55."""
    problem = crossing()
    for facts in (facts_of(problem), facts_of(crossing(3))):
        best = 55 if facts.devices == 2 else 54
        for rule in (
            turns._refuted,
            lambda known, most: together._conclude(known, together._first(known), most) is None,
        ):
            assert rule(facts, 40) and not rule(facts, best)
        assert 50 <= turns.least_step(facts, 50) <= best and 50 <= together.least_step(facts, 50) <= best
    facts = facts_of(problem)
    assert together._refuted(facts, together._first(facts), 54)
    assert together.least_step(facts, 50) == 55
    late = facts_of(problem, allowed=Work(0.0))
    assert turns.least_step(late, 50) == together.least_step(late, 50) == 50, "no work"
    assert not turns._refuted(late, 10)


# Implications


def known_of(facts: EqualDeviceFacts, groups: list[int], apart: list[tuple[int, int]]) -> Implications:
    table = np.zeros((max(groups) + 1,) * 2, bool)
    for one, other in apart:
        table[one, other] = table[other, one] = True
    return Implications(facts.head, facts.tail, ints(groups), table)


def test_groups_are_joined_unless_they_are_apart() -> None:
    facts = facts_of(crossing())
    known = known_of(facts, [0, 1, 2, 3, 3, 4], [(0, 1)])
    joined = known.joined(ints([1, 2]), ints([3, 4]))
    assert joined is not None and joined.group.tolist() == [0, 1, 2, 1, 1, 2]
    assert np.argwhere(joined.apart).tolist() == [[0, 1], [1, 0]]
    assert known.joined(ints([0]), ints([1])) is None
    assert known.joined(ints([0, 1]), ints([2, 2])) is None
    more = known.kept_apart(2, 4)
    assert np.argwhere(more.apart).tolist() == [[0, 1], [1, 0], [2, 4], [4, 2]] and not known.apart[2, 4]


def test_two_groups_that_are_too_much_for_one_device_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a1 and b1, the largest: 30 + 25 after the sooner start, 10, and before the lesser end, 5."""
    facts = facts_of(crossing())
    known = known_of(facts, [0, 1, 2, 3, 4, 5], [])
    assert not together._too_much(facts, known, 70).apart[2, 3]
    monkeypatch.setattr(together, "LARGEST", 2)
    found = together._too_much(facts, known, 69).apart
    assert np.argwhere(found).tolist() == [[2, 3], [3, 2]]
    monkeypatch.setattr(together, "LARGEST", 3)  # b0, of 20: with a1 0 + 50 + 5, with b1 0 + 45 + 5
    found = together._too_much(facts, known, 54).apart
    assert np.argwhere(found).tolist() == [[1, 2], [2, 1], [2, 3], [3, 2]]


def test_of_two_devices_who_is_apart_from_the_same_is_together() -> None:
    facts = facts_of(crossing())
    known = known_of(facts, [0, 1, 2, 3, 4, 5], [(0, 1), (1, 4)])
    found = together._share(facts, known, 10**6)
    assert found is not None and found.group.tolist() == [0, 1, 2, 3, 0, 4]
    three = facts_of(crossing(3))
    found = together._share(three, known, 10**6)
    assert found is not None and found.group.tolist() == [0, 1, 2, 3, 4, 5]


def test_pairs_that_are_tried_are_those_of_the_longest_sends_and_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(crossing(3))
    known = known_of(facts, [0, 1, 2, 3, 4, 5], [(1, 3)])
    assert together._pairs(facts, known) == [(0, 2), (2, 5), (3, 5)], "35, 9 and 7 ns; of 25 it is known"
    facts = facts_of(crossing())
    monkeypatch.setattr(together, "LONGEST", 2)  # a1 and b1: each way half of 25
    assert together._pairs(facts, known) == [(0, 2), (2, 3), (2, 5), (3, 5)]
    monkeypatch.setattr(together, "PAIRS", 3)
    assert together._pairs(facts, known) == [(0, 2), (2, 3), (2, 5)]
    one = known_of(facts, [0, 1, 0, 1, 2, 0], [])
    assert together._pairs(facts, one) == [(0, 1)], "b1's send, 7, and of the groups of 45 each 22 twice"


@pytest.mark.parametrize("most", [1, 3])
def test_pairs_are_tried_so_many_times(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_of(crossing(3))
    known, asked = together._first(facts), list[tuple[int, int]]()
    own: Callable[..., Implications | None] = Implications.joined

    def joined(self: Implications, one: Ints, other: Ints) -> Implications | None:
        asked.append((int(one[0]), int(other[0])))
        return own(self, one, other)

    monkeypatch.setattr(Implications, "joined", joined)
    monkeypatch.setattr(together, "TRIES", most)
    monkeypatch.setattr(together, "_conclude", lambda facts, known, most: known)
    monkeypatch.setattr(together, "_pairs", lambda *_: [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert not together._refuted(facts, known, 10**6)
    assert asked == [(0, 1), (1, 2), (2, 3), (3, 4)][:most]


def test_pairs_are_tried_in_problems_of_few_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, asked = facts_of(crossing()), list[int]()
    monkeypatch.setattr(together, "_refuted", lambda facts, known, most: bool(asked.append(most)))
    monkeypatch.setattr(together, "MOST_PROBED", 5)
    together.least_step(facts, 50)
    assert not asked
    monkeypatch.setattr(together, "MOST_PROBED", 6)
    together.least_step(facts, 50)
    assert len(asked) == together.PROBED


def test_how_often_the_interval_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the bound so far to a quarter more."""
    facts, asked = facts_of(crossing()), dict[str, list[int]]()

    def never(name: str) -> Callable[..., bool]:
        return lambda *given: bool(asked.setdefault(name, []).append(given[-1]))

    monkeypatch.setattr(turns, "_refuted", never("turns"))
    monkeypatch.setattr(together, "_refuted", never("pairs"))
    assert turns.least_step(facts, 1_000) == together.least_step(facts, 1_000) == 1_000
    assert asked["turns"] == [1125, 1062, 1031, 1015, 1007, 1003, 1001, 1000]
    assert asked["pairs"] == [1125, 1062, 1031, 1015, 1007]
