"""Search: what an optimizer works with; solve, which runs one and reports only what it simulated itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from loadmaster.bounds import lower_bound
from loadmaster.catalog.specs import make_optimizer, spec_of
from loadmaster.cluster import Cluster
from loadmaster.columns import Ints, ints
from loadmaster.compiled import seconds_compiling
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem, check_problem
from loadmaster.problem.objective import Objective
from loadmaster.simulator import Scores, Timeline, settle, simulate, simulate_fused, simulate_many

if TYPE_CHECKING:
    from loadmaster.report.explain import Explanation


class Score(NamedTuple):
    """Compared in order: bytes over the memory limits, then the objective. Lower is better."""

    over_bytes: int
    value: int  # of the objective, in its unit

    @staticmethod
    def of(problem: Problem, line: Timeline) -> Score:
        return Score(line.over_bytes, problem.value(line))


WORST = Score(np.iinfo(np.int64).max, np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Budget:
    """Seconds and simulations; whichever comes first. None: no limit of that kind."""

    seconds: float | None = 10.0
    simulations: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (_is_number(self.seconds) and self.seconds > 0):
            raise InvalidSetting(f"a budget of {self.seconds!r} seconds", "", "give more than 0 seconds")
        if self.simulations is not None and not (_is_whole(self.simulations) and self.simulations >= 1):
            raise InvalidSetting(
                f"a budget of {self.simulations!r} simulations", "", "give a whole number of 1 or more"
            )
        if self.seconds is None and self.simulations is None:
            raise InvalidSetting("a budget without any limit", "", "give seconds, simulations or both")


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or isinstance(value, (float, np.floating))


def as_budget(given: Budget | float | None) -> Budget:
    """A budget from what people write: a number is seconds, None the default of ten."""
    if given is None:
        return Budget()
    if isinstance(given, Budget):
        return given
    if not _is_number(given):
        fix = "give seconds (10), or Budget(seconds=…, simulations=…)"
        raise InvalidSetting(f"a {type(given).__name__} is no budget", "budget", fix)
    return Budget(float(given))


@runtime_checkable
class Optimizer(Protocol):
    """One method: a frozen dataclass of settings with `optimize`, which scores plans with the Search it is given (as
    often as its budget allows) and returns one. Whatever it returns is checked and simulated afresh."""

    def optimize(self, search: Search) -> Plan: ...


class Moment(NamedTuple):
    """An improvement: when it was found and what it was."""

    simulations: int
    seconds: float
    score: Score


class Start(NamedTuple):
    """A plan to begin from, and where it comes from, in words."""

    plan: Plan
    origin: str


@dataclass
class _Ledger:
    """What all parts of one search share."""

    simulations: int = 0
    begun: float = field(default_factory=lambda: _clock())
    history: list[Moment] = field(default_factory=list)
    listener: Callable[[Search], None] | None = None
    told: float = 0.0
    halted: bool = False

    @property
    def seconds(self) -> float:
        return _clock() - self.begun


class Search:
    """The problem, the random numbers and the budget. Scores plans, counts, and keeps the best."""

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
        self.note = ""  # what the optimizer is doing, for progress
        self.bound = 0  # no plan that fits and fuses nothing is under it, as far as anyone has shown
        self._ledger = ledger or _Ledger(listener=listener)
        self._last_simulation = _limit(self._ledger.simulations, budget.simulations)
        self._last_second = _limit(self._ledger.seconds, budget.seconds)

    @property
    def simulations(self) -> int:
        return self._ledger.simulations

    @property
    def seconds(self) -> float:
        return self._ledger.seconds

    @property
    def history(self) -> list[Moment]:
        return self._ledger.history

    @property
    def spent(self) -> bool:
        return self.simulations_left == 0 or self.seconds >= self._last_second or self.closed or self._ledger.halted

    @property
    def closed(self) -> bool:
        """Nothing is left to find: the best plan meets the bound."""
        return self.best_score <= Score(0, self.bound)

    def halt(self) -> None:
        """Lets this search and all its parts end as if their budget were spent; another thread may say so."""
        self._ledger.halted = True

    def resume(self) -> None:
        self._ledger.halted = False

    def prove(self, bound: int) -> None:
        """Remembers what no plan that fits and fuses nothing can beat."""
        self.bound = max(self.bound, bound)

    @property
    def simulations_left(self) -> int:
        return int(min(max(0, self._last_simulation - self.simulations), 2**31))

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._last_second - self.seconds)

    @property
    def counts_simulations(self) -> bool:
        """The budget is one of simulations alone: answers must not depend on the clock."""
        return self._last_second == float("inf")

    @property
    def progress(self) -> float:
        """The share of the budget that is used, 0 to 1."""
        by_count = self.simulations / self._last_simulation if self._last_simulation < float("inf") else 0.0
        return min(1.0, max(by_count, self.seconds / self._last_second))

    def score(self, plan: Plan) -> Score:
        """Simulates one plan and keeps it if it is the best so far."""
        line = simulate(self.problem, plan)
        self._ledger.simulations += 1
        score = Score.of(self.problem, line)
        self.offer(plan, score)
        return score

    def score_many(
        self,
        device: NDArray[np.integer],
        rank: NDArray[np.integer] | None = None,
    ) -> tuple[Ints, Ints]:
        """(over_bytes, value) of each candidate, WORST for those past the budget; keeps the best."""
        count = min(len(device), self.simulations_left)
        over, value = (np.full(len(device), WORST.value) for _ in range(2))
        if not count:
            return ints(over), ints(value)
        ranks = rank if rank is None or rank.ndim == 1 or len(rank) == 1 else rank[:count]
        scores: Scores = simulate_many(self.problem, device[:count], ranks)
        over[:count], value[:count] = scores.over_bytes, scores.objective(self.problem)
        self._ledger.simulations += count
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
        self._ledger.simulations += count
        first = int(np.lexsort((value[:count], over[:count]))[0])
        score = Score(int(over[first]), int(value[first]))
        if score < self.best_score:
            self.offer(Plan.of(self.problem, device[first], rank[first], kernel[first]), score)
        self._tell()
        return ints(over), ints(value)

    def offer(self, plan: Plan, score: Score) -> bool:
        """Keeps a plan with a score that this search, or a part of it, simulated; True if it is the best."""
        better = score < self.best_score
        if better:
            self.best, self.best_score = plan, score
            self.history.append(Moment(self.simulations, self.seconds, score))
        self._tell()
        return better

    def count(self, simulations: int) -> None:
        """Adds simulations that compiled loops of an optimizer ran on their own."""
        self._ledger.simulations += simulations
        self._tell()

    def part(self, share: float = 1.0, problem: Problem | None = None, *, simulations: int | None = None) -> Search:
        """A search with that share of what is left, counted together with this one, on this problem or a coarser
        one."""
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
            self.prove(part.bound)
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


def _limit(used: float, more: float | None) -> float:
    return float("inf") if more is None else used + more


@dataclass(frozen=True, eq=False)
class Result:
    """A checked plan, what it costs, and how far from the best possible it is at most.

    In a notebook it shows itself: figures, a timeline and a table of modules.
    """

    problem: Problem
    plan: Plan
    timeline: Timeline
    optimizer: str
    seed: int
    history: tuple[Moment, ...]
    lower_bound: int
    simulations: int
    seconds: float
    interrupted: bool = False  # Ctrl-C ended the search early; this is the best it had found
    started_from: tuple[str, ...] = ()  # where the plans it was given to begin from came from

    @property
    def fits(self) -> bool:
        return self.timeline.over_bytes == 0

    @property
    def value(self) -> int:
        """Of the objective, in its unit: ns of the step, bytes of the largest peak."""
        return self.problem.value(self.timeline)

    @property
    def score(self) -> Score:
        return Score(self.timeline.over_bytes, self.value)

    def explain(self, **settings: Any) -> Explanation:
        """Where the step and the memory go, why, and what would help."""
        from loadmaster.report.explain import explain

        return explain(self, **settings)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan, and how it was found, to a JSON file that `load_plan` and the command line read. Refuses a
        plan that does not fit."""
        from loadmaster.report.summary import save_result

        save_result(self, path)

    def __repr__(self) -> str:
        from loadmaster.report.summary import result_line

        return f"Result({result_line(self)})"

    def _repr_html_(self) -> str:
        from loadmaster.report.notebook import result_html

        return result_html(self)

    @property
    def optimal(self) -> bool:
        """No plan of its kind, fused or not, is better: it fits and meets the bound."""
        return self.fits and self.value == self.lower_bound

    @property
    def gap(self) -> float:
        """How far above the lower bound, as a share of it."""
        if self.lower_bound == 0:
            return 0.0 if self.value == 0 else float("inf")
        return self.value / self.lower_bound - 1


