"""Starts: plans by rules that a search goes on from, in the order of what they bring for what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from loadmaster.catalog.specs import make_optimizer
from loadmaster.columns import Ints, ints, positions
from loadmaster.errors import MissingExtra
from loadmaster.optimizers.cuts import cuts
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.optimizers.memory.orders import memory_order
from loadmaster.optimizers.simple import a_little
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Score, Search
from loadmaster.simulator import first_come

Scored = tuple[Score, Plan]

# What a method takes, in simulations of a plan that it could have been; measured on graphs of 1,000 to 32,000 ops.
QUICK = {"expert": 6, "heft": 6, "sct": 10, "one-device": 3, "etf": 6, "cpop": 6, "heft:contention=no": 6}
WHEN_TIGHT = {"m-etf": 6, "m-heft": 6, "m-sct": 10}
CUT = 6  # of each of the cuts
PARTITIONS = {
    f"{name}:order=critical": price
    for name, price in (("metis", 20), ("kahip", 20), ("scotch", 25), ("mtkahypar", 500))
}
SPLITS = {"pipeline:order=critical": 100}
LOAD_SPLITS = {"downsets:effort=1000000,sets=4000": 100, "pipeline:goal=max-load,order=critical": 100, **SPLITS}
MOST_PARTITIONED = 12_000  # ops; the better partitioners take many seconds beyond
ORDERED = 4  # placements that are tried under all orders: the best ones
FAR = 1.25  # times the best: a start that is worse than that is left out


class Start(NamedTuple):
    """A plan that can be made, and what that takes in simulations."""

    price: int
    make: Callable[[], Plan]


def starts(search: Search) -> list[Start]:
    """Of all methods that need no search, cheap ones first."""
    problem = search.problem
    tight = problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum()
    named = {**QUICK, **(WHEN_TIGHT if tight else {})}
    quick = [_named(search, name, price) for name, price in named.items()]
    cut = [Start(CUT, partial(Plan.of, problem, device)) for device in cuts(problem)]
    if problem.num_devices == 1:
        return quick
    splits = SPLITS if problem.objective.of_order else LOAD_SPLITS
    known = PARTITIONS if problem.num_ops <= MOST_PARTITIONED else dict([*PARTITIONS.items()][:1])
    slow = sorted({**known, **splits}.items(), key=lambda named: named[1])
    return [*quick[:1], *cut, *quick[1:], *(_named(search, name, price) for name, price in slow)]


def _named(search: Search, name: str, price: int) -> Start:
    return Start(price, lambda: make_optimizer(name).optimize(search))


def made(search: Search, some: list[Start]) -> Iterator[Scored]:
    """Their plans, each in the order that it gives itself; those that need a package which is missing are left out."""
    for start in some:
        try:
            plan = start.make()
        except MissingExtra:
            continue
        if search.spent and search.best is not None:  # it may have scored plans itself
            return
        yield search.score(plan), plan


def ordered(search: Search, scored: list[Scored], most: int = ORDERED) -> list[Scored]:
    """All of them, and the best few placements under the other orders, best first."""
    found = sorted(scored, key=lambda start: start[0])
    for _, plan in unlike(found, most):
        for rank in orders(search.problem, plan):
            if not search.spent:
                other = plan.with_rank(rank)
                found.append((search.score(other), other))
    return sorted(found, key=lambda start: start[0])


def of_another(search: Search, also: Optimizer | None) -> Iterator[Scored]:
    """Plans that came with the problem, and that of another method, which may search a little."""
    for plan in search.starts:
        if not search.spent:
            yield search.score(plan), plan
    if also is not None:
        with a_little(search) as part:
            plan = also.optimize(part)
        if not search.spent or search.best is None:
            yield search.score(plan), plan


def orders(problem: Problem, plan: Plan) -> list[Ints]:
    """Ranks for the placement of a plan by the usual rules."""
    if not problem.objective.of_order:
        return []
    program = ints(np.arange(problem.num_ops))
    if problem.objective.of_memory:
        return [program, positions(memory_order(problem))]
    return [critical_rank(problem, plan.device), first_come(problem, plan.device).rank, program]


def far(score: Score, best: Score, times: float = FAR) -> bool:
    """Whether a start is too bad to go on from: search gets that far from the best one sooner."""
    return score.over_bytes > best.over_bytes or score.value > best.value * times


def unlike(found: list[Scored], count: int) -> list[Scored]:
    """The first few plans of which no two place nine ops in ten alike."""
    chosen = found[:1]
    for score, plan in found[1:]:
        if len(chosen) < count and all((plan.device != other.device).mean() > 0.1 for _, other in chosen):
            chosen.append((score, plan))
    return chosen
