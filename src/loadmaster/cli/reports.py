"""The verbs that read saved plans: explain, diff, plot; and the files that other verbs write about a result."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from loadmaster.cli import splits, stages, words
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import OBJECTIVES, Debug, Json, MemoryLimit, Trace, Verbose, known_objective
from loadmaster.cli.options import Report as ReportFile
from loadmaster.errors import InvalidSetting, LoadmasterError, MissingExtra, printable

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster
    from loadmaster.cost import CostModel
    from loadmaster.graph import Graph
    from loadmaster.plans import Plan
    from loadmaster.problem import Problem
    from loadmaster.report.explain import Report
    from loadmaster.search import Result
    from loadmaster.simulator.arenas import Arenas

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan that 'loadmaster plan --save' wrote.")]
OfModel = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model of the plan. [default: the zoo model that it names]"),
]
Goal = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar=OBJECTIVES,
        callback=known_objective,
        help="What to minimise. [default: what the file says, or step-time]",
    ),
]
OnMany = Annotated[
    list[str] | None,
    typer.Option(
        "--on", metavar="CLUSTER", help="The plan's cluster, or others to plan the model for; may be repeated."
    ),
]
OfPolicy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="Also show why a learned policy decides: regal, gas, go, placeto, hdp or rnn.",
    ),
]


def explain(
    plan: PlanFile,
    model: OfModel = None,
    on: OnMany = None,
    objective: Goal = None,
    memory_limit: MemoryLimit = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Time to try alternatives.")] = 4.0,
    report: ReportFile = None,
    trace: Trace = None,
    policy: OfPolicy = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the better plan, if explain finds one.")
    ] = None,
    verbose: Verbose = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Explain a saved plan: how good it is, what limits it, what fills the memory, what to do next."""
    from loadmaster.report.explain import explain as explained

    stages.check_targets(report, trace, save)
    problem, saved, others = read_plan(plan, model, on or [], objective, words.size_of(memory_limit))
    result = _as_result(problem, saved, plan)
    said = {} if policy is None else {"policy": _summary_of(problem, policy)}
    with stages.status(f"trying what would help, about {seconds:.0f} s"):
        found = explained(result, others, seconds=seconds, saved=str(plan))
    stages.write_files(result, [], report, trace, found)
    better = None if save is None else _save_better(found, save)
    if json:
        wrote = {} if save is None else {"saved": None if better is None else better.value}
        print_json({**found.to_json(), **said, **wrote})
        return
    if verbose:
        stages.tell_report(found, result)
    else:
        stages.tell_answers(found)
    if said:
        from loadmaster.report.policy import policy_text

        print(printable(policy_text(said["policy"])))
    stages.tell_files(report, trace)
    if save is not None:
        print("no better plan was found; nothing was saved" if better is None else f"better plan written to {save}")


def _save_better(found: Report, path: Path) -> Result | None:
    """The plan that the trials found, saved; None where they found none that fits."""
    if found.better is None or not found.better.fits:
        return None
    found.better.save(path)
    return found.better


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A plan that 'loadmaster plan --save' wrote.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another plan of the model, on any cluster.")],
    model: OfModel = None,
    on: OnMany = None,
    objective: Goal = None,
    memory_limit: MemoryLimit = None,
    report: ReportFile = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say why one saved plan is faster or smaller than another."""
    from loadmaster.report.diff import diff as difference

    stages.check_targets(report)
    limit = words.size_of(memory_limit)
    read = [(path, *read_plan(path, model, on or [], objective, limit)[:2]) for path in (before, after)]
    first, second = (_as_result(problem, plan, path) for path, problem, plan in read)
    found = difference(first, second)
    if report is not None:
        from loadmaster.report.explain import explain as explained
        from loadmaster.report.html import write_report

        with stages.status("explaining"):
            write_report(report, second, explained(second, saved=str(after)), [], found)
    if json:
        print_json(found.to_json())
        return
    print(printable(found.text()), end="")
    stages.tell_files(report, None)


def plot(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="One plan, or files that 'loadmaster compare --json' printed."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .png, .svg or .pdf file.")],
    what: Annotated[
        Literal["timeline", "memory", "pipeline"],
        typer.Option("--what", help="What to draw of a plan; pipeline shows bubbles."),
    ] = "timeline",
    model: OfModel = None,
    on: Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="The cluster of the plan.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw a figure: timeline or memory of a plan, or bars of comparisons."""
    from loadmaster.files.text import read_json
    from loadmaster.report.plot import plot_methods

    words.check_writable(out)
    documents = [read_json(file) for file in files]
    if all(isinstance(document, dict) and "methods" in document for document in documents):
        plot_methods(out, documents)
    elif len(files) > 1:
        raise InvalidSetting("several plans in one figure", ", ".join(map(str, files)), "plot them one by one")
    else:
        problem, saved, _ = read_plan(files[0], model, [on] if on else [], None, None)
        _plot_plan(out, problem, saved, what)
    print(json_text.dumps({"file": str(out)}, indent=2) if json else f"figure written to {out}")


