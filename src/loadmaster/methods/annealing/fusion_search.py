"""Search over fusion: which merges are tried first, and which not at all. Devices and order are those of another
method.

Fusion alone, to measure what it brings: `joint` decides it together with the rest. A simulation of a plan with kernels
takes longer than one without (`simulator.contraction`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.baselines.simple import a_little
from loadmaster.graph.columns import ints
from loadmaster.methods.annealing.chains import CHAINS, Chains, ChainStart, Decisions, epochs
from loadmaster.methods.annealing.fusion_starts import fusing_for, kernels_of, simple_fusions
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

BATCH = 16  # random candidates scored at once
ALONE = Decisions(placing=False, ordering=False, fusing=True)


@dataclass(frozen=True)
class RandomFusion:
    """Merges in a random order, the best of several; kernels stay on the devices that `inner` chose.

    Attributes:
        inner: gives devices and order.
        samples: random orders of merging, at most.
    """

    inner: Method = field(default_factory=Heft)
    samples: int = 64

    def optimize(self, search: Search) -> Plan:
        plan, left = inner_plan(search, self.inner), self.samples
        merges = Merges.of(search.problem)
        search.fusing = merges.sharing
        while left and not search.spent:
            count = min(left, BATCH)
            priorities = search.rng.random((count, search.problem.num_ops))
            kernels = merges.kernels(plan.device, priorities)
            device, rank = (np.broadcast_to(column, kernels.shape) for column in (plan.device, plan.rank))
            search.score_fused(device, rank, kernels)
            left -= count
        return search.best if search.best is not None else plan


@dataclass(frozen=True)
class AnnealFusion:
    """Simulated annealing over the priorities in which merges are tried; devices and order are those of `inner`.

    Starts from the best of the simple rules: the default one of compilers, and every merge that is legal in several
    orders. Moves give new priorities to a window of the program, to ops of one kind in one surrounding, to single ops,
    or part and join kernels.

    Attributes:
        inner: gives devices and order.
        temperature: first temperature, as a share of the value.
        cold: last temperature.
        chains: walkers side by side.
    """

    inner: Method = field(default_factory=Heft)
    temperature: float = 1e-3
    cold: float = 1e-5
    chains: int = CHAINS

    def optimize(self, search: Search) -> Plan:
        plan = inner_plan(search, self.inner)
        search.fusing = Merges.of(search.problem).sharing
        improve_fusion(search, plan, self.temperature, self.cold, self.chains)
        return search.best if search.best is not None else plan


def inner_plan(search: Search, inner: Method) -> Plan:
    """The inner method's plan without fusion, scored."""
    with a_little(search) as part:
        plan = inner.optimize(part)
        if part.best is not None and (search.spent or part.score(plan) > part.best_score):
            plan = part.best
    if not search.spent:
        search.score(plan)
    return plan


def improve_fusion(search: Search, plan: Plan, hot: float, cold: float, chains: int = CHAINS) -> None:
    """Looks for better kernels of the plan until the budget is spent; the search keeps the best. Starts from the plan's
    own kernels where it has some, else from those of simple rules."""
    problem = search.problem
    if search.spent or not len(Merges.of(problem).producers):
        return
    walking = fusing_chains(search, plan, ALONE, chains)
    if walking is None:
        return
    for length in epochs():
        walking.cool(length, hot, cold)
        if search.spent or not walking.weights.any():
            return
        walking.return_to_best()


def fusing_chains(search: Search, plan: Plan, decisions: Decisions, chains: int = CHAINS) -> Chains | None:
    """Chains that change kernels, from the plan's own or from the best simple ones; None where the budget ended."""
    problem = search.problem
    if plan.fuses:
        found = [(kernels_of(problem, plan.kernel), search.score(plan))] * max(1, chains)
    else:
        found = simple_fusions(search, plan, max(1, chains))
    if search.spent:
        return None
    starts = [ChainStart(plan.device, plan.rank, score, tuple(kernels)) for kernels, score in found]
    fusing = fusing_for(problem, len(starts), None if decisions.placing else plan.device)
    return Chains(search, coarsen(problem, ints(np.arange(problem.num_ops))), decisions, starts, fusing)
