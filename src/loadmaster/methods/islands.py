"""Islands: searches apart, here or on a cluster of machines, that tell each other of the best plan now and then.

A round is a set of jobs that know nothing of each other (`search.workers` runs them in this process, in several, or on
a Ray cluster); between rounds the best plan goes to all. What a job finds depends on its seed and budget alone, so that
with a budget of simulations the answer does not depend on where it ran.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from loadmaster.baselines.fusion.greedy import sharing_of
from loadmaster.baselines.simple import Ready
from loadmaster.methods.annealing.anneal import Anneal
from loadmaster.methods.default.auto import placement
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Method, Score, Search
from loadmaster.search.workers import in_order


@dataclass(frozen=True)
class Islands:
    """Rounds of independent searches with seeds of their own: first by `inner`, then by annealing from the best plan
    that any of them has found. What they find does not depend on where they run: with a budget of simulations, a plan
    is the same on one machine and on many.

    Attributes:
        inner: searches in the first round.
        islands: searches of a round.
        rounds: after each, all go on from the best plan of any.
        ray: address of a Ray cluster, or auto; empty: here.
        processes: of this machine, where there is no cluster: so many islands at once.
    """

    inner: Method = field(default_factory=placement)
    islands: int = 4
    rounds: int = 3
    ray: str = ""
    processes: int = 1

    def optimize(self, search: Search) -> Plan:
        first: Plan | None = None
        for left in range(max(1, self.rounds), 0, -1):
            if first is not None and search.spent:
                break
            jobs = self._jobs(search, left)
            for found in in_order(explore, jobs, self.ray, (search.problem,), self.processes):
                first = first or found.plan
                search.count(min(found.simulations, search.simulations_left))
                if found.fuses:
                    search.fusing = sharing_of(search.problem)
                if found.score is not None:
                    search.offer(found.plan, found.score)
        assert first is not None
        return search.best or first

    def _jobs(self, search: Search, left: int) -> list[IslandJob]:
        """An equal share of what is left for each island of each round."""
        islands = max(1, min(self.islands, search.simulations_left))
        simulations = max(1, search.simulations_left // (islands * left))
        at_once = islands if self.ray else min(islands, max(1, self.processes))
        seconds = None if search.counts_simulations else max(1e-3, search.seconds_left * at_once / (islands * left))
        method = self.inner if search.best is None else Anneal(start=Ready(search.best))
        begun = (max(1, self.rounds) - left) * max(1, self.islands)
        budget = Budget(seconds, simulations)
        return [IslandJob(method, budget, search.seed * 1000 + begun + number) for number in range(islands)]


class IslandJob(NamedTuple):
    """A search on an island: all that it depends on beside the problem, so that it can be sent anywhere and run again.

    Attributes:
        method: what searches.
        budget: its share.
        seed: its own.
    """

    method: Method
    budget: Budget
    seed: int


class IslandResult(NamedTuple):
    """What it came to; no score where its budget was spent before the plan was scored.

    Attributes:
        fuses: whether its plans may be fused.
    """

    plan: Plan
    score: Score | None
    simulations: int
    fuses: bool


def explore(problem: Problem, job: IslandJob) -> IslandResult:
    """One island's search."""
    search = Search(problem, job.budget, job.seed)
    plan = job.method.optimize(search)
    if search.best is None and search.simulations_left:
        search.score(plan)
    known = search.best is not None
    return IslandResult(
        search.best or plan, search.best_score if known else None, search.simulations, bool(search.fusing)
    )
