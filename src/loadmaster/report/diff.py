"""diff: what makes one plan faster or smaller than another, in a few lines that add up to the difference.

A step is the sum of the pieces of its critical path, so two steps differ by what each module has on the two paths; a
peak is the sum of what is alive then. Both are grouped by module, folded to at most six, the largest difference first.
Ops are matched by the modules they come from: plans of one model compare whether they split ops, fuse them or are for
other batches and clusters. Stages of a pipeline have no modules: against one, ops are matched by their pass, and steps
of several microbatches count for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph import INPUT
from loadmaster.passes.splitting import sharded_of, splits_of
from loadmaster.pipelines.microbatches import parse_action
from loadmaster.pipelines.pipelined import pipelined_of
from loadmaster.pipelines.stages import BACKWARD, WEIGHT, phases_of
from loadmaster.problem.objective import Objective
from loadmaster.report.critical import critical_path
from loadmaster.report.drawing import PHASES, drawing_of, is_pipeline, svg
from loadmaster.report.grids import signed
from loadmaster.report.memory import peaks
from loadmaster.report.modules import Path, folded, paths_of
from loadmaster.report.schedule import Schedule
from loadmaster.report.units import percent, size_text, time_text
from loadmaster.search import Result

MOST_LINES = 6
COLUMNS = 360  # of the overlay
PARTS = ("computing", "sending", "launching")
LEAST = 0.01  # of all changes: a line for less says nothing


@dataclass(frozen=True)
class Change:
    """What one module has to do with the difference.

    Attributes:
        name: module path, folded.
        before, after: on the critical path in ns, or at the peak in bytes.
        part: what changed most in it: computing or sending, or a role of tensors.
    """

    name: str
    before: int
    after: int
    part: str

    @property
    def worth(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class Difference:
    """From one plan to another; the changes add up to the whole difference.

    Attributes:
        objective: of the second plan; memory: changes are bytes at the largest peaks, else ns of the steps.
        before, after: of a step, or the peak, for each microbatch and, where batches differ, for each sample.
        per: what that is for: "step", "microbatch" or "sample".
        changes: at most six, the largest first.
        plans: what the two are, in words.
        results: the two themselves.
    """

    objective: Objective
    before: float
    after: float
    per: str
    changes: tuple[Change, ...]
    plans: tuple[str, str]
    results: tuple[Result, Result]

    @property
    def worth(self) -> float:
        """What the first plan's value changes by; negative is better."""
        return self.after - self.before

    def _shown(self, value: float) -> str:
        return size_text(value) if self.objective.of_memory else time_text(value)

    def headline(self) -> str:
        """The difference in a sentence."""
        what = "The largest peak" if self.objective.of_memory else f"A {self.per}"
        better = "less" if self.worth < 0 else "more"
        share = percent(abs(self.worth), self.before)
        first, second = self.plans
        change = f"{self._shown(self.before)} ({first}) to {self._shown(self.after)} ({second})"
        if not self.worth:
            return f"{what} takes the same: {change}."
        return f"{what} goes from {change}: {share} {better}. {self._basis()}"

    def lines(self) -> list[str]:
        """A line for each change that is not too small to matter."""
        found, least = [], LEAST * sum(abs(change.worth) for change in self.changes)
        for change in (change for change in self.changes if abs(change.worth) > least):
            times = f"{self._shown(change.before)} to {self._shown(change.after)}"
            found.append(f"{signed(change.worth, self._shown)} {change.name}: {times}, most of it {change.part}")
        return found

    def _basis(self) -> str:
        where = "at the peaks" if self.objective.of_memory else "on the critical paths"
        by_pass = any(pipelined_of(result.problem.source.captured) is not None for result in self.results)
        return f"Of that, {where} by {'pass' if by_pass else 'module'}:"

    def text(self) -> str:
        """In words."""
        return "\n".join([self.headline(), *(f"  {line}" for line in self.lines())]) + "\n"

    def overlay(self) -> str:
        """The two steps one above the other on one axis, as SVG."""
        second = _schedule(self.results[1])
        drawings = [drawing_of(_schedule(self.results[0]), COLUMNS, second), drawing_of(second, COLUMNS)]
        longest = max(drawing.step_ns for drawing in drawings)
        parts = []
        for drawing, plan in zip(drawings, self.plans, strict=True):
            width = max(240, round(1100 * drawing.step_ns / max(1, longest)))
            known = drawing is drawings[0] and drawing.names == drawings[1].names
            parts.append(f"<h3>{plan}</h3>{svg(drawing, width, legend=not known)}")
        return "".join(parts)

    def to_json(self) -> dict[str, Any]:
        """As plain data (schema loadmaster.difference/2)."""
        rows = [{**asdict(change), "worth": change.worth} for change in self.changes]
        facts = {"objective": self.objective.name, "before": self.before, "after": self.after, "per": self.per}
        return {"schema": "loadmaster.difference/2", **facts, "worth": self.worth, "changes": rows}


