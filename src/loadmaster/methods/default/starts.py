"""Starts: plans by rules, cheapest first, that the search begins from.

No rule is best everywhere, and a rule takes about as long as a few simulations. Each plans the ops of the problem, or
its kernels (`PlannedView`). By the clock a rule is priced by the time the ones before it took, so that a slow machine
or a large graph gets fewer of them, and the best of them always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from loadmaster.baselines.cuts import Way, cut_by_held, cuts, dealt, grouped
from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.catalog.specs import make_method
from loadmaster.graph.columns import ints, positions
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Method, Score, Search

RULES = ("one-device", "expert", "heft", "heft:thrift=0.5", "etf", "sct", "cpop", "heft:contention=no")
# For tasks that nothing fuses (up to 10 % of the step on layered graphs, nothing on the models of the zoo): in so many
# ways where simulations are counted; by the clock, in as many as there is time for.
ROLLING = "rolling", "rolling:ways=64"
RULES_WHEN_TIGHT = ("m-heft", "m-etf", "m-sct")
RULES_FOR_LOAD = ("downsets:effort=1000000,sets=4000", "pipeline:goal=max-load,order=critical")
RULE_FOR_KERNELS = "pipeline:order=critical"  # slow op by op; far ahead on RNNLM, 4 K80 and a CPU
TIGHT = 4  # memory of all devices over the bytes of all tensors, below which plans may not fit
# The ways to place groups of ops of which each helps: what the others find from 20 rows without it is up to 1 % longer.
FEW, SOME, MORE, MANY = 16, 32, 128, 256  # groups at most
DEAR = 4.0  # times that what is sent counts
GROUPED = (
    *(Way("scope", MORE, "load", DEAR), Way("scope", MORE, "finish", DEAR), Way("edges", SOME, "load", 1.0)),
    *(Way("readers", FEW, "load", 1.0), Way("window", FEW, "load", 1.0)),
    *(Way("readers", MANY, "finish", 1.0), Way("readers", MANY, "finish", 2.0)),
)
TILT = 0.05  # of a device's share, that the first device gets more or less of in some cuts
HELD = tuple((turn, tilt) for turn in (0.0, 0.5) for tilt in (0.0, TILT, -TILT))  # cuts by what devices hold
DEALT = 6  # times that groups of ops are dealt out
# Shares of the seconds: of a rule that is still begun, of all rules together, of all other starts.
EACH, RULED, OTHERS = 0.1, 0.5, 0.2
UNLIKE = 0.1  # of the ops that two starts place differently, at least


class Scored(NamedTuple):
    """A plan of the whole problem and what it is worth."""

    score: Score
    plan: Plan


Recipe = Callable[[], Plan]


@dataclass(frozen=True, eq=False)
class PlannedView:
    """The problem that rules plan, and how a plan of it is scored on the whole."""

    search: Search
    problem: Problem
    coarse: Coarse | None  # kernels are planned as one op each

    @staticmethod
    def of_ops(search: Search) -> PlannedView:
        return PlannedView(search, search.problem, None)

    @staticmethod
    def of_kernels(search: Search) -> PlannedView:
        """Kernels by the greedy rule, whichever device they go to."""
        coarse = coarsen(search.problem, Merges.of(search.problem).greedy())
        return PlannedView(search.part(problem=coarse.problem), coarse.problem, coarse)

    def start(self, plan: Plan, whole: Search, fuses: bool) -> Scored:
        """A plan of the view as a start; ops that share a device are fused by the greedy rule."""
        if self.coarse is not None:
            start = Scored(self.search.score(plan), self.coarse.up(plan))
            whole.offer(start.plan, start.score)
            return start
        return fused(whole, plan) if fuses else Scored(whole.score(plan), plan)


def fused(search: Search, plan: Plan) -> Scored:
    """The same places and ranks, with kernels by the greedy rule among the ops of each device."""
    kernel = ints(Merges.of(search.problem).greedy(plan.device))
    over, value = search.score_fused(plan.device[None], plan.rank[None], kernel[None])
    return Scored(Score(int(over[0]), int(value[0])), Plan.of(search.problem, plan.device, plan.rank, kernel))


def best_starts(search: Search, fuses: bool, also: Method | None) -> list[Scored]:
    """Plans by rules, best first: of kernels and of ops where ops may be fused."""
    found = [Scored(search.score(plan), plan) for plan in given(search, also)]
    views = [PlannedView.of_kernels(search)] if fuses and not search.spent else []
    views.append(PlannedView.of_ops(search))
    for kind, share in ((rules, RULED), (others, OTHERS)):
        pace = RulePace(search, share)
        for view in views:
            for recipe in kind(view, fuses):
                if found and (search.spent or pace.over):
                    break
                found.append(view.start(pace.timed(recipe), search, fuses))
    return sorted(found, key=lambda start: start.score)


def given(search: Search, also: Method | None) -> Iterator[Plan]:
    """Plans that came with the problem, and that of another method."""
    yield from search.starts
    if also is not None:
        with search.keeping(OTHERS) as part:
            plan = also.optimize(part)
        yield plan if part.best is None else part.best


def unlike(found: list[Scored], most: int) -> list[Scored]:
    """The first few plans of which no two place nine ops in ten alike."""
    chosen: list[Scored] = []
    for start in found:
        if len(chosen) < most and all((start.plan.device != one.plan.device).mean() > UNLIKE for one in chosen):
            chosen.append(start)
    return chosen


class RulePace:
    """What starts may take, where the clock counts: a share of the seconds, each of them no more than a tenth."""

    def __init__(self, search: Search, share: float) -> None:
        self.search, self.longest_s = search, 0.0
        self.all_s = search.seconds + search.seconds_left
        self.until_s = search.seconds + share * self.all_s

    @property
    def over(self) -> bool:
        """Whether to begin no other one."""
        if self.search.counts_simulations:
            return False
        return self.search.seconds > self.until_s or self.longest_s > EACH * self.all_s

    def timed(self, recipe: Recipe) -> Plan:
        """Makes a plan, and remembers what that took."""
        begun = self.search.seconds
        plan = recipe()
        self.longest_s = max(self.longest_s, self.search.seconds - begun)
        return plan


def rules(view: PlannedView, fuses: bool) -> Iterator[Recipe]:
    """List schedules and the like, cheap ones first."""
    problem = view.problem
    names: tuple[str, ...] = RULES if problem.num_devices > 1 else ("expert",)
    names += RULES_WHEN_TIGHT if _tight(problem) else ()
    names += (ROLLING[not view.search.counts_simulations],) if problem.num_devices > 1 and not fuses else ()
    for name in names:
        yield partial(_by_rule, view.search, name)


def others(view: PlannedView, fuses: bool) -> Iterator[Recipe]:
    """Cuts of the program, groups of ops, and what suits the objective."""
    problem = view.problem
    if problem.num_devices == 1:
        return
    if problem.objective.of_memory:
        yield from _for_memory(problem)
    else:
        for device in [*cuts(problem), *(cut_by_held(problem, HELD[:1]) if _tight(problem) else ())]:
            yield partial(Plan.of, problem, device)
        for way in GROUPED:
            if way.by != "scope" or any(problem.graph.scope):
                yield partial(grouped, problem, way)
        if problem.objective.of_order and view.coarse is not None:
            yield partial(_by_rule, view.search, RULE_FOR_KERNELS)
    if not problem.objective.of_order:
        for name in RULES_FOR_LOAD:
            yield partial(_by_rule, view.search, name)


def _for_memory(problem: Problem) -> Iterator[Recipe]:
    """Placements under which devices hold about as much; the first few also in an order that holds less."""
    from loadmaster.baselines.memory_order import memory_order
    from loadmaster.methods.default.balancing import FINER, MIXED, balanced

    placed = [*cuts(problem), *cut_by_held(problem, HELD)]
    for stages, seed in ((MIXED, 0), (FINER, 1)):
        yield lambda stages=stages, seed=seed: Plan.of(problem, balanced(problem, placed, stages, seed))  # type: ignore[misc]
    placed += dealt(problem, {FEW: DEALT, MORE: DEALT})
    for device in placed:
        yield partial(Plan.of, problem, device)
    for device in placed[:4]:
        yield partial(Plan.of, problem, device, positions(memory_order(problem)))


def _by_rule(search: Search, name: str) -> Plan:
    """In a tenth of the time: some rules take what they are given."""
    part = search.part(EACH)
    plan: Plan = make_method(name).optimize(part)
    return plan if part.best is None else part.best


def _tight(problem: Problem) -> bool:
    return bool(problem.memory_bytes.sum() < TIGHT * problem.graph.nbytes.sum())
