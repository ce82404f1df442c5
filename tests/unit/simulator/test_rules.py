"""The rules of simulate.py about time, one by one, each on an example small enough to run by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.errors import InvalidCluster, InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.simulator import Timeline, settle, simulate, simulate_many
from tests.graphs import pair
from tests.graphs.tiny import diamond
from tests.unit.simulator.by_hand import FREE, OUT_BUS, PER_PAIR, curve, run, sends, spans, three_tensors, trio


class TestWorkedExample:
    """A step worked out in the text of the rules."""

    def line(self) -> Timeline:
        problem = price(diamond(), pair())
        return simulate(problem, Plan.of(problem, [0, 0, 1, 0]))

    def test_times(self) -> None:
        line = self.line()
        assert spans(line) == [(0, 10), (10, 30), (25, 55), (64, 74)]
        assert sends(line) == [(0, 1, 10, 25), (2, 0, 55, 64)]
        assert line.send_src.tolist() == [0, 1]
        assert line.step_ns == 74

    def test_memory(self) -> None:
        line = self.line()
        assert curve(line, 0) == [(0, 0), (0, 100), (10, 150), (30, 50), (55, 90), (64, 98), (74, 8)]
        assert curve(line, 1) == [(0, 0), (10, 100), (25, 140), (55, 40), (64, 0)]
        assert line.peak_bytes.tolist() == [150, 140]
        assert line.over_bytes == 0

    def test_over_bytes(self) -> None:
        problem = price(diamond(), pair(memory_bytes=145))
        assert simulate(problem, Plan.of(problem, [0, 0, 1, 0])).over_bytes == 5


def test_rule_1_times_and_sizes_are_whole_numbers() -> None:
    g = GraphBuilder()
    a, b = g.tensor(7), g.tensor(1)
    g.op("a", "any", [], [a], flops=10, bytes_moved=0)
    g.op("b", "any", [a], [b], flops=10, bytes_moved=0)
    cluster = replace(pair(link=Link(3e9, 0)), devices=tuple(replace(d, flops_per_s=3e9) for d in pair().devices))
    line = run(g, [0, 1], cluster)
    assert type(line.step_ns) is int and type(line.over_bytes) is int
    for column in (line.start_ns, line.end_ns, line.send_start_ns, line.send_end_ns, line.peak_bytes, line.curve_bytes):
        assert column.dtype == np.int64
    # 10 flops at 3 per ns is 3.33 ns, 7 bytes at 3 per ns 2.33: each rounded up on its own.
    assert spans(line) == [(0, 4), (7, 11)]


def test_rule_2_a_device_runs_one_op_at_a_time_to_its_end() -> None:
    g = GraphBuilder()
    x = g.tensor(0)
    g.op("first", "any", [], [x], time_ns=10)  # on d1
    g.op("long", "any", time_ns=100)
    g.op("urgent", "any", [x], time_ns=1)
    line = run(g, [1, 0, 0], rank=[0, 2, 1])
    assert spans(line) == [(0, 10), (0, 100), (100, 101)]


def test_rule_2_launch_is_part_of_the_time_but_not_of_a_given_one() -> None:
    g = GraphBuilder()
    g.op("model", "any", flops=20)
    g.op("given", "any", time_ns=20)
    assert spans(run(g, [0, 1], pair(launch_ns=7))) == [(0, 27), (0, 20)]


def test_rule_3_waits_for_after_without_a_send() -> None:
    g = GraphBuilder()
    g.op("a", "any", time_ns=10)
    g.op("b", "any", time_ns=1, after=["a"])
    line = run(g, [0, 1])
    assert spans(line) == [(0, 10), (10, 11)] and line.num_sends == 0


def test_rule_3_lowest_rank_first_then_lower_index() -> None:
    g = GraphBuilder()
    for name in "abcd":
        g.op(name, "any", time_ns=10)
    line = run(g, [0, 0, 0, 0], rank=[5, 5, 2, 5])
    assert line.start_ns.tolist() == [10, 20, 0, 30]


def test_rule_3_never_idles_for_an_urgent_op() -> None:
    g = GraphBuilder()
    x = g.tensor(0)
    g.op("far", "any", [], [x], time_ns=1)
    g.op("urgent", "any", [x], time_ns=1)
    g.op("lazy", "any", time_ns=50)
    line = run(g, [1, 0, 0], pair(link=FREE), rank=[0, 0, 9])
    assert line.start_ns.tolist() == [0, 50, 0]


def test_rule_4_one_send_serves_all_readers_there() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    g.op("make", "any", [], [x], time_ns=1)
    g.op("one", "any", [x], time_ns=1)
    g.op("two", "any", [x], time_ns=1)
    assert sends(run(g, [0, 1, 1])) == [(0, 1, 1, 16)]


@pytest.mark.parametrize(
    ("link", "nbytes", "takes"),
    [
        (Link(1e10, 5), 100, 15),
        (Link(1e10, 5), 101, 16),  # 10.1 ns of bytes
        (Link(1e10, 5), 0, 5),
        (Link(None, 5), 10**6, 5),
        (FREE, 10**6, 0),
        (Link(3e8, 0), 1, 4),  # 3.33 ns
    ],
)
def test_rule_4_latency_plus_bytes_over_bandwidth_rounded_up(link: Link, nbytes: int, takes: int) -> None:
    g = GraphBuilder()
    x = g.tensor(nbytes)
    g.op("make", "any", [], [x], time_ns=1)
    g.op("read", "any", [x], time_ns=1)
    assert sends(run(g, [0, 1], pair(link=link))) == [(0, 1, 1, 1 + takes)]


def test_rule_4_sends_go_by_the_lowest_rank_among_the_readers() -> None:
    line = run(three_tensors(), [0, 1, 1, 1], rank=[0, 3, 1, 2])
    assert [tensor for tensor, *_ in sends(line)] == [1, 2, 0]


def test_rule_4_the_most_urgent_of_several_readers_counts() -> None:
    g = GraphBuilder()
    plain, urgent = g.tensor(10), g.tensor(10)
    g.op("make", "any", [], [plain, urgent], time_ns=0)
    for name, tensor in (("plain", plain), ("lazy", urgent), ("hasty", urgent), ("lazier", urgent)):
        g.op(name, "any", [tensor], time_ns=1)
    line = run(g, [0, 1, 1, 1, 1], rank=[0, 5, 8, 1, 9])
    assert [tensor for tensor, *_ in sends(line)] == [urgent, plain]


def test_rule_4_send_rank_comes_before_the_readers_rank() -> None:
    problem = price(three_tensors().build(), pair())
    # Tensor 2 has no rank of its own and goes by its reader's, 1: between the other two.
    plan = replace(Plan.of(problem, [0, 1, 1, 1], [0, 0, 0, 1]), send_rank=ints([[-1, 2], [-1, 0], [-1, -1]]))
    assert [tensor for tensor, *_ in sends(simulate(problem, plan))] == [1, 2, 0]


def test_rule_4_ties_go_by_tensor_then_destination() -> None:
    g = GraphBuilder()
    made = [g.tensor(10) for _ in range(2)]
    g.op("make", "any", [], made[::-1], time_ns=0)
    g.op("far", "any", made, time_ns=1)
    g.op("near", "any", made, time_ns=1)
    line = run(g, [0, 2, 1], trio(OUT_BUS), rank=[0, 4, 4])
    assert sends(line) == [(0, 1, 0, 10), (0, 2, 10, 20), (1, 1, 20, 30), (1, 2, 30, 40)]


def test_rule_5_pairs_with_one_number_share_a_wire() -> None:
    g = GraphBuilder()
    x = g.tensor(10)
    g.op("make", "any", [], [x], time_ns=0)
    g.op("one", "any", [x], time_ns=1)
    g.op("two", "any", [x], time_ns=1)
    assert sends(run(g, [0, 1, 2], trio(PER_PAIR))) == [(0, 1, 0, 10), (0, 2, 0, 10)]
    assert sends(run(g, [0, 1, 2], trio(OUT_BUS))) == [(0, 1, 0, 10), (0, 2, 10, 20)]


def test_rule_5_one_bus_for_everything() -> None:
    g = GraphBuilder()
    x, y = g.tensor(10), g.tensor(20)
    g.op("make0", "any", [], [x], time_ns=0)
    g.op("make1", "any", [], [y], time_ns=0)
    g.op("read1", "any", [x], time_ns=1)
    g.op("read0", "any", [y], time_ns=1)
    bus = [[-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    assert sends(run(g, [0, 1, 1, 0], trio(bus), rank=[0, 0, 2, 1])) == [(1, 0, 0, 20), (0, 1, 20, 30)]


def test_rule_5_a_pair_without_a_link_is_an_error() -> None:
    with pytest.raises(InvalidCluster, match="no link from 'd1' to 'd0'"):
        replace(pair(), links={(0, 1): FREE})


def test_rule_6_sends_overlap_with_compute_on_both_sides() -> None:
    g = GraphBuilder()
    x = g.tensor(950)  # 100 ns on the wire
    g.op("make", "any", [], [x], time_ns=10)
    g.op("here", "any", time_ns=100)
    g.op("there", "any", time_ns=100)
    g.op("read", "any", [x], time_ns=1)
    line = run(g, [0, 0, 1, 1])
    assert spans(line) == [(0, 10), (10, 110), (0, 100), (110, 111)]
    assert sends(line) == [(0, 1, 10, 110)]


def test_rule_10_the_step_ends_with_the_last_op() -> None:
    g = GraphBuilder()
    g.op("a", "any", time_ns=10)
    g.op("b", "any", time_ns=30)
    g.op("c", "any", time_ns=15)
    assert run(g, [0, 1, 0]).step_ns == 30


def test_rule_11_what_ends_is_freed_before_anything_starts() -> None:
    g = GraphBuilder()
    g.op("a", "any", [], [g.tensor(100)], time_ns=10)
    g.op("b", "any", [], [g.tensor(60)], time_ns=10)
    assert run(g, [0, 0]).peak_bytes[0] == 100


def test_rule_11_no_length_takes_a_round() -> None:
    g = GraphBuilder()
    for name in "abc":
        g.op(name, "any", [], [g.tensor(100)], time_ns=0)
    line = run(g, [0, 0, 0])  # three rounds of instant 0: never two at once
    assert line.step_ns == 0 and line.peak_bytes[0] == 100
    assert curve(line, 0) == [(0, 0), (0, 100), (0, 0)]


def test_rule_11_a_late_urgent_op_of_the_same_instant_is_a_round_too_late() -> None:
    g = GraphBuilder()
    x = g.tensor(10)
    g.op("flash", "any", [], [x], time_ns=0)
    g.op("urgent", "any", [x], time_ns=5)
    g.op("lazy", "any", time_ns=50)
    # Round 0: flash on d1, lazy takes d0. Round 1: x is sent, free. Round 2: x is there, but d0 is taken.
    assert run(g, [1, 0, 0], pair(link=FREE), rank=[0, 0, 9]).start_ns.tolist() == [0, 50, 0]
    # On its own device urgent is ready in round 1, before lazy is looked at again.
    assert run(g, [0, 0, 0], pair(link=FREE), rank=[0, 0, 9]).start_ns.tolist() == [0, 0, 5]


def test_rule_11_a_channel_carries_one_send_of_no_length_a_round() -> None:
    g = three_tensors()
    line = run(g, [0, 1, 1, 1], pair(link=FREE), rank=[0, 3, 2, 1])
    # Tensor 2 arrives in round 2 and its reader starts at once; tensors 1 and 0 follow in the rounds after.
    assert line.start_ns.tolist() == [0, 2, 1, 0]
    # d1 holds tensors 2 and 1 in round 2, then 2, 1 and 0.
    assert line.peak_bytes[1] == 30


class TestMany:
    def test_stops_at_most_ns_and_most_bytes(self) -> None:
        problem = price(diamond(), pair())
        device = np.array([[0, 0, 1, 0], [0, 0, 0, 0]])  # 74 ns with 150 bytes; 70 ns with 190
        assert simulate_many(problem, device).step_ns.tolist() == [74, 70]
        assert simulate_many(problem, device, most_ns=72).step_ns.tolist() == [-1, 70]
        assert simulate_many(problem, device, most_ns=74).step_ns.tolist() == [74, 70]
        assert simulate_many(problem, device, most_bytes=150).step_ns.tolist() == [74, -1]

    def test_objective(self) -> None:
        problem = price(diamond(), pair())
        scores = simulate_many(problem, np.array([[0, 0, 1, 0], [0, 0, 0, 0]]))
        assert scores.objective(problem).tolist() == [74, 70]
        assert scores.objective(problem.with_objective("peak-memory")).tolist() == [150, 190]

    def test_no_candidates(self) -> None:
        problem = price(diamond(), pair())
        assert len(simulate_many(problem, np.empty((0, 4), np.int64)).step_ns) == 0


def test_settle_gives_ranks_in_order_of_dispatch() -> None:
    problem = price(diamond(), pair())
    plan = Plan.of(problem, [0, 0, 1, 0], [3, 9, 9, 0])
    line = simulate(problem, plan)
    settled = settle(problem, plan, line)
    assert settled.rank.tolist() == [0, 1, 2, 3]
    assert settled.send_rank is not None and settled.send_rank.tolist() == [[-1, 0], [-1, -1], [1, -1], [-1, -1]]


@pytest.mark.parametrize("device", [[0, 0, 2, 0], [0, -1, 0, 0], [0, 0, 0], [0] * 5])
def test_a_placement_off_the_cluster_is_refused_not_run(device: list[int]) -> None:
    # The compiled loop would read and write outside its arrays.
    problem = price(diamond(), pair())
    with pytest.raises(InvalidPlan):
        simulate(problem, Plan.of(problem, device))
    with pytest.raises(InvalidPlan):
        simulate_many(problem, np.array([device]))
