"""Actions: what to do next, each tried before it is printed.

A candidate changes the invocation of a result: one option, or what stands for the hardware. It is planned for, for a
share of the time allowed, by the same functions that the printed command runs. What is told gained something in that
trial, fits, keeps every other option, and saves to a name of its own. A result without an invocation gets none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.catalog import is_callable, specs
from loadmaster.cluster import Cluster
from loadmaster.cluster.growing import has_host, with_host, with_more
from loadmaster.compiled import seconds_compiling
from loadmaster.cost import price
from loadmaster.errors import LoadmasterError
from loadmaster.graph import Graph
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.report.units import time_text
from loadmaster.search import Budget, Invocation, Result, Start, solve

WORTH = 0.01  # a gain under this share is none
SHARE = 0.2  # of the budget of the search, for all trials
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
MOST_TOLD = 3
LONGER = 3  # times the budget
MICROBATCHES = 4
# What trials take beside their search, an op.
SPLIT_NS, PIPELINE_NS, PRICE_NS, PIPELINE_S = 120_000, 120_000, 60_000, 0.7
CAPTURE_NS, CAPTURE_S = 2_000_000, 0.3
MADE_TO_FIT = "recompute"  # the method that makes ops run again, and sends tensors away
# With these a search is of another kind, whose trials are not made here; one that keeps modules whole not even longer.
WHOLE = frozenset(["--granularity", "--for"])
APART = WHOLE | frozenset(["--ray", "--mode", "--serve", "--sweep", "--like"])


@dataclass(frozen=True)
class NextStep:
    """One thing to do.

    Attributes:
        kind: longer, auto, split, pipeline, replicated, fused, allowed, batch, host, more-devices or fewer.
        what: in a phrase.
        command: to type.
        before, after: of the goal, of this plan and of the one that the trial found; where a step becomes several
            microbatches, or a batch another, for each step as it was.
        gain: share of the goal; of a plan that does not fit 1.0: the other one does.
        seconds: that the command searches for.
        save: the file that it writes.
    """

    kind: str
    what: str
    command: str
    before: int
    after: int
    gain: float
    seconds: float
    save: str

    def text(self, shown: Callable[[float], str]) -> str:
        """In a sentence."""
        takes = f"takes {time_text(1e9 * self.seconds)}"
        if self.gain == 1 and self.after:
            return f"{self.what}: it fits then, at {shown(self.after)}; {takes}."
        share = f"{100 * abs(self.gain):.0f} % {'less' if self.gain > 0 else 'more'}" if abs(self.gain) >= WORTH else ""
        change = f"{shown(self.after)} instead of {shown(self.before)}" + (f", {share}" if share else "")
        return f"{self.what}: {change}; {takes}."


@dataclass(frozen=True)
class Trial:
    """What a candidate came to: how good, whether it fits, and the plan where it is one of the same problem."""

    value: float
    over_bytes: int
    result: Result | None = None


@dataclass(frozen=True)
class Candidate:
    """A change of the invocation and the search that tries it.

    Attributes:
        changes: options to set; None takes one away.
        least_s: that trying takes whatever the budget.
        weight: its part of the time.
        keeps: worth telling where the goal is not worse by more than this share: it frees something else.
    """

    kind: str
    what: str
    changes: Mapping[str, str | None]
    run: Callable[[Budget], Trial]
    least_s: float = 0.0
    keeps: bool = False
    weight: int = 1


def allowance(result: Result) -> float:
    """Seconds for all trials: a fifth of the search's, one at least."""
    asked = result.asked["--seconds"] if result.asked is not None else None
    budget = _number(asked, result.seconds)
    return min(MOST_SECONDS, max(LEAST_SECONDS, SHARE * budget))


def _number(text: str | None, otherwise: float) -> float:
    return float(text) if text is not None and re.fullmatch(r"[0-9.]+(e[0-9]+)?", text) else otherwise


