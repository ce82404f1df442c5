"""Pipelines for people: the classical picture with its bubbles, and what each stage is and takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.pipelines.judging import Pipeline
from loadmaster.pipelines.microbatched import PipelineResult
from loadmaster.pipelines.stages import BACKWARD, FORWARD, LETTERS, WEIGHT, phases_of, settle_stages
from loadmaster.report.drawing import MOST_DEVICES, text_lines
from loadmaster.report.schedule import Schedule
from loadmaster.report.standing import bound_summary


def picture(result: PipelineResult, width: int = 100) -> list[str]:
    """A row for each device, time from left to right; a digit is the last one of the microbatch that takes most."""
    problem, plan, line = result.result.problem, result.result.plan, result.result.timeline
    rows = [row.plain.rstrip() for row in text_lines(Schedule.of(problem, plan, line), width)]
    devices = min(problem.num_devices, MOST_DEVICES)
    return [*rows[1 : 2 * devices : 2], rows[-1]]


def stage_rows(result: PipelineResult) -> list[dict[str, Any]]:
    """What each stage is, where it is and what a microbatch takes in it."""
    best, base = result.best, result.base
    problem = result.result.problem
    stage = settle_stages(base, best.cut.stage_of(), phases_of(base))
    forward = phases_of(base) == FORWARD
    rows = []
    for number, places in enumerate(best.cut.device):
        scopes = [base.graph.scope[op] for op in np.flatnonzero((stage == number) & forward) if base.graph.scope[op]]
        times = {
            letter: _time_ns(best, problem.graph.op_name, f"{letter}{number}.0", places[0]) for letter in LETTERS[:3]
        }
        rows.append(
            {
                "stage": number,
                "devices": [problem.cluster.device_names[device] for device in places],
                "first_module": scopes[0] if scopes else "",
                "last_module": scopes[-1] if scopes else "",
                "forward_ns": times["F"],
                "backward_ns": times["B"],
                "weight_gradients_ns": times["W"],
            }
        )
    return rows


def _time_ns(best: Pipeline, names: tuple[str, ...], name: str, device: int) -> int:
    return int(best.problem.op_ns[names.index(name), device]) if name in names else 0


def schedule_csv(result: PipelineResult) -> str:
    """The order of each device as torch.distributed.pipelining reads it ("compute_only"): a row for each rank. A
    backward pass is B, or I and W where the gradients of weights are apart; ranks are devices."""
    if result.best.cut.replicated:
        what = "torch.distributed.pipelining has no schedules for replicated stages"
        raise InvalidSetting(what, "--schedule", "plan without --replicate, or leave the file out")
    rows = []
    for order in result.best.orders:
        # A first stage has no gradient of its input to pass on, one without weights nothing else: their backward pass
        # is one.
        halves = {a.stage for a in order if a.phase == WEIGHT} & {a.stage for a in order if a.phase == BACKWARD}
        rows.append(",".join(f"{a.stage}{_torch_letter(a.phase, a.stage in halves)}{a.microbatch}" for a in order))
    return "\n".join(rows) + "\n"


def _torch_letter(phase: int, in_halves: bool) -> str:
    if phase == FORWARD:
        return "F"
    return {BACKWARD: "I", WEIGHT: "W"}[phase] if in_halves else "B"


def stage_split(result: PipelineResult) -> dict[str, Any]:
    """The stages in the words of torch.distributed.pipelining: the rank and the modules of each, and `split_spec`, the
    modules before which the model is to be cut (SplitPoint.BEGINNING). Where a stage begins inside a module that has no
    modules of its own, there is no such cut, and `split_spec` is None."""
    best, base = result.best, result.base
    stage = settle_stages(base, best.cut.stage_of(), phases_of(base))
    scope = base.graph.scope
    forward = [op for op in np.flatnonzero(phases_of(base) == FORWARD).tolist() if scope[op]]
    stages, cuts = [], []
    for number, places in enumerate(best.cut.device):
        own = list(dict.fromkeys(scope[op] for op in forward if stage[op] == number))
        stages.append({"stage": number, "rank": places[0], "modules": own})
        before = {name for op in forward if stage[op] < number for name in _parents(scope[op])}
        cuts.append(next((name for name in _parents(own[0]) if name not in before), None) if own else None)
    spec = None if None in cuts[1:] else {str(name): "BEGINNING" for name in cuts[1:]}
    return {"microbatches": result.microbatches, "stages": stages, "split_spec": spec}


def _parents(scope: str) -> list[str]:
    """The module's path and those of the modules around it, outermost first."""
    parts = scope.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def summary(result: PipelineResult) -> dict[str, Any]:
    """The numbers, for JSON."""
    return {
        "model": result.base.source.name,
        "cluster": result.base.cluster.name,
        "microbatches": result.microbatches,
        **_pipeline(result.best),
        "lower_bound": result.result.lower_bound,
        "bound": bound_summary(result.result.bound),
        "simulations": result.result.simulations,
        "seconds": result.result.seconds,
        "coupled_ops": len(result.coupled),
        "stages": stage_rows(result),
        "others": [_pipeline(other) for other in result.others],
    }


def _pipeline(found: Pipeline) -> dict[str, Any]:
    return {
        "schedule": found.schedule,
        "split": found.cut.name,
        "step_ns": found.score.value,
        "bubble": found.bubble,
        "peak_bytes": found.peak_bytes.tolist(),
        "fits": found.score.over_bytes == 0,
    }
