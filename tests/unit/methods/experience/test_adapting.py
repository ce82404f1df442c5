"""Plans made for one problem, as plans of another."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.methods.experience import Known, adapt
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from tests.strategies import plans, problems
from tests.unit.methods.experience.stacks import stack


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
