"""One page that shows a plan: self-contained, no network, opens from disk.

Figures, timeline, memory, the sections of the explanation and the table of methods in one file; what its script draws
is in it as data (`page_data`), and its policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from loadmaster import __version__
from loadmaster.files.writing import write_text
from loadmaster.report.advice import Advice, basis, next_steps
from loadmaster.report.bubbles import section as pipeline
from loadmaster.report.explain import Explanation
from loadmaster.report.grids import Grid, Section, share_text
from loadmaster.report.modules import module_table, places_text
from loadmaster.report.page_data import packed
from loadmaster.report.schedule import Schedule
from loadmaster.report.standing import standing_beside
from loadmaster.report.units import size_text, sizes_text, time_text, value_text
from loadmaster.report.words import sections
from loadmaster.search import Result

MOST_MODULES = 24  # in the table of where each runs
ROWS_IN_PRINT = 25  # page.css hides the rest on paper
SCRIPTS = ("page_data.js", "page_timeline.js", "page_graph.js", "page.js")


def write_report(
    path: str | Path,
    result: Result,
    explanation: Explanation,
    compared: Sequence[Result] = (),
) -> None:
    """Writes the page. `compared`: other results on the same problem, for the table of methods."""
    page = report_page(result, explanation, compared)
    write_text(path, page)


def report_page(result: Result, explanation: Explanation, compared: Sequence[Result] = ()) -> str:
    """The whole page as text."""
    schedule = Schedule.of(result.problem, result.plan, result.timeline)
    script = "\n".join(_part(name) for name in SCRIPTS)
    every = [*compared, result] if all(other is not result for other in compared) else list(compared)
    slots = {
        "TITLE": escape(f"{explanation.graph} on {explanation.cluster}"),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_hash(script)}'",
        "STYLE": _part("page.css"),
        "SUBTITLE": escape(_subtitle(result)),
        "BASIS": escape(basis(result.problem)),
        "NEXT": "".join(map(_advice, next_steps(result, explanation))),
        "PIPELINE": pipeline(schedule),
        "MODULES": _modules(schedule),
        "FIGURES": _figures(result, explanation, every),
        "METHODS": _methods(result, every),
        "WORDS": "".join(_section(section) for section in sections(explanation)),
        "PROVENANCE": _provenance(result),
        "PACKED": packed(schedule, explanation),
        "SCRIPT": script,
    }
    # In one pass, so that a model called {{SCRIPT}} stays a name.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda slot: slots[slot[1]], _part("page.html"))


def _part(name: str) -> str:
    return resources.files("loadmaster.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _subtitle(result: Result) -> str:
    problem = result.problem
    devices = f"{problem.num_devices} device{'s' if problem.num_devices > 1 else ''}"
    fused = f", {result.plan.num_kernels:,} kernels of them" if result.plan.fuses else ""
    cut = "; the search was interrupted" if result.interrupted else ""
    took = f"{result.simulations:,} simulation{'s' if result.simulations > 1 else ''} in {result.seconds:.1f} s"
    return (
        f"Which of {devices} runs each of {problem.num_ops:,} ops{fused}, and in which order: planned "
        f"{problem.objective.wanted} by {result.method} ({took}, seed {result.seed}{cut})."
    )


def _advice(advice: Advice) -> str:
    command = f"<code>{escape(advice.command)}</code>" if advice.command else ""
    return f"<li>{escape(advice.what)}{command}</li>"


def _modules(schedule: Schedule) -> str:
    """Which module runs where: with a bar of the shares of the devices."""
    devices = schedule.problem.cluster.device_names
    rows = tuple(
        (row.name, f"{row.ops:,}", time_text(row.time_ns), size_text(row.weight_bytes), places_text(row, devices))
        for row in module_table(schedule, MOST_MODULES)
    )
    return grid_html(Grid("", ("module", "ops", "time", "weights and inputs", "on"), rows, frozenset((1, 2, 3))))


def _figures(result: Result, found: Explanation, every: Sequence[Result]) -> str:
    shown = value_text(found.objective)
    line, memory = result.timeline, result.problem.memory_bytes
    fullest = int((line.peak_bytes / memory.clip(1)).argmax())
    alone = next((other.timeline.step_ns for other in every if other.method == "one-device"), None)
    fits = "fits" if result.fits else f"{size_text(line.over_bytes)} over"
    rows = [
        ("step", time_text(line.step_ns), "simulated"),
        ("lower bound", shown(found.lower_bound), f"none of {found.among.words} can go under it"),
        (
            "from the best",
            standing_beside(result, every),
            "above the bound" if not result.optimal else "proved: it is the bound",
        ),
        (
            "largest peak",
            size_text(int(line.peak_bytes[fullest])),
            f"of {size_text(int(memory[fullest]))} on {result.problem.cluster.device_names[fullest]}: {fits}",
        ),
    ]
    if found.objective.column:
        rows.insert(1, (found.objective.column, shown(found.value), f"{found.value:,} {found.objective.unit}"))
    if alone is not None and line.step_ns and result.problem.num_devices > 1:
        rows.insert(1, ("speed-up", f"{alone / line.step_ns:.2f}x", f"over one device ({time_text(alone)})"))
    return "".join(figure_html(*row, over=row[0] == "largest peak" and not result.fits) for row in rows)


def figure_html(name: str, value: str, note: str, *, over: bool) -> str:
    """One number of the page's head with its name and a note; `over`: it is past a limit."""
    kind = "'figure over'" if over else "figure"
    return f"<div class={kind}><dt>{escape(name)}</dt><dd>{escape(value)}</dd><small>{escape(note)}</small></div>"


