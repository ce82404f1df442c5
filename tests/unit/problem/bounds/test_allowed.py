"""The work of a bound: counted, so that it is the same at any load, and less of it never gives a higher bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster import load, price
from loadmaster.problem import Problem
from loadmaster.problem.bounds import bound_of
from loadmaster.problem.bounds.among import Work


def test_what_was_left_out_once_stays_so() -> None:
    work = Work(2.0)
    work.add(1.5e9)
    assert not work.is_up() and not work.is_up(0.4e9) and work.left_ns == 0.5e9
    assert work.is_up(0.6e9), "so much more would be too much"
    assert work.is_up() and work.left_out and work.left_ns == 0
    assert not Work().is_up(1e18)


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_more_work_gives_a_bound_as_high_and_any_gives_the_same_again(objective: str) -> None:
    """Problems are made anew, since bounds are remembered with them."""
    seconds = (0.0, 0.001, 0.01, 0.05, 0.2, None)
    first, again = ([bound_of(fresh(objective), seconds=most) for most in order] for order in (seconds, seconds[::-1]))
    assert first == again[::-1]
    values = [bound.value for bound in first]
    assert values == sorted(values) and not first[-1].cut
    assert all(bound.cut for bound in first if bound.value < values[-1]), "what could be higher says so"
    one = fresh(objective)
    assert [bound_of(one, seconds=most) for most in seconds] == first, "whatever was asked before"


def fresh(objective: str) -> Problem:
    return price(load("zoo:transformer-xl-2"), "2xp100-pcie", objective=objective)


def test_what_is_asked_of_one_problem_is_known_for_it_alone() -> None:
    problem = fresh("step-time")
    slower = replace(problem, op_ns=problem.op_ns * 2)
    assert bound_of(problem).value < bound_of(slower).value
