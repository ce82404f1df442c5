"""Rolling: what a way decided is taken back whole, and the chosen ways add up to a plan that is judged as any other."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.lists.rolling import (
    Rolling,
    RollingColumns,
)
from loadmaster.baselines.lists.schedulers import Heft, mean_times, upward_rank
from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.plans import check
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import simulate
from loadmaster.zoo.shelf import load_zoo

COLUMNS = ("home", "there", "where", "groups", "home_of")  # the rest is written before it is read, or copied whole


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(load_zoo("transformer-xl-2"), "4xp100-pcie")  # updates, colocated ones among them


def given_of(problem: Problem) -> RollingColumns:
    level = upward_rank(problem)
    order = np.lexsort((np.arange(problem.num_ops), -level))
    graph, able = problem.graph, np.ascontiguousarray(problem.able)
    return RollingColumns(*graph.dependencies, graph.colocate, able, order, level, mean_times(problem))


@pytest.mark.parametrize("ways", [1, 4, 8])
def test_plans_are_legal_and_good_ways_are_worth_more_than_one(problem: Problem, ways: int) -> None:
    plan = Rolling(ways).optimize(Search(problem, Budget(None, 10)))
    check(plan, problem)
    assert ints(np.sort(plan.rank)).tolist() == list(range(problem.num_ops))
    one = simulate(problem, Rolling(1).optimize(Search(problem, Budget(None, 10)))).step_ns
    assert simulate(problem, plan).step_ns <= one


def test_heft_is_beaten_here(problem: Problem) -> None:
    heft, rolling = (
        simulate(problem, method.optimize(Search(problem, Budget(None, 10)))).step_ns for method in (Heft(), Rolling())
    )
    assert rolling < heft
