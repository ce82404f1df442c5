"""A walk: annealing of placement and order from one plan, epoch after epoch.

Its kernels stay as they are within an epoch. After it they are made anew by the greedy rule among the ops of
each device, and the better of the two plans goes on. For peak memory, moves along the order in which the plan ran come
first (`rebalancing`): they gain more for a simulation.
"""

from __future__ import annotations

from loadmaster.methods.annealing.chains import COLD, HOT, Chains, Reheating, side_by_side, together, walkers
from loadmaster.methods.default.starts import Scored, fused
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.search import Score, Search

LOOKS = 160  # simulations of each window
PATIENCE = 4  # rebalanced plans in a row that are no better, after which annealing goes on


class AnnealingWalk:
    """Goes on from the best plan that it has found.

    Attributes:
        score, plan: of that.
    """

    def __init__(self, search: Search, start: Scored, fuses: bool) -> None:
        self.search, self.fuses = search, fuses
        self.score, self.plan = start
        self.pace = Reheating(search.problem.num_ops)
        self._chains: Chains | None = None
        self.windows = False  # the last epoch of the whole gained nothing: windows of the step are next
        self.turn = 0

    def epoch(self) -> None:
        """One cooling, longer than the one before."""
        if self.search.spent:
            return
        before, length = self.score, int(self.pace.length)
        if self.windows and length < self.pace.ops:
            self._refine()
            return
        if self.search.problem.objective.of_memory and self.search.problem.num_devices > 1:
            self._rebalance()
        if self.search.spent:
            return
        chains = self.chains
        chains.cool(together(length, len(chains.chains)), self._warmth(length) * self.pace.times, COLD)
        self.score, self.plan = min((self.score, self.plan), chains.found, key=lambda found: found[0])
        chains.return_to_best()
        self.pace.ended(HOT, self.score < before)
        self.windows = self.score == before
        if self.fuses and not self.search.spent:
            self._move_to(*fused(self.search, self.plan))

    @property
    def chains(self) -> Chains:
        """One on each core where the clock counts, on the kernels of the plan."""
        if self._chains is None:
            count = side_by_side(self.search, self.search.problem.num_ops)
            self._chains = walkers(self.search, self.plan, self.score, count)
            self.pace.ops = self._chains.problem.num_ops
        return self._chains

    def _warmth(self, length: int) -> float:
        """Short epochs are cold: from far away there is no time to come back."""
        return max(COLD, HOT * min(1.0, length / self.pace.ops))

    def _rebalance(self) -> None:
        from loadmaster.methods.default.rebalancing import Rebalancer

        coarse = coarsen(self.search.problem, self.plan.kernel)
        part = self.search.part(problem=coarse.problem)
        score, plan = Rebalancer(part).improve(self.score, coarse.down(self.plan), PATIENCE)
        self._move_to(score, coarse.up(plan))

    def _refine(self) -> None:
        """A pass over windows of the step: on a large graph the whole takes long to simulate, a window does not."""
        from loadmaster.methods.multilevel.refine import refine

        coarse = coarsen(self.search.problem, self.plan.kernel)
        part, before = self.search.part(problem=coarse.problem), self.score
        plan = coarse.down(self.plan)
        part.offer(plan, self.score)
        found = refine(part, plan, LOOKS, self.turn)
        self.turn += 1
        self._move_to(part.best_score, coarse.up(found))
        self.windows = self.score < before

    def _move_to(self, score: Score, plan: Plan) -> None:
        """A better plan from elsewhere: it needs chains of its own."""
        if score < self.score:
            self.score, self.plan, self._chains = score, plan, None
            self.search.offer(plan, score)
