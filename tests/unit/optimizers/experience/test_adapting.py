"""Plans made for one problem, as plans of another."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.graph.columns import ints
from loadmaster.optimizers.experience import Known, adapt, adapting
from loadmaster.plans import Plan, check
from loadmaster.problem import CANNOT, Problem
from tests.strategies import plans, problems
from tests.unit.optimizers.experience.stacks import stack


def halves(problem: Problem) -> Plan:
    """The first half of the ops on one device, the second on the other."""
    return Plan.of(problem, (np.arange(problem.num_ops) * 2 >= problem.num_ops).astype(np.int64))


@given(problems(), problems(), st.data())
def test_any_plan_becomes_a_legal_plan_of_any_problem(one: Problem, other: Problem, data: Any) -> None:
    known = Known.of(one, data.draw(plans(one)))
    for plan in adapt(known, other)[0]:
        check(plan, other)


@given(problems(), st.data())
def test_the_same_problem_gets_the_same_placement_and_order(problem: Problem, data: Any) -> None:
    plan = data.draw(plans(problem))
    again, close = adapt(Known.of(problem, plan), problem)
    assert np.array_equal(again[0].device, plan.device)
    assert np.array_equal(np.lexsort((again[0].rank,)), np.lexsort((np.arange(problem.num_ops), plan.rank)))
    assert 0 <= close <= 1


def test_a_wider_stack_keeps_its_halves() -> None:
    small, large = (lm.price(stack(6, width), "2xp100-pcie") for width in (64, 512))
    plan = adapt(Known.of(small, halves(small)), large)[0][0]
    assert np.array_equal(plan.device, halves(large).device)


def test_a_further_device_is_free_at_first_or_gets_its_share() -> None:
    two, three = (lm.price(stack(9), f"{count}xp100-pcie") for count in (2, 3))
    kept, cut = adapt(Known.of(two, halves(two)), three)[0]
    assert set(kept.device) == {0, 1}
    assert sorted(np.bincount(cut.device)) == [9, 9, 10]


def test_with_fewer_devices_every_op_has_one() -> None:
    three, two = (lm.price(stack(9), f"{count}xp100-pcie") for count in (3, 2))
    plan = Plan.of(three, np.arange(three.num_ops) % 3)
    assert set(adapt(Known.of(three, plan), two)[0][0].device) <= {0, 1}


# Pieces of it, by hand


def test_gaps_take_the_value_before_them() -> None:
    assert adapting._filled(ints([-1, -1, 0, -1, 5, -1, 2])).tolist() == [0, 0, 0, 0, 5, 5, 2]
    assert adapting._filled(ints([3, -1])).tolist() == [3, 3]
    known: Any = SimpleNamespace(place=ints([4, 7, 1]))
    assert adapting._places(known, ints([0, -1, 2, 1, -1])).tolist() == [4, 4, 1, 7, 7]


@pytest.mark.parametrize(
    ("known", "rate", "found"),
    [
        ([1.0, 0.5], [1.0, 0.5], [0, 1]),
        ([1.0, 0.5], [0.95, 0.55, 1.0], [0, 1]),  # about as they were
        ([1.0, 0.5], [0.5, 1.0], [1, 0]),
        ([0.5, 1.0, 0.1], [1.0, 0.2, 0.6], [2, 0, 1]),
    ],
)
def test_devices_are_matched_by_speed(known: list[float], rate: list[float], found: list[int]) -> None:
    assert adapting._by_speed(np.array(known), np.array(rate)).tolist() == found


def wired() -> Problem:
    """Op 0 makes a large tensor for op 2 and a small one for op 3; op 1 one of middle size for op 2; op 4 is alone."""
    build = lm.GraphBuilder("wired")
    large, small, middle = build.tensor(900), build.tensor(10), build.tensor(100)
    build.op("a", "any", [], [large, small], time_ns=5)
    build.op("b", "any", [], [middle], time_ns=5)
    build.op("c", "any", [middle, large], [build.tensor(1)], time_ns=5)
    build.op("d", "any", [small], [build.tensor(1)], time_ns=5)
    build.op("e", "any", [], [build.tensor(1)], time_ns=5)
    return lm.price(build.build(), "3xp100-pcie")


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ([0, 1, -1, -1, -1], [0, 1, 0, 0, 0]),  # where the largest that they read comes from; the last as before it
        ([2, 0, -1, 1, -1], [2, 0, 2, 1, 1]),
        ([-1, 1, 2, 0, -1], [2, 1, 2, 0, 0]),  # where the largest that it makes goes to
        ([-1, -1, -1, 0, 2], [0, 0, 0, 0, 2]),  # by and by
        ([-1, -1, -1, -1, -1], [0, 0, 0, 0, 0]),
    ],
)
def test_an_op_without_a_like_goes_beside_its_largest_tensor(device: list[int], found: list[int]) -> None:
    assert adapting._beside(wired(), ints(device)).tolist() == found


def test_a_row_of_devices_is_cut_anew_by_how_fast_devices_are() -> None:
    """Known: device 1 first (ops 2 and 3), then device 0 (ops 0 and 1)."""
    known: Any = SimpleNamespace(
        speed=np.ones(2), device=ints([0, 0, 1, 1]), work=ints([10, 10, 10, 10]), place=ints([2, 3, 0, 1])
    )
    like, work = ints([0, 1, 2, 3]), ints([10, 10, 10, 10])
    assert adapting._cut_anew(known, like, np.array([1.0, 1.0, 1.0, 1.0]), work).tolist() == [2, 3, 0, 1]
    assert adapting._cut_anew(known, like, np.array([1.0]), work).tolist() == [0, 0, 0, 0]
    assert adapting._cut_anew(known, like, np.array([1.0, 0.3, 1.0]), work).tolist() == [2, 2, 0, 0]
    assert adapting._cut_anew(known, like, np.array([3.0, 1.0]), work).tolist() == [0, 1, 0, 0]
    stretched = adapting._cut_anew(known, ints([0, -1, 2, -1]), np.array([1.0, 1.0]), work)
    assert stretched.tolist() == [1, 1, 0, 0], "without a like, with the op before"
    idle: Any = SimpleNamespace(**(vars(known) | {"work": ints([0, 0, 0, 0])}))
    assert len(adapting._cut_anew(idle, like, np.array([1.0, 1.0]), ints([0, 0, 0, 0]))) == 4


def test_ops_that_must_share_a_device_go_where_most_of_them_would_if_all_can() -> None:
    build = lm.GraphBuilder("groups")
    for at, group in enumerate(("a", "a", "a", None, "b", "b")):
        build.op(f"op{at}", "any", [], [build.tensor(8)], time_ns=5, **({"colocate": group} if group else {}))
    problem = lm.price(build.build(), "3xp100-pcie")
    assert adapting._allowed(problem, ints([2, 1, 2, 0, 1, 0])).tolist() == [2, 2, 2, 0, 0, 0]
    op_ns = problem.op_ns.copy()
    op_ns[1, 2] = op_ns[3, 0] = CANNOT
    op_ns[3, 1], op_ns[3, 2] = 9, 4
    some = replace(problem, op_ns=ints(op_ns))
    assert adapting._allowed(some, ints([2, 1, 2, 0, 1, 1])).tolist() == [1, 1, 1, 2, 1, 1], "the fastest that can"
    free = replace(problem, graph=replace(problem.graph, colocate=ints([-1] * 6)))
    assert adapting._allowed(free, ints([2, 1, 2, 0, 1, 0])).tolist() == [2, 1, 2, 0, 1, 0]


def test_as_many_devices_keep_what_they_had_and_others_are_cut_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "_cut_anew", lambda *_: ints([9]))
    known: Any = SimpleNamespace(speed=np.ones(2), device=ints([1, 0, 1, 0, 0]))
    like = ints([0, 1, 2, 3, -1])
    for count, found in ((2, 1), (3, 2), (1, 1)):
        monkeypatch.setattr(adapting, "speeds", lambda problem, count=count: np.ones(count))
        devices = [device.tolist() for device in adapting._devices(known, like, wired(), ints([1] * 5))]
        assert len(devices) == found and (devices[-1] == [9]) is (count != 2)
        assert count == 1 or devices[0][:4] == [1, 0, 1, 0]
