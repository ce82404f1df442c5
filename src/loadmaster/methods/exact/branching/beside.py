"""Branch and bound on a thread of its own, while something else searches.

The compiled tree releases Python's lock, so a heuristic search goes on at full speed on another core. Each profits: the
tree prunes by the best plan so far, and where it finishes, the search is told that nothing is left to find.
"""

from __future__ import annotations

from threading import Thread

from loadmaster.methods.exact.branching.branch_and_bound import STEP, SearchTree, can_branch
from loadmaster.plans import Plan
from loadmaster.search import Search

MANY = 10_000  # simulations that are left, at least: who counts fewer than that has no time for it


class Beside(Thread):
    """Ends when the tree does, and then the search with it, or when it is told to. `of` says whether it would help at
    all."""

    def __init__(self, search: Search, plan: Plan) -> None:
        super().__init__(daemon=True)
        self.search, self.best, self.score = search, plan, search.best_score
        self.branches, self.ended = SearchTree(search.problem, plan), False

    @staticmethod
    def of(search: Search, least_seconds: float) -> Beside | None:
        """None where it would not help: too large, too little time, no plan that fits to start from."""
        plan, score = search.best, search.best_score
        if (
            plan is None
            or plan.fuses
            or score.over_bytes
            or search.counts_simulations
            or search.simulations_left < MANY
        ):
            return None
        if search.problem.num_ops < 2 or search.seconds_left <= least_seconds or not can_branch(search.problem):
            return None
        return Beside(search, plan)

    def run(self) -> None:
        while not self.ended and not self.branches.finished:
            found = self.branches.go_on(min(self.score, self.search.best_score), STEP)
            if found is not None:
                self.best, self.score = found
        if self.branches.finished:
            self.search.halt()

    def finish(self) -> None:
        """Ends the tree where it stands, and gives its best plan and what it proved to the search."""
        self.ended = True
        self.join()
        self.search.resume()
        self.search.count(self.branches.simulated)
        self.search.offer(self.best, self.score)
        self.search.prove(self.branches.bound(self.search.best_score))
        if self.search.closed:
            self.search.note = "proved optimal"
