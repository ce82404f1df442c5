"""How far a modelled step may be trusted: what it rests on, and an interval from the spread of the measurements.

What was measured has a spread: the interval is the step with all ops at their lower and at their upper quartile,
simulated under the same plan. Of a forecast it is the step with all ops at the ends of theirs, and a host that is
faster or slower than the usual one; it holds four cases of five. Two plans whose intervals overlap are not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.cost.hosting import UNSURE
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import CANNOT, Problem, launch_of
from loadmaster.search import Result
from loadmaster.simulator import simulate

Interval = tuple[int, int]


def interval(result: Result) -> Interval | None:
    """The step with every op at its lower and at its upper end; None where nothing was measured or forecast."""
    problem = result.problem
    if not problem.spread_ns.size:
        return None
    hosts = (1 / UNSURE, UNSURE) if "learned" in problem.basis and problem.cluster.basis == "data sheet" else (1, 1)
    ends = zip(problem.spread_ns, hosts, strict=True)
    low, high = (simulate(_shifted(problem, shift, host), result.plan).step_ns for shift, host in ends)
    return min(low, result.timeline.step_ns), max(high, result.timeline.step_ns)


def _shifted(problem: Problem, shift: Ints, host: float) -> Problem:
    op_ns = np.where(problem.op_ns == CANNOT, CANNOT, np.maximum(problem.op_ns + shift, 0))
    beyond = (op_ns - launch_of(op_ns, problem.launch_ns)) - (problem.op_ns - problem.launches)
    asked = ints(np.rint(problem.dispatch_ns * host))
    return replace(problem, op_ns=ints(op_ns), fixed_ns=ints(problem.fixed_ns + beyond), dispatch_ns=asked)


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
