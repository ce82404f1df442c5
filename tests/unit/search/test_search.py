"""Search: its parts, its progress, and what `solve` takes of what an optimizer returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from tests.unit.optimizers.test_search_methods import problem_of


def plans_of(problem: Problem) -> list[Plan]:
    """Two plans, the worse one first: dealt out op by op, and all on one device."""
    dealt = Plan.of(problem, np.arange(problem.num_ops) // 2 % 2)
    ladder = [Plan.of(problem, np.zeros(problem.num_ops)), Plan.of(problem, np.ones(problem.num_ops))]
    return sorted([dealt, ladder[0]], key=lambda plan: -Search(problem, Budget(None, 1)).score(plan).value)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores some plans and returns another."""

    scored: tuple[Plan, ...]
    returned: Plan

    def optimize(self, search: Search) -> Plan:
        for plan in self.scored:
            search.score(plan)
        return self.returned


def test_the_better_of_what_was_scored_and_what_was_returned_is_reported() -> None:
    problem = problem_of(8)
    worse, better = plans_of(problem)
    values = [Search(problem, Budget(None, 1)).score(plan).value for plan in (worse, better)]
    assert values[0] > values[1]
    for scored, returned in (((worse,), better), ((better,), worse), ((worse, better), worse), ((), better)):
        assert solve(problem, Scored(scored, returned), Budget(None, 5)).value == values[1]


def test_progress_is_that_of_whichever_limit_is_nearer() -> None:
    search = Search(problem_of(4), Budget(1_000.0, 100))
    assert search.progress < 0.01
    search.count(50)
    assert search.progress == pytest.approx(0.5)
    search.count(50)
    assert search.progress == 1.0 and search.spent
    timed = Search(problem_of(4), Budget(1e-9, 10**9))
    assert timed.progress == 1.0 and timed.spent


def test_a_part_draws_on_from_where_the_whole_is_and_counts_with_it() -> None:
    search, twin = (Search(problem_of(4), Budget(None, 100), seed=5) for _ in range(2))
    expected = twin.rng.integers(0, 10**9, 8).tolist()
    part = search.part(0.5)
    assert [*part.rng.integers(0, 10**9, 3).tolist(), *search.rng.integers(0, 10**9, 2).tolist()] == expected[:5]
    assert search.part().rng.integers(0, 10**9, 3).tolist() == expected[5:]
    part.count(20)
    assert (search.simulations, search.simulations_left, part.simulations_left) == (20, 80, 30)
    assert search.part(0.5, simulations=10).simulations_left == 10
    assert search.part(0.5, simulations=90).simulations_left == 40
