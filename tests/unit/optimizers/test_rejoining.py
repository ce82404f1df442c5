"""Islands of a plan that go back to their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.optimizers.rejoining import rejoined
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from tests.strategies import plans, problems
from tests.unit.optimizers.experience.stacks import stack


@given(problems(), st.data(), st.sampled_from([0.0, 0.1, 1.0, 1e9]))
def test_what_comes_out_is_a_plan_of_the_problem(problem: Problem, data: Any, dear: float) -> None:
    plan = data.draw(plans(problem))
    again = rejoined(problem, plan, dear)
    check(again, problem)
    assert np.array_equal(again.rank, plan.rank)
    if dear == 0.0:
        assert np.array_equal(again.device, plan.device)


def test_a_small_op_far_from_its_neighbours_goes_back_and_a_heavy_one_stays() -> None:
    light, heavy = (lm.price(stack(6, width), "2xp100-pcie") for width in (64, 16_384))
    for problem, stays in ((light, False), (heavy, True)):
        apart = np.zeros(problem.num_ops, np.int64)
        apart[6] = 1  # a product between two norms
        assert problem.graph.kind[6] == "mm"
        assert rejoined(problem, Plan.of(problem, apart), 1.0).device[6] == int(stays)


def test_all_that_is_left_of_two_halves_is_where_they_meet() -> None:
    problem = lm.price(stack(8, 16_384), "2xp100-pcie")
    halves = (np.arange(problem.num_ops) * 2 >= problem.num_ops).astype(np.int64)
    speckled = halves.copy()
    speckled[[4, 10]] = 1  # norms
    speckled[[16, 22]] = 0
    assert np.array_equal(rejoined(problem, Plan.of(problem, speckled), 1.0).device, halves)


def test_the_first_op_goes_back_to_its_reader() -> None:
    problem = lm.price(stack(6, 64), "2xp100-pcie")
    apart = np.zeros(problem.num_ops, np.int64)
    apart[0] = 1
    assert not rejoined(problem, Plan.of(problem, apart), 1.0).device.any()
