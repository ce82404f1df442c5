"""Critical path, device times, wire loads and peaks: they add up exactly, on any plan, and are right by hand on tiny
ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.plans import Plan
from loadmaster.report.critical import critical_path
from loadmaster.report.memory import peaks
from loadmaster.report.occupancy import device_times, wire_loads
from loadmaster.report.schedule import Schedule
from loadmaster.simulator import simulate
from tests.graphs import GRAPHS, pair
from tests.reference import judge
from tests.strategies import plans, problems


def schedule_of(problem: Any, plan: Plan) -> Schedule:
    return Schedule.of(problem, plan, simulate(problem, plan))


def by_hand(name: str, device: list[int]) -> Schedule:
    problem = price(GRAPHS[name](), pair())
    return schedule_of(problem, Plan.of(problem, device))


@given(data=st.data())
def test_path_is_without_gaps_and_as_long_as_the_step(data: Any) -> None:
    problem = data.draw(problems(hosts=True))
    plan = data.draw(plans(problem))
    schedule = schedule_of(problem, plan)
    path = critical_path(schedule)
    assert path.pieces[0].start_ns == path.host_ns
    assert (path.pieces[0].why == "host") == (path.host_ns > 0) and (not path.host_ns or len(problem.dispatch_ns))
    assert path.pieces[-1].end_ns == schedule.step_ns
    for before, after in zip(path.pieces, path.pieces[1:], strict=False):
        assert before.end_ns == after.start_ns
    assert path.length_ns == path.compute_ns + path.transfer_ns + path.host_ns == schedule.step_ns
    assert sum(share.compute_ns for share in path.by_scope) == path.compute_ns
    assert sum(share.transfer_ns for share in path.by_scope) == path.transfer_ns
    assert path.queue_ns <= path.length_ns


@given(data=st.data())
def test_pieces_are_what_the_reference_ran(data: Any) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem))
    judged = judge(problem, plan)
    schedule = schedule_of(problem, plan)
    sends = {(t, dst): (start, end) for t, _, dst, start, end in judged.sends}
    for piece in critical_path(schedule).pieces:
        if piece.kind == "op":
            op = int(schedule.heads[piece.index])
            assert (judged.start[op], judged.end[op]) == (piece.start_ns, piece.end_ns)
        else:
            line = schedule.timeline
            key = int(line.send_tensor[piece.index]), int(line.send_dst[piece.index])
            assert sends[key] == (piece.start_ns, piece.end_ns)


@given(data=st.data())
def test_times_of_each_device_add_up_to_the_step(data: Any) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem))
    judged = judge(problem, plan)
    for device, row in enumerate(device_times(schedule_of(problem, plan))):
        parts = (row.compute_ns, row.transfer_wait_ns, row.idle_ns, row.finished_ns)
        assert min(parts) >= 0
        assert sum(parts) == judged.step_ns
        heads = {int(plan.kernel[op]) for op in range(problem.num_ops) if plan.device[op] == device}
        assert row.compute_ns == sum(judged.end[op] - judged.start[op] for op in heads)
        assert row.kernels == len(heads)
        assert row.ops == int((plan.device == device).sum())


@given(data=st.data())
def test_wires_carry_what_the_reference_sent(data: Any) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem, fuse=False))
    sends = judge(problem, plan).sends
    loads = wire_loads(schedule_of(problem, plan))
    assert sum(load.sends for load in loads) == len(sends)
    assert sum(load.sent_bytes for load in loads) == sum(int(problem.graph.nbytes[t]) for t, *_ in sends)
    assert sum(load.busy_ns for load in loads) == sum(end - start for *_, start, end in sends)
    assert [load.busy_ns for load in loads] == sorted((load.busy_ns for load in loads), reverse=True)
    assert len({load.name for load in loads}) == len(loads)


@given(data=st.data())
def test_what_is_alive_at_the_peak_adds_up_to_it(data: Any) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem))
    judged = judge(problem, plan)
    for device, peak in enumerate(peaks(schedule_of(problem, plan))):
        assert peak.peak_bytes == judged.peak[device]
        assert sum(part.nbytes for part in peak.parts) == peak.peak_bytes
        assert sum(nbytes for _, nbytes in peak.by_role) == peak.peak_bytes
        first = next((ns for ns, held in judged.curve(device) if held == peak.peak_bytes))
        assert peak.at_ns == first


def test_worked_example() -> None:
    # a 0-10 on d0, A sent 10-25, c 25-55 on d1, C sent 55-64, d 64-74 on d0 (b 10-30 on d0 waits for nobody)
    schedule = by_hand("diamond", [0, 0, 1, 0])
    path = critical_path(schedule)
    assert [(piece.name, piece.start_ns, piece.end_ns, piece.why) for piece in path.pieces] == [
        ("a", 0, 10, "start"),
        ("output of a", 10, 25, "data"),
        ("c", 25, 55, "data"),
        ("output of c", 55, 64, "data"),
        ("d", 64, 74, "data"),
    ]
    assert (path.compute_ns, path.transfer_ns, path.queue_ns) == (50, 24, 0)
    d0, d1 = device_times(schedule)
    # d0 is free from 30 to 64: C is being made until 55, then on its way; d1 waits 10 for a, then 15 for the wire
    assert (d0.compute_ns, d0.transfer_wait_ns, d0.idle_ns, d0.finished_ns) == (40, 9, 25, 0)
    assert (d1.compute_ns, d1.transfer_wait_ns, d1.idle_ns, d1.finished_ns) == (30, 15, 10, 19)
    first, second = wire_loads(schedule)
    assert (first.name, first.sends, first.sent_bytes, first.busy_ns) == ("d0 > d1", 1, 100, 15)
    assert (second.name, second.sends, second.sent_bytes, second.busy_ns) == ("d1 > d0", 1, 40, 9)
    one, other = peaks(schedule)
    assert (one.peak_bytes, one.at_ns, one.cause.name) == (150, 10, "b")
    assert [(tensor.name, tensor.nbytes) for tensor in one.largest] == [("output of a", 100), ("output of b", 50)]
    assert one.largest[0].until_ns == 30
    assert (other.peak_bytes, other.at_ns, other.cause.name) == (140, 25, "c")
    assert dict(other.by_role) == {"received copy": 100, "activation": 40}


def test_an_op_that_waits_for_its_device() -> None:
    path = critical_path(by_hand("fork", [0, 0, 0, 0]))
    # b, c and d all need a alone; c and d are ready at 10 and wait for the ones before them to end
    assert [piece.why for piece in path.pieces] == ["start", "data", "device", "device"]
    assert path.queue_ns == 20


def test_a_weight_that_is_sent_and_workspace_are_named() -> None:
    schedule = by_hand("shared_weight", [0, 1, 0])
    peak = peaks(schedule)[1]
    assert dict(peak.by_role) == {"received copy": 200, "activation": 40, "input": 16}
    work = peaks(by_hand("join", [0, 0, 0, 0, 0]))[0]
    assert dict(work.by_role) == {"workspace": 64, "activation": 60, "output": 4}
    assert work.cause.name == "d"


def test_a_device_without_ops_is_finished_all_along() -> None:
    row = device_times(by_hand("chain", [0, 0, 0]))[1]
    assert (row.compute_ns, row.finished_ns, row.kernels) == (0, 35, 0)
    empty = peaks(by_hand("chain", [0, 0, 0]))[1]
    assert (empty.peak_bytes, empty.cause.kind, empty.parts) == (0, "start", ())
    assert np.array_equal([empty.at_ns], [0])
