"""Joint: fusion, placement and schedule decided together under one budget."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.columns import Ints, ints
from loadmaster.optimizers.annealing.anneal import improve
from loadmaster.optimizers.auto import Auto
from loadmaster.optimizers.expert.expert import Expert
from loadmaster.optimizers.fusion.greedy import Merges, plan_fused
from loadmaster.optimizers.fusion.search import improve_fusion, simple_orders
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Optimizer, Score, Search

CHOOSING = 0.1  # share of the budget for plans of all simple kernels by one-shot methods
TRIALS = ((5, 0.04), (2, 0.06))  # how many kernels `inner` plans on trial, and the share of what is left for each
MAIN = 0.5  # of what is left for the winner
ROUNDS = 4  # of search over kernels, then over placement and order
FUSING = (0.2, 0.8)  # least and most share of a round for kernels
QUICK: tuple[Optimizer, ...] = (Heft(), Expert())


@dataclass(frozen=True)
class Joint:
    """Fuses by the simple rules without regard to devices, or not at all, and looks which kernels one-shot methods make
    good plans of; `inner` plans the best few, which have far fewer kernels than ops; then, from the best plan, in turn
    search over the kernels of the plan found and over placement and order of the kernels found.
    """

    inner: Optimizer = field(default_factory=Auto)
    heat: float = 2e-3
    cold: float = 1e-4

    def optimize(self, search: Search) -> Plan:
        kernels = finalists(search)
        for count, share in TRIALS:
            if len(kernels) > 1:
                kernels = self._best_of(search, kernels[:count], share)
        plan, fusing = self._planned(search, kernels[0], MAIN)[1], 0.5
        for turn in range(ROUNDS):
            if not search.spent:
                plan, fusing = self._round(search, plan, 1 / (ROUNDS - turn), fusing)
        return search.best if search.best is not None else plan

    def _best_of(self, search: Search, kernels: list[Ints], share: float) -> list[Ints]:
        """The kernels in order of the plans that a short run of the inner optimizer makes of them."""
        tried = [(self._planned(search, kernel, share)[0] if not search.spent else WORST) for kernel in kernels]
        return [kernels[at] for at in sorted(range(len(kernels)), key=lambda at: tried[at])]

    def _planned(self, search: Search, kernel: Ints, share: float) -> tuple[Score, Plan]:
        """The best plan of the inner optimizer for the kernels; that of the whole search where there is no time."""
        if search.spent and search.best is not None:
            return search.best_score, search.best
        with search.keeping(share) as part:
            plan = plan_fused(part, kernel, self.inner)
        score = search.score(plan) if not search.spent else WORST
        return score, search.best or plan

    def _round(self, search: Search, plan: Plan, share: float, fusing: float) -> tuple[Plan, float]:
        """Better kernels of the plan, then a better placement and order of the kernels; and the share of the next round
        for kernels, by what either has gained for its time."""
        part, before = search.part(share), search.best_score
        plan = self._improved(search, part.part(fusing), plan, kernels=True)
        between = search.best_score
        if not part.spent:
            plan = self._improved(search, part.part(), plan, kernels=False)
        fused, moved = gain(before, between) / fusing, gain(between, search.best_score) / (1 - fusing)
        return plan, float(np.clip(fused / (fused + moved), *FUSING)) if fused + moved > 0 else 0.5

    def _improved(self, search: Search, part: Search, plan: Plan, *, kernels: bool) -> Plan:
        try:
            if kernels:
                improve_fusion(part, plan, self.heat, self.cold / 10)
            else:
                improve(part, plan, self.heat, self.cold)
        finally:  # the whole search must have it before the next half of the round, interrupted or not
            search.keep(part)
        return search.best if search.best is not None else plan


def gain(before: Score, after: Score) -> float:
    """How much better, as a share; memory that is short counts before all else."""
    if before.over_bytes > 0:
        return 1 - after.over_bytes / before.over_bytes
    return 1 - after.value / max(1, before.value)


def finalists(search: Search) -> list[Ints]:
    """[ops] kernels, or none, that one-shot methods make the best plans of; no two of which plan alike."""
    problem, found = search.problem, list[tuple[Score, Ints]]()
    with search.keeping(CHOOSING) as part:
        for kernel in (ints(np.arange(problem.num_ops)), *simple_kernels(problem)):
            if found and part.spent:
                break
            found.append((quick_score(part, kernel), kernel))
    unlike = {score: kernel for score, kernel in reversed(found)}
    return [unlike[score] for score in sorted(unlike)]


def quick_score(search: Search, kernel: Ints) -> Score:
    """Of the best plan that a one-shot method makes of the kernels."""
    plans = (plan_fused(search, kernel, optimizer) for optimizer in QUICK if search.room)
    return min((search.score(plan) for plan in plans), default=WORST)


def simple_kernels(problem: Problem) -> list[Ints]:
    """Those of the default rule and of every simple order, without regard to devices; each once."""
    merges = Merges.of(problem)
    if not len(merges.producers):
        return []
    alone = np.zeros(problem.num_ops, np.int32)
    rows = [merges.greedy(), *merges.kernels(alone, np.stack(simple_orders(problem)))]
    return [ints(row) for row in {row.tobytes(): row for row in map(ints, rows)}.values()]
