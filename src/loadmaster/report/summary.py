"""Results as plain data: what `--json` prints.

Keys are stable and times whole nanoseconds, sizes bytes; what a person would read as a sentence is a number here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any

from loadmaster.files import save_plan
from loadmaster.graph.assumptions import assumptions_of
from loadmaster.problem import Problem
from loadmaster.report.added import NOTHING, added_of
from loadmaster.report.certainty import interval, not_told_apart
from loadmaster.report.fit import does_not_fit
from loadmaster.report.standing import bound_summary, standing, standing_beside
from loadmaster.report.units import percent_text, size_text, value_text
from loadmaster.search import Result

if TYPE_CHECKING:
    from loadmaster.simulator.arenas import Arenas


def plan_summary(result: Result, baselines: Mapping[str, Result]) -> dict[str, Any]:
    """One result, with what it is compared with."""
    return {
        **problem_summary(result.problem),
        **method_summary(result, baselines.values()),
        "baselines": {name: _cost(baseline) for name, baseline in baselines.items()},
    }


def compare_summary(results: Sequence[Result], not_run: Sequence[str] = ()) -> dict[str, Any]:
    """Several results on one problem; `not_run` were left out when the user interrupted the comparison."""
    best = best_of(results)
    return {
        **problem_summary(best.problem),
        "best": best.method,
        "methods": [method_summary(result, results) for result in results],
        "not_told_apart_from_best": not_told_apart(best, [(result.method, result) for result in results]),
        **({"interrupted": True, "not_run": list(not_run)} if not_run else {}),
    }


def simulation_summary(result: Result, arenas: Arenas | None = None) -> dict[str, Any]:
    """One plan simulated, whoever made it; with the memory it was given, if it was."""
    found = method_summary(result)
    sends = {"sends": result.timeline.num_sends}
    kept = (
        "step_ns",
        "step_basis",
        "peak_bytes",
        "fits",
        "over_bytes",
        "lower_bound",
        "bound",
        "gap",
        "optimal",
        "kernels",
    )
    given = {} if arenas is None else _arenas(arenas)
    facts = {
        **problem_summary(result.problem),
        "plan": result.method,
        **{key: found[key] for key in kept if key in found},
        **sends,
    }
    return {**facts, **given}


def _arenas(arenas: Arenas) -> dict[str, Any]:
    """Per device: bytes of its arena, and that over its peak (null where nothing is kept)."""
    sizes, peaks = arenas.size_bytes.tolist(), arenas.peak_bytes.tolist()
    shares = [size / peak if peak else None for size, peak in zip(sizes, peaks, strict=True)]
    return {"arena_bytes": sizes, "arena_over_peak": shares}


def best_of(results: Sequence[Result]) -> Result:
    """The lowest score; the first among equals."""
    return min(results, key=lambda result: result.score)


def problem_summary(problem: Problem) -> dict[str, Any]:
    """What every JSON answer says of graph and cluster."""
    graph, cluster = problem.source, problem.cluster
    guessed = assumptions_of(graph)
    return {
        "graph": {
            "name": graph.name,
            "digest": graph.digest,
            "ops": graph.num_ops,
            "planned_ops": problem.num_ops,
            "tensors": graph.num_tensors,
            **({"assumed": asdict(guessed)} if guessed else {}),
        },
        "cluster": cluster.name,
        "cluster_digest": cluster.digest,
        "devices": [
            {"name": name, "memory_bytes": int(memory)}
            for name, memory in zip(cluster.device_names, problem.memory_bytes, strict=True)
        ],
        "objective": problem.objective.name,
    }


def result_line(result: Result) -> str:
    """A result in a line: what, where, by what, how good."""
    problem = result.problem
    shown = f"{value_text(problem.objective)(result.value)} {problem.objective.each}"
    above = f"{percent_text(result.gap)} above the bound, {result.among.short}"
    known = standing(result) if result.optimal else above if math.isfinite(result.gap) else "no bound"
    fits = "" if result.fits else f", {size_text(result.timeline.over_bytes)} over the memory"
    cut = ", interrupted" if result.interrupted else ""
    return f"{problem.source.name} on {problem.cluster.name} by {result.method}: {shown}, {known}{fits}{cut}"


def save_result(result: Result, path: str | PathLike[str]) -> None:
    """Writes the plan with how it was found beside it; refuses one that does not fit."""
    if not result.fits:
        raise does_not_fit(result)
    facts = {"objective": result.problem.objective.name, **method_summary(result)}
    from loadmaster.methods.experience.known import Known  # only where a plan is saved

    known = Known.of(result.problem, result.plan).to_text()
    asked = {} if result.asked is None else {"asked": result.asked.to_json()}
    save_plan(result.plan, result.problem, path, {"result": facts, **asked, "known": known})


def method_summary(result: Result, others: Iterable[Result] = ()) -> dict[str, Any]:
    """What JSON answers say of one method's result; "optimal" where a table that has the others says so."""
    return {
        "method": result.method,
        "seed": result.seed,
        **_cost(result),
        "lower_bound": result.lower_bound,
        "bound": bound_summary(result.bound),
        "gap": result.gap if math.isfinite(result.gap) else None,
        "simulations": result.simulations,
        "seconds": round(result.seconds, 3),
        "kernels": result.plan.num_kernels,
        **_added(result),
        **({"optimal": True} if standing_beside(result, others) == "optimal" else {}),
        **({"interrupted": True} if result.interrupted else {}),
        **({"started_from": list(result.started_from)} if result.started_from else {}),
    }


def _added(result: Result) -> dict[str, Any]:
    """Of a plan that adds ops: how many run again and wait on a host, and what that takes and frees."""
    found = added_of(result)
    return {} if found == NOTHING else {"added": dict(vars(found))}


def _cost(result: Result) -> dict[str, Any]:
    between = interval(result)
    return {
        "step_ns": result.timeline.step_ns,
        "step_basis": result.problem.basis,
        **({} if between is None else {"step_interval_ns": list(between)}),
        "value": result.value,
        "peak_bytes": [int(peak) for peak in result.timeline.peak_bytes],
        "fits": result.fits,
        "over_bytes": result.timeline.over_bytes,
    }
