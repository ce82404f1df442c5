"""The rules of simulate.py about fused kernels and views (12 and 13), by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.passes import fuse
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate, simulate_fused
from tests.graphs import pair
from tests.graphs.tiny import diamond
from tests.unit.simulator.by_hand import curve, run, sends, spans


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


def test_rule_12_an_op_spares_no_more_than_it_takes() -> None:
    g = GraphBuilder()
    x, y = g.tensor(10), g.tensor(10)
    g.op("a", "any", [], [x], time_ns=20)
    g.op("b", "any", [x], [y], time_ns=30)
    g.op("c", "any", [y], time_ns=50)
    assert run(g, [0, 0, 0], pair(launch_ns=25), kernel=[0, 0, 0]).step_ns == 30 + 50 - 25  # a is spared
    assert run(g, [0, 0, 0], pair(launch_ns=40), kernel=[0, 0, 0]).step_ns == 50
    assert run(g, [0, 0, 0], pair(launch_ns=500), kernel=[0, 0, 0]).step_ns == 50  # as long as the longest
    assert run(g, [0, 0, 0], pair(launch_ns=500), kernel=[0, 0, 2]).step_ns == 30 + 50


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


def crossing() -> GraphBuilder:
    """p and q are one kernel, which stands behind x in every order of kernels; x and it become ready before l ends."""
    g = GraphBuilder("crossing")
    t, r, m, made = g.tensor(0), g.tensor(0), g.tensor(0), g.tensor(0)
    g.op("p", "any", [], [t], time_ns=5)
    g.op("root", "any", [], [r], time_ns=1)
    g.op("x", "any", [r], [made], time_ns=10)
    g.op("mid", "any", [r], [m], time_ns=1)
    g.op("q", "any", [t, m], [g.tensor(0)], time_ns=5)
    g.op("l", "any", [], [g.tensor(0)], time_ns=100)
    g.op("after", "any", [made], [g.tensor(0)], time_ns=50)
    return g


def test_rule_12_among_equal_ranks_the_kernel_with_the_lowest_op_goes_first() -> None:
    device, rank, kernel = [0, 1, 0, 1, 0, 0, 1], [5, 5, 5, 5, 5, 0, 5], [0, 1, 2, 3, 0, 5, 6]
    line = run(crossing(), device, rank=rank, kernel=kernel)
    assert line.start_ns[0] == line.start_ns[4] == 100
    assert line.start_ns[2] == line.end_ns[4] > 100
    problem = price(crossing().build(), pair())
    rows = [ints([column]) for column in (device, rank, kernel)]
    assert simulate_fused(problem, *rows).step_ns.tolist() == [line.step_ns]
    assert problem.num_ops == 7 and fuse(problem, ints(kernel)).tie.tolist() != list(range(6))


def test_of_many_candidates_the_one_with_bad_kernels_is_blamed() -> None:
    problem = price(crossing().build(), pair())
    good, bad = list(range(7)), [0, 1, 2, 1, 4, 5, 2]
    bad[3], bad[6] = 1, 6
    wrong = [0, 1, 2, 3, 4, 5, 3]
    wrong[3] = 4  # op 3 says kernel 4, which is not its lowest op
    rows = ints([good, bad, wrong, good])
    places, ranks = ints([[0] * 7] * 4), ints([list(range(7))] * 4)
    with pytest.raises(InvalidPlan, match="op 'mid' is in kernel 4"):
        simulate_fused(problem, places, ranks, rows)
    with pytest.raises(InvalidPlan, match="op 'mid' is in kernel 4"):
        simulate_fused(problem, places[:2], ranks[:2], ints([good, wrong]))
    with pytest.raises(InvalidPlan, match="op 'mid' is in kernel 4"):
        simulate_fused(problem, places, ranks, ints([wrong]))


@pytest.mark.parametrize("rate", [10**9 + 7, 900 * 10**9 + 1, 3_350_000_000_003])
def test_rule_12_times_of_moving_are_exact_where_floats_are_not(rate: int) -> None:
    """Kernels that move so many bytes that their time is a whole number, or the least bit more or less than one."""
    step = pow(10**9, -1, rate)
    near = [(step * left) % rate + times * rate for left in (0, 1, rate - 1) for times in (1, 2**10, 2**48 // rate)]
    sizes = [size for size in near if size < 2**49 and size * 10**9 // rate < 2**49]
    assert any(size * 10**9 > 2**60 for size in sizes)
    device = replace(pair().devices[0], bytes_per_s=float(rate), memory_bytes=2**50)
    for size in sizes:
        g = GraphBuilder()
        inner = g.tensor(8)
        g.op("a", "any", [], [inner], bytes_moved=size + 8)
        g.op("b", "any", [inner], [g.tensor(0, "output")], bytes_moved=8)
        problem = price(g.build(), Cluster("one", (device,), {}, ints([[-1]])))
        (found,) = simulate_fused(problem, *(ints([[0, 0]]) for _ in range(3))).step_ns
        assert found == -(-size * 10**9 // rate)
