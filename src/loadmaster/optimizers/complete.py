"""Complete: the default. Fusion, placement and order decided together, and what runs again or waits on a host where
memory is short.

Three searches share one budget and one best plan: `joint` where anything can be fused, else `auto`; and turns of
`memory.recompute` in between where plans do not fit (`Fitting`). What it may fuse it tells the search beforehand
(`Search.fusing`), so that the lower bound is one of its own kind of plans.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from loadmaster.optimizers.auto import Auto
from loadmaster.optimizers.branching.proving import close
from loadmaster.optimizers.fusion.greedy import GreedyFusion, Merges
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.optimizers.joint import Joint
from loadmaster.optimizers.memory.recompute import Recompute
from loadmaster.optimizers.memory.trips import one_computes
from loadmaster.optimizers.multilevel.multilevel import too_large
from loadmaster.optimizers.racing import SMALL
from loadmaster.optimizers.simple import OneDevice, Ready
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import Optimizer, Score, Search

# Where no reason is given, docs/constants.md has what half and twice of it do.
FITTING = 64  # simulations that fitting a plan into memory has at least: one for each of its ways, and a few
AT_ONCE = 0.2  # of the time, where the clock counts
SIMPLE: tuple[Optimizer, ...] = (GreedyFusion(OneDevice()), OneDevice(), GreedyFusion())
LARGE_FIRST = 0.9  # of the time, for fitting a simple plan of a problem that is too large to search as a whole
BESIDE, MOSTLY = 0.5, 0.8  # of all that was spent so far, that fitting may have had; while nothing that it made fits
TURNS = 3  # before it is tried whether the best plan of a small problem can be beaten at all
LONGER = 2  # times the turn before, while nothing that it made fits: each begins anew


@dataclass(frozen=True)
class Complete:
    """The whole plan. Where ops can be fused, `joint` decides kernels, devices and order together; where its plans do
    not fit, `recompute` has turns in between, from the first plan on. Where nothing can be fused it is the search for
    placement and order, before which a simple plan is made to fit where one device computes; with `fusion=none` that
    search alone.

    What it does with N simulations is the beginning of what it does with more, so more is never worse.

    Attributes:
        fusion: none: ops are not fused.
        recompute: where a fused plan does not fit, tensors may be made again.
        offload: or wait on a host.
        also: another method whose plan joins the starts.
        temperature: of the search for placement and order.
        cold: its last temperature.
        follow: chance that ranks follow the critical path after a change of placement.
    """

    fusion: Literal["auto", "none"] = "auto"
    recompute: bool = True
    offload: bool = True
    also: Optimizer | None = None
    temperature: float = Auto.temperature
    cold: float = Auto.cold
    follow: float = Auto.follow

    RENAMED: ClassVar = Auto.RENAMED

    def optimize(self, search: Search) -> Plan:
        if self.fusion == "none" or not can_fuse(search.problem):
            if self.fusion != "none":
                self._fit_at_once(search)
            return replace(self._part, also=self.also).optimize(search)
        search.fusing = sharing_of(search.problem)
        fitting = Fitting(self, search)
        with search.keeping() as own:  # of plans that add nothing
            own.best, own.best_score = search.best, search.best_score
            if search.problem.num_ops <= SMALL:
                told = search.fusing
                own.prove(lower_bound(search.problem, fusing=told, fitting=True, seconds=search.bound_seconds))
            for turn, _ in enumerate(Joint(self._part, also=self.also).turns(own)):
                search.keep(own)
                fitting.go_on(own)
                if turn == TURNS:
                    close(own, told=sharing_of(search.problem))
                    search.keep(own)
        assert search.best is not None
        return search.best

    def _fit_at_once(self, search: Search) -> None:
        """Where one device computes and may be short of memory, a simple plan that fits; the search keeps it."""
        problem = search.problem
        wanted = (self.recompute or self.offload) and not problem.objective.of_memory
        if wanted and one_computes(problem) and not problem.always_fits:
            with search.keeping(LARGE_FIRST if too_large(problem) else BESIDE, simulations=FITTING) as part:
                Recompute(again=self.recompute, offload=self.offload).optimize(part)

    def compile_early(self, search: Search) -> None:
        """Placement and order alone, with a walk of their own: meanwhile the other process is at the walk that changes
        kernels, for which this one would only wait."""
        self._part.optimize(search)

    def compile_late(self, search: Search) -> None:
        """Bounds, for which the starts leave time, and the walk."""
        if self.fusion == "none":
            return self._part.compile_late(search)
        lower_bound(search.problem, fitting=True)
        Joint(self._part).compile_late(search)

    @property
    def _part(self) -> Auto:
        """The search for placement and order alone."""
        return Auto(self.temperature, self.cold, self.follow)


class Fitting:
    """Turns of making tensors again or sending them away, for plans that do not fit without, also where others do. Its
    simulations take much longer than others, so that where the clock counts, time is shared."""

    def __init__(self, settings: Complete, search: Search) -> None:
        self.settings, self.search, self.used = settings, search, 0.0
        self.last, self.made = 0.0, False  # what the last turn took; whether a plan came of any that fits
        self.fast: Plan | None = None
        self.looked = False  # for it: what is not faster than the best plan at first is not later on
        self.allowed = (settings.recompute or settings.offload) and not search.problem.objective.of_memory
        search.adding = self.allowed and not search.problem.always_fits

    def go_on(self, own: Search) -> None:
        """As long as its share of all there was lasts; the first time at once."""
        search, before = self.search, self._spent()
        plan = self._too_large(own) if self.allowed and not search.spent else None
        if plan is None:
            return
        left = (BESIDE if self.made else MOSTLY) * before - self.used
        if search.spent or (self.used and left < max(self._least(), 0 if self.made else LONGER * self.last)):
            return
        method = Recompute(Ready(plan), again=self.settings.recompute, offload=self.settings.offload)
        with self._part(max(left, self._least())) as part:
            method.optimize(part)
        self.made = self.made or part.best_score.over_bytes == 0
        self.last = self._spent() - before
        self.used += self.last

    def _too_large(self, own: Search) -> Plan | None:
        """The plan to make fit. Where one device computes beside a host: all of it there. Else the best one where it
        does not fit (on one device at first the fastest, which may be larger); else the fastest of some simple ones
        that do not, where that would be worth it: until a plan that fits was made of it, and as long as that leads."""
        problem = self.search.problem
        if one_computes(problem) and problem.num_devices > 1:
            return self._computing(own)
        if own.best is not None and own.best_score.over_bytes > 0:
            faster = self._fastest(own) if not self.used and one_computes(problem) else None
            return faster or own.best
        if problem.always_fits:
            return None
        if not self.looked:
            self.fast, self.looked = self._fastest(own), True
        return self.fast if not self.made or self._leads else None

    @property
    def _leads(self) -> bool:
        return self.search.best is not None and self.search.best.added is not None

    def _computing(self, own: Search) -> Plan | None:
        """All on the device that computes, if that does not fit: what a search puts on the host to save memory is
        slower there than a tensor that comes and goes."""
        if not (self.looked or own.spent):
            plan = SIMPLE[0].optimize(own)
            self.fast, self.looked = plan if own.score(plan).over_bytes > 0 else None, True
        return self.fast if not self.made or self._leads else None

    def _fastest(self, own: Search) -> Plan | None:
        """Of plans by rules that do not fit, where it is faster than the best that does."""
        found = list[tuple[Score, Plan]]()
        for method in SIMPLE:
            if not own.spent:
                plan = method.optimize(own)
                found.append((own.score(plan), plan))
        short = [(score.value, at) for at, (score, _) in enumerate(found) if score.over_bytes > 0]
        value, at = min(short, default=(own.best_score.value, -1))
        return found[at][1] if value < own.best_score.value else None

    def _spent(self) -> float:
        return self.search.simulations if self.search.counts_simulations else self.search.seconds

    def _least(self) -> float:
        return FITTING if self.search.counts_simulations else AT_ONCE * (self.search.seconds + self.search.seconds_left)

    def _part(self, much: float) -> AbstractContextManager[Search]:
        if self.search.counts_simulations:
            return self.search.keeping(simulations=int(much))
        return self.search.keeping(min(1.0, much / max(1e-6, self.search.seconds_left)))


def can_fuse(problem: Problem) -> bool:
    """Whether a search of the whole can fuse anything. A graph of given times that knows no arithmetic is one of tasks,
    not of ops; kernels are not fused again."""
    source = problem.source
    tasks = source.time_ns.shape[1] > 0 and not source.flops.any()
    fused = len(problem.heads) > 0 and bool((problem.heads != np.arange(problem.num_ops)).any())
    return not (tasks or fused or too_large(problem)) and len(Merges.of(problem).producers) > 0
