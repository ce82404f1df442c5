"""The command line: one function per verb. Heavy imports wait until a verb runs, so that --help is quick."""

from __future__ import annotations

import errno
import functools
import json as json_text
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loadmaster import __version__
from loadmaster.cli import bench as workshop
from loadmaster.cli import experience as experiences
from loadmaster.cli import fits as fitting
from loadmaster.cli import measure as measuring
from loadmaster.cli import pipelines, planning, reports, splits, stages, words
from loadmaster.cli import run as running
from loadmaster.cli import serve as serving
from loadmaster.cli import tradeoff as tradeoffs
from loadmaster.cli.options import (
    OPTIMIZER_HELP,
    Addresses,
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
    TrainedBy,
    Training,
)
from loadmaster.errors import InvalidSetting, LoadmasterError, MissingExtra, printable

if TYPE_CHECKING:
    from loadmaster.problem import Problem
    from loadmaster.search import Result

app = typer.Typer(
    name="loadmaster",
    help="Plans fusion, placement and schedule of machine-learning graphs on the devices you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # square brackets in help are meant as such
    epilog="Exit codes: 0 ok, 1 error, 2 wrong usage, 3 the plan does not fit in memory.",
)
zoo_app = typer.Typer(
    help="Real models to plan without bringing one.", invoke_without_command=True, rich_markup_mode=None
)
plans_app = typer.Typer(
    help="Plans found before, from which searches on similar problems begin.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(zoo_app, name="zoo")
app.add_typer(plans_app, name="plans")

COMPARED = ("one-device", "expert", "heft", "etf", "greedy-fusion")


def main() -> None:
    for name in ("stdout", "stderr"):  # closed by the caller: there is nobody to tell
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    _quieten()
    app()


def _quieten() -> None:
    """Log lines and warnings of other packages are not for users of ours; our own warnings come in a line each."""
    logging.disable(logging.WARNING)

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any) -> None:
        if f"{os.sep}loadmaster{os.sep}" in filename:
            print(f"warning: {printable(str(message))}", file=sys.stderr)

    warnings.showwarning = show  # type: ignore[assignment]


def _verb(function: Callable[..., None]) -> Callable[..., None]:
    """Errors of ours without a traceback, on stderr, and as JSON on stdout too when asked for."""

    @functools.wraps(function)
    def guarded(**settings: Any) -> None:
        try:
            function(**settings)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(1) from None
        except Exception as error:
            raise typer.Exit(_tell(error, settings["json"], settings["debug"])) from None

    return guarded


def _tell(error: Exception, as_json: bool, debug: bool) -> int:
    """Prints the error; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    ours = error if isinstance(error, LoadmasterError) else _of_ours(error)
    try:
        if as_json:
            _print_json({"error": _error_data(ours)})
        sys.stdout.flush()
    except OSError:  # what is left in its buffer would be tried again, and complained of, at the very end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    print(ours, file=sys.stderr)
    return ours.exit_code


def _of_ours(error: Exception) -> LoadmasterError:
    """What the machine did is no bug."""
    if isinstance(error, OSError) and error.errno is not None:
        place = printable(str(error.filename)) if error.filename else "an open file, or standard output"
        fix = "make room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the disk and the path"
        return LoadmasterError(f"the system says: {os.strerror(error.errno)}", place, fix)
    if isinstance(error, MemoryError):
        return LoadmasterError("there is not enough memory for this", "", "give a smaller graph, or fewer devices")
    if isinstance(error, RecursionError):
        return LoadmasterError("it is nested too deeply", "", "give something simpler")
    what = f"something went wrong inside loadmaster: {type(error).__name__}: {error}"
    return LoadmasterError(what, "", "this is a bug; --debug shows where")


def _error_data(error: LoadmasterError) -> dict[str, Any]:
    data = {"type": type(error).__name__, "what": error.what, "where": error.where, "fix": error.fix}
    return {**data, "exit_code": error.exit_code}


def _print_json(document: Mapping[str, Any]) -> None:
    print(json_text.dumps(document, indent=2))


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
@_verb
def plan(
    model: Model,
    on: On = None,
    optimizer: Annotated[str | None, typer.Option("--with", metavar="OPTIMIZER", help=OPTIMIZER_HELP)] = None,
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
    trained_by: TrainedBy = None,
    dtype: Dtype = None,
    batch: Batch = None,
    costs: Costs = None,
    mode: Mode = None,
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
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan a model: what is one kernel, which device runs what, and in which order."""
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
    plain = words.fused(optimizer or words.default_optimizer(), fusion)
    spec = words.on_ray(words.whole(words.fitting(plain, recompute, offload), kept, in_stages), ray)
    budget = words.budget_of(seconds, simulations)
    limit = words.check_settings([spec], memory_limit, save)
    reports.check_targets(report, trace, schedule)
    how = words.capture_settings(model, training, trained_by, dtype, batch)
    problem, choice = stages.problem_for(model, on, objective, limit, costs, how, mode)
    if microbatches is not None:
        found = pipelines.run(problem, microbatches, budget, seed, optimizer, split, replicate)
        misfit = stages.save_or_explain(found.result, limit, None)
        told = pipelines.save(found, save if misfit is None else None, schedule)
        reports.write_files(found.result, [], report, trace)
        print(pipelines.summary(found, misfit)) if json else pipelines.tell(found, told)
        _finish(misfit)
        return
    asked = planning.Asked(
        spec=spec,
        plain=plain,
        named=optimizer is not None,
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
    )
    plans = planning.find(problem, asked)
    misfit, beside = planning.save(plans, asked)
    if json:
        _print_json(_with_error(planning.summary(plans, asked), misfit))
    else:
        _show_methods(problem, choice, planning.rows(plans, asked), save if misfit is None else None)
        planning.tell(plans, asked, beside)
    _finish(misfit)


