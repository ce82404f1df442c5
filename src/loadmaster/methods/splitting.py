"""Splitting as a decision of the search: which ops to split, along what, into how many parts, and is it worth it.

An op that keeps one device busy for long while others stand idle cannot be helped by any placement of whole ops. Such
ops, with those around them, are split one after another; each time the plan so far is carried over to the new graph,
its parts are spread over the devices, and a short search follows. A split stays only where the plan gets better. At
the end the plan is held against two in which every op runs on every device, each on its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from loadmaster.baselines.ordering import ordered
from loadmaster.baselines.simple import Ready
from loadmaster.catalog.specs import make_method
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.annealing.anneal import Anneal
from loadmaster.methods.default.auto import Auto
from loadmaster.passes.splitting import Axis, Split, SplitGraph, axes_of, grow, is_part, sharded_graph, split_region
from loadmaster.passes.splitting.sharded import least_ns
from loadmaster.passes.splitting.sharding import WAYS, Way
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Method, Result, Score, Search, as_budget, solve
from loadmaster.simulator import Timeline, simulate

FIRST_SHARE = 0.35  # of the budget, for the plan without splits
TRIALS_SHARE = 0.35  # for all trials together
ROUNDS = 3  # splits, one after another, at most
SEEDS = 3  # ops looked at in each
LONG = 0.01  # of the step: shorter ops are left whole
SIZES = (400, 1)  # ops that are split together, at most
POLISH = 0.2  # of what is left for trials, for the search after a split that looks good


@dataclass(frozen=True, eq=False)
class SplitResult:
    """A plan, and the splits of the graph that it is for; `before` is the best plan of whole ops.

    Attributes:
        way: every op runs on every device, each on its share, by samples or by features.
    """

    result: Result
    splits: tuple[Split, ...]
    before: Result
    way: Way | None = None


def solve_split(
    problem: Problem,
    reprice: Callable[[Graph], Problem],
    method: Method | str = "placement",
    budget: Budget | float | None = None,
    seed: int = 0,
    listener: Callable[[Search], None] | None = None,
) -> SplitResult:
    """As `solve`, over graphs in which ops are split as well.

    Parts are not fused: a method that fuses would be judged by plans that do.

    Args:
        problem: of the graph as it is.
        reprice: gives the problem of another graph, on the same cluster and with the same costs.
        method: plans before and after the splits; a third of the budget each goes to both and to trials.
        budget, seed, listener: as in `solve`.

    Returns:
        SplitResult: the best of whole ops, ops in parts, and every op on every device.
    """
    whole = as_budget(budget)
    before = solve(problem, method, _share(whole, FIRST_SHARE), seed, listener=listener)
    trial = _Trial(before.problem, before.plan, before.score, ())
    trials = _Trials(reprice, _share(whole, TRIALS_SHARE), seed)
    for _ in range(ROUNDS):
        better = trials.best(trial)
        if better is None:
            break
        trial = better
    last = _share(whole, 1 - FIRST_SHARE - (TRIALS_SHARE if trial.splits else 0))
    result = _last_search(trial, method, last, seed, listener)
    found = SplitResult(result, trial.splits, before)
    if before.score <= result.score:
        found = SplitResult(before, (), before)
    return min(_sharded(problem, reprice, found, seed), key=lambda one: one.result.score)


def after_one_split(
    problem: Problem, reprice: Callable[[Graph], Problem], plan: Plan, budget: Budget, seed: int = 0
) -> Score | None:
    """What a plan of whole ops comes to with its first split; None where none that is tried makes it better. A look
    ahead of `solve_split`, which goes on from there."""
    line = simulate(problem, plan)
    trial = _Trial(problem, plan, Score(line.over_bytes, problem.value(line)), ())
    better = _Trials(reprice, budget, seed).best(trial)
    return None if better is None else better.score


def _sharded(
    problem: Problem, reprice: Callable[[Graph], Problem], found: SplitResult, seed: int
) -> Iterator[SplitResult]:
    """What was found, and every op on every device: by samples, and by features as Megatron does."""
    yield found
    if problem.num_devices < 2 or not problem.able.all():
        return
    for way in WAYS:
        quick = str(problem.objective) != "step-time" or least_ns(problem, way) < found.result.value
        made = sharded_graph(problem.source, problem.cluster, way) if quick else None
        if made is not None:
            priced = reprice(made.graph)
            plan = Plan.of(priced, [made.device[name] for name in priced.graph.op_name])
            result = replace(solve(priced, Ready(plan), Budget(None, 1), seed), method=found.result.method)
            yield SplitResult(result, (), found.before, way)


def _share(budget: Budget, share: float) -> Budget:
    seconds = None if budget.seconds is None else budget.seconds * share
    return Budget(seconds, None if budget.simulations is None else max(1, int(budget.simulations * share)))


def _last_search(
    trial: _Trial, method: Method | str, budget: Budget, seed: int, listener: Callable[[Search], None] | None
) -> Result:
    """The method asked for, on the graph that was chosen, from the plan so far where the method takes a start."""
    chosen = make_method(method) if isinstance(method, str) else method
    start = Ready(trial.plan)
    name = method if isinstance(method, str) else None
    if isinstance(chosen, Auto):
        result = solve(trial.problem, replace(chosen, also=start), budget, seed, listener=listener)
    elif isinstance(chosen, Anneal):
        result = solve(trial.problem, replace(chosen, start=start), budget, seed, listener=listener)
    else:
        result = solve(trial.problem, chosen, budget, seed, listener=listener)
        kept = solve(trial.problem, start, Budget(None, 1), seed)
        result = min(result, kept, key=lambda found: found.score)
    return replace(result, method=name or result.method)


@dataclass(frozen=True, eq=False)
class _Trial:
    problem: Problem
    plan: Plan
    score: Score
    splits: tuple[Split, ...]


class _Trials:
    """Tries splits of one plan after another under one budget."""

    def __init__(self, reprice: Callable[[Graph], Problem], budget: Budget, seed: int) -> None:
        self.reprice, self.budget, self.seed = reprice, budget, seed
        self.clock: Search | None = None
        self.tried: set[tuple[int, frozenset[tuple[str, Axis]]]] = set()

    def best(self, trial: _Trial) -> _Trial | None:
        """The first split of the ops that hold others up most which makes the plan better; None if there is none."""
        self.clock = self.clock or Search(trial.problem, self.budget, self.seed)
        if self.clock.spent:
            return None
        line = self.clock.part(problem=trial.problem).timeline(trial.plan)
        for seed_op in _seeds(trial, line):
            found = None
            for split in _ways(trial.problem, seed_op):
                tried = self._try(trial, split)
                if tried is not None and tried.score < (found or trial).score:
                    found = tried
            if found is not None:
                return found
        return None

    def _try(self, trial: _Trial, split: Split) -> _Trial | None:
        """The best plan found soon after the split; None where time is up or another split came to the same."""
        assert self.clock is not None
        graph = trial.problem.source
        region = grow(graph, split)
        key = (split.parts, frozenset((graph.op_name[op], axis) for op, axis in region.axis.items()))
        if self.clock.spent or key in self.tried:
            return None
        self.tried.add(key)
        made = split_region(graph, region)
        problem = self.reprice(made.graph)
        search = self.clock.part(POLISH, problem)
        plans = [ordered(search, device, "critical") for device in _spread(trial, made, problem, split.parts)]
        scores = [search.score(plan) for plan in plans]
        least = min(scores)
        if least.over_bytes <= trial.score.over_bytes and least.value < trial.score.value * 1.1:
            Anneal(start=Ready(plans[scores.index(least)]), temperature=0.0).optimize(search)
        assert search.best is not None
        return _Trial(problem, search.best, search.best_score, (*trial.splits, split))


def _seeds(trial: _Trial, line: Timeline) -> list[int]:
    """[ops of the source graph] those that keep one device busy for longest while others stand idle, longest first."""
    problem = trial.problem
    longest = np.flatnonzero(line.end_ns - line.start_ns >= LONG * line.step_ns)
    idle = [_idle_ns(problem, trial.plan, line.start_ns, line.end_ns, int(op)) for op in longest]
    order = longest[np.argsort(-np.array(idle), kind="stable")]
    named = (int(problem.source_ops[op]) for op in order)
    able = (op for op in named if not is_part(problem.source.op_name[op]) and axes_of(problem.source, op))
    return list(islice(able, SEEDS))


def _idle_ns(problem: Problem, plan: Plan, start_ns: Ints, end_ns: Ints, op: int) -> int:
    """What other devices stand idle while the op runs."""
    low, high = start_ns[op], end_ns[op]
    worked = np.zeros(problem.num_devices, np.int64)
    np.add.at(worked, plan.device, np.maximum(np.minimum(end_ns, high) - np.maximum(start_ns, low), 0))
    return int(((high - low) - np.minimum(worked, high - low)).sum())


def _ways(problem: Problem, op: int) -> Iterator[Split]:
    """Splits of the op: into as many parts as there are devices, or into two, with more or fewer ops around it."""
    graph = problem.source
    for size in SIZES:
        for parts in dict.fromkeys((problem.num_devices, 2)):
            for number, axis in enumerate(axes_of(graph, op)):
                if parts > 1 and axis.size % parts == 0:
                    yield Split(graph.op_name[op], number, parts, size)


def _spread(trial: _Trial, made: SplitGraph, problem: Problem, parts: int) -> Iterator[Ints]:
    """Placements of the new graph: old ops stay, parts go over the devices, idle ones first or in order."""
    old = trial.problem
    place = dict(zip(old.graph.op_name, trial.plan.device.tolist(), strict=True))
    home = _homes(old, place)
    work = np.bincount(trial.plan.device, weights=old.best_ns, minlength=old.num_devices)
    for order in (np.argsort(work, kind="stable"), np.arange(old.num_devices)):
        targets = order[np.arange(parts) % len(order)]
        device = np.zeros(problem.num_ops, np.int64)
        for op, name in enumerate(problem.graph.op_name):
            origin = made.origin.get(name)
            if origin is None:
                device[op] = place[name]
            else:
                device[op] = targets[origin.part] if origin.part >= 0 else home[origin.op]
        yield _able(problem, device)


def _homes(problem: Problem, place: dict[str, int]) -> dict[int, int]:
    """Device of each op of the source graph; of a view that of what it shows, or 0."""
    graph = problem.source
    home: dict[int, int] = {}
    for op, name in enumerate(graph.op_name):
        if name in place:
            home[op] = place[name]
        else:
            makers = [int(graph.producer[t]) for t in graph.reads_of(op)]
            home[op] = next((home[maker] for maker in makers if maker in home), 0)
    return home


def _able(problem: Problem, device: Ints) -> Ints:
    """The placement, with ops moved to where they can run."""
    able = problem.able[np.arange(problem.num_ops), device]
    return ints(np.where(able, device, problem.able.argmax(axis=1)))
