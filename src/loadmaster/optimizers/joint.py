"""Joint: fusion, placement and schedule decided together under one budget.

The race of `auto`, of plans with kernels. Two kinds of starts: kernels by rules first, then a plan of them; or a plan
op by op first, then kernels among the ops of each device. An epoch changes all three kinds of decisions in one loop for
a share of its simulations, and for the rest only places and orders the kernels found, which are fewer and so quicker to
simulate. Which share was worth more decides the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.optimizers.annealing.chains import (
    CHAINS,
    Chains,
    ChainStart,
    Decisions,
    Reheating,
    compile_walk,
    spread_ranks,
)
from loadmaster.optimizers.auto import FIRST, Auto, Epochs
from loadmaster.optimizers.expert.expert import Expert
from loadmaster.optimizers.fusion.greedy import Merges, plan_fused
from loadmaster.optimizers.fusion.search import fusing_chains
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.optimizers.fusion.starts import fusing_for, kernels_of, simple_fusions, simple_orders
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.optimizers.racing import AT_ONCE, NEXT_OF_FEW, Race, Runner, Waiting
from loadmaster.optimizers.starts import Scored, StartRecipe, far, made, of_another, ordered, unlike
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Optimizer, Score, Search

QUICK: tuple[Optimizer, ...] = (Heft(), Expert())
# Where no reason is given, chosen by hand.
PLANNED = 480  # simulations that `inner` has where it goes first
TINY = 64  # kernels up to which it may hope to
REFUSED = 3  # of the best placements op by op, that are fused
REFUSING = 400  # simulations of an epoch from which a placement is fused anew after it
# Epochs of a runner before its kernels change in the loop. From the third on is 1.2 % worse at 1,000 simulations than
# never (mean of three of GO's workloads, six seeds), and level at 8,000.
PLACED = 6
FUSING, EVEN = (0.1, 0.5), 0.25  # least and most share of an epoch in which they do; where nothing was gained
WARMTH = (0.3, 0.6, 1.0)  # of the temperature, for the epochs in turn
EARLY = 0.1  # of the time that is left: what went before, for more starts to be made at once
STARTING = 0.1  # of the time so far, that later ones may have taken
KEPT = 4  # kernels for which what a walk needs is kept
TOGETHER = Decisions(fusing=True)


@dataclass(frozen=True)
class Joint:
    """A race, as `placement` runs it, of plans that fuse. Starts are of two kinds: kernels by simple rules without
    regard to devices, then plans of these; and plans op by op, then kernels by simple rules among the ops of a device.
    An epoch has two halves: moves of placement, order and fusion in one loop; and moves of placement and order alone on
    the kernels found, which are fewer and so faster to simulate. What either half gained decides its share of the next
    epoch. What a budget buys is the beginning of what a larger one does.

    Attributes:
        inner: plans the kernels of small problems first; where it is `placement`, epochs that only place and order go
            by its settings.
        temperature: first temperature, as a share of the value.
        cold: last temperature.
        also: another method whose plan joins the first ones, fused by simple rules.
    """

    inner: Optimizer = field(default_factory=Auto)
    temperature: float = 2e-3
    cold: float = 1e-4
    also: Optimizer | None = None

    RENAMED: ClassVar = {"heat": "temperature"}  # until version 0.3

    def optimize(self, search: Search) -> Plan:
        for _ in self.turns(search):
            pass
        return search.best if search.best is not None else QUICK[0].optimize(search)

    def compile_late(self, search: Search) -> None:
        """The walk that changes kernels, which is half of all; what it shares with the other one is made first."""
        compile_walk(search, fusing_for(search.problem, 1))

    def turns(self, search: Search) -> Iterator[None]:
        """Does its work piece by piece; after each, the search has the best plan so far."""
        problem = search.problem
        search.fusing = sharing_of(problem)
        if problem.objective.of_memory and problem.num_devices > 1:  # which kernels seldom change
            yield from self._planned(search, ints(np.arange(problem.num_ops)))
        kernels = finalists(search) if not search.spent or search.best is None else []
        given = [refused(search, start) for start in of_another(search, self.also) if not search.spent]
        yield
        if search.spent:
            return
        if problem.objective.of_memory:
            if problem.num_devices == 1:
                yield from self._planned(search, kernels[0])
            yield from self._race(search, Later(search), of_best(search))
            return
        if coarsen(problem, kernels[0]).problem.num_ops <= TINY:  # it may be closed
            yield from self._planned(search, kernels[0])
            if search.spent:
                return
        waiting = Later(search)
        fusing = next((kernel for kernel in kernels if fuses(kernel)), kernels[0]) if waiting.left else kernels[0]
        first = [*given, *fused_first(search, fusing), *placed_first(search, waiting)]
        yield
        yield from self._race(search, waiting, first)

    def _planned(self, search: Search, kernel: Ints) -> Iterator[None]:
        """What `inner` makes of kernels with some simulations."""
        if not search.spent:
            with search.keeping(simulations=PLANNED) as part:
                plan_fused(part, kernel, self.inner)
            yield

    def _race(self, search: Search, waiting: Waiting, first: list[Scored]) -> Iterator[None]:
        if not search.spent and first:
            yield from JointRace(JointEpochs(self, search), waiting, sorted(first, key=by_score)).turns()


def of_best(search: Search) -> list[Scored]:
    return [] if search.best is None else [Scored(search.best_score, search.best)]


def fuses(kernel: Ints) -> bool:
    """Whether any kernel has more than one op."""
    return bool((kernel != np.arange(len(kernel))).any())


def by_score(start: Scored) -> Score:
    return start.score


def refused(search: Search, start: Scored) -> Scored:
    """A plan with the kernels of the simple rule that suits its placement best, where that is better."""
    plan = Plan.of(search.problem, start.plan.device, start.plan.rank)
    for kernels, score in simple_fusions(search, plan, 1):
        if score < start.score:
            return Scored(score, Plan.of(search.problem, plan.device, plan.rank, ints(kernels.kernel)), start.family)
    return start


def fused_first(search: Search, kernel: Ints) -> list[Scored]:
    """Plans by rules of given kernels."""
    coarse = coarsen(search.problem, kernel)
    part = search.part(problem=coarse.problem)
    try:
        found = ordered(part, list(made(part, Waiting(part).due())))
    finally:
        if part.best is not None:
            search.offer(coarse.up(part.best), part.best_score)
    return [Scored(start.score, coarse.up(start.plan), start.family) for start in found]


def placed_first(search: Search, waiting: Waiting) -> list[Scored]:
    """Plans by rules op by op, the best few fused by the default rule, the best of these by all."""
    some = waiting.due()
    made_now = sorted(made(search, some), key=by_score) if some and not search.spent else []
    found = [greedily(search, start) for start in unlike(made_now, REFUSED) if not search.spent]
    best = min(found, key=by_score, default=None)
    return [refused(search, start) if start is best and not search.spent else start for start in found]


def greedily(search: Search, start: Scored) -> Scored:
    """A plan with the kernels of the default rule among the ops of a device."""
    problem, plan = search.problem, start.plan
    fused = Plan.of(problem, plan.device, plan.rank, Merges.of(problem).greedy(plan.device))
    return Scored(search.score(fused), fused, start.family)


class Later(Waiting):
    """Starts op by op. Where the clock counts and much of the time went into other starts, none is due before the
    search has done much more."""

    @property
    def at_first(self) -> int:
        return AT_ONCE if self.search.seconds <= EARLY * self.search.seconds_left else 0

    @cached_property
    def left(self) -> list[StartRecipe]:
        """None where kernels first is as good."""
        problem = self.search.problem
        alone = problem.num_devices == 1 or not len(Merges.of(problem).producers)
        return [] if alone or problem.objective.of_memory else super().left


@dataclass
class FusingRunner(Runner):
    """One whose kernels change, too.

    Attributes:
        kernel: those on which it was moved last.
        moved: where it stands on them.
        share: of an epoch in which kernels change.
    """

    kernel: Ints | None = None
    moved: Runner | None = None
    share: float = EVEN


class JointRace(Race):
    """A race of plans that fuse."""

    took_s = 0.0  # making starts op by op: they take longer than on kernels, which their prices do not know

    def _runner(self, start: Scored) -> Runner:
        plain = super()._runner(start)
        return FusingRunner(plain.score, plain.plan, plain.pace)

    def _take_in(self) -> None:
        search, begun_s = self.search, self.search.seconds
        if not search.counts_simulations and self.took_s > STARTING * begun_s:
            return
        some = self.waiting.due()
        found = ordered(search, list(made(search, some)), 1)[:1] if some else []
        for start in found:
            if not search.spent:
                fused = refused(search, start)
                self.others += [self._runner(fused)] if not far(fused.score, self.best_start) else []
        self.took_s += search.seconds - begun_s


class JointEpochs:
    """Epochs of which one half changes kernels."""

    def __init__(self, settings: Joint, search: Search) -> None:
        self.settings, self.search = settings, search
        self.inner = settings.inner if isinstance(settings.inner, Auto) else Auto()
        self.fuses = len(Merges.of(search.problem).producers) > 0
        self.together: Chains | None = None
        self.known = OrderedDict[bytes, tuple[Coarse, Search, Epochs]]()

    def go_on(self, runner: FusingRunner) -> None:
        """One epoch more from the best that it has found."""
        search, turn, pace = self.search, len(runner.marks), runner.pace
        if search.spent:
            return
        before, length = search.simulations, FIRST if turn == 0 else int(pace.length)
        fusing = runner.share if self.fuses and turn >= PLACED else 0.0
        hot = self.settings.temperature * (pace.times if pace.times > 1.0 else WARMTH[turn % len(WARMTH)])
        start = Scored(runner.score, runner.plan)
        begun = self._spent()
        fused = self._fused(start, int(length * fusing), hot) if fusing else start
        between = self._spent()
        found = self._moved(runner, fused, int(length * (1 - fusing)))
        if fusing:
            paid = gain(start.score, fused.score) / max(1e-9, between - begun)
            runner.share = share_of(paid, gain(fused.score, found.score) / max(1e-9, self._spent() - between))
        if length >= REFUSING and self.fuses and not search.spent:
            found = refused(search, found)
        gained, same = found.score < start.score, found.score.over_bytes == start.score.over_bytes
        runner.gain = start.score.value - found.score.value if gained and same else 0
        runner.score, runner.plan = found.score, found.plan
        if turn > 0:
            pace.ended(hot, gained)
        runner.used += search.simulations - before
        runner.marks.append((runner.used, runner.score))

    def _spent(self) -> float:
        return self.search.simulations if self.search.counts_simulations else self.search.seconds

    def _fused(self, start: Scored, simulations: int, hot: float) -> Scored:
        """All decisions in one loop."""
        search, problem, plan = self.search, self.search.problem, start.plan
        ranks = spread_ranks(search, plan)
        if self.together is None:
            self.together = fusing_chains(search, Plan.of(problem, plan.device, ranks, plan.kernel), TOGETHER)
        else:
            kernels = kernels_of(problem, plan.kernel)
            self.together.restart(ChainStart(plan.device, ranks, start.score, tuple(kernels)))
        if self.together is None:
            return start
        many = Reheating(problem.num_ops, simulations).settled
        self.together.active = CHAINS if many or not search.counts_simulations else 1
        self.together.cool(simulations, hot, self.settings.cold)
        return min(start, Scored(*self.together.found), key=by_score)

    def _moved(self, runner: FusingRunner, start: Scored, simulations: int) -> Scored:
        """Placement and order alone, on the kernels of a plan, as `placement` goes on from one."""
        if self.search.spent:
            return start
        coarse, part, epochs = self._on(start.plan.kernel)
        if runner.moved is None or runner.kernel is None or not np.array_equal(runner.kernel, start.plan.kernel):
            marks = [] if runner.moved is None else runner.moved.marks
            pace = Reheating(coarse.problem.num_ops, NEXT_OF_FEW)
            runner.moved = Runner(start.score, coarse.down(start.plan), pace, used=runner.used, marks=marks)
            runner.kernel = start.plan.kernel
        moved = runner.moved
        if start.score < moved.score:
            moved.score, moved.plan, moved.joined = start.score, coarse.down(start.plan), None
        moved.pace.length = float(simulations)
        try:
            epochs.go_on(moved)
        finally:
            if part.best is not None:
                self.search.offer(coarse.up(part.best), part.best_score)
        return Scored(moved.score, coarse.up(moved.plan)) if moved.score < start.score else start

    def _on(self, kernel: Ints) -> tuple[Coarse, Search, Epochs]:
        """What a walk on kernels needs, kept for the last few."""
        key = kernel.tobytes()
        if key not in self.known:
            coarse = coarsen(self.search.problem, kernel)
            part = self.search.part(problem=coarse.problem)
            self.known[key] = coarse, part, Epochs(self.inner, part)
            while len(self.known) > KEPT:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]


def share_of(fused: float, moved: float) -> float:
    """Of the next epoch in which kernels change, by what either half gained."""
    return float(np.clip(fused / (fused + moved), *FUSING)) if fused + moved > 0 else EVEN


def gain(before: Score, after: Score) -> float:
    """How much better, as a share; memory that is short counts before all else."""
    if before.over_bytes > 0:
        return 1 - after.over_bytes / before.over_bytes
    return 1 - after.value / max(1, before.value)


def finalists(search: Search) -> list[Ints]:
    """[ops] kernels, or none, that one-shot methods make the best plans of; no two of which plan alike."""
    problem, found = search.problem, list[tuple[Score, Ints]]()
    for kernel in (ints(np.arange(problem.num_ops)), *simple_kernels(problem)):
        if found and search.spent:
            break
        found.append((quick_score(search, kernel), kernel))
    unlike = {score: kernel for score, kernel in reversed(found)}
    return [unlike[score] for score in sorted(unlike)]


def quick_score(search: Search, kernel: Ints) -> Score:
    """Of the best plan that a one-shot method makes of the kernels."""
    if not search.simulations_left:
        return WORST
    coarse = coarsen(search.problem, kernel)
    part = search.part(problem=coarse.problem)
    for optimizer in QUICK:
        if part.simulations_left:
            part.score(optimizer.optimize(part))
    assert part.best is not None, "it has at least one simulation"
    search.offer(coarse.up(part.best), part.best_score)
    return part.best_score


def simple_kernels(problem: Problem) -> list[Ints]:
    """Those of the default rule and of every simple order, without regard to devices; each once."""
    merges = Merges.of(problem)
    if not len(merges.producers):
        return []
    alone = np.zeros(problem.num_ops, np.int32)
    rows = [merges.greedy(), *merges.kernels(alone, np.stack(simple_orders(problem)))]
    return [ints(row) for row in {row.tobytes(): row for row in map(ints, rows)}.values()]
