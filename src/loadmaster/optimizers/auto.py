"""Auto: a portfolio under one budget. Cheap methods first, then search from the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from loadmaster.catalog.specs import make_optimizer
from loadmaster.columns import Ints, ints, positions
from loadmaster.errors import MissingExtra
from loadmaster.optimizers.annealing.chains import CHAINS, Chains, Decisions, start_of
from loadmaster.optimizers.cuts import cuts
from loadmaster.optimizers.exact import closing
from loadmaster.optimizers.genetic.brkga import Brkga
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.optimizers.memory.orders import memory_order
from loadmaster.optimizers.multilevel.multilevel import Multilevel, too_large
from loadmaster.optimizers.simple import a_little
from loadmaster.passes import Coarse, coarsen
from loadmaster.passes.chaining import chain_small_ops
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Score, Search
from loadmaster.simulator import first_come

Scored = tuple[Score, Plan]
ONE_SHOT = ("one-device", "expert", "heft", "etf", "cpop", "sct", "heft:contention=no")
PARTITIONS = tuple(f"{name}:order=critical" for name in ("metis", "scotch", "kahip", "mtkahypar"))
WHEN_TIGHT = ("m-etf", "m-heft", "m-sct")
LEARNED = {"peak-memory": ("regal:plans_only=yes",)}  # policies whose plans join the starts
MOST_PARTITIONED = 12_000  # ops; the better partitioners take many seconds beyond
STARTS = 3  # plans that search goes on from, at first
FAR = 1.25  # times the best: a start that is worse than that is left out
EVOLVING = Brkga(by="edges", blocks=24, sends=False, evaluations=10**9)  # few large groups
EVOLVED = 400  # simulations for it

# The epochs of search. Chosen by comparing a few settings on five `go` rows at 300 to 3,000 simulations, two seeds.
FIRST = 48  # simulations from each start, cold: which one is best shows soon
NEXT = 192  # of the first epoch from the best plan so far
GROWTH = 1.5  # times as many in each later one
WARMTH = (0.0, 1.0, 2.0, 3.0)  # of the temperature, for the epochs in turn
HOTTER, HOTTEST = 5.0, 20.0  # simulations per op in an epoch, for which it is the temperature itself; most times it
GIVEN = 3  # epochs from plans that came with the problem, before the others
LEARNED_FROM = 4  # epochs after which loading a policy's network pays


@dataclass(frozen=True)
class Auto:
    """The portfolio. What it does with N simulations is the beginning of what it does with more, so more is never
    worse; the clock only says when it ends.

    One-shot plans, each of them under the usual orders; then epochs of annealing, the first ones from several good
    starts, the later and longer ones from the best plan so far.
    """

    temperature: float = 0.001  # first temperature, as a share of the value
    cold: float = 1e-4  # last temperature
    follow: float = 0.5
    also: Optimizer | None = None  # another method whose plan joins the starts

    RENAMED: ClassVar = {"heat": "temperature"}  # until version 0.3

    def optimize(self, search: Search) -> Plan:
        if too_large(search.problem):
            return self._in_parts(search)
        epochs = Epochs(self, search)
        if _promising(search):
            epochs.improve_given()
        ranked = sorted(one_shots(search, self.also), key=lambda start: start[0])
        starts = unlike([start for start in ranked if not far(start[0], ranked[0][0])], STARTS)
        if not search.spent:
            with closing(search):
                epochs.run(starts)
        return search.best if search.best is not None else ranked[0][1]

    def _in_parts(self, search: Search) -> Plan:
        if self.also is not None:
            with a_little(search) as part:
                plan = self.also.optimize(part)
            if search.room:
                search.score(plan)
        return Multilevel().optimize(search)


class Epochs:
    """Coolings that do not depend on the budget: short ones from each start, then longer and longer ones from the best.
    Every other one is on a smaller problem where small ops can be joined: moves go farther there, and faster."""

    def __init__(self, settings: Auto, search: Search) -> None:
        self.settings, self.search, self.problem = settings, search, search.problem
        self.whole = coarsen(self.problem, ints(np.arange(self.problem.num_ops)))
        self.walking: Chains | None = None
        self.small = None if self.problem.objective.of_memory else chain_small_ops(self.problem)
        self.part: Search | None = None
        self.small_walking: Chains | None = None

    def run(self, starts: list[Scored]) -> None:
        """Until the budget is spent."""
        search, memory = self.search, self.problem.objective.of_memory and self.problem.num_devices > 1
        for start in starts:
            self._epoch(start, FIRST, 0.0)
        length, turn = float(NEXT), 0
        while not search.spent:
            before = search.simulations
            assert search.best is not None
            if turn == 0 and memory:
                self._from_evolved()
            if turn == LEARNED_FROM and search.problem.num_devices > 1:
                self._from_learned()
            hot = self.settings.temperature * WARMTH[turn % len(WARMTH)] * self._warmer(int(length))
            if self.small is not None and turn % 2 == 1:
                self._joined_epoch(search.best, int(length), hot)
            else:
                self._epoch((search.best_score, search.best), int(length), hot)
            turn, length = turn + 1, length * GROWTH
            if search.simulations == before:
                return  # there is nothing to move

    def improve_given(self) -> None:
        """A few cold epochs from plans that came with the problem, before anything else is tried: where the problem is
        like an earlier one, that is most of the way in a fraction of a second."""
        for turn in range(GIVEN):
            if not self.search.spent and self.search.best is not None:
                self._epoch((self.search.best_score, self.search.best), int(NEXT * GROWTH**turn), 0.0)

    def _warmer(self, length: int) -> float:
        """With many simulations for each op it pays to start hotter: there is time to come back from far away."""
        return float(np.clip(length / self.problem.num_ops / HOTTER, 1.0, HOTTEST))

    def _epoch(self, scored: Scored, simulations: int, hot: float) -> None:
        search = self.search
        if search.spent:
            return
        start = start_of(self.problem, self.whole, scored[1], scored[0])
        if self.walking is None:
            decisions = Decisions(follow=self.settings.follow)
            self.walking = Chains(search, self.whole, decisions, [start] * CHAINS)
        else:
            self.walking.restart(start)
        self.walking.cool(simulations, hot, self.settings.cold)

    def _joined_epoch(self, plan: Plan, simulations: int, hot: float) -> None:
        """On the smaller problem, whose plans cost about what they cost on the whole; then its best plan is scored."""
        small, search = self.small, self.search
        if search.spent or small is None:
            return
        given = small.down(plan)
        part = search.part(problem=small.problem)
        start = start_of(small.problem, _same(small.problem), given, part.score(given))
        walking = self.small_walking
        if walking is None:
            decisions = Decisions(follow=self.settings.follow)
            walking = self.small_walking = Chains(part, _same(small.problem), decisions, [start] * CHAINS)
        else:
            walking.search = walking.pace.search = part
            walking.restart(start)
        try:
            walking.cool(simulations, hot, self.settings.cold)
        finally:  # an interrupt keeps what the part has found
            if part.best is not None and part.best is not given:
                search.score(small.up(part.best))

    def _from_evolved(self) -> None:
        """From what a genetic search over few large groups finds: far from all rules, and often the best start."""
        with self.search.keeping(simulations=EVOLVED) as part:
            plan = EVOLVING.optimize(part)
        self._epoch((part.best_score, plan), FIRST, 0.0)

    def _from_learned(self) -> None:
        for name in LEARNED.get(self.problem.objective.name, ()):
            with suppress(MissingExtra):  # without torch there is one start less
                plan = make_optimizer(name).optimize(self.search)
                if not self.search.spent:
                    self._epoch((self.search.score(plan), plan), FIRST, 0.0)


def _promising(search: Search) -> bool:
    """Whether a plan that came with the problem is better than what the oldest rules give."""
    if not search.starts or search.spent:
        return False
    given = search.best_score
    return given < min(search.score(make_optimizer(name).optimize(search)) for name in ("one-device", "expert"))


def _same(problem: Problem) -> Coarse:
    return coarsen(problem, ints(np.arange(problem.num_ops)))


def far(score: Score, best: Score) -> bool:
    """Whether a start is too bad to go on from: search gets that far from the best one sooner."""
    return score.over_bytes > best.over_bytes or score.value > best.value * FAR


def unlike(starts: list[Scored], count: int) -> list[Scored]:
    """The first few plans of which no two place nine ops in ten alike."""
    chosen = [starts[0]]
    for score, plan in starts[1:]:
        if len(chosen) < count and all((plan.device != other.device).mean() > 0.1 for _, other in chosen):
            chosen.append((score, plan))
    return chosen


def one_shots(search: Search, also: Optimizer | None = None) -> list[Scored]:
    """Scored plans of every one-shot method under every order, best placements of each kept apart."""
    problem, scored = search.problem, list[Scored]()
    for plan in _placements(search, also):
        if scored and search.spent:
            break
        scored.append((search.score(plan), plan))
        for rank in _orders(problem, plan):
            if not search.spent:
                other = plan.with_rank(rank)
                scored.append((search.score(other), other))
    return scored


def _placements(search: Search, also: Optimizer | None) -> Iterator[Plan]:
    problem = search.problem
    yield from search.starts
    if also is not None:
        with a_little(search) as part:
            plan = also.optimize(part)
        yield plan
    tight = problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum()
    partitions = PARTITIONS if problem.num_ops <= MOST_PARTITIONED else PARTITIONS[:1]
    several = (*_splits(problem), *partitions) if problem.num_devices > 1 else ()
    for name in (*ONE_SHOT, *(WHEN_TIGHT if tight else ()), *several):
        try:
            yield make_optimizer(name).optimize(search)
        except MissingExtra:
            continue
    for device in cuts(problem):
        yield Plan.of(problem, device)


def _splits(problem: Problem) -> tuple[str, ...]:
    """Contiguous stages: for a short step, or for a small load of each device where that is what counts."""
    if problem.objective.of_order:
        return ("pipeline:order=critical",)
    return ("downsets:effort=1000000,sets=4000", "pipeline:goal=max-load,order=critical", "pipeline:order=critical")


def _orders(problem: Problem, plan: Plan) -> list[Ints]:
    if not problem.objective.of_order:
        return []
    program = ints(np.arange(problem.num_ops))
    if problem.objective.of_memory:
        return [program, positions(memory_order(problem))]
    return [program, critical_rank(problem, plan.device), first_come(problem, plan.device).rank]
