"""Multilevel: plans for graphs that are too large to search whole.

One simulation of a large graph takes so long that a search looks at too few plans. Instead: one-shot plans, the plan
of a coarser problem (`passes.blocks`, `passes.chaining`), then windows of the step, searched one by one as if the rest
stood still (`refine`). Costs of each are known about, in ns for each op and read, so that nothing is begun that would
not be done in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from loadmaster.baselines.lists.rolling import Rolling
from loadmaster.baselines.lists.schedulers import Heft, critical_rank
from loadmaster.catalog.specs import make_method
from loadmaster.methods.multilevel.refine import refine
from loadmaster.passes.blocks import blocks
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

WIDE = 400_000  # ops x devices of a coarse problem
MOST_BLOCKS = 6_000  # ops of the coarse problem
WAYS, ROLLING = (4, 16, 64), 0.6  # of rolling, and the share of the time that is left for it
LOOKS = (40, 160, 640)  # simulations of each window, one pass after another; then as many as in the last
COARSE, SHARE = 600, 0.2  # simulations of the coarse problem, and the most of the time that it takes
# What plans cost, in ns for each op and each of its reads, and for each device; the machine's own speed is taken from
# its first simulation. One that would not be ready in time is left out.
LIST_NS, ROLL_NS, RUN_NS = 60.0, 190.0, 200.0
AFTERWARDS = 12.0  # times as long as a simulation that it takes to finish a pass and to settle, check and bound a plan
UNSURE = 1.2  # times as long as all that may take


@dataclass(frozen=True)
class Multilevel:
    """One-shot plans from the quickest to the best, as far as time allows; one of a coarser problem (blocks of modules,
    rows of small ops) that is small enough to search; then windows of the step, one by one, from the best of them.

    Coarsening and refinement as partitioners do them (Karypis and Kumar, 1998), except that what is refined is a
    stretch of time: what a plan does at one moment matters to the ops of about that moment.

    Attributes:
        inner: plans the coarser problem.
    """

    inner: str = "placement"

    def optimize(self, search: Search) -> Plan:
        clock, first = TimeLeft(search), None
        for plan in self._plans(search, clock):
            first = first or plan
            if search.simulations_left or search.has_run(plan):
                clock.score(plan)
        if not search.spent and search.problem.goal.step_price > 0 and search.problem.num_devices > 1:
            self._windows(search, clock)
        assert first is not None
        return search.best or first

    def _plans(self, search: Search, clock: TimeLeft) -> Iterator[Plan]:
        problem = search.problem
        yield make_method("one-device").optimize(search)
        if problem.num_devices == 1:
            return
        if clock.allows(2 * RUN_NS / problem.num_devices):
            yield make_method("expert").optimize(search)
        tight = problem.memory_bytes.sum() < 4 * problem.graph.nbytes.sum()
        for heft in (Heft(), Heft(thrift=0.5), *((Heft(memory=True),) if tight else ())):
            if clock.allows(LIST_NS + RUN_NS / problem.num_devices):
                yield heft.optimize(search)
        if clock.allows(20 * RUN_NS / problem.num_devices):
            yield from self._coarse(search)
        for ways in WAYS if search.counts_simulations else WAYS[-1:]:
            if clock.allows(3 * ROLL_NS):  # in one way; in how many more there is time for shows as it goes
                plan = Rolling(ways).optimize(search.part(ROLLING * clock.share_before_the_end()))
                yield plan
                yield plan.with_rank(critical_rank(problem, plan.device))

    def _coarse(self, search: Search) -> Iterator[Plan]:
        """The plan of a coarser problem, as one of the whole."""
        problem = search.problem
        coarse = blocks(problem, min(MOST_BLOCKS, WIDE // problem.num_devices))
        if coarse is None or search.spent:
            return
        inner: Method = make_method(self.inner)
        part = search.part(1.0 if search.counts_simulations else SHARE, coarse.problem, simulations=COARSE)
        plan = inner.optimize(part)
        lifted = coarse.up(plan if part.best is None else part.best)
        yield lifted
        yield lifted.with_rank(critical_rank(problem, lifted.device))

    def _windows(self, search: Search, clock: TimeLeft) -> None:
        with search.keeping(clock.share_before_the_end()) as part:
            part.best, part.best_score = search.best, search.best_score
            turn, before = 0, -1
            while not part.spent and part.best is not None and part.simulations > before:
                before = part.simulations
                refine(part, part.best, LOOKS[min(turn, len(LOOKS) - 1)], turn)
                turn += 1


class TimeLeft:
    """What there is still time for. Where the budget counts simulations alone, there is time for all of it.

    Asked before each part with what the part takes for each op and read: what would not be done in time is not begun.
    """

    def __init__(self, search: Search) -> None:
        problem = search.problem
        self.search, self.devices = search, problem.num_devices
        self.reads = problem.num_ops + len(problem.graph.reads)
        self.run_s, self.timed = self.reads * RUN_NS * 1e-9, False

    def score(self, plan: Plan) -> None:
        begun = time.perf_counter()
        self.search.score(plan)
        took = time.perf_counter() - begun
        self.run_s = max(self.run_s, took) if self.timed else max(self.run_s / 4, took)
        self.timed = True

    def allows(self, each_ns: float) -> bool:
        """Whether what takes so long for each device and each op and read is done in time."""
        if self.search.counts_simulations:
            return self.search.simulations_left > 0
        slow = self.run_s / (self.reads * RUN_NS * 1e-9)
        need_s = self.reads * self.devices * each_ns * 1e-9 * slow
        return not self.search.spent and UNSURE * need_s + self._end_s < self.search.seconds_left

    @property
    def _end_s(self) -> float:
        return AFTERWARDS * self.run_s

    def share_before_the_end(self) -> float:
        """Of the time that is left, what may still be searched in."""
        left = self.search.seconds_left
        return 1.0 if self.search.counts_simulations else max(0.0, 1 - self._end_s / max(left, 1e-6))
