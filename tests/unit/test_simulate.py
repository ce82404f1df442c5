"""The rules of simulate.py one by one, each on an example small enough to run by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.columns import ints
from loadmaster.cost import price
from loadmaster.errors import InvalidCluster, InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.plan import Plan, check
from loadmaster.problem import Problem, fuse
from loadmaster.simulate import Timeline, settle, simulate, simulate_many
from tests.graphs import pair
from tests.graphs.tiny import diamond
from tests.reference import brute_force

FREE = Link(None, 0)


def trio(channel: Sequence[Sequence[int]], link: Link = Link(1e9, 0)) -> Cluster:
    """d0, d1, d2; every link moves a byte per ns unless told."""
    devices = tuple(Device(f"d{index}", "toy", 2**30, 1e9, 1e9) for index in range(3))
    links = {(src, dst): link for src in range(3) for dst in range(3) if src != dst}
    return Cluster("trio", devices, links, ints(channel))


PER_PAIR = [[-1, 0, 1], [2, -1, 3], [4, 5, -1]]
OUT_BUS = [[-1, 0, 0], [1, -1, 1], [2, 2, -1]]


def run(graph: GraphBuilder, device: Sequence[int], cluster: Cluster | None = None, **plan: Any) -> Timeline:
    problem = price(graph.build(), cluster or pair())
    made = Plan.of(problem, device, **plan)
    check(made, problem)
    return simulate(problem, made)


def sends(line: Timeline) -> list[tuple[int, int, int, int]]:
    """(tensor, dst, start, end) in order of start."""
    columns = (line.send_start_ns, line.send_tensor, line.send_dst, line.send_end_ns)
    ordered = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return [(tensor, dst, start, end) for start, tensor, dst, end in ordered]


def spans(line: Timeline) -> list[tuple[int, int]]:
    return list(zip(line.start_ns.tolist(), line.end_ns.tolist(), strict=True))


def curve(line: Timeline, device: int) -> list[tuple[int, int]]:
    ns, held = line.curve(device)
    return list(zip(ns.tolist(), held.tolist(), strict=True))


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


def three_tensors() -> GraphBuilder:
    """One op makes three tensors of 10 bytes; an op of each rank 0, 1, 2 elsewhere reads one."""
    g = GraphBuilder()
    made = [g.tensor(10) for _ in range(3)]
    g.op("make", "any", [], made, time_ns=0)
    for tensor in made:
        g.op(f"read{tensor}", "any", [tensor], time_ns=1)
    return g


def test_rule_4_sends_go_by_the_lowest_rank_among_the_readers() -> None:
    line = run(three_tensors(), [0, 1, 1, 1], rank=[0, 3, 1, 2])
    assert [tensor for tensor, *_ in sends(line)] == [1, 2, 0]


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


def test_rule_7_a_weight_nobody_updates_is_wherever_it_is_read() -> None:
    g = GraphBuilder()
    w, unread = g.tensor(100, "weight"), g.tensor(1000, "weight")
    g.op("a", "any", [w], time_ns=10)
    g.op("b", "any", [w], time_ns=10)
    g.op("c", "any", [w], time_ns=10)
    line = run(g, [0, 0, 1])
    assert line.num_sends == 0 and line.step_ns == 20
    assert curve(line, 0) == [(0, 100)] and curve(line, 1) == [(0, 100)]
    assert unread not in line.send_tensor


def test_rule_7_an_updated_weight_lives_with_its_update_and_is_sent_once_to_others() -> None:
    g = GraphBuilder()
    w = g.tensor(100, "weight")
    new = g.tensor(100, "weight", alias_of=w)
    g.op("a", "any", [w], time_ns=10)
    g.op("b", "any", [w], time_ns=10)
    g.op("update", "any", [w], [new], time_ns=5, after=["a", "b"])
    line = run(g, [0, 0, 1])
    assert sends(line) == [(0, 0, 0, 15)]  # from time 0 on
    assert spans(line) == [(15, 25), (25, 35), (35, 40)]
    assert curve(line, 0) == [(0, 0), (0, 100), (35, 0)]
    assert curve(line, 1) == [(0, 100)]


def test_rule_7_an_update_that_nobody_else_reads_still_keeps_the_weight() -> None:
    g = GraphBuilder()
    w = g.tensor(100, "state")
    g.op("update", "any", [], [g.tensor(100, "state", alias_of=w)], time_ns=5)
    assert curve(run(g, [1]), 1) == [(0, 100)]


def test_rule_8_a_made_tensor_lives_from_its_op_to_its_last_reader_and_send() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("here", "any", [x], time_ns=3)
    g.op("there", "any", [x], time_ns=20)
    line = run(g, [0, 0, 1])  # sent 10 to 25, read here until 13
    assert curve(line, 0) == [(0, 0), (0, 100), (25, 0)]
    assert curve(line, 1) == [(0, 0), (10, 100), (45, 0)]
    line = run(g, [0, 0, 1], pair(link=Link(None, 1)))  # sent 10 to 11
    assert curve(line, 0) == [(0, 0), (0, 100), (13, 0)]


def test_rule_8_unread_dies_with_its_op_and_an_output_never() -> None:
    g = GraphBuilder()
    g.op("make", "any", [], [g.tensor(1), g.tensor(10, "output"), g.tensor(100, "state")], time_ns=10)
    assert curve(run(g, [0]), 0) == [(0, 0), (0, 111), (10, 110)]


def test_rule_8_a_copy_of_an_output_dies_with_its_last_reader() -> None:
    g = GraphBuilder()
    x = g.tensor(100, "output")
    g.op("make", "any", [], [x], time_ns=10)
    g.op("there", "any", [x], time_ns=20)
    line = run(g, [0, 1])
    assert curve(line, 0) == [(0, 0), (0, 100)]
    assert curve(line, 1) == [(0, 0), (10, 100), (45, 0)]


def test_rule_8_an_update_in_place_has_no_bytes_and_keeps_its_base() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    over = g.tensor(100, alias_of=x)
    twice = g.tensor(100, alias_of=over)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("over", "any", [x], [over], time_ns=10)
    g.op("twice", "any", [over], [twice], time_ns=10)
    g.op("read", "any", [twice], time_ns=10)
    assert curve(run(g, [0, 0, 0, 0]), 0) == [(0, 0), (0, 100), (40, 0)]


def test_rule_8_an_update_of_a_received_copy_keeps_the_copy() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    over = g.tensor(100, alias_of=x)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("over", "any", [x], [over], time_ns=10)
    g.op("back", "any", [over], time_ns=10)
    g.op("late", "any", time_ns=200)
    # x goes over 10 to 25 and is overwritten there; the new value comes back 35 to 50 at the full 100 bytes and
    # waits for the long op to end.
    line = run(g, [0, 1, 0, 0])
    assert sends(line) == [(0, 1, 10, 25), (1, 0, 35, 50)]
    assert curve(line, 1) == [(0, 0), (10, 100), (50, 0)]
    assert curve(line, 0) == [(0, 0), (0, 100), (25, 0), (35, 100), (220, 0)]


def test_rule_8_an_output_written_in_place_keeps_its_base_to_the_end() -> None:
    g = GraphBuilder()
    x = g.tensor(100)
    g.op("make", "any", [], [x], time_ns=10)
    g.op("over", "any", [x], [g.tensor(100, "output", alias_of=x)], time_ns=10)
    line = run(g, [0, 1])
    assert curve(line, 0) == [(0, 0), (0, 100), (25, 0)]
    assert curve(line, 1) == [(0, 0), (10, 100)]


def test_rule_8_workspace_lives_while_its_op_runs() -> None:
    g = GraphBuilder()
    g.op("a", "any", time_ns=10, workspace_bytes=64)
    g.op("b", "any", time_ns=10)
    assert curve(run(g, [0, 0]), 0) == [(0, 0), (0, 64), (10, 0)]


def test_rule_9_things_of_no_length_count() -> None:
    g = GraphBuilder()
    g.op("flash", "any", [], [g.tensor(70)], time_ns=0, workspace_bytes=7)
    line = run(g, [0])
    assert line.step_ns == 0 and line.peak_bytes.tolist() == [77, 0]


def test_rule_9_over_bytes_are_summed_over_devices() -> None:
    g = GraphBuilder()
    g.op("a", "any", [], [g.tensor(130)], time_ns=1)
    g.op("b", "any", [], [g.tensor(120)], time_ns=1)
    assert run(g, [0, 1], pair(memory_bytes=100)).over_bytes == 50
    assert run(g, [0, 0], pair(memory_bytes=100)).over_bytes == 30  # one after the other


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


def fusible() -> GraphBuilder:
    """a makes 100 bytes for b alone; b makes 40 for c, and for d."""
    g = GraphBuilder()
    x, a, b = g.tensor(30, "input"), g.tensor(100), g.tensor(40)
    g.op("a", "any", [x], [a], flops=20, workspace_bytes=3)
    g.op("b", "any", [a], [b], flops=50, workspace_bytes=4)
    g.op("c", "any", [b], [g.tensor(10, "output")], flops=10)
    g.op("d", "any", [b], [g.tensor(10, "output")], flops=10)
    return g


def test_rule_12_a_kernel_takes_launch_and_the_longer_of_arithmetic_and_remaining_traffic() -> None:
    cluster = pair(launch_ns=5)
    # Apart: 130, 140, 50 and 50 bytes at a byte per ns, each with its launch.
    assert spans(run(fusible(), [0, 0, 0, 0], cluster)) == [(0, 135), (135, 280), (280, 335), (335, 390)]
    # a and b in one: 130 + 140 bytes less 100 written and 100 read; arithmetic 70 ns is as long.
    line = run(fusible(), [0, 0, 0, 0], cluster, kernel=[0, 0, 2, 3])
    assert spans(line) == [(0, 75), (0, 75), (75, 130), (130, 185)]


def test_rule_12_inner_tensors_take_no_memory() -> None:
    line = run(fusible(), [0, 0, 0, 0], kernel=[0, 0, 2, 3])
    assert curve(line, 0)[:3] == [(0, 30), (0, 77), (70, 80)]  # x; b and workspace 3 + 4; b and c's output


def test_rule_12_a_tensor_read_inside_and_outside_is_no_inner_one() -> None:
    # b is read by c inside and by d outside: its 40 bytes are written, and read by both.
    line = run(fusible(), [0, 0, 0, 1], kernel=[0, 0, 0, 3])
    # 30 read of x, 40 written and 40 read of b, 10 written of c: 120 bytes; arithmetic 80 ns.
    assert spans(line)[:3] == [(0, 120)] * 3
    assert sends(line) == [(2, 1, 120, 129)]


def test_rule_12_given_times_add_up_less_a_launch_for_each_op_but_one() -> None:
    g = GraphBuilder()
    x = g.tensor(10)
    g.op("a", "any", [], [x], time_ns=20)
    g.op("b", "any", [x], time_ns=30)
    assert run(g, [0, 0], pair(launch_ns=5), kernel=[0, 0]).step_ns == 45
    assert run(g, [0, 0], pair(launch_ns=500), kernel=[0, 0]).step_ns == 0  # never negative


def test_rule_12_a_kernel_waits_for_all_it_reads_and_gives_all_at_its_end() -> None:
    g = GraphBuilder()
    x, y, z = g.tensor(10), g.tensor(10), g.tensor(10)
    g.op("early", "any", [], [y], time_ns=1)
    g.op("slow", "any", [], [x], time_ns=50)
    g.op("late", "any", [x], [z], time_ns=1)
    g.op("reader", "any", [y], time_ns=1)
    line = run(g, [0, 1, 0, 1], kernel=[0, 1, 0, 3])
    assert spans(line) == [(56, 58), (0, 50), (56, 58), (64, 65)]


def test_rule_12_a_kernel_ranks_as_its_lowest_member() -> None:
    g = GraphBuilder()
    for name in "abcd":
        g.op(name, "any", time_ns=10)
    line = run(g, [0, 0, 0, 0], rank=[7, 5, 9, 4], kernel=[0, 1, 2, 0])
    assert line.start_ns.tolist() == [0, 20, 30, 0]


def test_rule_12_ties_of_kernels_go_by_their_lowest_member() -> None:
    g = GraphBuilder()
    x = g.tensor(0)
    g.op("head", "any", time_ns=10)
    g.op("first", "any", [], [x], time_ns=10)
    g.op("other", "any", time_ns=10)
    g.op("tail", "any", [x], time_ns=10)
    # head and tail wait for first; then they come before other, whose index lies between theirs.
    line = run(g, [0, 0, 0, 0], rank=[1, 0, 1, 1], kernel=[0, 1, 2, 0])
    assert line.start_ns.tolist() == [10, 0, 30, 10]


def test_rule_12_a_kernel_that_overwrites_what_it_made_keeps_it_once() -> None:
    g = GraphBuilder()
    base = g.tensor(100)
    over = g.tensor(100, alias_of=base)
    twice = g.tensor(100, alias_of=over)
    g.op("make", "any", [], [base], time_ns=10)
    g.op("over", "any", [base], [over], time_ns=10)
    g.op("twice", "any", [over], [twice], time_ns=10)
    g.op("read", "any", [twice], [g.tensor(8, "output")], time_ns=10)
    line = run(g, [0, 0, 0, 0], kernel=[0, 0, 0, 3])
    assert curve(line, 0) == [(0, 0), (0, 100), (30, 108), (40, 8)]


def test_rule_12_the_order_in_which_tensors_are_declared_does_not_matter() -> None:
    g = GraphBuilder()
    twice, over, base = g.tensor(100, alias_of=1), g.tensor(100, alias_of=2), g.tensor(100)
    g.op("make", "any", [], [base], time_ns=10)
    g.op("over", "any", [base], [over], time_ns=10)
    g.op("twice", "any", [over], [twice], time_ns=10)
    g.op("read", "any", [twice], [g.tensor(8, "output")], time_ns=10)
    for kernel in ([0, 0, 0, 3], [0, 1, 1, 3], [0, 0, 2, 3]):
        assert curve(run(g, [0, 0, 0, 0], kernel=kernel), 0) == [(0, 0), (0, 100), (30, 108), (40, 8)]


def test_rule_13_reads_of_views_are_reads_of_their_base() -> None:
    g = GraphBuilder()
    base = g.tensor(100)
    half = g.tensor(50, alias_of=base)
    row = g.tensor(5, "output", alias_of=half)
    g.op("make", "any", [], [base], time_ns=10)
    g.op("half", "view", [base], [half])
    g.op("row", "view", [half], [row])
    g.op("read", "any", [half, row, base], time_ns=10)
    line = run(g, [0, 1])
    assert sends(line) == [(0, 1, 10, 25)]  # once, all 100 bytes
    assert curve(line, 0) == [(0, 0), (0, 100)]  # an output, because a view of it is


class TestFusedProblems:
    def four(self) -> Problem:
        g = GraphBuilder()
        a, b, c, d = (g.tensor(size) for size in (1, 10, 100, 1000))
        g.op("p", "any", [], [a], time_ns=1)
        g.op("q", "any", [], [b], time_ns=2)
        g.op("r", "any", [], [c], time_ns=4)
        g.op("s", "any", [a, b], [d], time_ns=8)
        return price(g.build(), pair())

    def test_a_fused_problem_may_be_fused_again(self) -> None:
        small = fuse(self.four(), ints([0, 1, 2, 0]))
        assert small.graph.op_name == ("q", "p", "r")  # p and s wait for q
        line = simulate(small, Plan.of(small, [0, 0, 0], kernel=[0, 1, 0]))
        assert spans(line) == [(0, 6), (6, 15), (0, 6)]

    def test_a_kernel_that_would_wait_for_itself_is_refused(self) -> None:
        problem = price(diamond(), pair())
        with pytest.raises(InvalidPlan, match="'a', 'd' would wait for itself"):
            simulate(problem, Plan.of(problem, [0, 0, 0, 0], kernel=[0, 1, 2, 0]))


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


class TestBruteForce:
    """The reference's own optimum, where it can be found by thought."""

    def test_two_ops_share_two_devices(self) -> None:
        g = GraphBuilder()
        for name in "abc":
            g.op(name, "any", [], [g.tensor(10)], time_ns=10)
        problem = price(g.build(), pair())
        assert brute_force(problem, "step-time") == (0, 20)
        assert brute_force(problem, "peak-memory") == (0, 10)

    def test_a_send_is_worth_it_only_when_short(self) -> None:
        # Together 70, c away 74. b and d away: c 10 to 40, A sent 10 to 25, b 25 to 45, C sent 40 to 49, d 49 to 59.
        # Less is impossible: c ends at 40 at best, and then d waits for C or for B.
        assert brute_force(price(diamond(), pair()), "step-time") == (0, 59)

    def test_what_does_not_fit_comes_last(self) -> None:
        # The reader's device must hold both 100 bytes: 50 over 150, wherever the others are.
        g = GraphBuilder()
        a, b = g.tensor(100), g.tensor(100)
        g.op("a", "any", [], [a], time_ns=1)
        g.op("b", "any", [], [b], time_ns=1)
        g.op("c", "any", [a, b], time_ns=1)
        assert brute_force(price(g.build(), pair(memory_bytes=150)), "step-time") == (50, 3)
