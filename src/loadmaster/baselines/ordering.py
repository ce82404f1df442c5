"""Plans for a placement that is already chosen: in which order each device takes its ops.

Methods that only place (partitioners, experts, learned policies) end here. The usual orders are tried and the best by
simulation is kept: first come first served, as frameworks run; program order; the critical path under the placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.baselines.memory_order import memory_order
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.plans import Plan
from loadmaster.search import WORST, Score, Search

Order = Literal["best", "fifo", "program", "critical"]


def ordered(search: Search, device: Ints, order: Order = "best") -> Plan:
    """The placement under that order; "best": whichever simulates best, as far as the budget goes."""
    plans = _orders(search, device, order)
    if order != "best":
        return next(plans)
    return best_of(search, plans)[0]


def best_of(search: Search, plans: Iterator[Plan]) -> tuple[Plan, Score]:
    """The best of the plans that the budget still simulates; the first one where it simulates none."""
    best, best_score = None, WORST
    for plan in plans:
        if search.simulations_left == 0 and not search.has_run(plan):
            best = best or plan
            break
        score = search.score(plan)
        if best is None or score < best_score:
            best, best_score = plan, score
    assert best is not None, "there is at least one plan to choose from"
    return best, best_score


def _orders(search: Search, device: Ints, order: Order) -> Iterator[Plan]:
    problem = search.problem
    if order in ("best", "critical"):
        yield Plan.of(problem, device, critical_rank(problem, ints(device)))
    if order == "best" and problem.objective.of_memory:
        yield Plan.of(problem, device, positions(memory_order(problem)))
    if order in ("best", "program"):
        yield Plan.of(problem, device)
    if order in ("best", "fifo"):
        yield search.first_come(ints(device))
