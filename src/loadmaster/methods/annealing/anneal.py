"""Local search and simulated annealing over placement and order.

The plan of another method comes in, kernels stay as it has them, and moves of placement and order go on until the
budget is spent. `improve` is what other methods call to polish a plan.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.methods.annealing.chains import CHAINS, COLD, HOT, Reheating, side_by_side, together, walkers
from loadmaster.plans import Plan
from loadmaster.search import Method, Search


@dataclass(frozen=True)
class Anneal:
    """Simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) over placement and order.

    Moves act on windows of the program with the backward ops that belong to them, on borders between devices and on
    single ops. A few chains walk side by side and go on from the better one.

    Differs from the paper: starts from another method's plan, not from a random one; cools again and again, each
    time for longer and from the best plan so far, so that a larger budget goes on where a smaller one ends.

    Attributes:
        start: whose plan it begins from.
        temperature: first temperature, as a share of the value; 0: a move that makes the plan worse is never kept.
        cold: last temperature.
        chains: walkers side by side; two by default, and where the clock counts one for each core.
    """

    start: Method = field(default_factory=Heft)
    temperature: float = HOT
    cold: float = COLD
    chains: int | None = None

    def optimize(self, search: Search) -> Plan:
        plan = self.start.optimize(search)
        return improve(search, plan, self.temperature, self.cold, self.chains)


def improve(search: Search, plan: Plan, hot: float, cold: float, chains: int | None = None) -> Plan:
    """Cools again and again, from the plan and then from the best one met, until the budget is spent; returns the best
    plan met. Kernels stay as the plan has them. `chains`: how many walk; None: two, and where the clock counts one for
    each core."""
    if search.spent:
        return search.best if search.best is not None else plan
    score, beside = search.score(plan), side_by_side(search, search.problem.num_ops)
    walking = walkers(search, plan, score, chains or max(CHAINS, beside))
    if hot <= 0:
        walking.cool(sys.maxsize, 0.0, 0.0)
    pace = Reheating(walking.problem.num_ops)
    while not search.spent and walking.kinds.any():
        before = walking.score
        walking.cool(together(int(pace.length), 1 if chains else beside), hot * pace.times, cold)
        pace.ended(hot, walking.score < before)
        walking.return_to_best()
    return search.best if search.best is not None else plan
