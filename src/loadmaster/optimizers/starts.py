"""Starts: plans by rules that a search goes on from, in the order of what they bring for what they cost.

Rules are many and none is best everywhere; a search that begins from several finds out. A start has a price, in
simulations that could have been run in the time it takes, so that where the clock counts dear ones wait until the
search has done much more (`auto.Waiting`), and a family, so that the few a search goes on from are unlike. The best
placements are also tried under the usual orders. Prices are what they were measured to take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from loadmaster.catalog.specs import make_optimizer
from loadmaster.errors import MissingExtra
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.optimizers.balancing import FINER, MIXED, Stage, balanced
from loadmaster.optimizers.cuts import cut_by_held, cuts
from loadmaster.optimizers.dealing import dealt
from loadmaster.optimizers.grouped import Way, grouped
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.optimizers.memory.orders import memory_order
from loadmaster.optimizers.simple import a_little
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Score, Search

Family = Literal[
    "given", "contiguous", "list", "partition", "grouped", "dealt", "balanced"
]  # how a plan was made; searches end elsewhere from each


class Scored(NamedTuple):
    """A plan, what it is worth, and the kind of method it is from."""

    score: Score
    plan: Plan
    family: Family = "given"


# What a method takes, in simulations of a plan that it could have been: about what was measured on graphs of 1,000 to
# 10,000 ops (on smaller ones each is two to four times as much, and little time).
CONTIGUOUS = {"expert": 25}
LISTS = {"heft": 10, "sct": 15, "etf": 12, "cpop": 25, "heft:contention=no": 10}
ONE = {"one-device": 3}
# The nine of 200 ways that help most where they come after one another: 25 rows of GO, Placeto and REGAL, by the best
# start of each, which they bring to 0.959 of what it was.
GROUPED = {
    Way("scope", 128, "load", 4.0): 65,
    Way("scope", 128, "finish", 1.0): 5,
    Way("scope", 128, "finish", 4.0): 5,
    Way("edges", 32, "load", 1.0): 20,
    Way("readers", 16, "load", 1.0): 30,
    Way("window", 16, "load", 1.0): 15,
    Way("readers", 256, "finish", 1.0): 50,
    Way("readers", 256, "finish", 2.0): 20,
    Way("window", 32, "load", 2.0): 15,
}
WHEN_TIGHT = {"m-etf": 6, "m-heft": 6, "m-sct": 10}
CUT = 6  # of each of the cuts
HELD = (  # turns and tilts of cuts by what devices hold, those that were best on rows of REGAL and the zoo
    *((0.0, 0.0), (0.0, 0.05), (0.0, -0.05), (0.0, 0.1), (0.0, -0.1), (0.125, 0.0), (0.125, -0.05)),
    *((0.25, 0.0), (0.25, -0.05), (0.375, -0.05), (0.5, 0.0), (0.5, -0.05), (0.625, -0.1)),
)
# Of each balanced placement. The first two come early, as if they took a tenth of it: what they bring takes annealing
# thousands of simulations (16 rows of REGAL and the zoo).
BALANCED = 300
DEALT, DEALT_PRICE = {16: 4, 64: 6, 128: 2}, 2  # groups, and how often they are dealt out; of each
PARTITIONS = {
    f"{name}:order=critical": price
    for name, price in (("metis", 70), ("kahip", 75), ("scotch", 75), ("mtkahypar", 1_500))  # the last 400 to 5,000
}
SPLITS = {"pipeline:order=critical": 290}
LOAD_SPLITS = {"downsets:effort=1000000,sets=4000": 100, "pipeline:goal=max-load,order=critical": 290, **SPLITS}
# docs/constants.md has what half and twice of it do.
MOST_PARTITIONED = 12_000  # ops; the better partitioners take many seconds beyond
ORDERED = 4  # placements that are tried under all orders: the best ones
FAR, VERY_FAR = 1.25, 2.0  # times the best: a start that is worse is left out; the best of a family, where it is


class StartRecipe(NamedTuple):
    """A plan that can be made, and what that takes in simulations.

    Attributes:
        price: simulations that take about as long as making it.
        family: of methods that place alike; of each the best is gone on from.
        make: makes the plan, once.
    """

    price: int
    family: Family
    make: Callable[[], Plan]


def starts(search: Search) -> list[StartRecipe]:
    """Of all methods that need no search, cheap ones first."""
    problem = search.problem
    tight = problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum()
    known = [*_named(search, CONTIGUOUS, "contiguous")]
    some = [*cuts(problem), *_held(problem, tight)]
    if problem.objective.of_memory and problem.num_devices > 1:
        known += _balanced(problem, some, BALANCED // 10)
    known += [StartRecipe(CUT, "contiguous", partial(Plan.of, problem, device)) for device in some]
    if not problem.objective.of_memory:
        known += _in_groups(problem)
    known += _named(search, LISTS | (WHEN_TIGHT if tight else {}), "list")
    known += _named(search, ONE, "contiguous")
    if problem.num_devices == 1:
        return known
    others = [*dealt(problem, DEALT)] if problem.objective.of_memory else []
    known += [StartRecipe(DEALT_PRICE, "dealt", partial(Plan.of, problem, device)) for device in others]
    partitions = PARTITIONS if problem.num_ops <= MOST_PARTITIONED else dict([*PARTITIONS.items()][:1])
    slow = [*_named(search, partitions, "partition"), *(_balanced(problem, others, BALANCED) if others else ())]
    slow += _named(search, SPLITS if problem.objective.of_order else LOAD_SPLITS, "contiguous")
    return [*known, *sorted(slow, key=lambda start: start.price)]


def _held(problem: Problem, tight: bool) -> list[Ints]:
    """Cuts by what devices hold, where memory matters."""
    if problem.num_devices == 1 or not (tight or problem.objective.of_memory):
        return []
    return cut_by_held(problem, HELD if problem.objective.of_memory else HELD[:1])


def _balanced(problem: Problem, given: list[Ints], price: int) -> Iterator[StartRecipe]:
    """Made from the best of those that are given, in two ways."""
    for seed, stages in enumerate((MIXED, FINER)):
        yield StartRecipe(price, "balanced", partial(_plan_balanced, problem, given, stages, seed))


def _plan_balanced(problem: Problem, given: list[Ints], stages: Sequence[Stage], seed: int) -> Plan:
    return Plan.of(problem, balanced(problem, given, stages, seed))


def _in_groups(problem: Problem) -> Iterator[StartRecipe]:
    for way, price in GROUPED.items():
        if problem.num_devices > 1 and (way.by != "scope" or any(problem.graph.scope)):
            yield StartRecipe(price, "grouped", partial(grouped, problem, way))


def _named(search: Search, methods: dict[str, int], family: Family) -> Iterator[StartRecipe]:
    for name, price in methods.items():
        yield StartRecipe(price, family, partial(_made_by, search, name))


def _made_by(search: Search, name: str) -> Plan:
    plan: Plan = make_optimizer(name).optimize(search)
    return plan


def made(search: Search, some: list[StartRecipe]) -> Iterator[Scored]:
    """Their plans, each in the order that it gives itself, none twice; those that need a package which is missing are
    left out."""
    seen = set[tuple[bytes, bytes]]()
    for start in some:
        try:
            plan = start.make()
        except MissingExtra:
            continue
        if search.spent and search.best is not None and not search.has_run(plan):  # it may have scored plans itself
            return
        same = plan.device.tobytes(), _order(plan.rank)
        if same not in seen or plan.send_rank is not None:
            seen.add(same)
            yield Scored(search.score(plan), plan, start.family)


def ordered(search: Search, scored: list[Scored], most: int = ORDERED) -> list[Scored]:
    """All of them, and the best few placements under the orders that they are not in yet, best first."""
    found = sorted(scored, key=lambda start: start.score)
    for _, plan, family in unlike(found, most):
        seen = {_order(plan.rank)} if plan.send_rank is None else set()
        for other in orders(search, plan):
            if search.has_run(other) or (not search.spent and _order(other.rank) not in seen):
                seen.add(_order(other.rank))
                found.append(Scored(search.score(other), other, family))
    return sorted(found, key=lambda start: start.score)


def _order(rank: Ints) -> bytes:
    """Equal for ranks that say the same."""
    return np.argsort(rank, kind="stable").tobytes()


def of_each_family(found: list[Scored], most: int) -> list[Scored]:
    """The best of each family, of those that are sorted, then more of the best that are unlike them."""
    families = {start.family: start for start in reversed(found) if not far(start.score, found[0].score, VERY_FAR)}
    near = [start for start in found if not far(start.score, found[0].score)]
    return unlike([*sorted(families.values(), key=lambda start: start.score), *near], most)


def of_another(search: Search, also: Optimizer | None) -> Iterator[Scored]:
    """Plans that came with the problem, and that of another method, which may search a little."""
    for plan in search.starts:
        if not search.spent:
            yield Scored(search.score(plan), plan)
    if also is not None:
        with a_little(search) as part:
            plan = also.optimize(part)
        if not search.spent or search.best is None:
            yield Scored(search.score(plan), plan)


def orders(search: Search, plan: Plan) -> Iterator[Plan]:
    """The placement of a plan in the usual orders, as far as the budget goes."""
    problem = search.problem
    program = ints(np.arange(problem.num_ops))
    if problem.objective.of_memory:
        yield plan.with_rank(program)
        yield plan.with_rank(positions(memory_order(problem)))
    elif problem.objective.of_order:
        yield plan.with_rank(critical_rank(problem, plan.device))
        if plan.send_rank is not None:  # sends in the order of their readers, which it was not
            yield plan.with_rank(plan.rank)
        elif not search.spent:
            yield search.first_come(plan.device)
        yield plan.with_rank(program)


def far(score: Score, best: Score, times: float = FAR) -> bool:
    """Whether a start is too bad to go on from: search gets that far from the best one sooner."""
    return score.over_bytes > best.over_bytes or score.value > best.value * times


def unlike(found: list[Scored], count: int) -> list[Scored]:
    """The first few plans of which no two place nine ops in ten alike."""
    chosen = found[:1]
    for start in found[1:]:
        if len(chosen) < count and all((start.plan.device != other.plan.device).mean() > 0.1 for other in chosen):
            chosen.append(start)
    return chosen