def _plot_plan(out: Path, problem: Problem, saved: Plan, what: str) -> None:
    from loadmaster.report.drawing import plot_memory, plot_pipeline, plot_timeline
    from loadmaster.report.schedule import Schedule
    from loadmaster.simulator import simulate

    draw = {"timeline": plot_timeline, "memory": plot_memory, "pipeline": plot_pipeline}[what]
    draw(out, Schedule.of(problem, saved, simulate(problem, saved)))


def _summary_of(problem: Problem, policy: str) -> dict[str, Any]:
    try:
        from loadmaster.papers.explaining import explain_policy
    except ModuleNotFoundError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
    with stages.status(f"asking {policy}"):
        return explain_policy(problem, policy)


def read_plan(
    path: Path, model: str | None, on: Sequence[str], objective: Any, memory_limit: int | None
) -> tuple[Problem, Plan, list[Cluster]]:
    """(problem, plan, other clusters): the plan's own cluster is the one of its digest, else the one it names."""
    from loadmaster.cost import price
    from loadmaster.errors import InvalidPlan
    from loadmaster.files import load_plan
    from loadmaster.files.text import shown
    from loadmaster.importers import load
    from loadmaster.plans import check

    saved, head = load_plan(path), head_of(path)
    made = head.get("result")
    goal = objective or (made.get("objective") if isinstance(made, dict) else None) or "step-time"
    if not isinstance(goal, str) and objective is None:
        raise InvalidPlan(f"its objective is {shown(goal)}", f"{path}: result", "give it with --objective")
    clusters = [words.cluster_of(name) for name in on]
    own = next((cluster for cluster in clusters if cluster.digest == saved.cluster_digest), None)
    others = [cluster for cluster in clusters if cluster is not own]
    with stages.status(f"loading {path.name}"):
        cluster = own or _cluster_of(head, path, others)
        graph = (
            splits.in_parts(load(model, **how_captured(head)), saved, head.get("captured"), cluster)
            if model is not None
            else _graph_of(head, path)
        )
        limit, cost = _as_asked(head, graph, cluster)
        problem = price(graph, cluster, objective=goal, memory_limit=memory_limit or limit, cost=cost)
    check(saved, problem)
    return problem, saved, others


def _as_asked(head: dict[str, Any], graph: Graph, cluster: Cluster) -> tuple[int | None, CostModel | None]:
    """The memory limit and the costs that the plan was made with. Files of costs that it names are not read."""
    from loadmaster.pipelines.pipelined import pipelined_of
    from loadmaster.search import Invocation

    asked = Invocation.from_json(head.get("asked"))
    if asked is None:
        return None, None
    learned = asked["--costs"] == "learned" and pipelined_of(graph.captured) is None
    cost = words.costs_of("learned", graph, cluster) if learned else None
    return words.size_of(asked["--memory-limit"]), cost


