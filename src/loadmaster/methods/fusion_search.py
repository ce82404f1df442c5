"""Search over fusion: which merges are tried first, and which not at all. Devices and order are those of another
method.

Fusion alone, to measure what it brings: `auto` decides it together with the rest. Kernels follow from a priority of
every op (`Merges.kernels`), and moves change priorities, so that every plan is one that the rules allow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.fusion.greedy import Merges, simple_orders
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.baselines.simple import a_little
from loadmaster.graph.columns import Floats, Ints, ints, numbered
from loadmaster.methods.annealing.choice import cooled, slack_of
from loadmaster.plans import Plan
from loadmaster.search import Method, Score, Search
from loadmaster.search.xorshift import seeded_by

BATCH = 16  # candidates scored at once
EPOCH, GROWTH = 192, 1.5  # simulations of the first cooling, and how many times as many each later one has
KEEP_APART = 0.2  # chance that an op is not merged with what reads it
MOST_IDLE = 64  # moves in a row that change no kernel and then count as a simulation


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
            score_kernels(search, plan, merges.kernels(plan.device, search.rng.random((count, search.problem.num_ops))))
            left -= count
        return search.best if search.best is not None else plan


@dataclass(frozen=True)
class AnnealFusion:
    """Simulated annealing over the priorities in which merges are tried; devices and order are those of `inner`.

    Starts from the best of the simple rules: the default one of compilers, and every merge that is legal in several
    orders. Moves give new priorities to a window of the program, to ops of one kind, or to one op.

    Attributes:
        inner: gives devices and order.
        temperature: first temperature, as a share of the value.
        cold: last temperature.
    """

    inner: Method = field(default_factory=Heft)
    temperature: float = 1e-3
    cold: float = 1e-5

    def optimize(self, search: Search) -> Plan:
        plan = inner_plan(search, self.inner)
        search.fusing = Merges.of(search.problem).sharing
        improve_fusion(search, plan, self.temperature, self.cold)
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


def score_kernels(search: Search, plan: Plan, kernels: NDArray[np.integer]) -> list[Score]:
    """Of the plan with each row of kernels."""
    device, rank = (np.broadcast_to(column, kernels.shape) for column in (plan.device, plan.rank))
    over, value = search.score_fused(device, rank, kernels)
    return [Score(int(o), int(v)) for o, v in zip(over, value, strict=True)]


def improve_fusion(search: Search, plan: Plan, hot: float, cold: float) -> None:
    """Looks for better kernels of the plan until the budget is spent; the search keeps the best. Starts from the plan's
    own kernels where it has some, else from those of simple rules."""
    if search.spent or not len(Merges.of(search.problem).producers):
        return
    walk, length = FusionWalk(search, plan), float(EPOCH)
    while not search.spent:
        walk.cool(int(length), hot, cold)
        length *= GROWTH


class FusionWalk:
    """One chain over the priorities of merges.

    Attributes:
        priority: [ops] that stands; below 0: merged with none of its readers.
        best: the best that was met, which each cooling goes on from.
    """

    def __init__(self, search: Search, plan: Plan) -> None:
        self.search, self.plan, self.merges = search, plan, Merges.of(search.problem)
        self.state = seeded_by(search.rng)
        self.kind = numbered(search.problem.graph.kind)
        orders = np.stack([_own_order(self.merges, plan)] if plan.fuses else simple_orders(search.problem))
        if not plan.fuses:
            score_kernels(search, plan, self.merges.greedy(plan.device)[None])
        self.kernels = self.merges.kernels(plan.device, orders)
        scores = score_kernels(search, plan, self.kernels)
        first = scores.index(min(scores))
        self.score, self.priority, self.kernel = scores[first], orders[first], ints(self.kernels[first])
        self.best = (self.score, self.priority, self.kernel)

    def cool(self, length: int, hot: float, cold: float) -> None:
        """So many simulations, from the one temperature to the other, from the best plan so far."""
        self.score, self.priority, self.kernel = self.best
        for turn in range(length):
            if self.search.spent:
                return
            drawn = self._draw()
            if drawn is None:
                self.search.count(1)
                continue
            priority, kernel = drawn
            (score,) = score_kernels(self.search, self.plan, kernel[None])
            slack = slack_of(cooled(hot, cold, turn / length), self.state)
            if score <= Score(self.score.over_bytes, int(self.score.value * (1 + slack))):
                self.score, self.priority, self.kernel = score, priority, kernel
            if score < self.best[0]:
                self.best = (score, priority, kernel)

    def _draw(self) -> tuple[Floats, Ints] | None:
        """Other priorities that give other kernels, unless none are found."""
        for _ in range(MOST_IDLE):
            priority = self._moved()
            kernel = ints(self.merges.kernels(self.plan.device, priority)[0])
            if not np.array_equal(kernel, self.kernel):
                return priority, kernel
        return None

    def _moved(self) -> Floats:
        priority: Floats = self.priority.copy()
        rng, ops = self.search.rng, len(priority)
        op = int(rng.choice(self.merges.producers))
        way = rng.integers(3)
        if way == 0:
            size = int(np.exp(rng.random() * np.log(ops + 1)))
            some = slice(max(0, op - int(rng.integers(size))), op + size)
            fresh = rng.random(len(priority[some]))
            priority[some] = np.where(rng.random(len(fresh)) < KEEP_APART, -1.0, fresh)
        elif way == 1:
            priority[self.kind == self.kind[op]] = -1.0 if rng.random() < KEEP_APART else rng.random()
        else:
            priority[op] = rng.random() if priority[op] < 0 else -1.0
        return priority


def _own_order(merges: Merges, plan: Plan) -> Floats:
    """Priorities that give about the kernels of the plan."""
    order = np.full(len(plan.kernel), -1.0)
    together = plan.kernel[merges.producers] == plan.kernel[merges.consumers]
    order[merges.producers[together]] = 0.5
    return order
