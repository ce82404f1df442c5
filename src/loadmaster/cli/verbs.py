"""The command line: one function per verb. Heavy imports wait until a verb runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from loadmaster import __version__
from loadmaster.cli import asking, languages, pipelines, planning, reports, splits, stages, words
from loadmaster.cli import experience as experiences
from loadmaster.cli import fits as fitting
from loadmaster.cli import measure as measuring
from loadmaster.cli import run as running
from loadmaster.cli import serve as serving
from loadmaster.cli import tradeoff as tradeoffs
from loadmaster.cli.guarding import OldWords, finish, print_json, quieten, verb, with_error
from loadmaster.cli.lab import lab_app
from loadmaster.cli.options import (
    METHOD_HELP,
    Addresses,
    Assume,
    Batch,
    Costs,
    Debug,
    Dtype,
    Fusion,
    Json,
    MemoryLimit,
    Microbatches,
    Mode,
    Model,
    NeededOn,
    Objective,
    Offload,
    On,
    Optimizer,
    Ray,
    Recompute,
    Replicate,
    Report,
    Save,
    ScheduleFile,
    Seconds,
    Seed,
    Simulations,
    SplitOps,
    Trace,
    Training,
    Verbose,
)
from loadmaster.cli.shelves import plans_app, zoo_app
from loadmaster.errors import InvalidSetting

if TYPE_CHECKING:
    from loadmaster.problem import Problem
    from loadmaster.search import Result

app = typer.Typer(
    name="loadmaster",
    cls=OldWords,
    help="Plans fusion, placement and schedule of machine-learning graphs on the devices you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # square brackets in help are meant as such
    epilog="Exit codes: 0 ok, 1 error, 2 wrong usage, 3 the plan does not fit in memory.",
)
app.add_typer(zoo_app, name="zoo")
app.add_typer(plans_app, name="plans")
app.add_typer(lab_app, name="lab")

COMPARED = ("one-device", "expert", "heft", "etf", "greedy-fusion")


def main() -> None:
    """The command `loadmaster`."""
    for name in ("stdout", "stderr"):  # closed by the caller: there is nobody to tell
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    quieten()
    app()


def _version(wanted: bool) -> None:
    if wanted:
        print(f"loadmaster {__version__}")
        raise typer.Exit()


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Plans fusion, placement and schedule of machine-learning graphs on the devices you have."""


