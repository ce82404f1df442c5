"""The verb tradeoff: plans between the fastest and the smallest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli import stages, words
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import (
    METHOD_HELP,
    Debug,
    Json,
    MemoryLimit,
    Model,
    Offload,
    On,
    Recompute,
    Seconds,
    Seed,
    Simulations,
)


def tradeoff(
    model: Model,
    on: On = None,
    method: Annotated[str | None, typer.Option("--method", metavar="METHOD", help=METHOD_HELP)] = None,
    points: Annotated[int, typer.Option("--points", help="How many plans to look for.")] = 8,
    step_limit: Annotated[
        float | None,
        typer.Option(
            "--step-limit", metavar="PERCENT", help="Print only the smallest plan that is at most this much slower."
        ),
    ] = None,
    recompute: Recompute = "auto",
    offload: Offload = "auto",
    memory_limit: MemoryLimit = None,
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FOLDER", help="Write each plan to a file in this folder.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: front.png, .svg or .pdf.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show plans between the fastest and the smallest: what each GiB saved costs in time."""
    from loadmaster.report.tradeoff import Means, plot_tradeoff, smallest_within
    from loadmaster.report.tradeoff import tradeoff as front

    spec, budget = method or words.DEFAULT, words.budget_of(seconds, simulations)
    limit = words.check_settings([spec], memory_limit, None)
    problem, _ = stages.problem_for(model, on, "step-time", limit)
    means = Means(recompute == "auto", offload == "auto")
    with stages.counting("planning", budget.seconds) as tell:
        if step_limit is None:
            found = front(problem, spec, budget, points=points, seed=seed, means=means, tell=tell)
        else:
            found = [smallest_within(problem, spec, budget, step_limit / 100, seed=seed, means=means, tell=tell)]
    files = [] if save is None else _save(found, save)
    if plot is not None:
        plot_tradeoff(plot, found)
    rows = [
        {"step_ns": p.step_ns, "peak_bytes": p.peak_bytes, "plan": str(files[i]) if files else None}
        for i, p in enumerate(found)
    ]
    if json:
        print_json({"graph": problem.source.name, "cluster": problem.cluster.name, "plans": rows})
    else:
        _show(rows)


def _save(found: list, folder: Path) -> list[Path]:  # type: ignore[type-arg]
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"plan-{i + 1}.json" for i in range(len(found))]
    for point, file in zip(found, files, strict=True):
        point.result.save(file)
    return files


def _show(rows: list[dict]) -> None:  # type: ignore[type-arg]
    from loadmaster.report.terminal import console, plain_table
    from loadmaster.report.units import column_text, percent_text

    table = plain_table(">step", ">over the fastest", ">largest peak", ">of the fastest's", "~plan")
    first = rows[0] if rows else {}
    steps = column_text([row["step_ns"] for row in rows])
    peaks = column_text([row["peak_bytes"] for row in rows], sizes=True)
    seen = set()
    for row, step, peak in zip(rows, steps, peaks, strict=True):
        more, share = row["step_ns"] / max(1, first["step_ns"]) - 1, row["peak_bytes"] / max(1, first["peak_bytes"])
        if (step, peak) in seen and row["plan"] is None:  # what reads the same is one choice
            continue
        seen.add((step, peak))
        table.add_row(step, percent_text(more), peak, f"{share:.0%}", row["plan"] or "")
    console().print(table)
