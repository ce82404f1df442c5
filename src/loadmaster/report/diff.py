"""diff: what makes one plan faster or smaller than another, in a few lines that add up to the difference.

A step is the sum of the pieces of its critical path, so two steps differ by what each module has on the two paths; a
peak is the sum of what is alive then. Both are grouped by module, folded to at most six, the largest difference first.
Ops are matched by the modules they come from: plans of one model compare whether they split ops, fuse them or are for
other batches and clusters; steps of several microbatches count for each.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph import INPUT
from loadmaster.passes.splitting import sharded_of, splits_of
from loadmaster.pipelines.pipelined import pipelined_of
from loadmaster.problem.objective import Objective
from loadmaster.report.critical import critical_path
from loadmaster.report.drawing import drawing_of, svg
from loadmaster.report.grids import percent, signed
from loadmaster.report.memory import peaks
from loadmaster.report.modules import Path, folded, paths_of
from loadmaster.report.schedule import Schedule
from loadmaster.report.units import size_text, time_text
from loadmaster.search import Result

MOST_LINES = 6
COLUMNS = 360  # of the overlay
PARTS = ("computing", "sending", "launching")


@dataclass(frozen=True)
class Change:
    """What one module has to do with the difference.

    Attributes:
        name: module path, folded.
        before, after: on the critical path in ns, or at the peak in bytes.
        parts: what changed most in it: computing or sending, or a role of tensors.
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
        return f"{what} goes from {change}: {share} {better}." if self.worth else f"{what} takes the same: {change}."

    def lines(self) -> list[str]:
        """A line for each change."""
        found = []
        for change in self.changes:
            share = f", {percent(change.worth, self.worth)} of the difference" if self.worth else ""
            times = f"{self._shown(change.before)} to {self._shown(change.after)}"
            said = signed(change.worth, self._shown)
            found.append(f"{change.name}: {said} ({times} {self._where()}{share}; most of it {change.part}).")
        return found

    def _where(self) -> str:
        return "at the peak" if self.objective.of_memory else "of the critical path"

    def text(self) -> str:
        """In words."""
        return "\n".join([self.headline(), *(f"  {line}" for line in self.lines())]) + "\n"

    def overlay(self) -> str:
        """The two steps one above the other on one axis, as SVG."""
        drawings = [drawing_of(_schedule(result), COLUMNS) for result in self.results]
        longest = max(drawing.step_ns for drawing in drawings)
        parts = []
        for drawing, plan in zip(drawings, self.plans, strict=True):
            width = max(240, round(900 * drawing.step_ns / max(1, longest)))
            parts.append(f"<h3>{plan}</h3>{svg(drawing, width)}")
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
    tables = [_at_peak(_schedule(result)) if memory else _on_path(_schedule(result)) for result in (before, after)]
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


def _on_path(schedule: Schedule) -> Table:
    """(module, part) -> ns of the critical path."""
    path, where = critical_path(schedule), paths_of(schedule.problem.graph)
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
