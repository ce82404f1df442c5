"""Warming up: compiled loops are loaded, and weights read, on a small graph, so that their time is nobody's result."""

from __future__ import annotations

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import MissingExtra
from loadmaster.problem import Objective
from loadmaster.search import Budget, Optimizer, solve
from loadmaster.zoo.synthetic import generate


def warm_up(optimizer: Optimizer | str, cluster: Cluster, objective: Objective) -> None:
    """Runs the optimizer on a dozen ops under both kinds of budget. What goes wrong there is left for the real problem
    to show, except for a package that is missing."""
    small = price(next(generate("layered", 1, seed=1, ops=12)), cluster, objective=objective)
    for budget in (Budget(None, 50), Budget(0.05)):
        try:
            solve(small, optimizer, budget)
        except MissingExtra:
            raise
        except Exception:
            return
