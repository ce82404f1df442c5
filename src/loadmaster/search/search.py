"""Search: what a method works with. It scores plans, counts them, and keeps the best.

A method never sees a clock or a counter of its own: it asks `spent`, and whatever it scores is counted. Methods that
run others hand them a `part` of the search, which counts on the same ledger, so that a method of methods is compared at
the same budget as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import seconds_compiling
from loadmaster.graph.columns import Ints, ints
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Among, Bound, Sharing
from loadmaster.search.budget import WORST, Budget, Score
from loadmaster.simulator import Scores, Timeline, run_first_come, simulate, simulate_fused, simulate_many

REMEMBERED = 8  # timelines
UNFUSED = Among("none", fitting=True)
# Of a budget of seconds, that a lower bound may take: of the search's own time, where it only says when to stop, and
# after it. With 0.1 for 0.03 on 14 rows after 1 s the same end early, on 5 to 20 % fewer simulations.
BOUND_BESIDE, BOUND_SHARE = 0.03, 0.1


@runtime_checkable
class Method(Protocol):
    """A search: a frozen dataclass of settings with `optimize`, which scores plans with the Search it is given (as
    often as its budget allows) and returns one. Whatever it returns is checked and simulated afresh.

    >>> import dataclasses, loadmaster as lm
    >>> @dataclasses.dataclass(frozen=True)
    ... class Last:  # every op on the last device
    ...     def optimize(self, search: lm.Search) -> lm.Plan:
    ...         problem = search.problem
    ...         return lm.Plan.of(problem, [problem.num_devices - 1] * problem.num_ops)
    >>> g = lm.GraphBuilder("tiny")
    >>> number = g.op("only", "task", [], [], time_ns=100)
    >>> lm.solve(lm.price(g.build(), "2xp100-pcie"), Last(), lm.Budget(None, 1)).plan.device.tolist()
    [1]

    The contract: all randomness comes from `search.rng`; loops stop soon after `search.spent`; the plan is one of
    `search.problem`, with ops of a colocation group on one device; a method that fuses or adds ops says so in
    `search.fusing` or `search.adding`, since that decides which lower bound holds. The settings, with their types, are
    what a spec can set (`catalog.specs`). `loadmaster tools list methods` shows the first paragraph of the docstring.
    """

    def optimize(self, search: Search) -> Plan:
        """The plan it found. It need not be the best it scored: `solve` takes `search.best` where that is better."""
        ...


class Moment(NamedTuple):
    """An improvement: when it was found and what it was.

    Attributes:
        simulations: so far, of the whole search.
        seconds: so far, compiling apart.
        score: that was the best from then on.
    """

    simulations: int
    seconds: float
    score: Score


class Start(NamedTuple):
    """A plan to begin from, and where it comes from, in words.

    Attributes:
        plan: of the same problem; `solve` checks it and scores it first.
        origin: such as "the plan in plan.json", as reports say it.
    """

    plan: Plan
    origin: str


@dataclass
class _Ledger:
    """What all parts of one search share."""

    simulations: int = 0
    in_turn: int = 0
    begun: float = field(default_factory=lambda: _clock())
    history: list[Moment] = field(default_factory=list)
    listener: Callable[[Search], None] | None = None
    told: float = 0.0
    halted: bool = False
    ran: dict[tuple[object, ...], Timeline] = field(default_factory=dict)  # first come; counted, not yet scored

    @property
    def seconds(self) -> float:
        return _clock() - self.begun

    def count(self, simulations: int, beside: int = 1) -> None:
        self.simulations += simulations
        self.in_turn += -(-simulations // beside)

    def note(self, score: Score, *, whole: bool) -> None:
        """The best plan of the whole, or of a part, which may be no improvement of the whole. What a part claimed on a
        coarser problem and was not so is taken back when the whole has its next best."""
        while whole and self.history and self.history[-1].score < score:
            self.history.pop()
        if not self.history or score < self.history[-1].score:
            self.history.append(Moment(self.simulations, self.seconds, score))


class Search:
    """What a method is given: the problem, random numbers and a budget. It scores plans, counts simulations, and
    keeps the best plan, which is what is left when Ctrl-C ends the search.

    A method asks `spent` in its loops and scores with `score` (one plan), `score_many` (placements, in threads) or
    `score_fused` (with kernels); what its own compiled loops simulate it reports with `count` and `offer`. `part` hands
    a share of the budget to another method. All randomness comes from `rng`, so that a seed repeats the search.

    >>> from loadmaster import GraphBuilder, Plan, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(2)]
    >>> search = Search(price(g.build(), "2xp100-pcie"), Budget(None, 10))
    >>> search.score(Plan.of(search.problem, [0, 0])), search.score(Plan.of(search.problem, [0, 1]))
    (Score(over_bytes=0, value=200), Score(over_bytes=0, value=100))
    >>> search.best_score.value, search.simulations, search.simulations_left
    (100, 2, 8)

    Attributes:
        problem: what is planned.
        rng: the only source of random numbers; parts share it.
        seed: what it was made from.
        best, best_score: the best plan so far, None before the first; WORST then.
        starts: plans to begin from, given with the problem and scored already.
        note: what the method is doing, for progress.
        bound: no plan that fits and fuses nothing is under it, as far as anyone has shown.
        proofs: what was shown of other classes of plans, too.
        fusing: what its plans may fuse: whatever comes out, its bound holds for that.
        adding: whether plans that add ops were looked for: what limits of memory force is no bound then.
    """

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        seed: int = 0,
        *,
        listener: Callable[[Search], None] | None = None,
        ledger: _Ledger | None = None,
    ) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.best: Plan | None = None
        self.best_score = WORST
        self.starts: tuple[Plan, ...] = ()  # plans to begin from, given with the problem and scored already
        self.note = ""  # what the method is doing, for progress
        self.bound = 0  # no plan that fits and fuses nothing is under it, as far as anyone has shown
        self.proofs = list[Bound]()  # what was shown of other classes of plans
        self.fusing: bool | Sharing = False  # what its plans may fuse: whatever comes out, its bound holds for that
        self.adding = False  # whether plans that add ops were looked for: what limits of memory force is no bound then
        self._lines = dict[tuple[object, ...], Timeline]()
        self._is_whole, self._ledger = ledger is None, ledger or _Ledger(listener=listener)
        self._last_simulation = _limit(self._ledger.simulations, budget.simulations)
        self._last_second = _limit(self._ledger.seconds, budget.seconds)

    @property
    def simulations(self) -> int:
        """So far, by this search and all its parts."""
        return self._ledger.simulations

    @property
    def in_turn(self) -> int:
        """Simulations so far, those that ran side by side counted as one: how far the search has come, which is what
        work that no other core can share is weighed against. The same as `simulations` where these are the budget."""
        return self._ledger.in_turn

    @property
    def seconds(self) -> float:
        """So far, on a clock that stands still while code is compiled."""
        return self._ledger.seconds

    @property
    def history(self) -> list[Moment]:
        """Every improvement, in order: simulations and seconds when it was found, and its score."""
        return self._ledger.history

    @property
    def spent(self) -> bool:
        """Whether to stop: a limit is reached, the best plan meets the bound, or somebody has called `halt`."""
        return self.simulations_left == 0 or self.seconds >= self._last_second or self.closed or self._ledger.halted

    @property
    def closed(self) -> bool:
        """Nothing is left to find: the best plan meets the bound."""
        return self.best_score <= Score(0, self.bound)

    def halt(self) -> None:
        """Lets this search and all its parts end as if their budget were spent; another thread may say so."""
        self._ledger.halted = True

    def resume(self) -> None:
        """Goes on after `halt`, with what is left of the budget."""
        self._ledger.halted = False

    def prove(self, bound: int | Bound) -> None:
        """Remembers what no plan of a class can beat; a number alone is of plans that fit and fuse nothing."""
        if isinstance(bound, Bound):
            self.proofs.append(bound)
            if not bound.among.covers(UNFUSED):
                return
            bound = bound.value
        self.bound = max(self.bound, bound)

    @property
    def simulations_left(self) -> int:
        """That the budget allows, at most 2^31."""
        return int(min(max(0, self._last_simulation - self.simulations), 2**31))

    @property
    def seconds_left(self) -> float:
        """That the budget allows; infinity where only simulations count."""
        return max(0.0, self._last_second - self.seconds)

    @property
    def counts_simulations(self) -> bool:
        """The budget is one of simulations alone: answers must not depend on the clock."""
        return self._last_second == float("inf")

    @property
    def bound_seconds(self) -> float | None:
        """What a lower bound may take of the time that is left to the search, which it counts as work; None where
        simulations alone count."""
        return None if self.counts_simulations else BOUND_BESIDE * self.seconds_left

    @property
    def progress(self) -> float:
        """The share of the budget that is used, 0 to 1."""
        by_count = self.simulations / self._last_simulation if self._last_simulation < float("inf") else 0.0
        return min(1.0, max(by_count, self.seconds / self._last_second))

    def score(self, plan: Plan) -> Score:
        """Simulates one plan and keeps it if it is the best so far. The plan must be valid; it is counted though the
        budget is spent, so that a method always has one plan to return. What `first_come` made was simulated and
        counted there."""
        key = _key(plan)
        line = self._ledger.ran.pop((self.problem, *key), None)
        if line is None:
            line = simulate(self.problem, plan)
            self._ledger.count(1)
        self._remember(key, line)
        score = Score.of(self.problem, line)
        self.offer(plan, score)
        return score

    def timeline(self, plan: Plan) -> Timeline:
        """Simulates one plan for what happens in it: moves that look at the critical path or at peaks need it. The last
        eight that were asked for or scored are remembered, and counted once. It is not offered as a plan."""
        key = _key(plan)
        if key not in self._lines:
            self.count(min(1, self.simulations_left))
            self._remember(key, simulate(self.problem, plan))
        return self._lines[key]

    def first_come(self, device: Ints, kernel: Ints | None = None) -> Plan:
        """The placement in the order of a framework's ready queue (`simulator.first_come`), which only a simulation
        shows: it is counted, as far as the budget goes, and to score the plan afterwards takes no other."""
        plan, line = run_first_come(self.problem, device, kernel)
        key = _key(plan)
        if self.simulations_left:
            self.count(1)
            self._ledger.ran = _with(self._ledger.ran, (self.problem, *key), line)
        self._remember(key, line)
        return plan

    def has_run(self, plan: Plan) -> bool:
        """Whether to score it takes no simulation, since `first_come` made it."""
        return (self.problem, *_key(plan)) in self._ledger.ran

    def _remember(self, key: tuple[object, ...], line: Timeline) -> None:
        self._lines = _with(self._lines, key, line)

    def score_many(
        self,
        device: NDArray[np.integer],
        rank: NDArray[np.integer] | None = None,
    ) -> tuple[Ints, Ints]:
        """(over_bytes, value) of each candidate, WORST for those past the budget; keeps the best.

        Args:
            device: [candidates, ops] of this problem.
            rank: a row for all, or a row each; program order by default.
        """
        count = min(len(device), self.simulations_left)
        over, value = (np.full(len(device), WORST.value) for _ in range(2))
        if not count:
            return ints(over), ints(value)
        ranks = rank if rank is None or rank.ndim == 1 or len(rank) == 1 else rank[:count]
        scores: Scores = simulate_many(self.problem, device[:count], ranks)
        over[:count], value[:count] = scores.over_bytes, scores.objective(self.problem)
        self._ledger.count(count)
        first = int(np.lexsort((value[:count], over[:count]))[0])
        score = Score(int(over[first]), int(value[first]))
        if score < self.best_score:
            row = None if rank is None else np.atleast_2d(rank)[first if np.ndim(rank) > 1 and len(rank) > 1 else 0]
            self.offer(Plan.of(self.problem, device[first], row), score)
        self._tell()
        return ints(over), ints(value)

    def score_fused(
        self, device: NDArray[np.integer], rank: NDArray[np.integer], kernel: NDArray[np.integer]
    ) -> tuple[Ints, Ints]:
        """(over_bytes, value) of plans that each have kernels of their own, all [candidates, ops]; WORST for those past
        the budget; keeps the best."""
        count = min(len(device), self.simulations_left)
        over, value = (np.full(len(device), WORST.value) for _ in range(2))
        if not count:
            return ints(over), ints(value)
        scores = simulate_fused(self.problem, device[:count], rank[:count], kernel[:count])
        over[:count], value[:count] = scores.over_bytes, scores.objective(self.problem)
        self._ledger.count(count)
        first = int(np.lexsort((value[:count], over[:count]))[0])
        score = Score(int(over[first]), int(value[first]))
        if score < self.best_score:
            self.offer(Plan.of(self.problem, device[first], rank[first], kernel[first]), score)
        self._tell()
        return ints(over), ints(value)

    def offer(self, plan: Plan, score: Score) -> bool:
        """Keeps a plan with a score that this search, or a part of it, simulated; True if it is the best. The score is
        believed here, and worked out afresh by `solve`."""
        better = score < self.best_score
        if better:
            self.best, self.best_score = plan, score
            self._ledger.note(score, whole=self._is_whole)
        self._tell()
        return better

    def count(self, simulations: int, beside: int = 1) -> None:
        """Adds simulations that compiled loops of a method ran on their own, so many of them at a time."""
        self._ledger.count(simulations, 1 if self.counts_simulations else beside)
        self._tell()

    def part(self, share: float = 1.0, problem: Problem | None = None, *, simulations: int | None = None) -> Search:
        """A search with that share of what is left, counted together with this one, on this problem or a coarser one.

        Its best plan is its own: `keep` takes it over, where both are of the same problem; of a coarser one it goes up
        first (`Coarse.up`).

        Args:
            share: of the seconds and of the simulations that are left; at least one simulation.
            problem: another one, which then has no bound and no starts yet.
            simulations: no more than so many.
        """
        seconds = None if self.counts_simulations else max(1e-3, self.seconds_left * share)
        some = None if self._last_simulation == float("inf") else max(1, int(self.simulations_left * share))
        if simulations is not None:
            some = min(simulations, some or simulations)
        child = Search(problem or self.problem, Budget(seconds, some), self.seed, ledger=self._ledger)
        child.rng = self.rng
        if problem is None:
            child.bound, child.starts = self.bound, self.starts
        return child

    @contextmanager
    def keeping(self, share: float = 1.0, *, simulations: int | None = None) -> Iterator[Search]:
        """A part whose best plan this search keeps when it ends, by an interrupt too."""
        part = self.part(share, simulations=simulations)
        try:
            yield part
        finally:
            self.keep(part)

    def keep(self, part: Search) -> bool:
        """Takes the best plan of a part, and what it has proved; True if it is the best."""
        if part.problem is self.problem:
            if not self.adding:
                self.prove(part.bound)
                self.proofs += [bound for bound in part.proofs if bound not in self.proofs]
            self.fusing = self.fusing or part.fusing
            self.adding = self.adding or part.adding
        return part.best is not None and self.offer(part.best, part.best_score)

    def __repr__(self) -> str:
        return f"Search({self.problem.graph.name!r}, {self.simulations:,} simulations, best {self.best_score.value:,})"

    def _tell(self) -> None:
        ledger = self._ledger
        if ledger.listener and ledger.seconds - ledger.told > 0.1:
            ledger.told = ledger.seconds
            ledger.listener(self)


def _clock() -> float:
    """Seconds on a clock that stands still while code is compiled or loaded: that is paid once, and by no search."""
    return time.perf_counter() - seconds_compiling()


def _key(plan: Plan) -> tuple[object, ...]:
    """Equal where all is that a timeline depends on."""
    sends = None if plan.send_rank is None else plan.send_rank.tobytes()
    added = None if plan.added is None else plan.added.digest
    return plan.device.tobytes(), plan.rank.tobytes(), plan.kernel.tobytes(), sends, added


def _with(lines: dict[tuple[object, ...], Timeline], key: tuple[object, ...], line: Timeline) -> dict[Any, Timeline]:
    """The last few of them and this one."""
    return dict([*lines.items()][1 - REMEMBERED :]) | {key: line}


def _limit(used: float, more: float | None) -> float:
    return float("inf") if more is None else used + more
