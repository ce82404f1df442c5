"""What the processes of GO's training do: find elites, make examples, simulate what was decided.

Each process has its own examples, so that it makes each problem once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.examples import crew
from loadmaster.learn.go2020 import examples
from loadmaster.learn.go2020.examples import GoElite, GoKey
from loadmaster.learn.go2020.input import GoInput, group_shares
from loadmaster.learn.go2020.moves import Moves, all_changes, draw_moves
from loadmaster.learn.go2020.policy import Decided, plan_of, score_decided
from loadmaster.learn.go2020.zero import Judged, candidate_decided, outcome_of
from loadmaster.papers.decoding import critical_ranks, levels_of
from loadmaster.papers.features import device_class
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Score, Search
from loadmaster.simulator import simulate

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
MOVES = 64  # single changes of each start


@dataclass(frozen=True, eq=False)
class RolloutStart:
    """A plan that was simulated, and a better one that a search made of it: devices and levels of groups.

    Attributes:
        device: [groups] of the better plan; of this one, where no search was made.
        moves: simulated one by one.
    """

    outcome: Judged
    device: Ints  # [groups]
    level: Ints  # [groups]
    moves: Moves


@dataclass(frozen=True, eq=False)
class GoExample:
    """A problem as the network sees it, what its candidates are worth, and plans to start from.

    Attributes:
        candidate_value: [candidates], or none where no candidate was simulated.
        value: of a long classical run, where there was one.
    """

    key: GoKey
    one: GoInput
    plain: Ints  # [BASELINES]
    candidate_value: Ints  # [candidates]
    starts: tuple[RolloutStart, ...]
    value: int = 0


def elite_job(job: tuple[GoKey, GoElite | int | None, int]) -> tuple[GoKey, GoElite | None]:
    key, known, simulations = job
    return key, examples.find_elite(key, simulations) if isinstance(known, int) else known


def long_job(job: tuple[GoKey, int]) -> int:
    return examples.long_value(*job)


def example_job(job: tuple[GoKey, GoElite | None, int, bool]) -> GoExample | None:
    """The example of an elite, or without one."""
    key, elite, groups, kernels = job
    if elite is None and not examples.suits(key):
        return None
    problem, one = examples.make_problem(key), examples.make_input(key, groups, kernels)
    rng = np.random.default_rng([key.line + 1, key.seed, 3])
    if elite is None:
        candidates = rng.choice(len(one.candidates), min(3, len(one.candidates)), replace=False).tolist()
        firsts = [candidate_decided(one, candidate) for candidate in candidates]
        starts = [start_at(problem, one, first, first.device, first.level, rng) for first in firsts]
        return GoExample(key, one, examples.plain_values(problem), ints([]), tuple(starts))
    if not np.array_equal(elite.slot, one.candidates.slot):
        return None  # the rules have changed since
    labels = zip(elite.candidate.tolist(), elite.device, elite.turn, strict=True)
    starts = [start for label in labels for start in starts_of(problem, one, *label, rng)]
    return GoExample(key, one, elite.plain, elite.candidate_value, tuple(starts))


def starts_of(
    problem: Problem, one: GoInput, candidate: int, device: Ints, turn: Ints, rng: np.random.Generator
) -> Iterator[RolloutStart]:
    """The candidate that a search began with, and a plan on the way: some of what it changed is changed already."""
    first = candidate_decided(one, candidate)
    shares = like_devices(
        group_shares(problem, one.label, device), one.candidate_shares(candidate), one, device_class(problem)
    )
    # A group of which a part was moved counts as moved only where most of it was.
    target = ints(shares.argmax(axis=1))
    level = group_levels(problem, one.label, device, turn)
    moved = np.flatnonzero(target != first.device)
    yield start_at(problem, one, first, target, level, rng)
    if len(moved) > 1:
        on_the_way = first.device.copy()
        taken = _window(moved, max(1, len(moved) // 2), rng)
        on_the_way[taken] = target[taken]
        halfway = Decided(ints(on_the_way), first.level, first.fusion, first.base)
        yield start_at(problem, one, halfway, target, level, rng)


def _window(members: Ints, size: int, rng: np.random.Generator) -> Ints:
    first = int(rng.integers(len(members) - size + 1))
    return members[first : first + size]


def start_at(
    problem: Problem, one: GoInput, decided: Decided, device: Ints, level: Ints, rng: np.random.Generator
) -> RolloutStart:
    """With single changes of it simulated."""
    outcome = look(problem, one.label, decided)
    moves = draw_moves(one, decided, device, MOVES, rng)
    over, value = score_decided(Search(problem, Budget(None, MOVES)), one.label, all_changes(decided, moves))
    [now] = examples.worth(problem, ints([outcome.score.over_bytes]), ints([outcome.score.value]))
    gain = np.log(now) - np.log(examples.worth(problem, over, value))
    return RolloutStart(outcome, device, level, replace(moves, gain=gain.astype(np.float32)))


def look(problem: Problem, label: Ints, decided: Decided) -> Judged:
    """Decisions, simulated."""
    plan = plan_of(problem, label, decided)
    return outcome_of(problem, label, decided, plan, simulate(problem, plan))


def like_devices(shares: np.ndarray, like: np.ndarray, one: GoInput, alike: Ints) -> np.ndarray:
    """The shares with equal devices renamed so that most of it lies where the other plan has it.

    A plan and its relabelling are the same plan; without this the labels to learn from contradict each other.
    """
    weight = one.time.min(axis=1, keepdims=True)
    common = (shares * weight).T.astype(np.float64) @ like
    common[alike[:, None] != alike[None, :]] = -1e9
    renamed = np.empty_like(shares)
    old, new = linear_sum_assignment(-common)
    renamed[:, new] = shares[:, old]
    return renamed


def group_levels(problem: Problem, label: Ints, device: Ints, turn: Ints) -> Ints:
    """[groups] the mean level that brings ops from their turn in the critical-path order to another, heavy ops counting
    more."""
    plain = simulate(problem, Plan.of(problem, device, critical_ranks(problem, device[None])[0])).turn
    level = levels_of(plain, turn)
    weight = problem.best_ns + 1.0
    return ints(np.round(np.bincount(label, level * weight) / np.bincount(label, weight)))


def value_job(job: tuple[GoKey, Ints, list[Decided]]) -> tuple[Ints, Ints, float]:
    """(over_bytes, value) of each decision, and all bytes of the problem."""
    key, label, many = job
    problem = examples.make_problem(key)
    over, value = score_decided(Search(problem, Budget(None, len(many))), label, many)
    return over, value, float(problem.graph.nbytes.sum())


def worth_job(job: tuple[GoKey, list[Score]]) -> int:
    """What the best of some plans is worth."""
    key, scores = job
    over, value = ints([score.over_bytes for score in scores]), ints([score.value for score in scores])
    return int(examples.worth(examples.make_problem(key), over, value).min())


def look_job(job: tuple[GoKey, Ints, list[Decided]]) -> list[Judged]:
    key, label, many = job
    return [look(examples.make_problem(key), label, decided) for decided in many]


def start_job(lines: Sequence[int]) -> int:
    """Nothing but to begin the process."""
    return len(lines)


class Pools:
    """Processes that each have their own examples."""

    def __init__(self, stack: ExitStack, count: int, ray: str = "") -> None:
        if ray:
            self.pools = [stack.enter_context(crew(1, ray))] * count
        else:
            self.pools = [stack.enter_context(crew(1)) for _ in range(count)]
        for pool in self.pools:
            pool.submit(start_job, ()).result()

    def home(self, key: GoKey) -> int:
        return hash((key.line, key.seed)) % len(self.pools)

    def submit(self, function: Callable[[Any], Any], job: tuple[Any, ...]) -> Future[Any]:
        return self.pools[self.home(job[0])].submit(function, job)

    def in_order(self, function: Callable[[Any], Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Results in the order of the jobs, a few jobs per process under way."""
        waiting: deque[Future[Any]] = deque()
        try:
            for job in jobs:
                waiting.append(self.submit(function, job))
                if len(waiting) >= 8 * len(self.pools):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
