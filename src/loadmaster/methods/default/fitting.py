"""Fitting: turns of making tensors again or sending them to a host, for plans that do not fit without."""

from __future__ import annotations

from contextlib import AbstractContextManager

from loadmaster.baselines.fusion.greedy import GreedyFusion
from loadmaster.baselines.simple import OneDevice, Ready, one_computes
from loadmaster.plans import Plan
from loadmaster.search import Method, Score, Search

LEAST = 64  # simulations of a turn at least
AT_ONCE = 0.2  # of the time, where the clock counts
SIMPLE: tuple[Method, ...] = (GreedyFusion(OneDevice()), OneDevice(), GreedyFusion())
BESIDE, MOSTLY = 0.5, 0.8  # of all that was spent so far, that fitting may have had; while nothing that it made fits
LONGER = 2  # times the turn before, while nothing that it made fits: each begins anew


class Fitting:
    """Turns of making tensors again or sending them away, for plans that do not fit without, also where others do. Its
    simulations take much longer than others, so that where the clock counts, time is shared."""

    def __init__(self, search: Search, recompute: bool, offload: bool) -> None:
        self.search, self.recompute, self.offload, self.used = search, recompute, offload, 0.0
        self.last, self.made = 0.0, False  # what the last turn took; whether a plan came of any that fits
        self.fast: Plan | None = None
        self.looked = False  # for it: what is not faster than the best plan at first is not later on
        self.allowed = (recompute or offload) and not search.problem.objective.of_memory
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
        from loadmaster.methods.memory.recompute import Recompute  # many modules, which most searches do without

        method = Recompute(Ready(plan), again=self.recompute, offload=self.offload)
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
        return LEAST if self.search.counts_simulations else AT_ONCE * (self.search.seconds + self.search.seconds_left)

    def _part(self, much: float) -> AbstractContextManager[Search]:
        if self.search.counts_simulations:
            return self.search.keeping(simulations=int(much))
        return self.search.keeping(min(1.0, much / self.search.seconds_left) if self.search.seconds_left > 0 else 1.0)
