"""Why a plan does not fit, and the smallest change that may help.

Makes the DoesNotFit error: which device is over by how much, what it needs, and what to type next: another method that
found a plan that fits, or the memory, devices or settings that would do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadmaster.baselines.fusion.greedy import sharing_of
from loadmaster.cluster.growing import with_more
from loadmaster.cost import price
from loadmaster.errors import DoesNotFit
from loadmaster.problem import Problem
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.report.units import size_text
from loadmaster.search import Budget, Result, solve

QUICK, QUICK_SIMULATIONS, MOST_OPS = "best-of", 40, 20_000  # a look, not a search


def does_not_fit(
    result: Result, memory_limit: int | None = None, others: Mapping[str, Result] | None = None
) -> DoesNotFit:
    """The error for a result with bytes over the memory of its devices; `others` may have found plans that fit."""
    problem = result.problem
    over = np.maximum(result.timeline.peak_bytes - problem.memory_bytes, 0)
    names = problem.cluster.device_names
    parts = [
        f"'{names[device]}' is over by {size_text(int(over[device]))}"
        for device in np.argsort(-over)[:3]
        if over[device]
    ]
    more = int((over > 0).sum()) - len(parts)
    what = f"the plan of '{problem.source.name}' does not fit: {', '.join(parts)}" + (
        f" and {more} more" if more else ""
    )
    worst = int(over.argmax())
    where = (
        f"'{names[worst]}' needs {size_text(int(result.timeline.peak_bytes[worst]))} "
        f"and has {size_text(int(problem.memory_bytes[worst]))}; best plan of {result.method}"
    )
    fitting = next((name for name, other in (others or {}).items() if other.fits), None)
    if fitting is not None:
        return DoesNotFit(what, where, f"--method {fitting} gives a plan that fits")
    return DoesNotFit(what, where, _advice(result, names[worst], int(over[worst]), memory_limit))


def _advice(result: Result, device: str, over: int, memory_limit: int | None) -> str:
    problem = result.problem
    give = f"give '{device}' {size_text(over)} more"
    if memory_limit is not None:
        need = int(result.timeline.peak_bytes.max())
        give = f"raise --memory-limit from {size_text(memory_limit)} to {size_text(need)} (--memory-limit {need}B)"
    wider = _wider(problem)
    if (hopeless := _hopeless(problem)) is not None:
        return f"no unsplit plan by these fusion rules can fit on these devices ({hopeless}): {give}{wider}"
    other = "more --seconds" if problem.objective.of_memory else "--objective peak-memory"
    return f"{give}{wider}, or try {other}"


def _wider(problem: Problem) -> str:
    """More devices, where a quick plan for them fits: an op may be too large for any of them."""
    if problem.source.time_ns.shape[1] > 1 or problem.num_ops > MOST_OPS:  # times of these devices alone; too long
        return ""
    for count in (1, 3):
        cluster, _ = with_more(problem.cluster, count)
        grown = price(problem.source, cluster, objective="peak-memory")
        if peak_bound(grown) > int(grown.memory_bytes.max()):
            continue
        if solve(grown, QUICK, Budget(None, QUICK_SIMULATIONS), 0).fits:
            return f", or use {count} more device{'s' if count > 1 else ''} with --on"
    return ""


def _hopeless(problem: Problem) -> str | None:
    """Why no unsplit plan fits, whatever it fuses by the rules, makes again or keeps elsewhere, where it is proved."""
    base = problem if problem.expansion is None else problem.expansion.base
    bound = peak_bound(base, fusing=sharing_of(base), adding=True)
    if bound <= int(problem.memory_bytes.max()):
        return None
    return f"one of them must hold at least {size_text(bound)}"