def solve(
    problem: Problem,
    optimizer: Optimizer | str = "auto",
    budget: Budget | float | None = None,
    seed: int = 0,
    *,
    listener: Callable[[Search], None] | None = None,
    starts: Sequence[Start] = (),
) -> Result:
    """Runs the optimizer, then settles, checks and simulates its plan afresh. A number as `budget` is seconds. Plans
    given as `starts` are scored first, so that no method ends up worse than the best of them."""
    _check_call(problem, optimizer, seed)
    chosen: Any = make_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    allowed = as_budget(budget)
    if allowed.seconds is not None and (isinstance(optimizer, str) or _is_ours(chosen)):
        warm_up(chosen, problem.cluster, problem.objective)
    search = Search(problem, allowed, seed, listener=listener)
    _begin(search, starts)
    plan, interrupted = _run(chosen, search)
    counts = (max(1, search.simulations), search.seconds, interrupted)
    check(plan, problem)
    settled = settle(problem, plan, simulate(problem, plan))
    check(settled, problem)
    line = simulate(problem, settled)
    name = optimizer if isinstance(optimizer, str) else spec_of(chosen)
    adding = settled.added is not None
    bound = lower_bound(problem, fusing=settled.fuses, fitting=line.over_bytes == 0, adding=adding)
    if not settled.fuses and not adding and line.over_bytes == 0:
        bound = max(bound, search.bound)
    origins = tuple(dict.fromkeys(start.origin for start in starts))
    return Result(whole(problem, settled), settled, line, name, seed, tuple(search.history), bound, *counts, origins)


