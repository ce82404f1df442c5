"""The four answers: how good a plan is (`Verdict`), what holds it up (`Bottleneck`), what fills the memory (`Peak`) and
what to do next (`NextStep`).

What `plan` prints. All tables behind them are a `Report` (`explain`), which has the answers, too.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.graph import UNGIVEN
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.objective import Objective
from loadmaster.report.actions import NextStep, try_actions, uses
from loadmaster.report.bottleneck import Bottleneck, Sentence, bottleneck, with_hardware
from loadmaster.report.critical import critical_path
from loadmaster.report.memory import Peak, peaks
from loadmaster.report.occupancy import wire_loads
from loadmaster.report.schedule import Schedule
from loadmaster.report.standing import Bounds, bounds_of
from loadmaster.report.units import percent, size_text, time_text, value_text
from loadmaster.search import Result
from loadmaster.simulator import simulate

SAID = 3  # sentences of what holds a step up, where all four answers stand in a dozen lines


@dataclass(frozen=True)
class Verdict:
    """How good a plan is.

    Attributes:
        step_ns, value: of the step, and of the objective in its unit.
        alone_ns: the step on the fastest single device, whether it fits there or not; None where none runs all ops.
        over_bytes: over the memory of the devices; 0: it fits.
        bounds: how far from the best, and the best of what.
        basis: where the times come from, in a sentence.
        mode: how kernels are asked for, where the host's time counts.
        interval_ns: of a forecast step, which holds four cases of five; None: nothing is said of it.
    """

    step_ns: int
    value: int
    alone_ns: int | None
    over_bytes: int
    bounds: Bounds
    basis: str
    mode: str = ""
    interval_ns: tuple[int, int] | None = None

    @property
    def speed_up(self) -> float | None:
        """Over one device."""
        return self.alone_ns / self.step_ns if self.alone_ns is not None and self.step_ns else None


@dataclass(frozen=True, repr=False)
class ShortReport:
    """How good a plan is, why, and what to do now.

    Attributes:
        cluster: its name.
        objective: what the plan was made for.
        verdict, bottleneck: how good it is, and what holds it up.
        peaks: of each device, what fills it when it is fullest.
        actions: what was tried and gained something, most first; none without an invocation.
        uses: commands that put the plan to use.
        better: a better plan of the same problem that a trial found.
    """

    cluster: str
    objective: Objective
    verdict: Verdict
    bottleneck: Bottleneck
    peaks: tuple[Peak, ...]
    actions: tuple[NextStep, ...]
    uses: tuple[str, ...]
    better: Result | None

    def short(self) -> str:
        """In words, a dozen lines."""
        return "\n".join(answer_lines(self)) + "\n"


def short_report(result: Result, seconds: float | None = None, saved: str | None = None) -> ShortReport:
    """The answers alone, as `explain` gives them.

    Args:
        seconds: for what is tried: by default a fifth of the search's own, one at least.
        saved: the file that the plan is in.
    """
    schedule = Schedule.of(result.problem, result.plan, result.timeline)
    actions, better = try_actions(result, seconds)
    held = peaks(schedule)
    return ShortReport(
        cluster=result.problem.cluster.name,
        objective=result.problem.objective,
        verdict=verdict_of(result),
        bottleneck=_limit(schedule, held),
        peaks=held,
        actions=actions,
        uses=tuple(uses(result, saved)),
        better=better,
    )


def fullest(held: Sequence[Peak]) -> int:
    """The device whose peak is the largest share of its memory."""
    return max(range(len(held)), key=lambda device: held[device].peak_bytes / max(1, held[device].limit_bytes))


def _limit(schedule: Schedule, held: Sequence[Peak]) -> Bottleneck:
    """What holds the plan up; what other hardware would change only where there is room to say it."""
    if schedule.problem.objective.of_memory:
        return of_memory(held)
    found = bottleneck(schedule, critical_path(schedule), wire_loads(schedule))
    if len(found.sentences) >= SAID:
        return found
    from loadmaster.report.whatif import what_ifs

    return with_hardware(found, what_ifs(schedule), schedule.step_ns)


def of_memory(held: Sequence[Peak]) -> Bottleneck:
    """Where the objective is to hold little."""
    device = max(range(len(held)), key=lambda number: held[number].peak_bytes)
    peak = held[device]
    role, nbytes = peak.by_role[0] if peak.by_role else ("nothing", 0)
    share = nbytes / max(1, peak.peak_bytes)
    text = f"{peak.device} holds most; {100 * share:.0f} % of it is {role}."
    return Bottleneck("memory", share, (Sentence(text, "peak", (device,)),))


def verdict_of(result: Result) -> Verdict:
    """How good a result is."""
    line, problem = result.timeline, result.problem
    known = bounds_of(result), basis_of(problem), problem.cluster.mode if problem.dispatch_ns.size else ""
    return Verdict(line.step_ns, result.value, alone_ns(problem), line.over_bytes, *known, _forecast(result))


def _forecast(result: Result) -> tuple[int, int] | None:
    if "learned" not in result.problem.basis:
        return None
    from loadmaster.report.certainty import interval

    return interval(result)


def alone_ns(problem: Problem) -> int | None:
    """The step on the fastest single device."""
    base = problem if problem.expansion is None else problem.expansion.base
    if base.num_devices == 1:
        return None
    able = [device for device in range(base.num_devices) if (base.op_ns[:, device] >= 0).all()]
    kinds = {base.op_ns[:, device].tobytes(): device for device in reversed(able)}
    steps = [simulate(base, Plan.of(base, np.full(base.num_ops, device))).step_ns for device in kinds.values()]
    return min(steps, default=None)


def _learned(problem: Problem) -> str:
    from loadmaster.cost.learned import shipped

    kinds = dict.fromkeys(device.kind for device in problem.cluster.devices if not device.kind.startswith("cpu"))
    untested = [kind for kind in kinds if kind not in shipped().tested]
    doubt = f"; untested on {', '.join(untested)}" if untested else ""
    rests = f"Times of ops are {problem.basis}, trained on {', '.join(shipped().tested)}{doubt}"
    return f"{rests}; times of transfers follow from the links of '{problem.cluster.name}'."


def basis_of(problem: Problem) -> str:
    """Where the times come from, in a sentence."""
    cluster, ops = problem.cluster, problem.num_ops
    if cluster.op_ns is not None:
        return f"Every op takes {cluster.op_ns:,} ns everywhere, as the cluster '{cluster.name}' has it."
    if "learned" in problem.basis:
        return _learned(problem)
    if "measured" in problem.basis:
        return f"Times of ops are {problem.basis}; times of transfers follow from the links of '{cluster.name}'."
    given = int((problem.graph.time_ns != UNGIVEN).any(axis=1).sum())
    roofline = (
        f"a roofline model of '{cluster.name}' (peak rates of arithmetic, memory and links), not from a measurement: "
        "expect real steps to be longer, and see --costs learned for a forecast"
    )
    if not given:
        return f"Times come from {roofline}."
    if given == ops:
        return "Times of ops are those given with the graph; times of transfers follow from the links of the cluster."
    return f"Times of {given:,} of {ops:,} ops are given with the graph; the rest come from {roofline}."


# In words

WIDTH, MARGIN = 80, 10  # of the four answers
MOST_LINES = 12


def verdict_sentences(found: ShortReport) -> list[str]:
    """What the plan is and how good."""
    verdict, shown = found.verdict, value_text(found.objective)
    step = f"{time_text(verdict.step_ns)} a step on {found.cluster}"
    if verdict.interval_ns is not None:
        ends = " to ".join(time_text(end) for end in verdict.interval_ns)
        step += f" ({verdict.mode}{': ' if verdict.mode else ''}{ends})"
    if verdict.speed_up is not None:
        step += f", {verdict.speed_up:.2f}x one device"
    goal = [found.objective.sentence.format(value=shown(verdict.value))] if found.objective.sentence else []
    over = verdict.over_bytes
    fits = [f"It does not fit: {size_text(over)} over the memory."] if over else []
    bound = verdict.bounds.words(shown)
    return [f"{step}{'; it fits' if not over else ''}.", *goal, *fits, *([bound] if bound else [])]


def peak_sentence(peak: Peak) -> Sentence:
    """When a device holds most, and why then."""
    reached = {
        "op": f"when {peak.cause.name} starts and needs {size_text(peak.cause.nbytes)}",
        "transfer": f"when {peak.cause.name} ({size_text(peak.cause.nbytes)}) begins to arrive",
        "start": "before the step begins",
    }[peak.cause.kind]
    share = percent(peak.peak_bytes, peak.limit_bytes)
    most = ", ".join(f"{role} {size_text(nbytes)}" for role, nbytes in peak.by_role[:2])
    text = f"{peak.device} is the fullest: {size_text(peak.peak_bytes)} of {size_text(peak.limit_bytes)} ({share}), "
    return Sentence(f"{text}at {time_text(peak.at_ns)}, {reached}{f'; {most}' if most else ''}.", "peak")


def answers(found: ShortReport) -> list[tuple[str, list[Sentence], list[NextStep]]]:
    """(title, sentences with their evidence, actions): plan, bottleneck, what now, memory."""
    device = fullest(found.peaks)
    peak = peak_sentence(found.peaks[device])
    held = Sentence(peak.text, "peak", (device,))
    return [
        ("Plan", [Sentence(text) for text in verdict_sentences(found)], []),
        ("Limit", list(found.bottleneck.sentences), []),
        ("Next", [] if found.actions else [Sentence(nothing_gained(found))], list(found.actions)),
        ("Memory", [held], []),
    ]


def nothing_gained(found: ShortReport) -> str:
    """Where there is no action."""
    if found.verdict.over_bytes:
        return "No change that was tried makes it fit."
    if found.uses:
        return "No change that was tried gained 1 %."
    return "How it was planned is not known, so that no command can be given."


def answer_lines(found: ShortReport, width: int = WIDTH) -> list[str]:
    """The four answers, in twelve lines at most where names are not long."""
    short = [
        ("Plan", " ".join(verdict_sentences(found)), 3),
        ("Limit", " ".join(sentence.text for sentence in found.bottleneck.sentences[:SAID]), 3),
        ("Memory", peak_sentence(found.peaks[fullest(found.peaks)]).text, 2),
    ]
    lines = [line for title, text, most in short for line in _wrapped(title, text, width, most)]
    left = MOST_LINES - len(lines)
    shown = value_text(found.objective)
    if found.actions:
        best = found.actions[0]
        lines += [*_wrapped("Next", best.text(shown), width, max(1, left - 3)), *command_lines(best.command, width)]
    elif found.uses:
        lead = "Save this plan:" if " --save " in found.uses[0] else "Use this plan:"
        lines += _wrapped("Next", f"{nothing_gained(found)} {lead}", width, 1)
        lines += command_lines(found.uses[0], width)
    else:
        lines += _wrapped("Next", nothing_gained(found), width, 2)
    return lines


def _wrapped(title: str, text: str, width: int, most: int) -> list[str]:
    """In at most so many lines; what is over ends in an ellipsis."""
    gap = " " * MARGIN
    first = f"{title:{MARGIN}}"
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),  # a share stays on one line
        width,
        initial_indent=first,
        subsequent_indent=gap,
        max_lines=most,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def command_lines(command: str, width: int) -> list[str]:
    """A command over several lines, as a shell takes it; an option and its value stay together."""
    gap = " " * 4
    if len(command) + 4 <= width:
        return [gap + command]
    parts: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        valued = bool(parts) and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("--")
        parts[-1:] = [f"{parts[-1]} {word}"] if valued else [*parts[-1:], word]
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 7 > width:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return [*(f"{gap}{line} \\" for line in lines[:-1]), gap + lines[-1]]
