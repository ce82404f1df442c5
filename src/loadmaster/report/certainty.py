"""How far a modelled step may be trusted: what it rests on, and an interval from the spread of the measurements.

Only what was measured has a spread; the interval is the step with all ops at their lower and at their upper quartile,
simulated under the same plan. Two plans whose intervals overlap are not told apart by the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import CANNOT, Problem, launch_of
from loadmaster.search import Result
from loadmaster.simulator import simulate

Interval = tuple[int, int]


def interval(result: Result) -> Interval | None:
    """The step with every measured op at its lower and at its upper quartile; None where nothing was measured."""
    problem = result.problem
    if not problem.spread_ns.size:
        return None
    low, high = (simulate(_shifted(problem, shift), result.plan).step_ns for shift in problem.spread_ns)
    return min(low, result.timeline.step_ns), max(high, result.timeline.step_ns)


def _shifted(problem: Problem, shift: Ints) -> Problem:
    op_ns = np.where(problem.op_ns == CANNOT, CANNOT, np.maximum(problem.op_ns + shift, 0))
    beyond = (op_ns - launch_of(op_ns, problem.launch_ns)) - (problem.op_ns - problem.launches)
    return replace(problem, op_ns=ints(op_ns), fixed_ns=ints(problem.fixed_ns + beyond))


def not_told_apart(best: Result, others: Sequence[tuple[str, Result]]) -> list[str]:
    """Names of the others whose intervals overlap that of the best: the measurements do not say which is faster."""
    ours = interval(best)
    if ours is None:
        return []
    names = []
    for name, other in others:
        theirs = interval(other) if other is not best and other.fits else None
        if theirs is not None and theirs[0] <= ours[1]:
            names.append(name)
    return names
