"""`loadmaster tools`: looking at models and saved plans, and at the names that verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from loadmaster.cli import experience as experiences
from loadmaster.cli import measure, reports, splits, stages, tradeoff, words
from loadmaster.cli.guarding import finish, print_json, verb, with_error
from loadmaster.cli.options import Addresses, Debug, Json, MemoryLimit, Model, NeededOn, On

tools_app = typer.Typer(
    help="Look closer: inspect, tradeoff, simulate, diff, plot, race, list, forget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@tools_app.command()
@verb
def inspect(model: Model, on: On = None, json: Json = False, debug: Debug = False) -> None:
    """Show what is in a model: ops, arithmetic, bytes by role, critical path, largest tensors."""
    from loadmaster.report.inspection import inspect_problem

    problem, _ = stages.problem_for(model, on, "step-time", None)
    found = inspect_problem(problem)
    if json:
        graph = {"name": problem.source.name, "digest": problem.source.digest}
        print_json({"graph": graph, **found.as_data()})
        return
    from loadmaster.report.terminal import console, inspection_view

    for table in inspection_view(problem, found):
        console().print(table, "")


@tools_app.command("list")
@verb
def list_names(
    what: Annotated[Literal["methods", "clusters", "plans"], typer.Argument(show_default=False)],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the methods, the clusters, or your earlier plans."""
    if what == "plans":
        experiences.list_plans(json)
        return
    from loadmaster.report.listing import cluster_rows, method_rows
    from loadmaster.report.terminal import clusters_table, console, known_methods_table

    rows = method_rows() if what == "methods" else cluster_rows()
    if json:
        print_json({what: rows})
    else:
        console().print((known_methods_table if what == "methods" else clusters_table)(rows))


@tools_app.command()
@verb
def simulate(
    model: Model,
    on: NeededOn,
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="A plan that 'loadmaster plan --save' wrote.")],
    memory_limit: MemoryLimit = None,
    addresses: Addresses = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Simulate a saved plan again; with --addresses, also lay out the memory of each device."""
    from loadmaster.files import load_plan_file
    from loadmaster.report.explain import replayed
    from loadmaster.report.fit import does_not_fit
    from loadmaster.report.summary import simulation_summary

    limit = words.size_of(memory_limit)
    stages.check_targets(addresses)
    saved = load_plan_file(plan)
    how = reports.how_captured(reports.head_of(plan)) if words.is_callable(model) else None
    problem, choice = stages.problem_for(model, on, "step-time", limit, how=how)
    problem = splits.problem_of(problem, saved)
    result = replayed(problem, saved.plan, plan.name)
    misfit = None if result.fits else does_not_fit(result, limit)
    arenas = stages.lay_out(result, addresses) if addresses is not None and misfit is None else None
    if json:
        print_json(with_error(simulation_summary(result, arenas), misfit))
    else:
        stages.show_methods(problem, choice, [(plan.name, result)], None)
        if arenas is not None:
            reports.tell_arenas(problem, arenas, addresses)
    finish(misfit)


@tools_app.command()
@verb
def forget(json: Json = False, debug: Debug = False) -> None:
    """Forget the earlier plans that searches start from."""
    from loadmaster.methods.experience import Store

    store = Store.default()
    removed = 0 if store is None else store.clear()
    if json:
        print_json({"removed": removed})
    else:
        print(f"{removed} plans removed")


for _function in (tradeoff.tradeoff, reports.diff, reports.plot, measure.race):
    tools_app.command()(verb(_function))
