"""measure and race: what this machine does, and whether a plan keeps its word on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from loadmaster.cli import words
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import Debug, Json, Mode, Model, Seconds, Seed, Simulations

ModelToTime = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A torch model whose ops are timed one by one.", show_default=False),
]


def measure(
    model: ModelToTime = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the cluster to this JSON file.")
    ] = None,
    costs: Annotated[
        Path | None, typer.Option("--costs", metavar="FILE", help="Write the times of the model's ops to this file.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure everything again.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for the model's ops.")] = 120.0,
    mode: Mode = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure this machine: devices, links, launch costs, and the ops of a model if you give one."""
    from loadmaster.files import cluster_to_json, save_cluster
    from loadmaster.files.costs import save_costs

    words.check_needed("torch", "torch", "measuring")
    if save is not None:
        words.check_writable(save)
    from loadmaster.runtime.measure import here, measure_ops

    cluster = here(fresh=fresh, say=_progress)
    cluster = cluster if mode is None else words.in_mode(cluster, mode)
    found: dict[str, Any] = {"cluster": cluster_to_json(cluster)}
    if model is not None:
        from loadmaster.importers import load

        graph = load(model, gpu=cluster.has_gpu)
        measured = measure_ops(graph, cluster, seconds=seconds, say=_progress)
        found["ops"] = _op_facts(graph, measured)
        if costs is not None:
            save_costs(measured, costs)
    if save is not None:
        save_cluster(cluster, save)
    if json:
        print_json(found)
        return
    from loadmaster.report.machine import machine_tables
    from loadmaster.report.terminal import console

    for table in machine_tables(cluster, found.get("ops", [])):
        console().print(table, "")
    for path, what in ((save, "cluster"), (costs, "times of ops")):
        if path is not None:
            print(f"{what} written to {path}")


def _op_facts(graph: Any, measured: Any) -> list[dict[str, Any]]:
    from loadmaster.runtime.measure import busy_ops

    facts = []
    for kind, table in measured.times.items():
        busy = busy_ops(table, kind)
        mine = {graph.signature[name] for name in graph.op_name if name in graph.signature}
        timed = [table[signature] for signature in mine if signature in table]
        facts.append(
            {
                "kind": kind,
                "distinct": len(mine),
                "timed": len(timed),
                "unstable": sum(not time.stable for time in timed),
                "busy": len(mine & busy),
                "learned": len(mine) - len(timed),
            }
        )
    return facts


def race(
    model: Model,
    on: Annotated[str, typer.Option("--on", metavar="CLUSTER", help="'here', or a file that measure saved.")] = "here",
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help="How to search.")] = "auto",
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    infer: Annotated[bool, typer.Option("--infer", help="Race inference instead of a training step.")] = False,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Race torch.compile too.")] = True,
    mode: Mode = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the plan here, if it wins.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Race torch's defaults against a plan on this machine: modelled and measured step and peak."""
    from loadmaster.files import save_plan
    from loadmaster.report.machine import race_table
    from loadmaster.report.terminal import console

    words.check_needed("torch", "torch", "a race")
    if save is not None:
        words.check_writable(save)
    from loadmaster.runtime.race import run_race

    cluster = words.cluster_of(on)
    cluster = cluster if mode is None else words.in_mode(cluster, mode)
    budget = words.budget_of(seconds, simulations)
    made = words.module_of(model)
    outcome = run_race(made, cluster, method, budget, seed, training=not infer, compiled=compiled, say=_progress)
    if save is not None and outcome.won:
        save_plan(outcome.result.plan, outcome.result.problem, save)
    if json:
        print_json(outcome.as_data())
        return
    console().print(race_table(outcome.as_data()["rows"]), "")
    print(outcome.verdict)
    if outcome.load is not None:
        print(outcome.load)
    for name, reason in outcome.failed.items():
        print(f"{name} could not run: {reason}")
    if outcome.recalibrated is not None:
        print(outcome.recalibrated)
    if save is not None:
        print(f"plan written to {save}" if outcome.won else "the plan did not win, so it was not saved")


def _progress(text: str) -> None:
    print(text, file=sys.stderr)
