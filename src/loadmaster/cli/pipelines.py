"""`plan --microbatches N`: a pipeline of microbatches, and what is said of it."""

from __future__ import annotations

import json as json_text
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.cli import stages
from loadmaster.errors import InvalidSetting, LoadmasterError

if TYPE_CHECKING:
    from loadmaster.pipelines.microbatched import PipelineResult
    from loadmaster.problem import Problem
    from loadmaster.search import Budget


def run(
    problem: Problem,
    microbatches: int,
    budget: Budget,
    seed: int,
    method: str | None,
    split: str,
    replicate: str,
) -> PipelineResult:
    """Plans a pipeline of microbatches, with what was asked for beside it checked."""
    from loadmaster.pipelines.microbatched import plan_pipeline

    if method is not None or split != "none":
        what = "--microbatches plans stages and their order by itself"
        raise InvalidSetting(what, "--method, --split", "leave them out, or plan without --microbatches")
    if not problem.objective.of_step:
        what = f"--microbatches plans for a short step, not for {problem.objective.name}"
        raise InvalidSetting(what, "--objective", "leave it out")
    with stages.status("planning the pipeline"):
        return plan_pipeline(problem, microbatches, budget, seed, replicate=replicate == "auto")


def save(found: PipelineResult, path: Path | None, schedule: Path | None) -> list[str]:
    """Writes what was asked for; returns what to say about it."""
    from loadmaster.files import save_graph
    from loadmaster.files.writing import write_text
    from loadmaster.report.pipeline import schedule_csv, stage_split

    told = []
    if path is not None:
        beside = path.with_name(f"{path.name.removesuffix('.json')}.graph.json")
        found.result.save(path)
        save_graph(found.result.problem.source, beside)
        told.append(f"plan written to {path}, the graph of stages that it is for to {beside}")
    if schedule is not None:
        beside = schedule.with_suffix(".stages.json")
        write_text(schedule, schedule_csv(found))
        write_text(beside, json_text.dumps(stage_split(found), indent=2) + "\n")
        told.append(f"schedule for torch.distributed.pipelining written to {schedule}, its stages to {beside}")
    return told


def tell(found: PipelineResult, told: list[str], verbose: bool) -> None:
    """Prints what was written and, with `verbose`, the stages, their picture and the hand-made schedules beside it."""
    from loadmaster.report.pipeline import picture, stage_rows
    from loadmaster.report.terminal import console, pipelines_table

    screen, base = console(), found.base
    if verbose:
        batch = f"{found.microbatches} microbatch{'es' if found.microbatches > 1 else ''}"
        where = f"{batch} on {base.cluster.name}"
        screen.print(f"{base.source.name}: {base.num_ops:,} ops a microbatch, {where}", "", sep="\n")
        screen.print(pipelines_table(found))
        print("\n".join(["", *picture(found, shutil.get_terminal_size((100, 24)).columns), ""]))
    if found.coupled:
        count, first = len(found.coupled), found.coupled[0]
        print(f"{count} ops couple the samples of a batch ('{first}'): here they see one microbatch only.")
    for row in stage_rows(found):
        modules = " … ".join(dict.fromkeys(filter(None, (row["first_module"], row["last_module"])))) or "-"
        print(f"stage {row['stage']} on {', '.join(row['devices'])}: {modules}")
    print("\n".join(told), end="\n" if told else "")


def summary(found: PipelineResult, misfit: LoadmasterError | None) -> str:
    """The same as JSON."""
    from loadmaster.report.pipeline import summary as facts

    return json_text.dumps(facts(found) | ({"error": misfit.what} if misfit else {}), indent=2)
