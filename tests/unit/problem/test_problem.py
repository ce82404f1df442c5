"""Problem and fuse: what a contracted problem must have kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.passes import fuse
from loadmaster.problem import CANNOT, Problem, time_of
from loadmaster.simulator import simulate
from tests.graphs import pair
from tests.graphs.tiny import chain, diamond, shared_weight
from tests.strategies import kernels, plans, problems


class TestColumns:
    def test_updated_weights_and_their_updater(self) -> None:
        problem = price(shared_weight(), pair())
        assert problem.resident.tolist() == [True, True, False, False, False]
        assert problem.updater.tolist() == [2, -1, -1, -1, -1]
        assert problem.is_updated.tolist() == [True, False, False, False, False]
        assert problem.is_fixed.tolist() == [False, True, False, False, False]
        assert problem.maker.tolist() == [2, -1, 0, 1, 2]
        assert problem.stays.tolist() == [False, False, False, False, True]

    def test_the_first_of_several_updaters(self) -> None:
        g = GraphBuilder()
        w = g.tensor(8, "weight")
        one = g.tensor(8, "state", alias_of=w)
        g.op("read", "any", [w], flops=1)
        g.op("one", "any", [w], [one], flops=1)
        g.op("two", "any", [one], [g.tensor(8, "state", alias_of=one)], flops=1)
        assert price(g.build(), pair()).updater.tolist() == [1, -1, -1]

    @given(problems())
    @settings(max_examples=30, deadline=None)
    def test_devices_of_one_kind_have_the_same_times_and_memory(self, problem: Problem) -> None:
        rows = [(*problem.op_ns[:, d].tolist(), int(problem.memory_bytes[d])) for d in range(problem.num_devices)]
        kinds = problem.device_kind.tolist()
        assert all((one == two) == (rows[i] == rows[j]) for i, one in enumerate(kinds) for j, two in enumerate(kinds))
        assert list(dict.fromkeys(kinds)) == list(range(len(set(rows))))

    def test_best_time_is_over_the_devices_that_can(self) -> None:
        g = GraphBuilder()
        g.op("a", "any", time_ns=[None, 9])
        g.op("b", "any", time_ns=[4, 9])
        assert price(g.build(), pair()).best_ns.tolist() == [9, 4]

    def test_with_objective(self) -> None:
        assert price(chain(), pair()).with_objective("peak-memory").objective.name == "peak-memory"


class TestFuse:
    def test_nothing_fused_is_the_same_problem(self) -> None:
        problem = price(diamond(), pair())
        same = fuse(problem, ints(range(4)))
        assert same.op_ns.tolist() == problem.op_ns.tolist()
        assert same.graph.reads.tolist() == problem.graph.reads.tolist()
        assert same.graph.nbytes.tolist() == problem.graph.nbytes.tolist()

    def test_a_chain_in_one(self) -> None:
        problem = price(chain(), pair())
        small = fuse(problem, ints([0, 0, 0]))
        assert small.num_ops == 1
        assert small.op_ns.tolist() == [[35, 35]]  # given times, no launches
        assert [small.graph.tensor_name[t] for t in small.graph.makes] == ["3"]
        assert [small.graph.tensor_name[t] for t in small.graph.reads] == ["0"]

    def test_price_of_a_kernel(self) -> None:
        g = GraphBuilder()
        x, a, b = g.tensor(30, "input"), g.tensor(100), g.tensor(40, "output")
        g.op("a", "any", [x], [a], flops=20, workspace_bytes=3)
        g.op("b", "any", [a, x], [b], flops=70, workspace_bytes=4)
        small = fuse(price(g.build(), pair(launch_ns=5)), ints([0, 0]))
        # 130 + 170 bytes less 2 x 100 is 100 ns; arithmetic 90 ns.
        assert small.traffic_bytes.tolist() == [100] and small.compute_ns.tolist() == [[90, 90]]
        assert small.op_ns.tolist() == [[105, 105]]
        assert small.graph.workspace_bytes.tolist() == [7]
        assert small.read_bytes.tolist() == [60]  # both members read x

    def test_traffic_never_falls_below_nothing(self) -> None:
        g = GraphBuilder()
        a = g.tensor(100)
        g.op("a", "any", [], [a], flops=1, bytes_moved=30)  # says less than it writes
        g.op("b", "any", [a], [g.tensor(8, "output")], flops=1)
        small = fuse(price(g.build(), pair()), ints([0, 0]))
        assert small.traffic_bytes.tolist() == [8]

    @pytest.mark.parametrize("role", ["output", "state"])
    def test_what_is_kept_is_never_inner(self, role: str) -> None:
        g = GraphBuilder()
        a = g.tensor(100, role)
        g.op("a", "any", [], [a], flops=1)
        g.op("b", "any", [a], flops=1)
        small = fuse(price(g.build(), pair()), ints([0, 0]))
        assert small.graph.num_tensors == 1 and small.traffic_bytes.tolist() == [200]

    def test_updates_in_place_are_never_inner(self) -> None:
        g = GraphBuilder()
        a = g.tensor(100)
        over = g.tensor(100, alias_of=a)
        g.op("a", "any", [], [a], flops=1)
        g.op("over", "any", [a], [over], flops=1)
        g.op("read", "any", [over], flops=1)
        small = fuse(price(g.build(), pair()), ints([0, 0, 0]))
        assert small.graph.num_tensors == 2 and small.graph.alias_of.tolist() == [-1, 0]

    def test_a_device_that_one_member_cannot_use(self) -> None:
        g = GraphBuilder()
        g.op("a", "any", time_ns=[None, 9])
        g.op("b", "any", time_ns=[4, 9])
        small = fuse(price(g.build(), pair()), ints([0, 0]))
        assert small.op_ns.tolist() == [[CANNOT, 18]]

    def test_orders_without_data_are_kept(self) -> None:
        g = GraphBuilder()
        for name, after in (("a", []), ("b", ["a"]), ("c", ["a", "b"]), ("d", ["c"])):
            g.op(name, "any", time_ns=1, after=after)
        small = fuse(price(g.build(), pair()), ints([0, 1, 1, 3]))
        assert [small.graph.after_of(op).tolist() for op in range(3)] == [[], [0], [1]]

    def test_groups_that_meet_in_a_kernel_become_one(self) -> None:
        g = GraphBuilder()
        for name, group in zip("abcde", ("left", "left", "right", "right", None), strict=True):
            g.op(name, "any", time_ns=1, colocate=group)
        small = fuse(price(g.build(), pair()), ints([0, 1, 1, 3, 4]))
        *together, alone = small.graph.colocate.tolist()
        assert len(set(together)) == 1 and together[0] >= 0 and alone == -1

    def test_kernels_are_reordered_where_they_must(self) -> None:
        g = GraphBuilder()
        x = g.tensor(1)
        g.op("head", "any", time_ns=1)
        g.op("between", "any", [], [x], time_ns=1)
        g.op("tail", "any", [x], time_ns=1)
        small = fuse(price(g.build(), pair()), ints([0, 1, 0]))
        assert small.graph.op_name == ("between", "head") and small.source_ops.tolist() == [1, 0]


class TestRefusals:
    def test_a_kernel_that_would_wait_for_itself(self) -> None:
        with pytest.raises(InvalidPlan, match="the kernel of 'a', 'd' would wait for itself"):
            fuse(price(diamond(), pair()), ints([0, 1, 2, 0]))

    def test_two_kernels_that_wait_for_each_other(self) -> None:
        g = GraphBuilder()
        x, y = g.tensor(1), g.tensor(1)
        g.op("a", "any", [], [x], time_ns=1)
        g.op("b", "any", [], [y], time_ns=1)
        g.op("c", "any", [y], time_ns=1)
        g.op("d", "any", [x], time_ns=1)
        with pytest.raises(InvalidPlan, match=r"'a', 'c'|'b', 'd'"):
            fuse(price(g.build(), pair()), ints([0, 1, 0, 1]))

    def test_the_guilty_kernel_is_named_not_one_that_waits_for_it(self) -> None:
        g = GraphBuilder()
        x = [g.tensor(1) for _ in range(4)]
        g.op("innocent head", "any", [], [], time_ns=1)
        g.op("guilty head", "any", [], [x[1]], time_ns=1)
        g.op("between", "any", [x[1]], [x[2]], time_ns=1)
        g.op("guilty tail", "any", [x[2]], [x[3]], time_ns=1)
        g.op("innocent tail", "any", [x[3]], [x[0]], time_ns=1)
        with pytest.raises(InvalidPlan, match="'guilty head', 'guilty tail'"):
            fuse(price(g.build(), pair()), ints([0, 1, 2, 1, 0]))


def inner_names(problem: Problem, kernel: np.ndarray) -> set[str]:
    """Found from the other side: tensors that could be forgotten without anyone outside noticing."""
    graph, inner = problem.graph, set()
    for tensor in range(graph.num_tensors):
        users = {int(kernel[op]) for op in graph.readers_of(tensor)}
        plain = graph.alias_of[tensor] < 0 and tensor not in graph.alias_of and graph.role[tensor] == 0
        if plain and graph.producer[tensor] >= 0 and users == {int(kernel[graph.producer[tensor]])}:
            inner.add(graph.tensor_name[tensor])
    return inner


@settings(max_examples=150)
@given(st.data())
def test_fusing_keeps_sums_and_forgets_inner_tensors_only(data: st.DataObject) -> None:
    problem = data.draw(problems())
    kernel = ints(data.draw(kernels(problem)))
    small = fuse(problem, kernel)
    assert small.num_ops == len(set(kernel.tolist()))
    for column in ("compute_ns", "fixed_ns"):
        assert getattr(small, column).sum(axis=0).tolist() == getattr(problem, column).sum(axis=0).tolist()
    assert small.graph.workspace_bytes.sum() == problem.graph.workspace_bytes.sum()
    gone = set(problem.graph.tensor_name) - set(small.graph.tensor_name)
    assert gone == inner_names(problem, kernel)
    assert small.traffic_bytes.sum() <= problem.traffic_bytes.sum()
    assert len(small.read_bytes) == len(small.graph.reads)


@pytest.mark.parametrize("rate", [10**9 + 7, 900 * 10**9 + 1, 3_350_000_000_003, 7])
def test_times_of_moving_are_exact_where_floats_are_not(rate: int) -> None:
    """Sizes whose time is a whole number of nanoseconds, or the least bit more or less than one."""
    step = pow(10**9, -1, rate)
    near = [(step * left) % rate + times * rate for left in (0, 1, rate - 1) for times in (1, 2**10, 2**50 // rate)]
    sizes = [size for size in near if 0 < size < 2**50 and size * 10**9 // rate < 2**62]
    traffic = ints(sizes)
    nothing = ints(np.zeros((len(sizes), 1)))
    found = time_of(nothing, traffic, nothing, ints([rate]), ints([0]))
    assert found[:, 0].tolist() == [-(-size * 10**9 // rate) for size in sizes]


@pytest.mark.parametrize(("memory", "fits"), [(63, False), (64, True)])
def test_every_plan_fits_where_all_tensors_and_workspaces_do(memory: int, fits: bool) -> None:
    g = GraphBuilder("two")
    made = g.tensor(20)
    g.op("first", "any", [], [made], flops=1, workspace_bytes=11)
    g.op("second", "any", [made], [g.tensor(30)], flops=1, workspace_bytes=3)
    small = replace(price(g.build(), pair()), memory_bytes=ints([900, memory]))
    assert small.always_fits is fits


@settings(max_examples=200)
@given(st.data())
def test_what_always_fits_does(data: st.DataObject) -> None:
    """With the least memory for which it says so, kernels and all."""
    problem = data.draw(problems(min_ops=4))
    least = int(problem.graph.nbytes.sum() + problem.graph.workspace_bytes.sum())
    roomy = replace(problem, memory_bytes=ints([least] * problem.num_devices))
    assert roomy.always_fits and simulate(roomy, data.draw(plans(roomy))).over_bytes == 0