def _begin(search: Search, starts: Sequence[Start]) -> None:
    for start in starts:
        check(start.plan, search.problem)
        search.score(start.plan)
    search.starts = tuple(start.plan for start in starts)


def _check_call(problem: object, optimizer: object, seed: object) -> None:
    check_problem(problem, "solve")
    if not isinstance(optimizer, (str, Optimizer)):
        fix = "give a name ('auto'), or an object with a method optimize(search)"
        raise InvalidSetting(f"a {type(optimizer).__name__} is no optimizer", "solve", fix)
    if not (_is_whole(seed) and seed >= 0):  # type: ignore[operator]
        raise InvalidSetting(f"{seed!r} is no seed", "solve", "give a whole number of at least 0")


def _run(optimizer: Optimizer, search: Search) -> tuple[Plan, bool]:
    """(plan, whether Ctrl-C ended the search): what the optimizer returns, or the best it scored if that is better."""
    try:
        plan = optimizer.optimize(search)
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return search.best, True
    if search.best is None or search.best is plan:
        return plan, False
    score = Score.of(search.problem, simulate(search.problem, plan))
    return (plan if score <= search.best_score else search.best), False


# Warming up

_WARM: set[tuple[str, bool, str]] = set()


def warm_up(optimizer: Optimizer, cluster: Cluster, objective: Objective | str) -> None:
    """Runs the optimizer on a few ops under both kinds of budget, once in a process: compiled loops are made or loaded,
    and weights read, before the clock of a search runs. What goes wrong there is left for the real problem to show,
    except for a package that is missing."""
    key = (repr(optimizer), len(cluster.devices) > 1, str(objective))
    if key in _WARM:
        return
    small = price(_few_ops(), cluster, objective=objective)
    for budget in (Budget(None, 200), Budget(1.0, 200)):
        try:
            plan = optimizer.optimize(Search(small, budget))
            line = simulate(small, settle(small, plan, simulate(small, plan)))
            lower_bound(small, fusing=plan.fuses, fitting=line.over_bytes == 0)
        except MissingExtra:
            raise
        except Exception:
            return
    _WARM.add(key)


def _is_ours(optimizer: object) -> bool:
    return type(optimizer).__module__.startswith("loadmaster.")


def _few_ops() -> Graph:
    """Layers of three ops, each of which reads two of the layer before and a weight of its own."""
    build = GraphBuilder("warming up")
    layer = [build.tensor(4096, "input") for _ in range(3)]
    for depth in range(5):
        made = [build.tensor(4096, "output" if depth == 4 else "activation") for _ in range(3)]
        for i, out in enumerate(made):
            reads = [layer[i], layer[(i + 1) % 3], build.tensor(1 << 14, "weight")]
            build.op(f"op{depth}.{i}", "add" if i else "matmul", reads, [out], flops=1 << 20)
        layer = made
    return build.build()
