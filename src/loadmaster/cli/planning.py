"""What `plan` does with one model: finds a plan of ops, whole, in parts or of modules; saves it; tells what it is.

The options come as one `Asked`; which search that means (the default method, parts, whole modules, plans found before)
is settled here, and what came of it is a `Found` that the views show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli import stages
from loadmaster.errors import InvalidSetting, LoadmasterError

if TYPE_CHECKING:
    from loadmaster.problem import Problem
    from loadmaster.report.explain import Report
    from loadmaster.search import Budget, Invocation, Result, Start


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
    verbose: bool
    invocation: Invocation


@dataclass(frozen=True)
class Found:
    """A plan, and what it is shown beside.

    Attributes:
        problem: as it was given, op by op.
        parts: what splitting ops came to, or None.
        free: the plan op by op, where modules stay whole.
    """

    problem: Problem
    asked: Asked
    result: Result
    parts: Any
    free: Result | None

    @cached_property
    def baselines(self) -> Mapping[str, Result]:
        """Plans by rules on the same problem, which tables, pages and data show; worked out when one of them does."""
        return stages.run_baselines(self.problem, self.asked.budget, self.asked.seed)


def held_to(target: str | None, granularity: str | None) -> tuple[str, bool]:
    """(what stays whole, whether in stages of neighbouring layers): what the runtime takes, where one is named."""
    if target is None:
        return granularity or "op", False
    from loadmaster.serving.exports import target_of

    chosen = target_of(target)
    if granularity == "op":
        what = f"{target} takes whole modules"
        raise InvalidSetting(what, "--granularity", "leave it out, or give module or block")
    return granularity or "block", chosen.contiguous


def find(problem: Problem, asked: Asked) -> Found:
    """Searches as `plan` was asked to: whole modules, ops in parts, from earlier plans, made to fit."""
    if asked.like is not None and (asked.kept != "op" or asked.split == "auto"):
        fix = "leave out --granularity, --for and --split, or leave out --like"
        raise InvalidSetting("--like begins from plans of whole ops, each by itself", "--like", fix)
    if asked.kept != "op":
        _check_modules(problem)
    parts = None
    if asked.split == "auto":
        from loadmaster.cli import splits

        parts = splits.run(problem, asked.spec, asked.budget, asked.seed, asked.costs)
        result = parts.result
    elif asked.kept == "op":
        result = _op_by_op(problem, asked)
    else:
        result = stages.run_method(problem, asked.spec, asked.budget, asked.seed)
    free = None if asked.kept == "op" else stages.run_method(problem, asked.plain, asked.budget, asked.seed)
    return Found(problem, asked, replace(result, asked=asked.invocation), parts, free)


def _check_modules(problem: Problem) -> None:
    """Refuses to keep modules whole where nobody knows them."""
    if not any(problem.graph.scope):
        what = f"'{problem.source.name}' does not say which module an op belongs to"
        raise InvalidSetting(what, "--granularity", "plan op by op, or give the model as package.module:callable")


def _op_by_op(problem: Problem, asked: Asked) -> Result:
    """Begins from earlier plans where they may be used, and makes the plan fit where it does not."""
    by_default = asked.budget.simulations is None and not asked.named
    stored = by_default if asked.experience is None else asked.experience
    starts: list[Start] = []
    store = None
    if asked.like is not None or stored:
        from loadmaster.methods.experience import Store, starts_from

        store = Store.default() if stored else None
        with stages.status("looking for plans of similar problems"):
            starts = [] if asked.like is None else starts_from(asked.like, problem)
            starts += [] if store is None else store.starts(problem)
    result = stages.run_method(problem, asked.spec, asked.budget, asked.seed, starts)
    if store is not None and result.plan.added is None:
        store.remember(result)
    return result if result.fits else stages.fit(result, asked.budget, asked.seed, asked.recompute, asked.offload)


def save(found: Found, report: Report | None) -> tuple[LoadmasterError | None, Path | None]:
    """(the error of a plan that does not fit, which is not saved; the graph of parts beside the plan)"""
    asked, beside = found.asked, None
    others = None if found.result.fits else found.baselines
    misfit = None
    if asked.save is not None or others is not None:
        misfit = stages.save_or_explain(found.result, asked.limit, asked.save, others)
    if found.parts is not None and misfit is None:
        from loadmaster.cli import splits

        beside = splits.save_graph(found.parts, asked.save)
    if asked.report is not None or asked.trace is not None:
        stages.write_files(found.result, list(found.baselines.values()), asked.report, asked.trace, report)
    return misfit, beside


def summary(found: Found) -> dict[str, Any]:
    """What `plan --json` answers."""
    from loadmaster.cli import splits
    from loadmaster.report.summary import plan_summary

    return {**plan_summary(found.result, found.baselines), **splits.summary(found.parts), **_restriction(found)}


def rows(found: Found) -> list[tuple[str, Result]]:
    """Of the table: what it is compared with, then the plan."""
    from loadmaster.cli import splits

    before = [*found.baselines.items(), *splits.rows(found.parts)]
    return [*before, (found.asked.spec, found.result)] if found.asked.spec not in found.baselines else before


def tell(found: Found, whole: Report | None, misfit: LoadmasterError | None, beside: Path | None, choice: str) -> None:
    """The answers, and what they do not say: what is known of the model, other methods, files."""
    asked, result = found.asked, found.result
    if choice:
        print(f"on {found.problem.cluster.name}{choice}")
    if not asked.verbose:  # with it, the table of methods says so
        from loadmaster.report.screen import model_notes

        for note in model_notes(found.problem.source):
            print(note)
    if whole is None or not asked.verbose:
        stages.tell_answers(whole or stages.answers_of(result, asked.save))
    else:
        stages.tell_report(whole, result)
        stages.show_methods(found.problem, choice, rows(found), None)
    if asked.save is not None and misfit is None:
        print(f"plan written to {asked.save}")
    if found.parts is not None:
        from loadmaster.cli import splits

        splits.tell(found.parts, beside)
    if found.free is not None:
        _tell_restriction(found, found.free)
    if result.started_from:
        print(f"warm-started from earlier plans: {', '.join(result.started_from)}")
    if asked.report is not None or asked.trace is not None:
        stages.tell_files(asked.report, asked.trace)


# What keeping modules whole costs


def _restriction(found: Found) -> dict[str, Any]:
    """As data."""
    if found.free is None:
        return {}
    step, other = found.result.timeline.step_ns, found.free.timeline.step_ns
    return {"restriction": {"granularity": found.asked.kept, "step_ns": step, "op_by_op_step_ns": other}}


def _tell_restriction(found: Found, free: Result) -> None:
    """Against a plan op by op under the same budget; and which module goes where."""
    from loadmaster.cli.serve import show_modules
    from loadmaster.report.screen import console
    from loadmaster.report.units import percent_text, time_text
    from loadmaster.serving.plans import modules_of

    asked, result = found.asked, found.result
    show_modules(modules_of(result.problem, result.plan), "time a step")
    more = result.timeline.step_ns / max(1, free.timeline.step_ns) - 1
    times = f"{time_text(result.timeline.step_ns)} against {time_text(free.timeline.step_ns)} op by op"
    kept = f"every {asked.kept} whole" + (f", as {asked.target} takes it" if asked.target else "")
    console().print(f"\n{kept}: {times} ({percent_text(more)})")