def try_actions(
    result: Result, seconds: float | None = None, folder: Path = Path()
) -> tuple[tuple[NextStep, ...], Result | None]:
    """(what gained something, most gain first; a better plan of the same problem that a trial found)

    Args:
        result: with its invocation, else nothing is tried but to search on.
        seconds: for all trials; by default a fifth of the search's.
        folder: in which the commands would save, so that no file is overwritten.
    """
    if result.optimal and not result.among.fitting and result.among.kernels == "any":
        return (), None
    purse = _Purse(result, allowance(result) if seconds is None else seconds)
    found: list[NextStep] = []
    better: Result | None = None
    candidates = list(_candidates(result))
    for number, candidate in enumerate(candidates):
        budget = purse.share(candidate, candidates[number:])
        if budget is None:
            continue
        try:
            trial = candidate.run(budget)
        except LoadmasterError:
            continue
        if trial.result is not None and trial.result.score < (better or result).score:
            better = trial.result
        action = _action(result, candidate, trial, folder)
        found += [action] if action is not None else []
    found.sort(key=lambda action: (action.kind == "fewer", -action.gain))
    return tuple(found[:MOST_TOLD]), better


class _Purse:
    """The budget of all trials: seconds, on a clock that stands still while code is compiled; of a result that was
    counted in simulations, a fifth of those, so that answers repeat."""

    def __init__(self, result: Result, seconds: float) -> None:
        asked = result.asked
        counted = asked is not None and asked["--seconds"] is None
        text = asked["--simulations"] if asked is not None and counted else None
        self.simulations = None if text is None else SHARE * _number(text, 1.0)
        if self.simulations is None:
            from loadmaster.search.warming import warm_up

            warm_up(specs.make_method(specs.DEFAULT), result.problem.cluster, result.problem.objective)
        self.seconds, self.end = seconds, self.now() + seconds

    @staticmethod
    def now() -> float:
        return time.perf_counter() - seconds_compiling()

    def share(self, candidate: Candidate, left: Sequence[Candidate]) -> Budget | None:
        """For one candidate; None where there is too little for it."""
        part = candidate.weight / sum(each.weight for each in left)
        if self.simulations is not None:
            return Budget(None, max(1, int(part * self.simulations))) if candidate.least_s < self.seconds else None
        seconds = self.end - self.now()
        if seconds <= candidate.least_s:
            return None
        return Budget(max(0.05, part * (seconds - candidate.least_s)))


def _action(result: Result, candidate: Candidate, trial: Trial, folder: Path) -> NextStep | None:
    """None where the trial gained nothing."""
    asked = result.asked
    if asked is None or trial.over_bytes > 0:
        return None
    gain = 1.0 if not result.fits else 1 - trial.value / result.value if result.value else 0.0
    if gain < (-WORTH if candidate.keeps else WORTH):
        return None
    save = _new_name(candidate.kind, folder)
    changed = asked.with_options(candidate.changes)
    if changed == asked:
        return None
    seconds = _number(changed["--seconds"], result.seconds * LONGER)
    command = changed.command({"--save": save})
    return NextStep(candidate.kind, candidate.what, command, result.value, round(trial.value), gain, seconds, save)


def _new_name(kind: str, folder: Path) -> str:
    names = (f"plan-{kind}{'' if not number else f'-{number + 1}'}.json" for number in range(1000))
    return next(name for name in names if not (folder / name).exists())


def _candidates(result: Result) -> Iterator[Candidate]:
    """The likeliest first; only changes of what the user did not fix."""
    asked = result.asked
    again = _Rerun(result, asked or Invocation(""))
    whole = again.whole_plan
    if asked is None:
        yield again.longer()
        return
    names = {name for name, _ in asked.options}
    if names & WHOLE:
        return
    if whole and again.named:
        yield again.method()
    of_model = not names & APART and again.reprices
    if whole and not result.fits:
        yield from again.allowed()
    if of_model and not result.fits and not has_host(result.problem.cluster):
        yield from again.host()
    if of_model and whole and result.problem.objective.of_step:
        yield from again.batch()
    if of_model and result.problem.num_devices > 1 and result.problem.objective.of_step:
        if result.fits:
            yield from again.pipelines()
        if again.start is not None and whole and asked["--split"] is None:
            yield again.split()
    if whole and not again.named:
        yield again.longer()
    if of_model and whole:
        if again.named and asked["--fusion"] is None and not result.plan.fuses:
            yield again.fusion()
        yield from again.more()
        yield from again.fewer()


