"""Plans: check names the first broken rule and who breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import MOST_RANK, Plan, check
from loadmaster.problem import Problem
from tests.graphs import pair
from tests.graphs.tiny import chain, diamond, shared_weight
from tests.reference import is_allowed
from tests.strategies import is_acyclic, plans, problems


@pytest.fixture
def problem() -> Problem:
    return price(diamond(), pair())


def refusal(plan: Plan, problem: Problem) -> InvalidPlan:
    with pytest.raises(InvalidPlan) as caught:
        check(plan, problem)
    assert caught.value.fix
    return caught.value


def test_program_order_by_default(problem: Problem) -> None:
    plan = Plan.of(problem, [0, 0, 1, 0])
    check(plan, problem)
    assert plan.rank.tolist() == plan.kernel.tolist() == [0, 1, 2, 3]
    assert not plan.fuses and plan.num_kernels == 4


def test_fused_plan(problem: Problem) -> None:
    plan = Plan.of(problem, [0, 0, 1, 0], kernel=[0, 0, 2, 3])
    check(plan, problem)
    assert plan.fuses and plan.num_kernels == 3


def test_with_rank_forgets_the_order_of_sends(problem: Problem) -> None:
    plan = replace(Plan.of(problem, [0, 0, 1, 0]), send_rank=ints([[0, 0]] * 4)).with_rank(ints([3, 2, 1, 0]))
    assert plan.rank.tolist() == [3, 2, 1, 0] and plan.send_rank is None


class TestBelongs:
    def test_another_graph(self, problem: Problem) -> None:
        error = refusal(Plan.of(price(chain(), pair()), [0, 0, 0]), problem)
        assert "another graph" in error.what and "'diamond'" in error.what

    def test_another_cluster(self, problem: Problem) -> None:
        error = refusal(Plan.of(price(diamond(), pair(launch_ns=9)), [0, 0, 0, 0]), problem)
        assert "another cluster" in error.what and "'pair'" in error.what

    def test_less_memory_is_the_same_cluster(self, problem: Problem) -> None:
        check(Plan.of(price(diamond(), pair(memory_bytes=1)), [0, 0, 0, 0]), problem)


class TestRefusals:
    @pytest.mark.parametrize("column", ["device", "rank", "kernel"])
    def test_wrong_length(self, problem: Problem, column: str) -> None:
        short: dict[str, Any] = {column: ints([0, 0, 0])}
        error = refusal(replace(Plan.of(problem, [0, 0, 0, 0]), **short), problem)
        assert f"'{column}' has 3 entries for 4 ops" in error.what

    @pytest.mark.parametrize("place", [-1, 2, 99])
    def test_device_off_the_cluster(self, problem: Problem, place: int) -> None:
        error = refusal(Plan.of(problem, [0, 1, place, place]), problem)
        assert f"'c' is placed on device {place}" in error.what
        assert "2 ops" in error.where and "d0, d1" in error.fix

    def test_device_that_cannot_run_the_op(self) -> None:
        g = GraphBuilder()
        g.op("free", "any", time_ns=1)
        g.op("picky", "any", time_ns=[None, 3])
        problem = price(g.build(), pair())
        check(Plan.of(problem, [0, 1]), problem)
        error = refusal(Plan.of(problem, [0, 0]), problem)
        assert "'picky' cannot run on 'd0'" in error.what and "d1" in error.fix

    @pytest.mark.parametrize("rank", [-1, MOST_RANK + 1])
    def test_rank_out_of_range(self, problem: Problem, rank: int) -> None:
        assert f"'b' has rank {rank}" in refusal(Plan.of(problem, [0, 0, 0, 0], [0, rank, 0, 0]), problem).what

    def test_rank_at_the_edge(self, problem: Problem) -> None:
        check(Plan.of(problem, [0, 0, 0, 0], [0, MOST_RANK, 0, 0]), problem)

    @pytest.mark.parametrize("send_rank", [[[0, -2]] * 4, [[0, MOST_RANK + 1]] * 4, [[0, 0]] * 3, [[0]] * 4])
    def test_send_ranks(self, problem: Problem, send_rank: Any) -> None:
        error = refusal(replace(Plan.of(problem, [0, 0, 0, 0]), send_rank=ints(send_rank)), problem)
        assert "send" in str(error)

    @pytest.mark.parametrize("kernel", [[0, 1, 3, 3], [0, 1, 1, 2], [-1, 1, 2, 3], [0, 7, 2, 3]])
    def test_kernel_not_numbered_by_its_lowest_op(self, problem: Problem, kernel: list[int]) -> None:
        error = refusal(Plan.of(problem, [0, 0, 0, 0], kernel=kernel), problem)
        wrong = next(op for op, head in enumerate(kernel) if head not in (op, 0, 1))
        assert f"'{'abcd'[wrong]}' is in kernel {kernel[wrong]}" in error.what

    def test_kernel_on_two_devices(self, problem: Problem) -> None:
        error = refusal(Plan.of(problem, [0, 1, 0, 0], kernel=[0, 0, 2, 3]), problem)
        assert "'b' and 'a' are one kernel on two devices" in error.what

    def test_kernel_that_is_not_convex(self, problem: Problem) -> None:
        error = refusal(Plan.of(problem, [0, 0, 0, 0], kernel=[0, 1, 2, 0]), problem)
        assert "'a', 'd' would wait for itself" in error.what

    def test_groups_that_are_apart(self) -> None:
        g = GraphBuilder()
        for name, group in (("a", None), ("b", "pair"), ("c", None), ("d", "pair")):
            g.op(name, "any", time_ns=1, colocate=group)
        problem = price(g.build(), pair())
        check(Plan.of(problem, [0, 1, 0, 1]), problem)
        error = refusal(Plan.of(problem, [0, 1, 0, 0]), problem)
        assert "'b'" in error.what and "'d'" in error.what and "share a device" in error.what

    def test_updaters_of_one_weight_that_are_apart(self) -> None:
        g = GraphBuilder()
        w = g.tensor(8, "weight")
        for name in ("one", "two"):
            g.op(name, "any", [w], [g.tensor(8, "state", alias_of=w)], time_ns=1)
        problem = price(g.build(), pair())
        assert "share a device" in refusal(Plan.of(problem, [0, 1]), problem).what

    def test_a_reader_may_be_apart_from_the_update(self) -> None:
        problem = price(shared_weight(), pair())
        check(Plan.of(problem, [0, 1, 1]), problem)


@settings(max_examples=150)
@given(st.data())
def test_check_agrees_with_an_independent_checker(data: st.DataObject) -> None:
    problem = data.draw(problems(max_ops=6))
    ops = range(problem.num_ops)
    device = tuple(data.draw(st.integers(0, problem.num_devices - 1)) for _ in ops)
    lowest = [data.draw(st.integers(0, op)) for op in ops]
    kernel = [head if lowest[head] == head else op for op, head in enumerate(lowest)]
    valid = is_allowed(problem, device) and is_acyclic(problem, kernel)
    valid = valid and all(device[op] == device[kernel[op]] for op in ops)
    plan = Plan.of(problem, device, kernel=kernel)
    if valid:
        check(plan, problem)
    else:
        refusal(plan, problem)


@settings(max_examples=100)
@given(st.data())
def test_every_drawn_plan_is_valid(data: st.DataObject) -> None:
    problem = data.draw(problems())
    check(data.draw(plans(problem)), problem)
