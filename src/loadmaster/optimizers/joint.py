"""Joint: fusion, placement and schedule decided together under one budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.optimizers.annealing.chains import (
    Chains,
    Decisions,
    Reheating,
    Start,
    compile_walk,
    epochs,
    spread_ranks,
    walkers,
)
from loadmaster.optimizers.auto import NEXT_OF_FEW, Auto, Epochs, Runner
from loadmaster.optimizers.expert.expert import Expert
from loadmaster.optimizers.fusion.greedy import Merges, plan_fused
from loadmaster.optimizers.fusion.search import fusing_chains
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.optimizers.fusion.starts import fusing_for, kernels_of, simple_fusions, simple_orders
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.optimizers.starts import of_another
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Optimizer, Score, Search

QUICK: tuple[Optimizer, ...] = (Heft(), Expert())
# Where no reason is given, chosen by hand.
# Simulations for which `inner` plans the best kernels. Three kernels for 160 each were 2 % worse at 1,000 simulations.
PLANNED = 480
FIRST = 256  # simulations of the first epoch from the best plan so far
FUSING = (0.2, 0.8)  # least and most share of an epoch in which kernels change
WARMTH = (0.3, 0.6, 1.0)  # of the temperature, for the epochs in turn
TOGETHER = Decisions(fusing=True)


@dataclass(frozen=True)
class Joint:
    """Fuses by the simple rules without regard to devices, or not at all, and looks which kernels one-shot methods make
    good plans of; `inner` plans the best of them, of which there are fewer than ops. Then epochs of annealing from the
    best plan, of two halves: moves of placement, order and fusion in one loop; and moves of placement and order alone
    on the kernels found, which are fewer and so faster to simulate. What either half gained decides its share of the
    next epoch. What a budget buys is the beginning of what a larger one does.
    """

    inner: Optimizer = field(default_factory=Auto)
    temperature: float = 2e-3  # first temperature, as a share of the value
    cold: float = 1e-4  # last temperature
    also: Optimizer | None = None  # another method whose plan joins the first ones, fused by simple rules

    RENAMED: ClassVar = {"heat": "temperature"}  # until version 0.3

    def optimize(self, search: Search) -> Plan:
        for _ in self.turns(search):
            pass
        return search.best if search.best is not None else QUICK[0].optimize(search)

    def compile_late(self, search: Search) -> None:
        """The walk that changes kernels, which is half of all; what it shares with the other one is made first."""
        compile_walk(search, fusing_for(search.problem, 1))

    def turns(self, search: Search) -> Iterator[None]:
        """Does its work piece by piece; after each, the search has the best plan so far."""
        search.fusing = sharing_of(search.problem)
        kernels = finalists(search)
        for start in of_another(search, self.also):
            if not search.spent:
                simple_fusions(search, start.plan, 1)
        yield
        if search.spent:
            return
        with search.keeping(simulations=PLANNED) as part:
            plan_fused(part, kernels[0], self.inner)
        if not search.spent:
            yield
            yield from self._epochs(search)

    def _epochs(self, search: Search) -> Iterator[None]:
        together: Chains | None = None
        moving = Moving(self.inner if isinstance(self.inner, Auto) else Auto(), search)
        fusing, fuses = 0.5, len(Merges.of(search.problem).producers) > 0
        for turn, length in enumerate(epochs(FIRST)):
            hot, before, used = self.temperature * WARMTH[turn % len(WARMTH)], search.best_score, search.simulations
            if fuses:
                together = self._fused(search, together, int(length * fusing), hot)
            between = search.best_score
            some = int(length * (1 - fusing if fuses else 1))
            if turn % 2 == 0:
                self._moved(search, some, hot)
            else:
                moving.go_on(some)
            if search.spent or search.simulations == used:
                return
            yield
            fused, moved = gain(before, between) / fusing, gain(between, search.best_score) / (1 - fusing)
            fusing = float(np.clip(fused / (fused + moved), *FUSING)) if fused + moved > 0 else 0.5

    def _fused(self, search: Search, chains: Chains | None, simulations: int, hot: float) -> Chains | None:
        """All decisions in one loop, from the best plan; returns the chains, which are kept."""
        plan, problem = search.best, search.problem
        if search.spent or plan is None:
            return chains
        ranks = spread_ranks(problem, plan)
        if chains is None:
            chains = fusing_chains(search, Plan.of(problem, plan.device, ranks, plan.kernel), TOGETHER)
        else:
            kernels = kernels_of(problem, plan.kernel)
            chains.restart(Start(plan.device, ranks, search.best_score, tuple(kernels)))
        if chains is not None:
            chains.cool(simulations, hot, self.cold)
        return chains

    def _moved(self, search: Search, simulations: int, hot: float) -> None:
        """Placement and order alone, from the best plan, on its kernels."""
        if not search.spent and search.best is not None:
            walkers(search, search.best, search.best_score, Decisions()).cool(simulations, hot, self.cold)


class Moving:
    """Placement and order alone, on the kernels of the best plan, as `placement` goes on from a plan."""

    def __init__(self, settings: Auto, search: Search) -> None:
        self.settings, self.search = settings, search
        self.kernel: Ints | None = None

    def go_on(self, simulations: int) -> None:
        """At least so many simulations, to the end of an epoch."""
        search, until = self.search, self.search.simulations + simulations
        if search.spent or search.best is None:
            return
        self._stand(search.best)
        while search.simulations < until and not search.spent:
            before = search.simulations
            try:
                self.epochs.go_on(self.runner)
            finally:
                if self.part.best is not None:
                    search.offer(self.coarse.up(self.part.best), self.part.best_score)
            if search.simulations == before:
                return

    def _stand(self, plan: Plan) -> None:
        search = self.search
        if self.kernel is None or not np.array_equal(self.kernel, plan.kernel):
            self.kernel, self.coarse = plan.kernel, coarsen(search.problem, plan.kernel)
            self.part = search.part(problem=self.coarse.problem)
            self.epochs = Epochs(self.settings, self.part)
            pace = Reheating(self.coarse.problem.num_ops, NEXT_OF_FEW)
            self.runner = Runner(search.best_score, self.coarse.down(plan), pace)
        elif search.best_score < self.runner.score:
            self.runner.score, self.runner.plan, self.runner.joined = search.best_score, self.coarse.down(plan), None


def gain(before: Score, after: Score) -> float:
    """How much better, as a share; memory that is short counts before all else."""
    if before.over_bytes > 0:
        return 1 - after.over_bytes / before.over_bytes
    return 1 - after.value / max(1, before.value)


def finalists(search: Search) -> list[Ints]:
    """[ops] kernels, or none, that one-shot methods make the best plans of; no two of which plan alike."""
    problem, found = search.problem, list[tuple[Score, Ints]]()
    for kernel in (ints(np.arange(problem.num_ops)), *simple_kernels(problem)):
        if found and search.spent:
            break
        found.append((quick_score(search, kernel), kernel))
    unlike = {score: kernel for score, kernel in reversed(found)}
    return [unlike[score] for score in sorted(unlike)]


def quick_score(search: Search, kernel: Ints) -> Score:
    """Of the best plan that a one-shot method makes of the kernels."""
    plans = (plan_fused(search, kernel, optimizer) for optimizer in QUICK if search.simulations_left)
    return min((search.score(plan) for plan in plans), default=WORST)


def simple_kernels(problem: Problem) -> list[Ints]:
    """Those of the default rule and of every simple order, without regard to devices; each once."""
    merges = Merges.of(problem)
    if not len(merges.producers):
        return []
    alone = np.zeros(problem.num_ops, np.int32)
    rows = [merges.greedy(), *merges.kernels(alone, np.stack(simple_orders(problem)))]
    return [ints(row) for row in {row.tobytes(): row for row in map(ints, rows)}.values()]