def _graph_of(head: dict[str, Any], path: Path) -> Graph:
    """The graph that lies in the plan's file, else the zoo's of that name. No code that the file names is run."""
    from loadmaster.files.plan import graph_of_plan
    from loadmaster.importers import load

    found = graph_of_plan(head, str(path))
    return load(_model_of(head, path)) if found is None else found


def how_captured(head: dict[str, Any]) -> dict[str, Any]:
    """How the plan's model was captured, as `load` takes it."""
    captured = head.get("captured")
    if not isinstance(captured, dict):
        return {}
    gpu = {"gpu": bool(captured.get("gpu"))}
    if "model" not in captured:
        return gpu
    known = {"optimizer": str, "dtype": str, "batch": int}
    found = {key: captured[key] for key, kind in known.items() if isinstance(captured.get(key), kind)}
    return {"training": captured.get("mode") != "infer", **gpu, **found}


def head_of(path: Path) -> dict[str, Any]:
    """The outer object of a JSON file, empty where it is none."""
    from loadmaster.files.text import read_json

    data = read_json(path)
    return data if isinstance(data, dict) else {}


def _model_of(head: dict[str, Any], path: Path) -> str:
    from loadmaster.zoo import find

    name = str(head.get("graph", {}).get("name", ""))
    try:
        find(name)
    except LoadmasterError:
        raise InvalidSetting(
            f"the plan names a model '{name}' that is not in the zoo", str(path), "give it with --model"
        ) from None
    return f"zoo:{name}"


def _cluster_of(head: dict[str, Any], path: Path, others: Sequence[Cluster]) -> Cluster:
    from loadmaster.cluster.cluster import MODES
    from loadmaster.cost import hosted
    from loadmaster.files import cluster_from_json

    name, digest = (str(head.get("cluster", {}).get(key, "")) for key in ("name", "digest"))
    try:
        described = head.get("on")
        named = cluster_from_json(described, f"{path}: on") if isinstance(described, dict) else words.cluster_of(name)
    except LoadmasterError:
        named = None
    ways = () if named is None else (named, *(hosted(named, mode) for mode in MODES))  # as forecasts run it
    if (found := next((cluster for cluster in ways if cluster.digest == digest), None)) is not None:
        return found
    given = f"; none of {', '.join(cluster.name for cluster in others)} has it" if others else ""
    what = f"the plan was made for a cluster '{name}' of digest {digest}{given}"
    raise InvalidSetting(what, str(path), "give that cluster with --on")


def _as_result(problem: Problem, plan: Plan, path: Path) -> Result:
    """The plan simulated afresh, with what its file says of how it was found."""
    from loadmaster.report.explain import replayed
    from loadmaster.search import Invocation

    head = head_of(path)
    made = head.get("result")
    result = replace(replayed(problem, plan, path.name), asked=Invocation.from_json(head.get("asked")))
    if not isinstance(made, dict):
        return result
    kinds: dict[str, Any] = {"method": str, "seed": int, "simulations": int, "seconds": (int, float)}
    made = {"method": made["optimizer"], **made} if "optimizer" in made else made  # as files said it once
    known = {key: made[key] for key in kinds if key in made}
    for key, value in known.items():
        if isinstance(value, bool) or not isinstance(value, kinds[key]) or value != value:
            from loadmaster.errors import InvalidPlan

            raise InvalidPlan(f"'{key}' is {str(value)[:40]!r}", f"{path}: result", "is the file as it was written?")
    return replace(result, **known)


# The memory of a result


def tell_arenas(problem: Problem, arenas: Arenas, file: Path | None) -> None:
    """A line per device: its arena, how much that is over the peak, and whether it still fits."""
    from loadmaster.report.units import size_text

    print(f"addresses written to {file}")
    rows = zip(arenas.size_bytes.tolist(), arenas.peak_bytes.tolist(), problem.memory_bytes.tolist(), strict=True)
    for name, (size, peak, memory) in zip(problem.cluster.device_names, rows, strict=True):
        share = f", {size / peak:.4f} times its peak" if peak else ""
        print(f"  {printable(name)}: arena {size_text(size)}{share}{', more than its memory' if size > memory else ''}")
