"""Auto: starts by rules, a few walks of which the better half goes on, then two walks to the end of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.baselines.simple import one_computes
from loadmaster.methods.default.fitting import Fitting
from loadmaster.methods.default.starts import best_starts, unlike
from loadmaster.methods.default.walk import AnnealingWalk
from loadmaster.methods.exact import MOST_PROVED
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Sharing, lower_bound
from loadmaster.search import Method, Search

WALKS, LAST = 4, 2  # that begin, and that go on to the end
BOUNDED = 2_000  # ops up to which a bound is worked out first, and a proof is tried: a search that meets it ends


@dataclass(frozen=True)
class Auto:
    """The default. Plans by rules come first; annealing goes on from the best few that are unlike, and in the end from
    two. Kernels are those of the greedy rule, made anew as placements change; where a plan does not fit, tensors are
    made again or wait on a host.

    What it does with N simulations is the beginning of what it does with more, so more is never worse.

    Attributes:
        fusion: none: ops are not fused.
        recompute: where a plan does not fit, tensors may be made again.
        offload: or wait on a host.
        also: another method whose plan joins the starts.
    """

    fusion: Literal["auto", "none"] = "auto"
    recompute: bool = True
    offload: bool = True
    also: Method | None = None

    def optimize(self, search: Search) -> Plan:
        told = Merges.of(search.problem).sharing if self.fusion == "auto" and can_fuse(search.problem) else False
        search.fusing = told
        # Recomputation fuses, and what a kernel of tasks takes is not known: they are made to fit on one device alone.
        adds = told is not False or (self.fusion == "auto" and one_computes(search.problem))
        fitting = Fitting(search, self.recompute and adds, self.offload and adds)
        with search.keeping() as own:  # plans that add nothing
            own.best, own.best_score = search.best, search.best_score
            bound_at_once(own, told)
            walks = [
                AnnealingWalk(own, start, bool(told))
                for start in unlike(best_starts(own, bool(told), self.also), WALKS)
            ]
            with proving(own, told):
                while not own.spent:
                    search.keep(own)
                    fitting.go_on(own)
                    before = own.simulations
                    for walk in walks:
                        walk.epoch()
                    if own.simulations == before:  # there is nothing to change
                        break
                    walks = better_half(walks)
        assert search.best is not None, "one start is always made"
        return search.best


def placement() -> Auto:
    """Places and orders ops, fuses nothing and adds nothing."""
    return Auto(fusion="none", recompute=False, offload=False)


def better_half(walks: list[AnnealingWalk]) -> list[AnnealingWalk]:
    """Of the walks, and two at least."""
    return sorted(walks, key=lambda walk: walk.score)[: max(LAST, -(-len(walks) // 2))]


def bound_at_once(search: Search, told: bool | Sharing) -> None:
    """Of a problem that is not large: a search that meets it ends."""
    if search.problem.num_ops <= BOUNDED:
        search.prove(lower_bound(search.problem, fusing=told, fitting=True, seconds=search.bound_seconds))


@contextmanager
def proving(search: Search, told: bool | Sharing) -> Iterator[None]:
    """An exact method beside the walks, where the problem is small enough for one."""
    if told is False and search.problem.num_ops <= BOUNDED:
        from loadmaster.methods.exact.cp_sat import closing

        with closing(search):
            yield
        return
    if search.problem.num_ops <= MOST_PROVED:
        from loadmaster.methods.exact.branching.proving import close

        close(search, told)
    yield


def can_fuse(problem: Problem) -> bool:
    """Whether any ops may share a kernel. A graph of given times that knows no arithmetic is one of tasks, not of ops;
    kernels are not fused again."""
    source = problem.source
    tasks = source.time_ns.shape[1] > 0 and not source.flops.any()
    fused = len(problem.heads) > 0 and bool((problem.heads != np.arange(problem.num_ops)).any())
    return not (tasks or fused) and len(Merges.of(problem).producers) > 0
