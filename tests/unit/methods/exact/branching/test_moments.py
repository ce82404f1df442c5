"""Moments of steps of two or three ops, gone through by hand; op 0, tensor 0, device 0 and copy 0 among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster import GraphBuilder, price
from loadmaster.methods.exact.branching import moments
from loadmaster.methods.exact.branching.branch_and_bound import SearchTree
from loadmaster.methods.exact.branching.moments import (
    ENDED,
    ON_ITS_WAY,
    OVER,
    PLACE,
    QUEUED,
    RUN,
    RUNS,
    SEND,
    THERE,
    WAITS,
    advance,
    choose,
    options,
    parts,
)
from loadmaster.plans import Plan
from tests.graphs.tiny import pair


class Moment:
    """A row of a problem, with names for its parts."""

    def __init__(self, graph: GraphBuilder) -> None:
        problem = price(graph.build(), pair())
        device = np.where(problem.able[:, 0], 0, 1)
        self.facts: Any = SearchTree(problem, Plan.of(problem, device)).facts
        numbers, _ = moments.room_of(self.facts)
        self.row, self.found = np.empty(numbers, np.int64), np.zeros(99, np.int64)
        moments.begin(self.facts, self.row)
        columns = parts(self.facts, self.row)
        self.place, self.status, self.end, self.copy, self.copy_end, self.device, self.channel, *_ = columns

    def go(self) -> tuple[int, int]:
        kind, what = advance(self.facts, self.row, self.found)
        return int(kind), int(what)

    def options(self, kind: int, what: int) -> list[int]:
        return self.found[: options(self.facts, self.row, kind, what, self.found)].tolist()

    def choose(self, kind: int, what: int, option: int) -> None:
        choose(self.facts, self.row, kind, what, option)


def sending() -> Moment:
    """Op 0, on device 1, makes tensors of 100 and 50 bytes, which ops 1 and 2 read on device 0."""
    g = GraphBuilder("sending")
    large, small = g.tensor(100), g.tensor(50)
    g.op("make", "any", [], [large, small], time_ns=[None, 10])
    g.op("one", "any", [large], [], time_ns=[7, None])
    g.op("two", "any", [small], [], time_ns=[3, None])
    return Moment(g)


def test_copies_share_a_wire_one_after_the_other() -> None:
    """100 bytes take 15 ns and 50 take 10. While copy 0 is on the wire the other one waits."""
    moment = sending()
    kind, wire = moment.go()
    assert (kind, int(moment.row[0])) == (SEND, 10) and moment.options(SEND, wire) == [0, 2]
    assert moment.status.tolist() == [ENDED, WAITS, WAITS] and moment.place.tolist() == [1, 0, 0]
    moment.choose(SEND, wire, 0)
    assert moment.channel[wire] == 0 and moment.copy[[0, 2]].tolist() == [ON_ITS_WAY, QUEUED]
    assert moment.go() == (OVER, 0)
    assert moment.copy_end[[0, 2]].tolist() == [10 + 15, 25 + 10] and moment.copy[[0, 2]].tolist() == [THERE, THERE]
    assert moment.end.tolist() == [10, 25 + 7, 35 + 3] and moment.row[0] == 38
    other = sending()
    other.go()
    other.choose(SEND, wire, 2)
    assert other.go() == (OVER, 0) and other.copy_end[[0, 2]].tolist() == [20 + 15, 10 + 10]


def alike(times: list[int]) -> Moment:
    """Two ops that nothing tells apart."""
    g = GraphBuilder("alike")
    for op in range(2):
        g.op(f"op{op}", "any", [], [g.tensor(1)], time_ns=times)
    return Moment(g)


def test_ops_that_nothing_tells_apart_go_to_devices_in_order() -> None:
    moment = alike([5, 6])
    assert moment.go() == (PLACE, 0) and moment.options(PLACE, 0) == [0, 1]
    moment.choose(PLACE, 0, 1)
    assert moment.options(PLACE, 1) == [1], "op 0, its twin, is there"
    moment.place[0] = 0
    assert moment.options(PLACE, 1) == [0, 1]


def test_of_two_that_are_alike_on_a_device_the_first_runs_first() -> None:
    moment = alike([5, 6])
    moment.place[:] = 1
    assert moment.options(RUN, 1) == [0] and moment.options(RUN, 0) == []
    moment.status[0] = RUNS
    assert moment.options(RUN, 1) == [1]
    moment.status[0], moment.place[0] = WAITS, 0
    assert moment.options(RUN, 1) == [1] and moment.options(RUN, 0) == [0]


def test_of_devices_that_are_alike_and_empty_the_first_is_taken() -> None:
    moment = alike([5, 5])
    assert moment.options(PLACE, 0) == [0], "device 1 would be the same"
    moment.place[0] = 0
    assert moment.options(PLACE, 1) == [0, 1], "device 0 is no longer empty"


def test_an_op_is_ready_once_all_it_waits_for_is_done_and_there() -> None:
    g = GraphBuilder("ready")
    made = g.tensor(10)
    g.op("make", "any", [], [made], time_ns=1)
    g.op("other", "any", [], [], time_ns=1)
    g.op("read", "any", [made], [], time_ns=1, after=["other"])
    moment = Moment(g)
    moment.place[:] = [0, 0, 1]

    def ready(*status: int) -> bool:
        moment.status[:2] = status
        return moment.options(RUN, 1) == [2]

    assert not ready(ENDED, ENDED), "the copy is not there"
    moment.copy[1] = THERE
    assert ready(ENDED, ENDED) and not ready(ENDED, RUNS) and not ready(WAITS, ENDED)
    moment.copy[:], moment.place[2] = 0, 0
    moment.status[:2] = ENDED
    assert moment.options(RUN, 0) == [2], "at home it needs no copy"