@app.command()
@verb
def plan(
    model: Model,
    on: On = None,
    method: Annotated[str | None, typer.Option("--method", metavar="METHOD", help=METHOD_HELP)] = None,
    objective: Objective = "step-time",
    memory_limit: MemoryLimit = None,
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    fusion: Fusion = "auto",
    recompute: Recompute = "auto",
    offload: Offload = "auto",
    split: SplitOps = "none",
    microbatches: Microbatches = None,
    replicate: Replicate = "none",
    schedule: ScheduleFile = None,
    training: Training = None,
    optimizer: Optimizer = None,
    dtype: Dtype = None,
    batch: Batch = None,
    costs: Costs = None,
    mode: Mode = None,
    assume: Assume = False,
    granularity: Annotated[
        Literal["op", "module", "block"] | None,
        typer.Option("--granularity", help="What must stay whole on one device. [default: op, or what --for takes]"),
    ] = None,
    serve: Annotated[str | None, typer.Option("--serve", metavar="REQUESTS", help=serving.SERVE_HELP)] = None,
    target: Annotated[
        str | None, typer.Option("--for", metavar="RUNTIME", help=f"Plan what it can take: {serving.TARGETS_HELP}.")
    ] = None,
    goal: Annotated[
        Literal["latency", "first-token", "per-token", "throughput"],
        typer.Option("--goal", help="What matters when serving."),
    ] = "latency",
    weights: Annotated[
        str, typer.Option("--weights", help="Of served models: float32, float16, bfloat16, int8 or int4.")
    ] = "bfloat16",
    cache: Annotated[
        str, typer.Option("--cache", help="Of .gguf files: auto, f16, q8_0 or q4_0; auto prefers f16.")
    ] = "auto",
    census: Annotated[
        Path | None, typer.Option("--census", metavar="FILE", help="Of .gguf files: how often experts are chosen.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option("--sweep", metavar="context=1k..64k", help="A plan for each context, doubled.")
    ] = None,
    like: Annotated[Path | None, typer.Option("--like", metavar="PLAN", help=experiences.LIKE_HELP)] = None,
    experience: Annotated[
        bool | None, typer.Option("--experience/--no-experience", help=experiences.EXPERIENCE_HELP)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="With --sweep: draw it: sweep.png, .svg or .pdf.")
    ] = None,
    ray: Ray = None,
    save: Save = None,
    report: Report = None,
    trace: Trace = None,
    verbose: Verbose = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan a model: what is one kernel, which device runs what, and in which order."""
    if languages.is_read(model, target):
        languages.plan_language(
            model,
            on,
            serve or "",
            target,
            goal=goal,
            cache=cache,
            census=census,
            refused={"--save": save, "--report": report, "--plot": plot, "--sweep": sweep},
            json=json,
        )
        return
    if serve is not None or sweep is not None or serving.is_served(model):
        serving.plan_served(
            model,
            on,
            serve or "",
            target,
            goal=goal,
            weights=weights,
            sweep=sweep,
            seconds=seconds,
            seed=seed,
            save=save,
            report=report,
            plot=plot,
            json=json,
        )
        return
    if plot is not None:
        raise InvalidSetting("--plot draws a sweep", "--plot", "give it with --sweep, or use 'loadmaster plot PLAN'")
    kept, in_stages = serving.held_to(target, granularity)
    if fusion == "auto" and (kept != "op" or split != "none"):
        fusion = "none"  # whole modules, and parts of ops, are placed
    plain = words.fused(method or words.default_method(), fusion)
    spec = words.on_ray(words.whole(words.fitting(plain, recompute, offload), kept, in_stages), ray)
    budget = words.budget_of(seconds, simulations)
    limit = words.check_settings([spec], memory_limit, save)
    reports.check_targets(report, trace, schedule)
    how = words.capture_settings(model, training, optimizer, dtype, batch)
    problem, choice = stages.problem_for(model, on, objective, limit, costs, how, mode, assume)
    invocation = asking.invocation(model, problem, budget)
    if microbatches is not None:
        found = pipelines.run(problem, microbatches, budget, seed, method, split, replicate)
        found = replace(found, result=replace(found.result, asked=invocation))
        misfit = stages.save_or_explain(found.result, limit, None)
        told = pipelines.save(found, save if misfit is None else None, schedule)
        said = None if json and report is None else reports.report_of(found.result, save)
        reports.write_files(found.result, [], report, trace, said)
        if json or said is None:
            print(pipelines.summary(found, misfit))
        else:
            reports.tell_report(said, found.result, verbose=False)
            pipelines.tell(found, told, verbose)
        finish(misfit)
        return
    asked = planning.Asked(
        spec=spec,
        plain=plain,
        named=method is not None,
        budget=budget,
        seed=seed,
        limit=limit,
        kept=kept,
        target=target,
        split=split,
        costs=costs,
        recompute=recompute,
        offload=offload,
        like=like,
        experience=experience,
        save=save,
        report=report,
        trace=trace,
        invocation=invocation,
    )
    plans = planning.find(problem, asked)
    said = None if json and report is None else reports.report_of(plans.result, save)
    misfit, beside = planning.save(plans, asked, said)
    if json or said is None:
        print_json(with_error(planning.summary(plans, asked), misfit))
        finish(misfit)
        return
    if choice:
        print(f"on {problem.cluster.name}{choice}")
    if not verbose:  # with it, the table of methods says so
        from loadmaster.report.terminal import model_notes

        for note in model_notes(problem.source):
            print(note)
    reports.tell_report(said, plans.result, verbose)
    if verbose:
        _show_methods(problem, choice, planning.rows(plans, asked), None)
    if save is not None and misfit is None:
        print(f"plan written to {save}")
    planning.tell(plans, asked, beside)
    finish(misfit)


@app.command()
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
    """Simulate a saved plan afresh; with --addresses, lay out the memory of each device too."""
    from loadmaster.files import load_plan_file
    from loadmaster.report.explain import replayed
    from loadmaster.report.fit import does_not_fit
    from loadmaster.report.summary import simulation_summary

    limit = words.size_of(memory_limit)
    reports.check_targets(addresses)
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
        _show_methods(problem, choice, [(plan.name, result)], None)
        if arenas is not None:
            reports.tell_arenas(problem, arenas, addresses)
    finish(misfit)


@app.command()
@verb
def compare(
    model: Model,
    on: On = None,
    methods: Annotated[
        str | None,
        typer.Option("--method", metavar="A,B,C", help="Methods, joined with commas; each may have settings."),
    ] = None,
    objective: Objective = "step-time",
    memory_limit: MemoryLimit = None,
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    fusion: Fusion = "auto",
    costs: Costs = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the best plan to this JSON file.")
    ] = None,
    report: Report = None,
    trace: Trace = None,
    assume: Assume = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan a model with several methods: same budget for each, same simulator, one table."""
    from loadmaster.report.summary import best_of, compare_summary

    budget = words.budget_of(seconds, simulations)
    names = words.split_specs(methods) if methods else list(dict.fromkeys([*COMPARED, words.default_method()]))
    specs = [words.fused(name, fusion) for name in names]
    limit = words.check_settings(specs, memory_limit, save)
    reports.check_targets(report, trace)
    problem, choice = stages.problem_for(model, on, objective, limit, costs, assume=assume)
    rows = stages.run_all(problem, specs, budget, seed)
    rows = [(spec, replace(found, asked=asking.invocation(model, problem, budget, spec))) for spec, found in rows]
    results, left = [result for _, result in rows], specs[len(rows) :]
    misfit = stages.save_or_explain(best_of(results), limit, save)
    reports.write_files(best_of(results), results, report, trace)
    if json:
        print_json(with_error(compare_summary(results, left), misfit))
    else:
        _show_methods(problem, choice, rows, save if misfit is None else None)
        if left:
            print(f"interrupted; not run: {', '.join(left)}")
        reports.tell_files(report, trace)
    finish(misfit)


@app.command()
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


@app.command("list")
@verb
def list_names(
    what: Annotated[Literal["methods", "clusters"], typer.Argument(show_default=False)],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the methods or the clusters there are."""
    from loadmaster.report.listing import cluster_rows, method_rows
    from loadmaster.report.terminal import clusters_table, console, known_methods_table

    rows = method_rows() if what == "methods" else cluster_rows()
    if json:
        print_json({what: rows})
    else:
        console().print((known_methods_table if what == "methods" else clusters_table)(rows))


_GROUPS = (running, reports, serving, fitting, measuring, tradeoffs)
for _function in (each for group in _GROUPS for each in group.VERBS):
    app.command()(verb(_function))


def _show_methods(problem: Problem, choice: str, rows: list[tuple[str, Result]], saved: Path | None) -> None:
    from loadmaster.report.terminal import console, methods_table, problem_line, verdict

    screen = console()
    screen.print(problem_line(problem, choice), "", methods_table(rows), "", sep="\n")
    if len(rows) > 1:
        screen.print(verdict(rows), soft_wrap=True)
    if saved is not None:
        screen.print(f"plan written to {saved}", soft_wrap=True)


if __name__ == "__main__":
    main()
