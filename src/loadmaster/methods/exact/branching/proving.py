"""prove: is a plan of a small problem the best of its class, and which is? In counted work, so the answer repeats.

Plans that fuse nothing are one tree of `branch_and_bound`. Plans that fuse by rules are a tree for every set of kernels
that the rules allow: the sets are listed and each gets a bound, then the trees are gone through, the lowest bound
first, until that is no better than the best plan. `close` does so for a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.baselines.fusion import merging
from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.errors import InvalidPlan
from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.exact import MOST_PROVED
from loadmaster.methods.exact.branching.branch_and_bound import STEP, SearchTree, can_branch
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Among, Bound, Sharing, lower_bound
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate

MOMENTS = 1_200_000  # that the trees may look at, all together: ten to twelve seconds of a quiet core
SHARE = 0.8  # of what is left of a budget, that a proof may take
MOST_SETS = 4_096  # of kernels; each takes some milliseconds, which count as SET moments
SET = 150
FAR = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Proven:
    """What is known of a class of plans after so much work.

    Attributes:
        plan: the best that was met: the one that was given, or a better one.
        score: of it.
        bound: what no plan of the class that fits can go under; `cut` where the work ran out first.
        moments: the work it took.
    """

    plan: Plan
    score: Score
    bound: Bound
    moments: int

    @property
    def optimal(self) -> bool:
        """The plan is the best of its class."""
        return self.score <= Score(0, self.bound.value)


def _never() -> bool:
    return False


def prove(
    problem: Problem,
    incumbent: Plan,
    fusing: bool | Sharing = False,
    moments: int = MOMENTS,
    stop: Callable[[], bool] = _never,
) -> Proven | None:
    """Looks for plans better than the incumbent among all of a class until there is none, or the work is used up.

    The same arguments give the same answer. None where it would not help: more than 64 ops or 16 devices, another
    objective than the step time, a host, any kernels allowed (`fusing=True`), or too many sets of kernels.

    Args:
        problem: without additions.
        incumbent: a plan of it that adds nothing, of that class or a better one of another.
        fusing: False: of plans that fuse nothing; a Sharing: of plans that fuse what it says.
        moments: how much work, in moments that trees look at: 50,000 to 300,000 a second.
        stop: asked every few milliseconds whether to end all the same; where it says so, the answer depends on a clock.
    """
    if not can_branch(problem) or fusing is True or problem.expansion is not None:
        return None
    among = Among.of(fusing, adding=False, fitting=True, parts=problem.source.is_split)
    kernels = [ints(np.arange(problem.num_ops))] if fusing is False else list_kernels(problem, fusing)
    if kernels is None or (len(kernels) > 1 and SET * len(kernels) > moments):
        return None
    return _Proving(problem, incumbent, moments, stop).run(kernels, among)


def close(search: Search, told: bool | Sharing) -> None:
    """Ends the search of a small problem where its best plan is the best of its class, or a better one that is comes
    up. It may take SHARE of what is left of the budget."""
    plan, score, left = search.best, search.best_score, search.simulations_left
    if search.spent:
        return
    if plan is None or plan.added is not None or score.over_bytes or search.problem.num_ops > MOST_PROVED:
        return
    until = search.seconds + SHARE * search.seconds_left
    moments = int(SHARE * left) if search.counts_simulations else MOMENTS
    proof = prove(search.problem, plan, told, min(MOMENTS, moments), lambda: search.seconds > until)
    if proof is not None:
        search.count(min(left, proof.moments))
        search.offer(proof.plan, proof.score)
        search.prove(proof.bound)
        search.note = "proved optimal" if proof.optimal else search.note


class _Proving:
    """A proof in the making."""

    def __init__(self, problem: Problem, incumbent: Plan, moments: int, stop: Callable[[], bool]) -> None:
        self.problem, self.plan, self.left, self.stop = problem, incumbent, moments, stop
        self.score, self.given = Score.of(problem, simulate(problem, incumbent)), moments

    def run(self, kernels: list[Ints], among: Among) -> Proven | None:
        """None where the work is used up before every set of kernels has a bound."""
        rows: list[tuple[int, int, Ints]] = []
        for at, kernel in enumerate(kernels):
            self.left -= SET * (len(kernels) > 1)
            if self._ended:
                return None
            made = self._coarse(kernel)
            if made is not None:
                rows.append((lower_bound(made.problem, fitting=True), at, kernel))
        bound = self._least(sorted(rows, key=lambda row: row[:2]))
        cut = self._ended and bound < self.best
        return Proven(self.plan, self.score, Bound(bound, among, cut), self.given - self.left)

    def _least(self, rows: list[tuple[int, int, Ints]]) -> int:
        """What no plan with any of these kernels goes under, lowest bounds first; no more than the best plan has."""
        bound = self.best
        for least, _, kernel in rows:
            if least >= min(self.best, bound):
                break
            bound = min(bound, least if self._ended else self._gone_through(kernel, least))
        return min(bound, self.best)

    @property
    def _ended(self) -> bool:
        if self.left > 0 and self.stop():
            self.left = 0
        return self.left <= 0

    @property
    def best(self) -> int:
        """The value of the best plan that fits, or far above any."""
        return self.score.value if self.score.over_bytes == 0 else FAR

    def _coarse(self, kernel: Ints) -> Coarse | None:
        """None where the kernels wait for each other, or one can run nowhere."""
        try:
            return coarsen(self.problem, kernel)
        except InvalidPlan:
            return None

    def _gone_through(self, kernel: Ints, least: int) -> int:
        """What no plan with these kernels goes under, or the best plan at hand where that is less."""
        coarse = coarsen(self.problem, kernel)
        tree = SearchTree(coarse.problem, coarse.down(replace(self.plan, send_rank=None)))
        ours, best = is_made_by_merging(self.problem, kernel), self.score
        while not (tree.finished or self._ended):
            before = tree.looked_at + tree.simulated
            found = tree.go_on(best, min(STEP, self.left))
            self.left -= tree.looked_at + tree.simulated - before
            if found is None:
                continue
            best = found[1]
            if ours:
                self.plan, self.score = coarse.up(found[0]), found[1]
        return max(least, tree.bound(best))


def is_made_by_merging(problem: Problem, kernel: Ints) -> bool:
    """Whether the methods that fuse could make these kernels: a bound counts those that they could not, too."""
    if bool((kernel == np.arange(len(kernel))).all()):
        return True
    merges = Merges.of(problem)
    inside = kernel[merges.producers] == kernel[merges.consumers]
    makers, readers = merges.producers[inside], merges.consumers[inside]
    for order in (np.arange(len(makers)), np.arange(len(makers))[::-1]):
        if np.array_equal(merging.merge(merges.rules, makers[order], readers[order]), kernel):
            return True
    return False


def list_kernels(problem: Problem, sharing: Sharing) -> list[Ints] | None:
    """Every set of kernels that the sharing allows, op by op first; None where there are more than MOST_SETS."""
    found: dict[bytes, Ints] = {}
    pairs = list(zip(sharing.producers.tolist(), sharing.consumers.tolist(), strict=True))
    seen = {bytes(ints(np.arange(problem.num_ops)))}
    waiting = [ints(np.arange(problem.num_ops))]
    while waiting:
        kernel = waiting.pop()
        if sharing.allows(problem.graph, kernel):
            found[bytes(kernel)] = kernel
        for other in _one_merge_on(kernel, pairs, sharing.most):
            if bytes(other) not in seen:
                seen.add(bytes(other))
                waiting.append(other)
        if len(seen) > MOST_SETS:
            return None
    return list(found.values())


def _one_merge_on(kernel: Ints, pairs: list[tuple[int, int]], most: int) -> Iterator[Ints]:
    for maker, reader in pairs:
        one, other = sorted((int(kernel[maker]), int(kernel[reader])))
        if one != other and int((kernel == one).sum() + (kernel == other).sum()) <= most:
            yield ints(np.where(kernel == other, one, kernel))
