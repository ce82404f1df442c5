"""What a search does first with plans that came with its problem."""

from __future__ import annotations

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.optimizers.experience.trying import stands_out
from loadmaster.optimizers.grouped import Way, grouped
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search, Start, solve
from loadmaster.simulator import simulate
from tests.unit.optimizers.experience.stacks import stack


@pytest.fixture(scope="module")
def problem() -> Problem:
    return lm.price(stack(8, 512), "2xp100-pcie")


def by_rules(problem: Problem) -> int:
    """The best step of the rules that a given plan is measured against."""
    named = [solve(problem, name, Budget(None, 1)).value for name in ("one-device", "expert", "heft")]
    return min(*named, simulate(problem, grouped(problem, Way("scope", 128, "load", 4.0))).step_ns)


@pytest.mark.parametrize(("share", "answer"), [(0.8, True), (0.95, False), (1.5, False)])
def test_a_plan_stands_out_that_all_rules_are_far_behind(problem: Problem, share: float, answer: bool) -> None:
    given = Score(0, int(share * by_rules(problem)))
    assert stands_out(Search(problem, Budget(None, 100)), given) is answer


def test_a_plan_that_does_not_fit_does_not_stand_out(problem: Problem) -> None:
    assert not stands_out(Search(problem, Budget(None, 100)), Score(1, 1))


def test_what_a_search_does_with_a_plan_that_stands_out_depends_on_the_seed_alone(problem: Problem) -> None:
    best = solve(problem, "placement", Budget(None, 600)).plan
    starts = [Start(Plan.of(problem, best.device, best.rank), "earlier")]
    one, other = (solve(problem, "placement", Budget(None, 300), seed=3, starts=starts) for _ in range(2))
    assert np.array_equal(one.plan.device, other.plan.device) and np.array_equal(one.plan.rank, other.plan.rank)
    assert one.value <= simulate(problem, best).step_ns
