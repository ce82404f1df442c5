"""The command line: one function per verb. Heavy imports wait until a verb runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadmaster import __version__
from loadmaster.cli import planning, stages, words
from loadmaster.cli.guarding import finish, print_json, quieten, verb, with_error
from loadmaster.cli.helping import HelpAll, LongVerb, Verbs
from loadmaster.cli.options import (
    EXPERIENCE_HELP,
    LIKE_HELP,
    METHOD_HELP,
    SERVE_HELP,
    SERVING,
    TARGETS_HELP,
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
from loadmaster.errors import InvalidSetting

app = typer.Typer(
    name="loadmaster",
    cls=Verbs,
    help="Plans fusion, placement and schedule of machine-learning graphs on the devices you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # square brackets in help are meant as such
    epilog="Exit codes: 0 ok, 1 error, 2 wrong usage, 3 the plan does not fit in memory.",
)

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


@app.command(cls=LongVerb)
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
        typer.Option(
            "--granularity",
            rich_help_panel=SERVING,
            help="What stays whole on one device. [default: op, or what --for takes]",
        ),
    ] = None,
    serve: Annotated[str | None, typer.Option("--serve", metavar="REQUESTS", help=SERVE_HELP)] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="RUNTIME",
            rich_help_panel=SERVING,
            help=f"Plan only what this runtime can take: {TARGETS_HELP}.",
        ),
    ] = None,
    goal: Annotated[
        Literal["latency", "first-token", "per-token", "throughput"],
        typer.Option("--goal", rich_help_panel=SERVING, help="What to minimise or raise when serving."),
    ] = "latency",
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            rich_help_panel=SERVING,
            help="Type of a served model's weights: float32, float16, bfloat16, int8 or int4.",
        ),
    ] = "bfloat16",
    cache: Annotated[
        str,
        typer.Option(
            "--cache", rich_help_panel=SERVING, help="For .gguf files: auto, f16, q8_0 or q4_0; auto prefers f16."
        ),
    ] = "auto",
    census: Annotated[
        Path | None,
        typer.Option(
            "--census", metavar="FILE", rich_help_panel=SERVING, help="For .gguf files: how often experts are chosen."
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="context=1k..64k",
            rich_help_panel=SERVING,
            help="One plan for each context length, each twice the last.",
        ),
    ] = None,
    like: Annotated[
        Path | None, typer.Option("--like", metavar="PLAN", rich_help_panel="Search", help=LIKE_HELP)
    ] = None,
    experience: Annotated[
        bool | None,
        typer.Option("--experience/--no-experience", rich_help_panel="Search", help=EXPERIENCE_HELP),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", rich_help_panel=SERVING, help="Draw the --sweep: sweep.png, .svg or .pdf."
        ),
    ] = None,
    ray: Ray = None,
    save: Save = None,
    report: Report = None,
    trace: Trace = None,
    verbose: Verbose = False,
    json: Json = False,
    debug: Debug = False,
    help_all: HelpAll = False,
) -> None:
    """Plan a model: which ops to fuse, which device runs each, and in which order."""
    if words.is_read(model, target):
        from loadmaster.cli.languages import plan_language

        plan_language(
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
    if serve is not None or sweep is not None or words.is_served(model):
        from loadmaster.cli.serve import plan_served

        plan_served(
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
        raise InvalidSetting(
            "--plot draws a sweep", "--plot", "give it with --sweep, or use 'loadmaster tools plot PLAN'"
        )
    kept, in_stages = planning.held_to(target, granularity)
    if fusion == "auto" and (kept != "op" or split != "none"):
        fusion = "none"  # whole modules, and parts of ops, are placed
    plain = words.fused(method or words.DEFAULT, fusion)
    spec = words.fitting(plain, recompute, offload)
    spec = spec if kept == "op" else words.whole(spec, kept, in_stages)
    spec = words.on_ray(spec, ray) if ray else spec
    budget = words.budget_of(seconds, simulations)
    limit = words.check_settings([spec], memory_limit, save)
    stages.check_targets(report, trace, schedule)
    how = words.capture_settings(model, training, optimizer, dtype, batch)
    if method is None:
        stages.compile_beside()
    problem, choice = stages.problem_for(model, on, objective, limit, costs, how, mode, assume)
    invocation = words.invocation(model, problem, budget)
    if microbatches is not None:
        from loadmaster.cli import pipelines

        found = pipelines.run(problem, microbatches, budget, seed, method, split, replicate)
        found = replace(found, result=replace(found.result, asked=invocation))
        misfit = stages.save_or_explain(found.result, limit, None)
        told = pipelines.save(found, save if misfit is None else None, schedule)
        said = None if report is None else stages.report_of(found.result, save)
        stages.write_files(found.result, [], report, trace, said)
        if json:
            print(pipelines.summary(found, misfit))
        else:
            stages.tell_answers(said or stages.answers_of(found.result, save))
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
        verbose=verbose,
        invocation=invocation,
    )
    plans = planning.find(problem, asked)
    whole = stages.report_of(plans.result, save) if report is not None or (verbose and not json) else None
    misfit, beside = planning.save(plans, whole)
    if json:
        print_json(with_error(planning.summary(plans), misfit))
    else:
        planning.tell(plans, whole, misfit, beside, choice)
    finish(misfit)


@app.command()
@verb
def compare(
    model: Model,
    on: On = None,
    methods: Annotated[
        str | None,
        typer.Option("--method", metavar="A,B,C", help="Methods, joined with commas."),
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
    """Plan a model with several methods, each with the same budget, in one table."""
    from loadmaster.report.summary import best_of, compare_summary

    budget = words.budget_of(seconds, simulations)
    names = words.split_specs(methods) if methods else list(dict.fromkeys([*COMPARED, words.DEFAULT]))
    specs = [words.fused(name, fusion) for name in names]
    limit = words.check_settings(specs, memory_limit, save)
    stages.check_targets(report, trace)
    problem, choice = stages.problem_for(model, on, objective, limit, costs, assume=assume)
    rows = stages.run_all(problem, specs, budget, seed)
    rows = [(spec, replace(found, asked=words.invocation(model, problem, budget, spec))) for spec, found in rows]
    results, left = [result for _, result in rows], specs[len(rows) :]
    misfit = stages.save_or_explain(best_of(results), limit, save)
    stages.write_files(best_of(results), results, report, trace)
    if json:
        print_json(with_error(compare_summary(results, left), misfit))
    else:
        stages.show_methods(problem, choice, rows, save if misfit is None else None)
        if left:
            print(f"interrupted; not run: {', '.join(left)}")
        stages.tell_files(report, trace)
    finish(misfit)


if __name__ == "__main__":
    main()
