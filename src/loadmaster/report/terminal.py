"""Tables and progress for a terminal; plain text when piped."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from loadmaster.problem import Problem
from loadmaster.report.certainty import interval, not_told_apart
from loadmaster.report.inspection import Inspection
from loadmaster.report.screen import console as console
from loadmaster.report.screen import model_notes
from loadmaster.report.standing import standing_beside
from loadmaster.report.summary import best_of
from loadmaster.report.units import count_text, size_text, sizes_text, time_text, value_text
from loadmaster.search import Result

if TYPE_CHECKING:
    from loadmaster.pipelines.microbatched import PipelineResult


CUT, LEAST_CUT = 30, 10  # characters that are left of a cell while columns can be left out, and at least


class _Fitted(Table):
    """A table in which no cell is wrapped: where the screen is too narrow, texts that may be cut end in an ellipsis,
    then columns that may be left out go, the last one first."""

    cut: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        most = options.max_width
        for column in self.columns:
            column.max_width = None
        kept = list(range(len(self.columns)))
        while (over := self._wide(console, options, kept) - most) > 0:
            left_out = [at for at in kept if at in self.dropped]
            if self._cut(over, kept, CUT if left_out else LEAST_CUT) <= 0 or not left_out:
                break
            for column in self.columns:
                column.max_width = None
            kept.remove(left_out[-1])
        shown = copy.copy(self)
        shown.columns = [self.columns[at] for at in kept]
        yield from Table.__rich_console__(shown, console, options)

    def _wide(self, console: Console, options: ConsoleOptions, kept: Sequence[int]) -> int:
        widths = [self._width(console, options, at) for at in kept]
        return sum(widths) + 2 * (len(widths) - 1)

    def _width(self, console: Console, options: ConsoleOptions, at: int) -> int:
        column = self.columns[at]
        cells = [column.header, *column.cells]
        wide = max(Measurement.get(console, options.update(width=1000), cell).maximum for cell in cells)
        return min(wide, column.max_width or wide)

    def _cut(self, over: int, kept: Sequence[int], least: int) -> int:
        """Shortens the widest that may be cut, again and again; what is still over."""
        screen = Console(width=1000)
        widths = {at: self._width(screen, screen.options, at) for at in kept if at in self.cut}
        while over > 0 and widths and max(widths.values()) > least:
            at = max(widths, key=lambda number: widths[number])
            widths[at] -= 1
            over -= 1
        for at, wide in widths.items():
            self.columns[at].max_width = wide
        return over


def plain_table(*columns: str) -> Table:
    """A table with a line under its head. A title with ">" is of numbers, one with "~" may be cut to fit, one with "?"
    left out."""
    table = _Fitted(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        title = column.lstrip(">~?")
        table.add_column(title, justify="right" if ">" in column else "left", no_wrap=True, overflow="ellipsis")
    table.cut = frozenset(at for at, column in enumerate(columns) if "~" in column)
    table.dropped = frozenset(at for at, column in enumerate(columns) if "?" in column)
    return table


def filled_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Any table of texts, with a title above it."""
    table = plain_table(*columns)
    table.title, table.title_justify = title or None, "left"
    for row in rows:
        table.add_row(*row)
    return table


def problem_line(problem: Problem, choice: str = "") -> Text:
    """What is planned, where; `choice` says why that cluster was taken when nobody asked for it."""
    source = problem.source
    memory = sorted({int(size) for size in problem.memory_bytes}, reverse=True)
    each = " or ".join(size_text(size) for size in memory[:3])
    devices = f"{problem.num_devices} device{'s' if problem.num_devices > 1 else ''} of {each}"
    views = f" ({problem.num_ops:,} to plan, the rest are views)" if problem.num_ops < source.num_ops else ""
    text = Text.assemble((source.name, "bold"), f": {source.num_ops:,} ops{views}, {source.num_tensors:,} tensors")
    text.append(f"\non {problem.cluster.name}: {devices}{choice}")
    for said in model_notes(source):
        text.append(f"\n{said}")
    return text