def diff(before: Result, after: Result) -> Difference:
    """What makes one plan of a model faster or smaller than another.

    >>> from loadmaster import GraphBuilder, Plan, price
    >>> from loadmaster.report.explain import replayed
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(2)]
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> one, two = (replayed(problem, Plan.of(problem, device)) for device in ([0, 0], [0, 1]))
    >>> diff(one, two).worth
    -100.0

    Args:
        before, after: of `plan`, `solve` or `replayed`; of one model, on any clusters, whole or split.
    """
    for name, given in (("before", before), ("after", after)):
        if not isinstance(given, Result):
            fix = "give Results: of plan, solve, or loadmaster.report.explain.replayed(problem, plan)"
            raise InvalidSetting.instead_of("result", given, f"diff: {name}", fix)
    memory = after.problem.objective.of_memory
    schedules = [_schedule(result) for result in (before, after)]
    where = _passes if any(map(is_pipeline, schedules)) else _modules
    tables = [_at_peak(schedule) if memory else _on_path(schedule, where(schedule)) for schedule in schedules]
    counts, per = _counts(before, after, memory)
    scaled = [
        {key: nbytes / count for key, nbytes in table.items()} for table, count in zip(tables, counts, strict=True)
    ]
    changes = _changes(*scaled)
    totals = [sum(table.values()) for table in scaled]
    plans = (_plan_words(before, "before"), _plan_words(after, "after"))
    return Difference(after.problem.objective, totals[0], totals[1], per, changes, plans, (before, after))


def _schedule(result: Result) -> Schedule:
    return Schedule.of(result.problem, result.plan, result.timeline)


Table = dict[tuple[Path, str], float]


def _modules(schedule: Schedule) -> list[Path]:
    """[kernels] where each stands."""
    return paths_of(schedule.problem.graph)


def _passes(schedule: Schedule) -> list[Path]:
    """[kernels] forward pass, backward pass or update."""
    if not is_pipeline(schedule):
        return [(PHASES[phase],) for phase in phases_of(schedule.problem).tolist()]
    phases = [parse_action(name).phase for name in schedule.problem.graph.op_name]
    return [(PHASES[BACKWARD if phase == WEIGHT else phase],) for phase in phases]


def _on_path(schedule: Schedule, where: Sequence[Path]) -> Table:
    """(module, part) -> ns of the critical path."""
    path = critical_path(schedule)
    found: Table = defaultdict(float)
    for piece in path.pieces:
        kernel = piece.index if piece.kind == "op" else int(schedule.maker[schedule.send_tensor[piece.index]])
        module = where[kernel] if kernel >= 0 else ()
        found[module, PARTS[0] if piece.kind == "op" else PARTS[1]] += piece.length_ns
    if path.host_ns:
        found[(), PARTS[2]] += path.host_ns
    return found


def _at_peak(schedule: Schedule) -> Table:
    """(module, role) -> bytes of the largest peak."""
    most = max(peaks(schedule), key=lambda peak: peak.peak_bytes)
    found: Table = defaultdict(float)
    for part in most.parts:
        found[tuple(part.scope.split(".")), part.role] += part.nbytes
    return found


def _changes(before: Table, after: Table) -> tuple[Change, ...]:
    """Folded so that the modules with the largest differences have a line of their own."""
    keys = sorted({*before, *after})
    weight = [round(abs(after.get(key, 0) - before.get(key, 0))) for key in keys]
    labels = folded([module for module, _ in keys], weight, MOST_LINES)
    values: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    parts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for key, label in zip(keys, labels, strict=True):
        values[label][0] += before.get(key, 0)
        values[label][1] += after.get(key, 0)
        parts[label][key[1]] += after.get(key, 0) - before.get(key, 0)
    rows = [
        Change(label, round(one), round(two), max(parts[label], key=lambda part: abs(parts[label][part])))
        for label, (one, two) in values.items()
    ]
    return tuple(sorted((row for row in rows if row.worth), key=lambda row: -abs(row.worth)))


def _counts(before: Result, after: Result, memory: bool) -> tuple[list[float], str]:
    """(steps or samples that each one's step holds, what they are)"""
    if memory:
        return [1.0, 1.0], "step"
    pipelines = [pipelined_of(result.problem.source.captured) for result in (before, after)]
    steps = [1.0 if pipeline is None else float(pipeline.microbatches) for pipeline in pipelines]
    if steps[0] != steps[1]:
        return steps, "microbatch"
    rows = [_rows(result) for result in (before, after)]
    if rows[0] != rows[1] and min(rows) > 0 and all(pipeline is None for pipeline in pipelines):
        return [float(count) for count in rows], "sample"
    return [1.0, 1.0], "step"


def _rows(result: Result) -> int:
    """The batch: the first dimension that most inputs share; of a split graph unknown, 0."""
    graph = result.problem.source
    if splits_of(graph.captured) or sharded_of(graph.captured):
        return 0
    first = [int(shape[0]) for shape, role in zip(graph.shape, graph.role, strict=True) if role == INPUT and shape]
    return max(set(first), key=first.count) if first else 0


def _plan_words(result: Result, which: str) -> str:
    captured = result.problem.source.captured
    split = ", split" if splits_of(captured) or sharded_of(captured) else ""
    used = len(np.unique(result.plan.device))
    return f"{which}: {result.method} on {used} of {result.problem.num_devices} devices{split}"
