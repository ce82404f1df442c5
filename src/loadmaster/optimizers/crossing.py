"""Crossing: a plan takes over, for a stretch of the step, the devices that another plan has there.

Searches from several starts end in plans that are good at different parts of the step. What a plan does at one moment
matters little to the ops of another, so that the better stretch can be had without the rest: this is the crossover of
genetic search between plans that were annealed, by windows of time, and only what is better is kept. Devices that are
alike may have changed names between two plans; the other plan is renamed so that both agree on most of the work.

At 60,000 simulations, Inception-V3 on two and four devices of Placeto, seeds 0 to 3: 57.81 to 57.53 ms and 57.98 to
57.65; 20 generated graphs of 54 to 193 ops, 10,000 simulations, the same seeds: 0.999 of what they were.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.optimizers.starts import Scored
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.symmetry import alike_devices
from loadmaster.search import Score, Search

# Where no reason is given, docs/constants.md has what half and twice of it do.
KEPT = 6  # other plans
TRIED = 2  # simulations for each op that a plan has had, to be worth keeping
SHARE, LESS = 0.1, 0.5  # of all simulations; how many times that after each time that brought nothing
LEAST = 200  # simulations at a time
PRICE = 3  # moves of a walk that take as long as one of them, by the clock: 40 us for 13 on WaveNet
BATCH, MOST = 8, 64  # stretches that are tried at once, and after some time without a gain: few are quicker to gain by
WIDEST, NARROWEST = 1.0, 7.0  # halvings of the step, for the length of a stretch


class Crossing:
    """Other plans of a search, and how many simulations went into what they have."""

    def __init__(self, search: Search) -> None:
        self.search, self.used, self.share = search, 0, SHARE
        self.plans: list[Plan] = []

    def keep(self, plan: Plan, used: int) -> None:
        """A plan that is given up, after so many simulations of its own; the last few are kept."""
        if used >= TRIED * self.search.problem.num_ops:
            self.plans = [*self.plans, plan][-KEPT:]

    @property
    def due(self) -> int:
        """Simulations that it may have now."""
        allowed = int((self.share * self.search.in_turn - self.used) / self._price)
        several = self.search.problem.num_devices > 1
        return allowed if self.plans and several and allowed >= LEAST and not self.search.spent else 0

    @property
    def _price(self) -> int:
        return 1 if self.search.counts_simulations else PRICE

    def improve(self, given: Scored) -> Scored:
        """The plan with the stretches of others that make it better; as it was where nothing is due."""
        search, due = self.search, self.due
        if not due:
            return given
        coarse = coarsen(search.problem, given.plan.kernel)
        part = search.part(problem=coarse.problem, simulations=due)
        plan, score = coarse.down(given.plan), given.score
        others = [coarse.first(other.device) for other in self.plans]
        before = search.in_turn
        try:
            plan, score = _crossed(part, plan, score, others, due)
        finally:  # an interrupt keeps what the part has found
            self.used += self._price * (search.in_turn - before)
            if part.best is not None:
                search.offer(coarse.up(part.best), part.best_score)
        self.share = SHARE if score < given.score else LESS * self.share
        return Scored(score, coarse.up(plan)) if score < given.score else given


def _crossed(search: Search, plan: Plan, score: Score, others: list[Ints], most: int) -> tuple[Plan, Score]:
    problem, rng = search.problem, search.rng
    swappable, together = alike_devices(problem), problem.leader
    renamed = [renamed_like(problem, other, plan.device, swappable) for other in others]
    renamed.append(plan.device)  # what was taken over may be given back in part
    lent = _lent(problem, renamed, together)
    tried, batch = 0, BATCH
    turn = ints(search.timeline(plan).turn)
    while tried < most and not search.spent:
        rows = _stretches(rng, turn, lent, plan.device, together, min(batch, most - tried))
        rows = rows[(rows != plan.device).any(axis=1)]
        tried += max(1, len(rows))  # so that it ends where no two plans differ
        batch = min(2 * batch, MOST)
        if not len(rows):
            continue
        over, value = search.score_many(rows, turn)
        best = int(np.lexsort((value, over))[0])
        found = Score(int(over[best]), int(value[best]))
        if found < score:
            plan, score, batch = Plan.of(problem, ints(rows[best]), turn), found, BATCH
            turn = ints(search.timeline(plan).turn)
    return plan, score


def _stretches(rng: np.random.Generator, turn: Ints, lent: Ints, device: Ints, together: Ints, count: int) -> Ints:
    """[count, ops] each with the devices that one of the others lends for ops that are dispatched after each other, and
    for what must be with them."""
    ops = len(turn)
    length = np.maximum(1, (ops * 2.0 ** -rng.uniform(WIDEST, NARROWEST, count)).astype(np.int64))
    first = rng.integers(0, ops - length + 1)
    inside = np.zeros((count, ops), bool)
    row, op = np.nonzero((turn >= first[:, None]) & (turn < (first + length)[:, None]))
    inside[row, together[op]] = True
    other = lent[rng.integers(len(lent), size=count)]
    return np.where(inside[:, together] & (other >= 0), other, device)


def _lent(problem: Problem, others: list[Ints], together: Ints) -> Ints:
    """[others, ops] the device of the first that each op must be with; -1 where one of them cannot run there."""
    lent = np.stack(others)[:, together]
    return np.where(problem.able[np.arange(len(together)), lent], lent, -1)


def renamed_like(problem: Problem, device: Ints, like: Ints, swappable: Bools) -> Ints:
    """The devices with names changed among those that are alike, so that both agree on most of the work."""
    count = problem.num_devices
    work = np.zeros((count, count))
    np.add.at(work, (device, like), problem.op_ns[np.arange(len(device)), device].astype(np.float64))
    allowed = swappable | np.eye(count, dtype=bool)
    rows, columns = linear_sum_assignment(np.where(allowed, work, -1.0 - work.sum()), maximize=True)
    name = np.empty(count, np.int64)
    name[rows] = columns
    return ints(name[device])