def running_view(ran: Mapping[str, Any]) -> list[Any]:
    """What was modelled beside what was measured."""
    times, peaks = (
        plain_table("step", ">modelled", ">measured", ">fastest"),
        plain_table("device", "here", ">modelled", ">measured"),
    )
    modelled = "" if ran["modelled_ns"] is None else time_text(ran["modelled_ns"])
    times.add_row("time", modelled, time_text(ran["measured_ns"]), time_text(ran["fastest_ns"]))
    for index, (name, here) in enumerate(zip(ran["devices"], ran["torch_devices"], strict=True)):
        found = [ran[key] for key in ("modelled_peak_bytes", "measured_peak_bytes")]
        peaks.add_row(name, here, *("" if values is None else size_text(values[index]) for values in found))
    apart = f", {ran['kernels_apart']} of them op by op" if ran["kernels_apart"] else ""
    fused = f", {ran['kernels_fused']} fused kernels{apart}" if ran["kernels_fused"] else ""
    head = f"{ran['name']}: {ran['mode']}, {ran['ops']:,} ops{fused}"
    proof = [f"verified: {ran['verification']}"] if ran["verification"] else []
    first = [] if ran["verification"] else [ran["verified"]]  # why it was not
    return [*first, head, "", times, "", peaks, "", *proof, *ran["notes"]]


def methods_table(rows: Sequence[tuple[str, Result]]) -> Table:
    """One line per method; speed-ups are over the row called one-device, where there is one."""
    own = [f">{name}" for _, result in rows[:1] if (name := result.problem.objective.column)]
    step = f">step, {rows[0][1].problem.basis}" if rows else ">step"
    table = plain_table(
        "~method", step, ">speed-up", ">?peak per device", "fits", *own, ">?lower bound", "from the best"
    )
    alone = next((result.timeline.step_ns for name, result in rows if name == "one-device"), None)
    every = [result for _, result in rows]
    best = best_of(every)
    for name, result in rows:
        table.add_row(
            *_method_cells(name, result, alone, standing_beside(result, every)),
            style="bold" if result is best and len(rows) > 1 else "",
        )
    return table


def pipelines_table(found: PipelineResult) -> Table:
    """The pipeline that was chosen, then the hand-made schedules."""
    rows = [found.best, *(other for other in found.others if other is not found.best)]
    table = plain_table("~schedule", "~stages", ">step", ">of the best", ">idle", ">?peak per device", "fits")
    for number, row in enumerate(rows):
        fits = (
            Text("yes", "green")
            if not row.score.over_bytes
            else Text(f"no, {size_text(row.score.over_bytes)} over", "red")
        )
        step = row.score.value
        share = f"{step / found.best.score.value:.2f}x" if found.best.score.value else "-"
        peaks = sizes_text([int(peak) for peak in row.peak_bytes])
        idle = f"{row.bubble:.1%}".replace("%", " %")
        table.add_row(
            row.schedule, row.cut.name, time_text(step), share, idle, peaks, fits, style="bold" if not number else ""
        )
    return table


def _method_cells(name: str, result: Result, alone: int | None, stands: str) -> list[str | Text]:
    line, shown = result.timeline, value_text(result.problem.objective)
    fits = Text("yes", "green") if result.fits else Text(f"no, {size_text(line.over_bytes)} over", "red")
    return [
        name,
        _step_text(result),
        f"{alone / line.step_ns:.2f}x" if alone is not None and line.step_ns else "-",
        sizes_text([int(peak) for peak in line.peak_bytes]),
        fits,
        *([shown(result.value)] if result.problem.objective.column else []),
        shown(result.lower_bound),
        stands,
    ]


def _step_text(result: Result) -> str:
    """With its interval where times were measured."""
    between = interval(result)
    step = time_text(result.timeline.step_ns)
    return step if between is None else f"{step} ({time_text(between[0])} to {time_text(between[1])})"


def verdict(rows: Sequence[tuple[str, Result]]) -> str:
    """The best row in words, beside one device and the expert."""
    best = best_of([result for _, result in rows])
    name = next(name for name, result in rows if result is best)
    if not best.fits:
        return f"no plan fits; the closest is that of {name}, {size_text(best.timeline.over_bytes)} over"
    others = [(label, dict(rows).get(label)) for label in ("one-device", "expert")]
    words = [_against(best, label, other) for label, other in others if other is not None and other is not best]
    tail = f" ({', '.join(words)})" if words else ""
    objective = best.problem.objective
    work = f"{best.simulations:,} simulation{'s' if best.simulations > 1 else ''} in {best.seconds:.1f} s"
    work += " (interrupted)" if best.interrupted else ""
    alike = not_told_apart(best, rows) if objective.of_step else []
    doubt = f"\nby these times {name} cannot be told apart from {', '.join(alike)}" if alike else ""
    return f"best: {name}, {value_text(objective)(best.value)} {objective.each}{tail}; {work}{doubt}"