@app.command()
@_verb
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
    from loadmaster.report.fit import does_not_fit
    from loadmaster.report.summary import simulation_summary

    limit = words.size_of(memory_limit)
    reports.check_targets(addresses)
    saved = load_plan_file(plan)
    how = reports.how_captured(reports.head_of(plan)) if words.is_callable(model) else None
    problem, choice = stages.problem_for(model, on, "step-time", limit, how=how)
    problem = splits.problem_of(problem, saved)
    result = stages.replay(problem, saved.plan, plan.name)
    misfit = None if result.fits else does_not_fit(result, limit)
    arenas = stages.lay_out(result, addresses) if addresses is not None and misfit is None else None
    if json:
        _print_json(_with_error(simulation_summary(result, arenas), misfit))
    else:
        _show_methods(problem, choice, [(plan.name, result)], None)
        if arenas is not None:
            reports.tell_arenas(problem, arenas, addresses)
    _finish(misfit)


@app.command()
@_verb
def pack(
    lifetimes: Annotated[
        Path, typer.Argument(metavar="LIFETIMES", help="A CSV file with columns id, lower, upper and size.")
    ],
    capacity: Annotated[str, typer.Option("--capacity", metavar="BYTES", help="Room for all: 1048576, 16MiB.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Write id and offset to this CSV file.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How long to look for offsets.")] = 300.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Give blocks of memory offsets within a capacity: no two alive at once overlap. Exit 3 when they do not fit."""
    from loadmaster.cli.pack import pack as packed

    told = packed(lifetimes, capacity, out, seconds)
    if json:
        _print_json(told)
        return
    arena, most = told["arena_bytes"], told["peak_bytes"]
    print(f"{told['blocks']} blocks in {arena:,} bytes; {most:,} are alive at once; offsets written to {out}")


@app.command()
@_verb
def compare(
    model: Model,
    on: On = None,
    optimizers: Annotated[
        str | None,
        typer.Option("--with", metavar="A,B,C", help="Optimizers, joined with commas; each may have settings."),
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
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan a model with several optimizers: same budget for each, same simulator, one table."""
    from loadmaster.report.summary import best_of, compare_summary

    budget = words.budget_of(seconds, simulations)
    names = words.split_specs(optimizers) if optimizers else list(dict.fromkeys([*COMPARED, words.default_optimizer()]))
    specs = [words.fused(name, fusion) for name in names]
    limit = words.check_settings(specs, memory_limit, save)
    reports.check_targets(report, trace)
    problem, choice = stages.problem_for(model, on, objective, limit, costs)
    rows = stages.run_all(problem, specs, budget, seed)
    results, left = [result for _, result in rows], specs[len(rows) :]
    misfit = stages.save_or_explain(best_of(results), limit, save)
    reports.write_files(best_of(results), results, report, trace)
    if json:
        _print_json(_with_error(compare_summary(results, left), misfit))
    else:
        _show_methods(problem, choice, rows, save if misfit is None else None)
        if left:
            print(f"interrupted; not run: {', '.join(left)}")
        reports.tell_files(report, trace)
    _finish(misfit)


@app.command()
@_verb
def inspect(model: Model, on: On = None, json: Json = False, debug: Debug = False) -> None:
    """Show what is in a model: ops, arithmetic, bytes by role, critical path, largest tensors."""
    from loadmaster.report.inspection import inspect_problem

    problem, _ = stages.problem_for(model, on, "step-time", None)
    found = inspect_problem(problem)
    if json:
        graph = {"name": problem.source.name, "digest": problem.source.digest}
        _print_json({"graph": graph, **found.as_data()})
        return
    from loadmaster.report.terminal import console, inspection_view

    for table in inspection_view(problem, found):
        console().print(table, "")


@app.command("list")
@_verb
def list_names(
    what: Annotated[Literal["optimizers", "clusters"], typer.Argument(show_default=False)],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the optimizers or the clusters there are."""
    from loadmaster.report.listing import cluster_rows, optimizer_rows
    from loadmaster.report.terminal import clusters_table, console, optimizers_table

    rows = optimizer_rows() if what == "optimizers" else cluster_rows()
    if json:
        _print_json({what: rows})
    else:
        console().print((optimizers_table if what == "optimizers" else clusters_table)(rows))


@plans_app.command("list")
@_verb
def plans_list(json: Json = False, debug: Debug = False) -> None:
    """List the plans found before, the last used first."""
    from loadmaster.optimizers.experience import Store

    if json:
        _print_json(experiences.listed(Store.default()))
    else:
        experiences.show_list(Store.default())


@plans_app.command("clear")
@_verb
def plans_clear(json: Json = False, debug: Debug = False) -> None:
    """Forget the plans found before."""
    from loadmaster.optimizers.experience import Store

    store = Store.default()
    removed = 0 if store is None else store.clear()
    if json:
        _print_json({"removed": removed})
    else:
        print(f"{removed} plans removed")


@zoo_app.callback()
def zoo(context: typer.Context, json: Json = False, debug: Debug = False) -> None:
    """Real models to plan without bringing one: list them, or capture one again."""
    if context.invoked_subcommand is None:
        _list_zoo(json=json, debug=debug)


@_verb
def _list_zoo(json: bool, debug: bool) -> None:
    from loadmaster.zoo import ENTRIES
    from loadmaster.zoo.shelf import shelf_rows

    rows = shelf_rows()
    shipped = {row["name"].rpartition("/")[0] for row in rows}
    others = [name for name in ENTRIES if name not in shipped]
    if json:
        _print_json({"models": rows, "to_capture": others})
        return
    from loadmaster.report.terminal import console, zoo_models_table, zoo_table

    screen = console()
    screen.print(zoo_table(rows))
    screen.print()
    screen.print(zoo_models_table(rows))
    if others:
        screen.print(f"\nmade by 'loadmaster zoo capture NAME', which needs torch: {', '.join(others)}")


@zoo_app.command("capture")
@_verb
def zoo_capture(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from 'loadmaster zoo', with /train or /infer.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to.")] = Path("."),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the graph of a model in the zoo again from its source, without its weights. Needs torch."""
    from loadmaster.files import load_graph
    from loadmaster.zoo.shelf import capture

    stem = name.removeprefix("zoo:")
    try:
        with stages.status(f"capturing {stem}"):
            file = capture(stem, out)
            graph = load_graph(file)
    except ModuleNotFoundError as error:
        raise MissingExtra.of(error.name or "torch", "zoo", "capturing a model of the zoo") from error
    if json:
        facts = {"name": graph.name, "digest": graph.digest, "ops": graph.num_ops, "tensors": graph.num_tensors}
        _print_json({"graph": facts, "file": str(file)})
    else:
        name = printable(graph.name)
        print(f"{name}: {graph.num_ops:,} ops, {graph.num_tensors:,} tensors, digest {graph.digest}, in {file}")


_GROUPS = (running, reports, workshop, serving, fitting, measuring, tradeoffs)
for _function in (verb for group in _GROUPS for verb in group.VERBS):
    app.command()(_verb(_function))


# Answers


def _with_error(document: dict[str, Any], error: LoadmasterError | None) -> dict[str, Any]:
    return document if error is None else {**document, "error": _error_data(error)}


def _finish(misfit: LoadmasterError | None) -> None:
    if misfit is not None:
        sys.stdout.flush()
        print(misfit, file=sys.stderr)
        raise typer.Exit(misfit.exit_code)


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
