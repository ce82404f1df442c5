"""What a plan rests on, and what to do with it next, with the command for it.

At most three pieces of advice, the most useful first: make it fit, take a better plan that the trials came upon, search
longer, fuse, or change the hardware that binds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNGIVEN
from loadmaster.passes.splitting import sharded_of, splits_of
from loadmaster.pipelines.pipelined import pipelined_of
from loadmaster.problem import Problem
from loadmaster.report.explain import Explanation
from loadmaster.report.fit import does_not_fit
from loadmaster.search import Result

NEAR = 0.02  # this close to the bound, searching on is not worth a user's time
WORTH = 0.005  # a gain under this share is not worth a step of its own


@dataclass(frozen=True)
class Advice:
    """One thing to do, and the command that does it (empty: none does).

    Attributes:
        what: in a sentence.
        command: to type; empty: none does it.
    """

    what: str
    command: str = ""


def basis(problem: Problem) -> str:
    """Where the times come from, in a sentence."""
    cluster, ops = problem.cluster, problem.num_ops
    if cluster.op_ns is not None:
        return f"Every op takes {cluster.op_ns:,} ns everywhere, as the cluster '{cluster.name}' has it."
    if "measured" in problem.basis or "calibrated" in problem.basis:
        return f"Times of ops are {problem.basis}; times of transfers follow from the links of '{cluster.name}'."
    given = int((problem.graph.time_ns != UNGIVEN).any(axis=1).sum())
    roofline = (
        f"a roofline model of '{cluster.name}' (peak rates of arithmetic, memory and links), not from a measurement: "
        "expect real steps to be longer"
    )
    if not given:
        return f"Times come from {roofline}."
    if given == ops:
        return "Times of ops are those given with the graph; times of transfers follow from the links of the cluster."
    return f"Times of {given:,} of {ops:,} ops are given with the graph; the rest come from {roofline}."


def next_steps(result: Result, found: Explanation) -> list[Advice]:
    """The most useful first; at most three."""
    steps = [*_fit(result), *_better(result, found), *_search(result), *_fuse(result), *_hardware(found)]
    nothing = f"Nothing is left to gain here: the plan is as good as the bound of {result.among.words} allows."
    return steps[:3] or [Advice(nothing)]


def _fit(result: Result) -> list[Advice]:
    return [] if result.fits else [Advice(f"Make it fit: {does_not_fit(result).fix}.")]


def _better(result: Result, found: Explanation) -> list[Advice]:
    gain = found.why_not_faster.control.gain
    if found.better is None or gain < WORTH * found.value:
        return []
    less = f"{100 * gain / found.value:.1f} %"
    what = f"Take the better plan that the trials came upon ({less} less: {found.why_not_faster.control.how})"
    return [Advice(f"{what}.", f"loadmaster explain plan.json{_of(result)} --save better.json")]


def _search(result: Result) -> list[Advice]:
    if result.gap <= NEAR:
        return []
    seconds = 60 if result.seconds < 45 else 600
    gap = f"{100 * result.gap:.0f} %" if math.isfinite(result.gap) else "far"
    what = f"Search longer: the plan is {gap} above what no plan can beat among {result.among.words}."
    if result.interrupted:
        what = f"Let the search finish: it was interrupted after {result.seconds:.0f} s."
    return [Advice(what, f"{_plan(result)} --seconds {seconds} --save plan.json")]


def _fuse(result: Result) -> list[Advice]:
    whole = result.method == "auto" or result.method.startswith("joint")
    if result.problem.num_ops == 1 or result.plan.fuses or whole:
        return []
    launch = int(result.problem.launch_ns.max(initial=0)) * result.problem.num_ops
    if launch * 20 < result.timeline.step_ns:
        return []
    return [Advice("Let fusion be planned too: launches are a part of this step.", _plan(result))]


def _hardware(found: Explanation) -> list[Advice]:
    why = found.why_not_faster
    best = max(why.helps, key=lambda row: (-row.over_bytes, row.gain))
    more = best.gain - max(0, why.control.gain)
    if best.over_bytes or more * 50 < found.value:
        return []
    return [Advice(f"On other hardware: {best.change} would take {100 * more / found.value:.0f} % off.")]


def _plan(result: Result) -> str:
    captured = result.problem.source.captured
    made, in_parts = pipelined_of(captured), splits_of(captured) or sharded_of(captured)
    also = f" --microbatches {made.microbatches}" if made is not None else " --split auto" if in_parts else ""
    return f"loadmaster plan {model_word(result.problem)} --on {result.problem.cluster.name}{also}"


def _of(result: Result) -> str:
    return "" if model_word(result.problem) != "MODEL" else " --model MODEL"


def model_word(problem: Problem) -> str:
    """What to type for the model: its name in the zoo, or MODEL."""
    from loadmaster.zoo import find

    try:
        find(problem.source.name)
    except LoadmasterError:
        return "MODEL"
    return f"zoo:{problem.source.name}"