def _against(best: Result, label: str, other: Result) -> str:
    ratio = other.value / best.value if best.value else 1.0
    return f"{ratio:.2f}x better than {label}" + ("" if other.fits else ", which does not fit")


def inspection_view(problem: Problem, found: Inspection) -> list[Table]:
    """Facts, then time by kind of op, then the largest tensors."""
    return [_facts(problem, found), _kinds(found), _tensors(found)]


def _facts(problem: Problem, found: Inspection) -> Table:
    source = problem.source
    table = Table.grid(padding=(0, 2))
    path = f"{time_text(found.critical_path_ns)} over {found.critical_path_ops:,} ops"
    for label, text in (
        ("graph", f"{source.name}, digest {source.digest}"),
        ("ops", f"{found.ops:,}, of which {found.views:,} views"),
        ("tensors", f"{found.tensors:,}"),
        ("arithmetic", count_text(found.flops, "FLOP")),
        *((("assumed", str(found.assumed)),) if found.assumed else ()),
        ("memory traffic", size_text(found.bytes_moved)),
        *((f"{role} bytes", size_text(nbytes)) for role, nbytes in found.bytes_by_role.items()),
        (f"work on {found.cluster}", time_text(found.work_ns)),
        ("critical path", path),
        ("work / critical path", f"{found.parallelism:.2f}"),
    ):
        table.add_row(label, text)
    return table


def _kinds(found: Inspection) -> Table:
    table = plain_table("~kind of op", ">ops", ">arithmetic", ">time", ">share")
    for kind in found.kinds:
        share = f"{100 * kind.time_ns / max(1, found.work_ns):.1f} %"
        table.add_row(kind.kind, f"{kind.ops:,}", count_text(kind.flops, "FLOP"), time_text(kind.time_ns), share)
    return table


def _tensors(found: Inspection) -> Table:
    table = plain_table("~largest tensors", ">bytes", "role", "?shape", "~?made by")
    for tensor in found.largest_tensors:
        shape = "" if tensor.shape is None else " x ".join(map(str, tensor.shape))
        table.add_row(tensor.name, size_text(tensor.nbytes), tensor.role, shape, tensor.made_by or "-")
    return table


def known_methods_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Methods, their settings with defaults, and what they do."""
    table = plain_table("method", "~what it does", "~?settings")
    for row in rows:
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["summary"].partition(". ")[0], settings or "-")
    return table


def clusters_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Presets and their data."""
    table = plain_table("cluster", ">devices", ">memory", ">arithmetic", ">traffic", ">?launch", ">link")
    for row in rows:
        fixed, wire = row["op_ns"], row["link_bytes_per_s"]
        table.add_row(
            row["name"],
            str(row["devices"] or "N"),
            size_text(row["memory_bytes"]),
            count_text(row["flops_per_s"], "FLOP/s") if fixed is None else f"{time_text(fixed)} an op",
            count_text(row["bytes_per_s"], "B/s"),
            time_text(row["launch_ns"]),
            "free" if wire is None else f"{count_text(wire, 'B/s')} + {time_text(row['link_latency_ns'])}",
        )
    return table


def zoo_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line per shipped graph, narrow enough for 80 columns."""
    table = plain_table("graph", ">ops", ">to plan", ">weights", ">activa-\ntions", ">FLOPs", ">work ÷\npath")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['ops']:,}",
            f"{row['planned_ops']:,}",
            size_text(row["weight_bytes"]),
            size_text(row["activation_bytes"]),
            count_text(row["flops"], ""),
            f"{row['work_over_critical_path']:.2f}",
        )
    return table


def zoo_models_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line per model of those graphs: the devices it was published for, its sizes and its source."""
    table = plain_table("model", ">devices", "~sizes", "~?source")
    models = {row["name"].rpartition("/")[0]: row for row in rows}
    for name, row in models.items():
        table.add_row(name, str(row["devices"] or "-"), row["sizes"], row["source"])
    return table
