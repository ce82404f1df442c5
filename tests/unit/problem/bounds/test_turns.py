"""What follows from a step of at most some time, on a few ops that are done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster import Cluster, GraphBuilder, price
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.problem import Problem
from loadmaster.problem.bounds import levels, step, together, turns
from loadmaster.problem.bounds.among import Work
from loadmaster.problem.bounds.kinds import kinds_of, work_of
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
