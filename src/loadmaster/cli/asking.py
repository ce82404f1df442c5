"""What was typed, as an `Invocation` that a result carries: every option that was given, but for files to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.main import get_current_context  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from loadmaster.problem import Problem
    from loadmaster.search import Budget, Invocation


def invocation(model: str, problem: Problem, budget: Budget, method: str | None = None) -> Invocation:
    """Of the verb that runs; the cluster and the seconds are said, also where they are defaults. `method`: of one row
    of a comparison."""
    from loadmaster.search import Invocation

    given: dict[str, str | None] = {"--on": problem.cluster.name}
    if budget.seconds is not None:
        given["--seconds"] = f"{budget.seconds:g}"
    given |= _typed() | ({} if method is None else {"--method": method})
    return Invocation(model).with_options(given)


def _typed() -> dict[str, str]:
    from loadmaster.search.invocation import WRITTEN

    context, found = get_current_context(), dict[str, str]()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        value = context.params.get(name)
        if source is None or source.name != "COMMANDLINE" or not parameter.opts[0].startswith("--"):
            continue
        if parameter.opts[0] in WRITTEN or value is None:
            continue
        found |= _words(parameter, value)
    return found


def _words(parameter: Any, value: Any) -> dict[str, str]:
    if isinstance(value, bool):
        return {(parameter.opts if value else parameter.secondary_opts)[0]: ""}
    return {parameter.opts[0]: f"{value:g}" if isinstance(value, float) else str(value)}
