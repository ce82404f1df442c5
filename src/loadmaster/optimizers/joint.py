"""Joint: fusion, placement and schedule decided together under one budget.

The race of `auto`, of plans with kernels. Two kinds of starts: kernels by rules first, then a plan of them; or a plan
op by op first, then kernels among the ops of each device. An epoch changes all three kinds of decisions in one loop for
a share of its simulations, and for the rest only places and orders the kernels found, which are fewer and so quicker to
simulate. Which share was worth more decides the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.optimizers.annealing.chains import (
    Chains,
    ChainStart,
    Decisions,
    Reheating,
    chains_for,
    compile_walk,
    spread_ranks,
)
from loadmaster.optimizers.auto import FIRST, Auto, Epochs
from loadmaster.optimizers.expert.expert import Expert
from loadmaster.optimizers.fusion.greedy import Merges, plan_fused
from loadmaster.optimizers.fusion.search import fusing_chains
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.optimizers.fusion.starts import fused_simply, fusing_for, kernels_of, simple_orders
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.optimizers.racing import AT_ONCE, NEXT_OF_FEW, Race, Runner, Waiting
from loadmaster.optimizers.starts import Scored, StartRecipe, far, made, of_another, of_each_family, ordered, unlike
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Optimizer, Score, Search

QUICK: tuple[Optimizer, ...] = (Heft(), Expert())
# Where no reason is given, docs/constants.md has what half and twice of it do.
# Sets of kernels by rules that are planned on several devices, by the first rules: on RNNLM-2 and -4, NMT and WaveNet
# the others are within 0.1 % of these, and there are up to eleven.
RULES = 2
PLANNED = 480  # simulations that `inner` has where it goes first
# Of the peak of one-shot plans of ops: kernels whose plans take less are planned first, for peak memory. GPT-2's take
# 0.89, and end 6 % below; those of DeiT on four unlike devices take 0.96, and end 2.6 % above.
CLEARLY = 0.95
TINY = 64  # kernels up to which it may hope to
# Starts of kernels that have an epoch before others are made: over 1, 0.998 at 100 simulations and 0.999 to 1.001 at
# 200, 300 and 1,000 (14 rows, four seeds); two epochs of the best one are 0.997 at 100 and 1.012 at 200.
BEGUN = 2
REFUSED = 3  # of the best placements op by op, that are fused
REFUSING = 400  # simulations of an epoch from which a placement is fused anew after it
# Times as many epochs go by until it is fused again, where that brought nothing: 1 is 1.000 after 1 s and 1.001 after
# 5 s (14 rows, six seeds).
IDLE = 2
# Epochs of a runner before its kernels change in the loop, where a simulation takes longer; the least and most share of
# an epoch in which they do, and that where nothing was gained. From the sixth epoch on, with (0.1, 0.5) and 0.25, is
# 1.2 % worse after 1 s than from the twelfth (ten rows, three seeds), which is 0.4 % worse after 5 s than what is here
# (eight rows, three seeds) and level after 15; never is level after 1 and 5 s and 0.2 % worse after 15.
PLACED = 16
FUSING, EVEN = (0.02, 0.5), 0.03
WARMTH = (0.3, 0.6, 1.0)  # of the temperature, for the epochs in turn
STARTING = 0.1  # of the time so far, that starts op by op may have taken
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
        kernels = finalists(search) if not search.spent or search.best is None else []
        given = [refused(search, start) for start in of_another(search, self.also) if not search.spent]
        yield
        if search.spent:
            return
        epochs = JointEpochs(self, search)
        if problem.objective.of_memory:
            for kernel in kernels if problem.num_devices > 1 else kernels[:1]:
                yield from self._planned(search, kernel)
            yield from race(epochs, Later(search), of_best(search))
            return
        if coarsen(problem, kernels[0]).problem.num_ops <= TINY:  # it may be closed
            yield from self._planned(search, kernels[0])
            if search.spent:
                return
        waiting = Later(search)
        fusing = next((kernel for kernel in kernels if fuses(kernel)), kernels[0]) if waiting.left else kernels[0]
        fused = FusedStarts(search, fusing)
        first = [*given, *begun(epochs, fused.first()), *placed_first(search, waiting, fused)]
        yield
        yield from race(epochs, waiting, first, fused)

    def _planned(self, search: Search, kernel: Ints) -> Iterator[None]:
        """What `inner` makes of kernels with some simulations."""
        if not search.spent:
            with search.keeping(simulations=PLANNED) as part:
                plan_fused(part, kernel, self.inner)
            yield


def race(
    epochs: JointEpochs, waiting: Waiting, first: list[Scored], fused: FusedStarts | None = None
) -> Iterator[None]:
    """One epoch after another from these starts, and from those that are made later, to the end of the budget."""
    if not epochs.search.spent and first:
        yield from JointRace(epochs, waiting, sorted(first, key=by_score), fused).turns()


def begun(epochs: JointEpochs, first: list[Scored]) -> list[Scored]:
    """The same starts, the best few of them after an epoch: where there are few simulations, moves gain more than the
    starts that would come next."""
    search, first = epochs.search, sorted(first, key=by_score)
    if not first:
        return first
    chosen = of_each_family(first, BEGUN)
    others = [start for start in first if all(start is not one for one in chosen)]
    return [*(_after_an_epoch(epochs, start) if not search.spent else start for start in chosen), *others]


def _after_an_epoch(epochs: JointEpochs, start: Scored) -> Scored:
    runner = FusingRunner(start.score, start.plan, Reheating(epochs.search.problem.num_ops))
    epochs.go_on(runner)
    return Scored(runner.score, runner.plan, start.family)


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
    for kernel, _, score in fused_simply(search, plan, 1):
        if score < start.score:
            return Scored(score, Plan.of(search.problem, plan.device, plan.rank, kernel), start.family)
    return start


class FusedStarts:
    """Plans by rules of given kernels, made as `placement` makes them of ops: some at once, the others when they cost
    little beside what the search has done."""

    def __init__(self, search: Search, kernel: Ints) -> None:
        self.search, self.coarse = search, coarsen(search.problem, kernel)
        self.part = search.part(problem=self.coarse.problem)
        self.waiting = Waiting(self.part)

    def first(self) -> list[Scored]:
        """Those that are made at once, the best of them under the usual orders."""
        return self._lifted(lambda: ordered(self.part, list(made(self.part, self.waiting.due()))))

    def more(self) -> list[Scored]:
        """The best of those that are due by now, if any are."""
        some = self.waiting.due()
        return self._lifted(lambda: ordered(self.part, list(made(self.part, some)), 1)[:1]) if some else []

    def _lifted(self, make: Callable[[], list[Scored]]) -> list[Scored]:
        try:
            found = make()
        finally:  # an interrupt keeps what the part has found
            if self.part.best is not None:
                self.search.offer(self.coarse.up(self.part.best), self.part.best_score)
        return [Scored(start.score, self.coarse.up(start.plan), start.family) for start in found]


def placed_first(search: Search, waiting: Waiting, fused: FusedStarts) -> list[Scored]:
    """Plans by rules op by op that are due, the best few fused by the default rule, if one of them is better than all
    of given kernels. Where none of the first ones is, no more are made: on 16 workloads the starts without which plans
    are over 1 % worse after 3,000 simulations were better than the others by 2 % or more."""
    some = waiting.due()
    made_now = sorted(made(search, some), key=by_score) if some and not search.spent else []
    found = [greedily(search, start) for start in unlike(made_now, REFUSED) if not search.spent]
    if min(map(by_score, found), default=WORST) < fused.part.best_score:
        return found
    if found and waiting.cost >= AT_ONCE:
        waiting.left.clear()
    return []


def greedily(search: Search, start: Scored) -> Scored:
    """A plan with the kernels of the default rule among the ops of a device."""
    problem, plan = search.problem, start.plan
    kernel = Merges.of(problem).greedy(plan.device)
    over, value = search.score_fused(plan.device[None], plan.rank[None], kernel[None])  # makes no coarser problem
    fused = Plan.of(problem, plan.device, plan.rank, kernel)
    return Scored(Score(int(over[0]), int(value[0])), fused, start.family)


class Later(Waiting):
    """Starts op by op."""

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

    def __init__(
        self, epochs: JointEpochs, waiting: Waiting, first: list[Scored], fused: FusedStarts | None = None
    ) -> None:
        super().__init__(epochs, waiting, first)
        self.fused = fused

    def _runner(self, start: Scored) -> Runner:
        plain = super()._runner(start)
        return FusingRunner(plain.score, plain.plan, plain.pace)

    def _take_in(self) -> None:
        if self.fused is None:
            return
        found, search, begun_s = self.fused.more(), self.search, self.search.seconds
        if search.counts_simulations or self.took_s <= STARTING * begun_s:
            found += placed_first(search, self.waiting, self.fused)
            self.took_s += search.seconds - begun_s
        self.others += [self._runner(start) for start in found if not far(start.score, self.best_start)]


class JointEpochs:
    """Epochs of which one half changes kernels.

    Attributes:
        pause: epochs from one time that a placement is fused anew to the next.
        waits: epochs until then.
    """

    pause, waits = 1, 0

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
        before, length = search.in_turn, FIRST if turn == 0 else int(pace.length)
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
            found = self._refused(found)
        gained, same = found.score < start.score, found.score.over_bytes == start.score.over_bytes
        runner.gain = start.score.value - found.score.value if gained and same else 0
        runner.score, runner.plan = found.score, found.plan
        if turn > 0:
            pace.ended(hot, gained)
        runner.used += search.in_turn - before
        runner.marks.append((runner.used, runner.score))

    def _refused(self, found: Scored) -> Scored:
        """Its placement fused anew, if it is time for that."""
        self.waits -= 1
        if self.waits > 0:
            return found
        better = refused(self.search, found)
        self.pause = self.waits = 1 if better.score < found.score else IDLE * self.pause
        return better

    def _spent(self) -> float:
        return self.search.simulations if self.search.counts_simulations else self.search.seconds

    def _fused(self, start: Scored, simulations: int, hot: float) -> Scored:
        """All decisions in one loop."""
        search, problem, plan = self.search, self.search.problem, start.plan
        ranks = spread_ranks(search, plan)
        if self.together is None:
            given = Plan.of(problem, plan.device, ranks, plan.kernel)
            self.together = fusing_chains(search, given, TOGETHER, chains_for(search, problem.num_ops))
        else:
            kernels = kernels_of(problem, plan.kernel)
            self.together.restart(ChainStart(plan.device, ranks, start.score, tuple(kernels)))
        if self.together is None:
            return start
        several = not search.counts_simulations or Reheating(problem.num_ops, simulations).settled
        self.together.cool(self.together.enlist(simulations, several), hot, self.settings.cold)
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
    """[ops] kernels, or none, that one-shot methods make the best plans of, best first; no two of which plan alike. For
    peak memory on several devices, where many do, none and the best: searches then end apart."""
    problem, found = search.problem, list[tuple[Score, Ints]]()
    rules = simple_kernels(problem)
    for kernel in (ints(np.arange(problem.num_ops)), *(rules if problem.num_devices == 1 else rules[:RULES])):
        if found and search.spent:
            break
        found.append((quick_score(search, kernel), kernel))
    if problem.objective.of_memory and problem.num_devices > 1:
        return _none_and_best(*found)
    unlike = {score: kernel for score, kernel in reversed(found)}
    return [unlike[score] for score in sorted(unlike)]


def _none_and_best(none: tuple[Score, Ints], *others: tuple[Score, Ints]) -> list[Ints]:
    """The kernels that are likely to be better first."""
    if not others:
        return [none[1]]
    best = min(others, key=lambda pair: pair[0])
    clearly = best[0].value < CLEARLY * none[0].value
    return [best[1], none[1]] if clearly else [none[1], best[1]]


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
