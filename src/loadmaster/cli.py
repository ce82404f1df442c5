"""The command line: one function per verb. Heavy imports wait until a verb runs, so that --help is quick."""

from __future__ import annotations

import functools
import json as json_text
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loadmaster import __version__, catalog
from loadmaster.errors import InvalidSetting, LoadmasterError, UnreadableFile

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster
    from loadmaster.graph import Graph
    from loadmaster.problem import Problem
    from loadmaster.search import Budget, Result

app = typer.Typer(
    name="loadmaster",
    help="Plans fusion, placement and schedule of machine-learning graphs on the devices you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 ok, 1 error, 2 wrong usage, 3 the plan does not fit in memory.",
)
zoo_app = typer.Typer(help="Real models to plan without bringing one.", invoke_without_command=True)
app.add_typer(zoo_app, name="zoo")

DEFAULT_SECONDS = 10.0
DEFAULT_CLUSTER = "2xa100-nvlink"
COMPARED = ("one-device", "expert", "heft", "etf", "greedy-fusion")
BASELINES = ("one-device", "expert")

_MODEL_HELP = "zoo:NAME[/train|/infer], a .json, .json.gz or .onnx file, or package.module:callable"
_OPTIMIZER_HELP = "A name from 'loadmaster list optimizers', with settings: best-of:of=[heft,etf]."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP, show_default=False)]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="A preset such as 4xp100-pcie, or a JSON file.")]
NeededOn = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="A preset such as 4xp100-pcie, or a JSON file.")]
Objective = Annotated[Literal["step-time", "peak-memory"], typer.Option("--objective", help="What to make small.")]
MemoryLimit = Annotated[str | None, typer.Option("--memory-limit", metavar="SIZE", help="At most this per device: 16GiB.")]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", help=f"Time for each search. [default: {DEFAULT_SECONDS:g}, or no limit with --simulations]"),
]
Simulations = Annotated[int | None, typer.Option("--simulations", help="Simulations for each search; alone, answers repeat.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="For methods that draw random numbers.")]
Fusion = Annotated[Literal["none", "greedy"], typer.Option("--fusion", help="Fuse ops into kernels before planning.")]
Save = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to this JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def main() -> None:
    app()


def _verb(function: Callable[..., None]) -> Callable[..., None]:
    """Errors of ours without a traceback, on stderr, and as JSON on stdout too when asked for."""

    @functools.wraps(function)
    def guarded(**settings: Any) -> None:
        try:
            function(**settings)
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
    if not isinstance(error, LoadmasterError):
        what = f"something went wrong inside loadmaster: {type(error).__name__}: {error}"
        error = LoadmasterError(what, "", "this is a bug; --debug shows where")
    if as_json:
        _print_json({"error": _error_data(error)})
    print(error, file=sys.stderr)
    return error.exit_code


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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Plans fusion, placement and schedule of machine-learning graphs on the devices you have."""


@app.command()
@_verb
def plan(
    model: Model,
    on: On = None,
    optimizer: Annotated[str | None, typer.Option("--with", metavar="OPTIMIZER", help=_OPTIMIZER_HELP)] = None,
    objective: Objective = "step-time",
    memory_limit: MemoryLimit = None,
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    fusion: Fusion = "none",
    save: Save = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan a model: which device runs what, and in which order."""
    budget, spec = _budget(seconds, simulations), _fused(optimizer or default_optimizer(), fusion)
    limit = _check_settings([spec], memory_limit, save)
    problem, choice = _problem(model, on, objective, limit)
    result = _solve(problem, spec, budget, seed)
    baselines = _baselines(problem, seed)
    misfit = _save_or_explain(result, limit, save)
    if json:
        from loadmaster.report.summary import plan_summary

        _print_json(_with_error(plan_summary(result, baselines), misfit))
    else:
        rows = [*baselines.items(), *([(spec, result)] if spec not in baselines else [])]
        _show_methods(problem, choice, rows, save if misfit is None else None)
    _finish(misfit)


@app.command()
@_verb
def simulate(
    model: Model,
    on: NeededOn,
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="A plan that 'loadmaster plan --save' wrote.")],
    memory_limit: MemoryLimit = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Simulate a saved plan afresh."""
    from loadmaster.files import load_plan
    from loadmaster.report.fit import does_not_fit
    from loadmaster.report.summary import simulation_summary
    from loadmaster.search import replay

    limit = _size(memory_limit)
    saved = load_plan(plan)
    problem, choice = _problem(model, on, "step-time", limit)
    result = replay(problem, saved, plan.name)
    misfit = None if result.fits else does_not_fit(result, limit)
    if json:
        _print_json(_with_error(simulation_summary(result), misfit))
    else:
        _show_methods(problem, choice, [(plan.name, result)], None)
    _finish(misfit)


@app.command()
@_verb
def compare(
    model: Model,
    on: On = None,
    optimizers: Annotated[
        str | None, typer.Option("--with", metavar="A,B,C", help="Optimizers, joined with commas; each may have settings.")
    ] = None,
    objective: Objective = "step-time",
    memory_limit: MemoryLimit = None,
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    fusion: Fusion = "none",
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the best plan to this JSON file.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Plan a model with several optimizers: same budget for each, same simulator, one table."""
    from loadmaster.report.summary import best_of, compare_summary

    budget = _budget(seconds, simulations)
    names = split_specs(optimizers) if optimizers else list(dict.fromkeys([*COMPARED, default_optimizer()]))
    specs = [_fused(name, fusion) for name in names]
    limit = _check_settings(specs, memory_limit, save)
    problem, choice = _problem(model, on, objective, limit)
    rows = [(spec, _solve(problem, spec, budget, seed)) for spec in specs]
    results = [result for _, result in rows]
    misfit = _save_or_explain(best_of(results), limit, save)
    if json:
        _print_json(_with_error(compare_summary(results), misfit))
    else:
        _show_methods(problem, choice, rows, save if misfit is None else None)
    _finish(misfit)


@app.command()
@_verb
def inspect(model: Model, on: On = None, json: Json = False, debug: Debug = False) -> None:
    """Show what is in a model: ops, arithmetic, bytes by role, critical path, largest tensors."""
    from loadmaster.report.inspection import inspect_problem

    problem, _ = _problem(model, on, "step-time", None)
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

    rows = optimizer_rows() if what == "optimizers" else cluster_rows()
    _show_rows(what, rows, json)


@zoo_app.callback()
def zoo(context: typer.Context, json: Json = False, debug: Debug = False) -> None:
    """Real models to plan without bringing one: list them, or capture one again."""
    if context.invoked_subcommand is None:
        _list_zoo(json=json, debug=debug)


@_verb
def _list_zoo(json: bool, debug: bool) -> None:
    from loadmaster.zoo.shelf import shelf

    _show_rows("models", shelf(), json)


@zoo_app.command("capture")
@_verb
def zoo_capture(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from 'loadmaster zoo', with /train or /infer.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write it. [default: NAME.json.gz]")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the graph of a model in the zoo again from its source, without its weights. Needs torch."""
    from loadmaster.files import save_graph
    from loadmaster.zoo.shelf import capture

    stem = name.removeprefix("zoo:")
    target = out or Path(f"{stem.replace('/', '-')}.json.gz")
    _check_writable(target)
    with _status(f"capturing {stem}"):
        graph = capture(stem)
    save_graph(graph, target)
    if json:
        _print_json({"graph": {**_graph_data(graph)}, "file": str(target)})
    else:
        print(f"{graph.name}: {graph.num_ops:,} ops, {graph.num_tensors:,} tensors, digest {graph.digest}, in {target}")


def _graph_data(graph: Graph) -> dict[str, Any]:
    return {"name": graph.name, "digest": graph.digest, "ops": graph.num_ops, "tensors": graph.num_tensors}


# Settings


def default_optimizer() -> str:
    return "auto" if "auto" in catalog.OPTIMIZERS else "best-of"


def split_specs(text: str) -> list[str]:
    """Specs joined with commas. 'anneal:heat=0.1,start=heft,etf' is two: a setting belongs to the spec before it."""
    from loadmaster.specs import _split

    specs: list[str] = []
    for part in _split(text):
        head = part.partition("=")[0]
        if "=" in part and ":" not in head and specs:
            specs[-1] += f",{part}"
        else:
            specs.append(part.strip())
    return list(dict.fromkeys(specs))


def _fused(spec: str, fusion: str) -> str:
    return spec if fusion == "none" else f"greedy-fusion:inner=[{spec}]"


def _budget(seconds: float | None, simulations: int | None) -> Budget:
    from loadmaster.search import Budget

    if seconds is None and simulations is None:
        seconds = DEFAULT_SECONDS
    return Budget(seconds, simulations)


def _size(text: str | None) -> int | None:
    from loadmaster.report.units import parse_size

    return None if text is None else parse_size(text, "--memory-limit")


def _check_settings(specs: list[str], memory_limit: str | None, save: Path | None) -> int | None:
    """Finds mistakes before any work is done; returns the memory limit in bytes."""
    from loadmaster.specs import make_optimizer

    if not specs:
        raise InvalidSetting("no optimizer was named", "--with", "give one or more names from 'loadmaster list optimizers'")
    for spec in specs:
        make_optimizer(spec)
    if save is not None:
        _check_writable(save)
    return _size(memory_limit)


def _check_writable(path: Path) -> None:
    folder = path.absolute().parent
    if path.is_dir():
        raise UnreadableFile(f"'{path}' is a folder", "", "give the name of a file")
    if not folder.is_dir():
        raise UnreadableFile(f"there is no folder '{folder}' to write '{path.name}' in", "", "make it first, or write elsewhere")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UnreadableFile(f"'{path}' cannot be written", "", "check its permissions, or write elsewhere")


# Stages


def _problem(model: str, on: str | None, objective: Any, memory_limit: int | None) -> tuple[Problem, str]:
    """The priced problem, and why that cluster when nobody asked for it."""
    with _status(f"loading {model}"):
        from loadmaster.cost import price
        from loadmaster.importers import load

        named = None if on is None else _cluster(on)
        graph = load(model)
        cluster, choice = (named, "") if named is not None else _default_cluster(model, graph)
        return price(graph, cluster, objective=objective, memory_limit=memory_limit), choice


def _cluster(name: str) -> Cluster:
    from loadmaster.cluster import Cluster

    is_file = "/" in name or name.endswith((".json", ".json.gz", ".json.xz"))
    return Cluster.load(name) if is_file else Cluster.preset(name)


def _default_cluster(model: str, graph: Graph) -> tuple[Cluster, str]:
    """As many P100 as the model was planned for in its paper, where the zoo knows; else two A100."""
    from loadmaster.cluster import Cluster

    name, reason = DEFAULT_CLUSTER, "the default"
    if model.startswith("zoo:"):
        from loadmaster.zoo import find

        if devices := find(model.removeprefix("zoo:"))[0].devices:
            name, reason = f"{devices}xp100-pcie", "as many as its published comparison used"
    elif graph.time_ns.shape[1] > 1:
        name, reason = f"{graph.time_ns.shape[1]}xa100-nvlink", "one for each of its times"
    return Cluster.preset(name), f" ({reason}; choose with --on)"


def _solve(problem: Problem, spec: str, budget: Budget, seed: int) -> Result:
    from loadmaster.report.terminal import solving
    from loadmaster.search import solve

    with solving(spec) as listener:
        return solve(problem, spec, budget, seed, listener=listener)


def _baselines(problem: Problem, seed: int) -> dict[str, Result]:
    from loadmaster.search import Budget, solve

    return {name: solve(problem, name, Budget(None, 1), seed) for name in BASELINES}


# Answers


def _save_or_explain(result: Result, memory_limit: int | None, save: Path | None) -> LoadmasterError | None:
    """Saves a plan that fits; gives the error for one that does not, which is never saved."""
    if not result.fits:
        from loadmaster.report.fit import does_not_fit

        return does_not_fit(result, memory_limit)
    if save is not None:
        from loadmaster.files import save_plan
        from loadmaster.report.summary import method_summary

        save_plan(result.plan, result.problem, save, {"result": method_summary(result)})
    return None


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


def _show_rows(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json({title: rows})
        return
    from loadmaster.report.terminal import console, names_table

    console().print(names_table(rows))


@contextmanager
def _status(text: str) -> Iterator[None]:
    from loadmaster.report.terminal import console

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(text):
        yield


if __name__ == "__main__":
    main()