def _methods(result: Result, every: Sequence[Result]) -> str:
    alone = next((other.timeline.step_ns for other in every if other.method == "one-device"), None)
    shown, column = value_text(result.problem.objective), result.problem.objective.column
    own = (column,) if column else ()
    rows = tuple(
        (
            other.method + (" (shown here)" if other is result else ""),
            time_text(other.timeline.step_ns),
            f"{alone / other.timeline.step_ns:.2f}x" if alone and other.timeline.step_ns else "-",
            sizes_text([int(peak) for peak in other.timeline.peak_bytes]),
            "yes" if other.fits else f"no, {size_text(other.timeline.over_bytes)} over",
            *(shown(other.value) for _ in own),
            shown(other.lower_bound),
            standing_beside(other, every),
            f"{other.simulations:,}",
            f"{other.seconds:.1f} s",
        )
        for other in sorted(every, key=lambda other: other.score)
    )
    best = ("lower bound", "from the best")
    head = ("method", "step", "speed-up", "peak per device", "fits", *own, *best, "simulations", "time")
    return grid_html(Grid("", head, rows, frozenset(set(range(1, len(head))) - {4})))


def _section(section: Section) -> str:
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
    grids = "".join(map(grid_html, section.grids))
    return f"<section class=words><h3>{escape(section.title)}</h3>{paragraphs}{grids}</section>"


def grid_html(grid: Grid) -> str:
    """A table as HTML."""

    def cells(row: Sequence[str], tag: str) -> str:
        kind = [" class=number" if at in grid.numbers else "" for at in range(len(row))]
        return "".join(f"<{tag}{kind[at]}>{escape(cell)}</{tag}>" for at, cell in enumerate(row))

    title = f"<caption>{escape(grid.title)}</caption>" if grid.title else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in grid.rows)
    long = " class=long" if len(grid.rows) > ROWS_IN_PRINT else ""
    table = f"<table{long}>{title}<thead><tr>{cells(grid.head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=scroll tabindex=0 role=group aria-label='{escape(grid.title or 'table')}'>{table}</div>"


def _provenance(result: Result) -> str:
    problem, plan = result.problem, result.plan
    rows = (
        ("graph", f"{problem.source.name}, digest {plan.graph_digest}"),
        ("ops", f"{problem.source.num_ops:,} imported, {problem.num_ops:,} planned, {plan.num_kernels:,} kernels"),
        ("cluster", f"{problem.cluster.name}, digest {plan.cluster_digest}"),
        ("objective", problem.objective.name),
        ("method", result.method),
        ("seed", f"{result.seed}"),
        ("search", f"{result.simulations:,} simulations in {result.seconds:.1f} s"),
        ("times", basis(problem)),
        ("lower bound", f"{value_text(problem.objective)(result.lower_bound)}, of {result.among.words}"),
        ("memory used", share_text(int(result.timeline.peak_bytes.sum()), int(problem.memory_bytes.sum()))),
        ("made with", f"loadmaster {__version__}"),
    )
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
