"""Trade-off: plans between the fastest and the smallest, none of which is both slower and larger than another.

A problem is planned again under memory limits between the smallest plan's peak and the fastest one's; what is dominated
is left out. `smallest_within` asks the other way: the least memory for a step at most so much longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import ints
from loadmaster.planning import fitted
from loadmaster.problem import Problem
from loadmaster.problem.objective import objective_named
from loadmaster.report.plot import PALETTE, blank_figure, save_figure
from loadmaster.search import Budget, Result, solve

Tell = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Point:
    """A plan and its two costs.

    Attributes:
        result: the plan, as `solve` or `fitted` gave it.
        step_ns: of the step.
        peak_bytes: the largest peak of any device.
    """

    result: Result
    step_ns: int
    peak_bytes: int


@dataclass(frozen=True)
class Means:
    """What may be done to fit, beside placing, ordering and fusing.

    Attributes:
        recompute: ops may run again.
        offload: tensors may wait on a host.
    """

    recompute: bool = False
    offload: bool = False


def tradeoff(
    problem: Problem,
    spec: str,
    budget: Budget,
    *,
    points: int = 8,
    seed: int = 0,
    means: Means = Means(),
    tell: Tell = lambda number, of: None,
) -> list[Point]:
    """The Pareto front of step time against the largest peak, fastest first.

    The fastest and the smallest plan are searched for first; then the fastest under limits spread evenly, as ratios,
    between their peaks. Each search has the whole budget. Fewer plans come back where several limits give the same, or
    where none was found that fits.

    Args:
        problem: its objective does not count here.
        spec: the method of every search.
        budget: of each search.
        points: plans, at most; 2 at least, or InvalidSetting.
        seed: of every search.
        means: what may be done to fit, beside placing, ordering and fusing.
        tell: called before each search with its number and how many there are.
    """
    if points < 2:
        raise InvalidSetting(f"a trade-off of {points} plans", "--points", "ask for at least 2")
    timed, small = (replace(problem, objective=objective_named(name)) for name in ("step-time", "peak-memory"))
    found = []
    for number, goal in enumerate((timed, small), 1):
        tell(number, points + 1)
        found.append(_point(goal, spec, budget, seed, means))
    most, least = found[0].peak_bytes, found[1].peak_bytes
    limits = np.geomspace(max(least, 1), max(most, 1), points) if most > least else np.array([])
    for number, limit in enumerate(limits[:-1], 3):
        tell(number, points + 1)
        found.append(_point(limited(timed, int(np.ceil(limit))), spec, budget, seed, means))
    return pareto([point for point in found if point.result.fits])


def limited(problem: Problem, nbytes: int) -> Problem:
    """The problem with at most so many bytes on every device."""
    return replace(problem, memory_bytes=ints(np.minimum(problem.memory_bytes, nbytes)))


def _point(problem: Problem, spec: str, budget: Budget, seed: int, means: Means) -> Point:
    result = solve(problem, spec, budget, seed)
    result = fitted(result, budget, seed, recompute=means.recompute, offload=means.offload, least=True)
    return Point(result, result.timeline.step_ns, int(result.timeline.peak_bytes.max()))


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other is at least as good as in both and better in one; fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.step_ns, point.peak_bytes)):
        if not front or point.peak_bytes < front[-1].peak_bytes:
            front.append(point)
    return front


ROUNDS = 6  # halvings: the limit is then known to a sixty-fourth of the way between


def smallest_within(
    problem: Problem,
    spec: str,
    budget: Budget,
    slack: float,
    *,
    seed: int = 0,
    means: Means = Means(),
    tell: Tell = lambda number, of: None,
) -> Point:
    """The plan of least memory whose step is at most `slack` (a share) over the fastest found.

    The limit on memory is halved in between, as ratios, six times; each search has the whole budget.
    """
    if not slack >= 0:
        raise InvalidSetting(f"a step limit of {slack:.0%}", "--step-limit", "give a share of at least 0")
    timed = replace(problem, objective=objective_named("step-time"))
    tell(1, ROUNDS + 2)
    best = fastest = _point(timed, spec, budget, seed, means)
    tell(2, ROUNDS + 2)
    smallest = _point(replace(problem, objective=objective_named("peak-memory")), spec, budget, seed, means)
    low, high = smallest.peak_bytes, fastest.peak_bytes
    for number in range(ROUNDS):
        if low >= high:
            break
        tell(number + 3, ROUNDS + 2)
        limit = int(np.ceil(np.sqrt(float(low) * float(high))))
        point = _point(limited(timed, limit), spec, budget, seed, means)
        if point.result.fits and point.step_ns <= fastest.step_ns * (1 + slack):
            best, high = (point, point.peak_bytes) if point.peak_bytes < best.peak_bytes else (best, limit)
        else:
            low = limit + 1
    return best


def plot_tradeoff(path: str | Path, points: Sequence[Point]) -> None:
    """Step time over peak memory, a mark for each plan."""
    figure = blank_figure(path, (5.0, 3.2))
    axes = figure.subplots()
    peaks, steps = [p.peak_bytes / 2**20 for p in points], [p.step_ns / 1e6 for p in points]
    axes.plot(peaks, steps, marker="o", color=PALETTE[0], linewidth=1, drawstyle="steps-pre")
    axes.set_xlabel("largest peak (MiB)", fontsize=8)
    axes.set_ylabel("step (ms)", fontsize=8)
    axes.set_title(points[0].result.problem.source.name if points else "", fontsize=9)
    save_figure(figure, path)