class _Rerun:
    """The run of a result again, with something changed."""

    def __init__(self, result: Result, asked: Invocation) -> None:
        self.result, self.asked = result, asked
        expansion = result.problem.expansion
        self.problem: Problem = result.problem if expansion is None else expansion.base
        self.named = asked["--method"] not in (None, specs.DEFAULT)
        self.is_pipeline = result.problem.source.is_pipeline
        self.whole_plan = not self.is_pipeline and not result.problem.source.is_split
        # Costs from a file or of this machine are those of the ops that were measured.
        self.reprices = asked["--costs"] in (None, "learned", "roofline")

    @cached_property
    def model(self) -> Graph:
        """The model as it was loaded, before it was split or made a pipeline."""
        if self.whole_plan:
            return self.problem.source
        return self.loaded(self.asked["--batch"])

    def loaded(self, batch: str | None) -> Graph:
        """The model with so many rows."""
        from loadmaster.importers import load

        given: dict[str, Any] = {} if self.asked["--infer"] is None else {"training": False}
        known = {"optimizer": self.asked["--optimizer"], "dtype": self.asked["--dtype"]}
        given |= {name: value for name, value in known.items() if value is not None}
        if batch is not None:
            given["batch"] = int(batch)
        return load(self.asked.model, gpu=self.problem.cluster.has_gpu, **given)

    def priced(self, graph: Graph | None = None, cluster: Cluster | None = None) -> Problem:
        """As the command would price it."""
        limit = self.asked["--memory-limit"]
        goal = self.problem.objective
        on = cluster or self.problem.cluster
        if self.asked["--costs"] != "learned":
            return price(graph or self.model, on, objective=goal, memory_limit=limit)
        from loadmaster.cost import Learned, hosted

        on = hosted(on, self.asked["--mode"])
        return price(graph or self.model, on, objective=goal, memory_limit=limit, cost=Learned())

    def spec(self, *, method: str | None = None, fusion: str | None = None) -> str:
        said = dict(self.asked.options)
        chosen = specs.fused(method or said.get("--method", specs.DEFAULT), fusion or said.get("--fusion", "auto"))
        return specs.fitting(chosen, said.get("--recompute", "auto"), said.get("--offload", "auto"))

    def solved(self, problem: Problem, spec: str, budget: Budget, plan: Plan | None = None) -> Trial:
        """Searched from the plan under study, where that is one of the problem."""
        starts = [] if plan is None else [Start(plan, "the plan")]
        found = solve(problem, spec, budget, self.result.seed, starts=starts)
        same = found if problem is self.problem else None
        return Trial(found.value, found.timeline.over_bytes, same)

    @property
    def start(self) -> Plan | None:
        """The plan, where it adds nothing to the problem."""
        return self.result.plan if self.result.problem is self.problem else None

    def _seconds(self) -> dict[str, str | None]:
        """More time: what was asked, three times."""
        asked = self.asked
        if asked["--simulations"] is not None and asked["--seconds"] is None:
            return {"--simulations": str(LONGER * int(asked["--simulations"] or 1))}
        return {"--seconds": f"{LONGER * _number(asked['--seconds'], max(1.0, self.result.seconds)):g}"}

    def longer(self) -> Candidate:
        spec = self.spec() if self.asked.model else specs.DEFAULT
        run = lambda budget: self.solved(self.problem, spec, budget, self.start)  # noqa: E731
        what = "Let the search finish" if self.result.interrupted else "Search longer"
        return Candidate("longer", what, self._seconds(), run)

    def method(self) -> Candidate:
        """The default search, where another was named."""
        spec = self.spec(method=specs.DEFAULT)
        run = lambda budget: self.solved(self.problem, spec, budget, self.start)  # noqa: E731
        return Candidate("auto", "Let the default search plan", {"--method": None}, run, weight=6)

    def fusion(self) -> Candidate:
        spec = self.spec(fusion="greedy")
        run = lambda budget: self.solved(self.problem, spec, budget)  # noqa: E731
        return Candidate("fused", "Fuse ops into kernels first", {"--fusion": "greedy"}, run)

    def split(self) -> Candidate:
        """The first split of the plan with nothing fused: parts are not. The command has to search for this plan, too,
        and so gets more time."""

        def run(budget: Budget) -> Trial:
            from loadmaster.methods.splitting import after_one_split

            plan = self.result.plan
            apart = Plan.of(self.problem, plan.device, plan.rank)
            score = after_one_split(self.problem, self.priced, apart, budget, self.result.seed)
            return Trial(self.result.value, 0) if score is None else Trial(score.value, score.over_bytes)

        least = SPLIT_NS * self.problem.num_ops / 1e9
        what = "Split the ops that hold the step up over devices"
        return Candidate("split", what, {"--split": "auto", **self._seconds()}, run, least, weight=2)

    def pipelines(self) -> Iterator[Candidate]:
        """More microbatches, or stages several times over. What is compared is the time of each microbatch."""
        number = self._microbatches() if self.is_pipeline else 1
        least = PIPELINE_S + PIPELINE_NS * self.model.num_ops / 1e9
        free: dict[str, str | None] = {"--method": None, "--split": None}
        wanted = max(MICROBATCHES, 2 * number)
        what = f"Plan {wanted} steps as a pipeline of microbatches (time of each)"
        if self.is_pipeline:
            what = f"Plan {wanted} microbatches, not {number} (time of {number})"
        if self.named and not self.is_pipeline:
            return  # the method was asked for, and pipelines are planned by a search of their own
        replicate = self.asked["--replicate"] == "auto"
        run = lambda budget: self._pipelined(wanted, replicate, number, budget)  # noqa: E731
        yield Candidate("pipeline", what, {**free, "--microbatches": str(wanted)}, run, least)
        if self.is_pipeline and not replicate:
            both = lambda budget: self._pipelined(number, True, number, budget)  # noqa: E731
            yield Candidate("replicated", "Let stages be there several times", {"--replicate": "auto"}, both, 2 * least)

    def _microbatches(self) -> int:
        """Of the pipeline that the plan is of."""
        from loadmaster.pipelines.pipelined import pipelined_of

        made = pipelined_of(self.result.problem.source.captured)
        return 1 if made is None else made.microbatches

    def _pipelined(self, microbatches: int, replicate: bool, counted: int, budget: Budget) -> Trial:
        from loadmaster.pipelines.microbatched import plan_pipeline

        found = plan_pipeline(self.priced(), microbatches, budget, self.result.seed, replicate=replicate).result
        return Trial(found.value * counted / microbatches, found.timeline.over_bytes)

    def allowed(self) -> Iterator[Candidate]:
        """What was refused, where nothing fits without it."""
        refused = [name for name in ("--recompute", "--offload") if self.asked[name] == "none"]
        run = lambda budget: self.solved(self.problem, MADE_TO_FIT, budget)  # noqa: E731
        if refused:
            what = f"Do without {' and '.join(f'{name} none' for name in refused)}"
            yield Candidate("allowed", what, dict.fromkeys(refused), run, weight=6)

    def batch(self) -> Iterator[Candidate]:
        """Of a module that can be captured again: twice the rows where memory is left, half where it lacks. What is
        compared is the time of the rows there were."""
        crowded = (2 * self.result.timeline.peak_bytes > self.problem.memory_bytes).any()
        if not is_callable(self.asked.model) or (self.result.fits and crowded):
            return
        from loadmaster.report.remedies import rows_of_inputs

        rows = rows_of_inputs(self.model)
        other = 2 * rows if self.result.fits else rows // 2
        if other < 1:
            return

        def run(budget: Budget) -> Trial:
            found = self.solved(self.priced(self.loaded(str(other))), self.spec(), budget)
            return Trial(found.value * rows / other, found.over_bytes)

        what = f"Take a batch of {other}, not {rows} (time of {rows})"
        least = CAPTURE_S + CAPTURE_NS * self.problem.num_ops / 1e9
        yield Candidate("batch", what, {"--batch": str(other)}, run, least)

    def host(self) -> Iterator[Candidate]:
        cluster, command = with_host(self.problem.cluster)
        yield from self._on(cluster, command, "host", "Let tensors wait in the memory of a host")

    def more(self) -> Iterator[Candidate]:
        """Twice the devices."""
        count = self.problem.num_devices
        if count * 2 <= 16:
            cluster, command = with_more(self.problem.cluster, count)
            what = f"Use {count} more device{'s' if count > 1 else ''} like '{cluster.devices[0].kind}'"
            yield from self._on(cluster, command, "more-devices", what)

    def fewer(self) -> Iterator[Candidate]:
        """Only as many devices as work, where the cluster is a number of one kind."""
        match = re.fullmatch(r"(\d+)x([\w-]+)", self.asked["--on"] or "")
        used = len(np.unique(self.result.plan.device))
        if match is None or int(match[1]) != self.problem.num_devices or self.problem.num_devices == 1:
            return
        fewer = used if used < self.problem.num_devices else self.problem.num_devices // 2
        name = f"{fewer}x{match[2]}"
        what = f"Use {fewer} device{'s' if fewer > 1 else ''} instead of {self.problem.num_devices}"
        yield from self._on(Cluster.preset(name), f"--on {name}", "fewer", what, keeps=True)

    def _on(self, cluster: Cluster, command: str, kind: str, what: str, *, keeps: bool = False) -> Iterator[Candidate]:
        if not re.fullmatch(r"--on \S+", command) or not self.whole_plan:
            return  # only a file would name that cluster

        def run(budget: Budget) -> Trial:
            problem = self.priced(cluster=cluster)
            return self.solved(problem, self.spec(), budget, _moved(self.start, problem))

        changes = {"--on": command.removeprefix("--on ")}
        yield Candidate(kind, what, changes, run, PRICE_NS * self.problem.num_ops / 1e9, keeps)


