"""Every timeline of a tiny problem, counted."""

from __future__ import annotations

from loadmaster import Budget, price
from loadmaster.methods.exact import cp_sat
from loadmaster.search import Search
from tests.graphs.tiny import diamond, pair


def test_how_many_timelines_of_a_tiny_problem_are_tried() -> None:
    problem = price(diamond(), pair())
    full = Search(problem, Budget(None, 10_000))
    assert cp_sat.try_all(full, 10_000) and full.note == "proved optimal"
    every = full.simulations
    enough = Search(problem, Budget(None, 10_000))
    assert cp_sat.try_all(enough, every) and enough.simulations == every
    few = Search(problem, Budget(None, 10_000))
    assert not cp_sat.try_all(few, every - 1) and few.simulations == every - 1
    short = Search(problem, Budget(None, every - 1))
    assert not cp_sat.try_all(short, 10_000) and short.simulations == every - 1
