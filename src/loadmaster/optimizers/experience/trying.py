"""What a search does first with plans that came with its problem.

They are scored as they are, the best also with its islands rejoined and under the usual orders: a plan for other links
sends too much, and one for another depth has its ops in a bad order. `stands_out` says whether a few quick rules are so
far behind that the search had best go on from it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from loadmaster.catalog.specs import make_optimizer
from loadmaster.optimizers.grouped import Way, grouped
from loadmaster.optimizers.rejoining import DEAR, rejoined
from loadmaster.optimizers.starts import Scored, far, ordered
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search

ORDERED = 3  # unlike plans that came with the problem, that are tried under the usual orders: the best ones
MODULES = Way("scope", 128, "load", 4.0)  # groups by modules, listed: half precision, unrolled nets
RULES = ("one-device", "expert", "heft")  # quick ones, each best on some kind of cluster
# How much worse the rules' plans must be for a given one to be improved before anything else is tried. Where sizes or
# the number of devices changed they are 1.15 to 1.4 times as slow, where links did 0.9 to 1.15, and there plans by
# other rules often lead after a few hundred simulations.
STANDS_OUT = 1.15


def suited(search: Search) -> list[Scored]:
    """Plans that came with the problem, the best of them also with its islands rejoined, and the best of all under
    the usual orders, best first: where links are slower than those that it was made for, a plan sends too much, and a
    further layer has its ops in a bad order."""
    problem, given = search.problem, search.best
    if not search.starts or given is None or search.spent:
        return []
    found = [Scored(search.best_score, given)]
    found += [Scored(search.score(plan), plan) for plan in search.starts if plan is not given]
    for dear in DEAR if problem.num_devices > 1 and not problem.objective.of_memory else ():
        if not search.spent:
            plan = rejoined(problem, given, dear)
            found.append(Scored(search.score(plan), plan))
    return ordered(search, found, min(ORDERED, len(search.starts)))


def stands_out(search: Search, given: Score) -> bool:
    """Whether the rules' plans are far behind it; one that fits is ahead of one that does not, however short."""
    if search.spent:
        return False
    plans = chain((make_optimizer(name).optimize(search) for name in RULES), _in_groups(search.problem))
    scores = (search.score(plan) for plan in plans)
    return all(score > given and far(score, given, STANDS_OUT) for score in scores)


def _in_groups(problem: Problem) -> Iterator[Plan]:
    if problem.num_devices > 1 and any(problem.graph.scope) and not problem.objective.of_memory:
        yield grouped(problem, MODULES)