def _moved(plan: Plan | None, problem: Problem) -> Plan | None:
    """The same decisions on another cluster, where that has the devices they name."""
    if plan is None or len(plan.device) != problem.num_ops:
        return None
    used = np.unique(plan.device)
    place = (
        np.searchsorted(used, plan.device) if len(used) <= problem.num_devices < int(used.max()) + 1 else plan.device
    )
    if int(place.max()) >= problem.num_devices or not (problem.op_ns[np.arange(problem.num_ops), place] >= 0).all():
        return None
    return Plan.of(problem, place, plan.rank, plan.kernel)


def uses(result: Result, saved: str | None) -> Sequence[str]:
    """How to put a plan to use: commands that fit what the model is. `saved`: its file."""
    asked = result.asked
    if asked is None or not result.fits:
        return ()
    if saved is None:
        return (asked.command({"--save": _new_name("best", Path())}),)
    model = asked.model
    if asked["--for"] is not None:
        return (f"loadmaster export {saved} --to {asked['--for']}",)
    if is_callable(model):
        return (f"loadmaster run {model} --plan {saved}",)
    if model.endswith((".onnx", ".tflite")):
        return (f"loadmaster run {model} --plan {saved} --out ordered{Path(model).suffix}",)
    return (f"loadmaster explain {saved} --report page.html",)
