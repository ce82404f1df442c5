"""What `plan` does with one model: finds a plan of ops, whole, in parts or of modules; saves it; tells what it is.

The options come as one `Asked`; which search that means (the default method, parts, whole modules, plans found before)
is settled here, and what came of it is a `Found` that the views show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli import experience, reports, splits, stages
from loadmaster.cli import serve as serving
from loadmaster.errors import InvalidSetting, LoadmasterError

if TYPE_CHECKING:
    from loadmaster.problem import Problem
    from loadmaster.report.explain import Report
    from loadmaster.search import Budget, Invocation, Result


@dataclass(frozen=True)
class Asked:
    """What the words of the command line come to, but for the problem.

    Attributes:
        spec: of the search, held to what must stay whole.
        plain: of the search without that.
        named: the user named a method.
        limit: bytes a device.
        kept: whole on one device: "op", "module" or "block".
        target: the runtime it is for.
        invocation: the words themselves.
    """

    spec: str
    plain: str
    named: bool
    budget: Budget
    seed: int
    limit: int | None
    kept: str
    target: str | None
    split: str
    costs: str | None
    recompute: str
    offload: str
    like: Path | None
    experience: bool | None
    save: Path | None
    report: Path | None
    trace: Path | None
    invocation: Invocation


@dataclass(frozen=True)
class Found:
    """A plan, and what it is shown beside.

    Attributes:
        parts: what splitting ops came to, or None.
        free: the plan op by op, where modules stay whole.
    """

    result: Result
    parts: Any
    free: Result | None
    baselines: Mapping[str, Result]


def find(problem: Problem, asked: Asked) -> Found:
    """Searches as `plan` was asked to: whole modules, ops in parts, a pipeline, from earlier plans, made to fit."""
    serving.check_modules(problem, asked.kept)
    if asked.like is not None and (asked.kept != "op" or asked.split == "auto"):
        fix = "leave out --granularity, --for and --split, or leave out --like"
        raise InvalidSetting("--like begins from plans of whole ops, each by itself", "--like", fix)
    budget, seed = asked.budget, asked.seed
    parts = splits.run(problem, asked.spec, budget, seed, asked.costs) if asked.split == "auto" else None
    if parts is not None:
        result = parts.result
    elif asked.kept == "op":
        result = _op_by_op(problem, asked)
    else:
        result = stages.run_method(problem, asked.spec, budget, seed)
    result = replace(result, asked=asked.invocation)
    free = None if asked.kept == "op" else stages.run_method(problem, asked.plain, budget, seed)
    return Found(result, parts, free, stages.run_baselines(problem, budget, seed))


def _op_by_op(problem: Problem, asked: Asked) -> Result:
    """Begins from earlier plans where they may be used, and makes the plan fit where it does not."""
    store = experience.store_for(asked.experience, asked.budget, named=asked.named)
    starts = experience.starts_for(problem, asked.like, store)
    result = stages.run_method(problem, asked.spec, asked.budget, asked.seed, starts)
    if store is not None and result.plan.added is None:
        store.remember(result)
    return stages.fit(result, asked.budget, asked.seed, asked.recompute, asked.offload)


def save(found: Found, asked: Asked, report: Report | None) -> tuple[LoadmasterError | None, Path | None]:
    """(the error of a plan that does not fit, which is not saved; the graph of parts beside the plan)"""
    misfit = stages.save_or_explain(found.result, asked.limit, asked.save, found.baselines)
    beside = splits.save_graph(found.parts, asked.save if misfit is None else None)
    reports.write_files(found.result, list(found.baselines.values()), asked.report, asked.trace, report)
    return misfit, beside


def summary(found: Found, asked: Asked) -> dict[str, Any]:
    """What `plan --json` answers."""
    from loadmaster.report.summary import plan_summary

    held = serving.restriction(found.result, found.free, asked.kept)
    return {**plan_summary(found.result, found.baselines), **splits.summary(found.parts), **held}


def rows(found: Found, asked: Asked) -> list[tuple[str, Result]]:
    """Of the table: what it is compared with, then the plan."""
    before = [*found.baselines.items(), *splits.rows(found.parts)]
    return [*before, (asked.spec, found.result)] if asked.spec not in found.baselines else before


def tell(found: Found, asked: Asked, beside: Path | None) -> None:
    """What the table does not show."""
    splits.tell(found.parts, beside)
    if found.free is not None:
        serving.tell_restriction(found.result, found.free, asked.kept, asked.target)
    experience.tell_starts(found.result)
    reports.tell_files(asked.report, asked.trace)
