"""One page that shows a report: self-contained, no network, opens from disk.

A strip with the verdict, the timeline beside the answers, and tabs of tables. What its script draws is in it as data
(`page_data`), and its policy lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from loadmaster.files.writing import write_text
from loadmaster.graph.assumptions import assumptions_of
from loadmaster.report.actions import NextStep
from loadmaster.report.answers import answers, command_lines, fullest
from loadmaster.report.bottleneck import Sentence
from loadmaster.report.diff import Difference
from loadmaster.report.explain import Report
from loadmaster.report.grids import Grid, Section
from loadmaster.report.modules import module_table, places_text
from loadmaster.report.page_data import packed
from loadmaster.report.schedule import Schedule
from loadmaster.report.sections import sections
from loadmaster.report.standing import Bounds, standing_beside
from loadmaster.report.units import percent, size_text, sizes_text, time_text, value_text
from loadmaster.search import Result

MOST_MODULES = 24  # in the table of where each runs
ROWS_SHOWN = 12  # of a table, until all are asked for
CODE_WIDTH = 50  # letters of a command beside the timeline
MORE = " class='more'"
SCRIPTS = ("page_data.js", "page_timeline.js", "page_graph.js", "page.js")
TABS = {"modules": "Modules", "graph": "Graph", "methods": "Methods", "details": "Details"}


def write_report(
    path: str | Path,
    result: Result,
    found: Report,
    compared: Sequence[Result] = (),
    difference: Difference | None = None,
) -> None:
    """Writes the page. `compared`: other results on the same problem, for the table of methods; `difference`: from
    another plan to this one, for a tab of its own."""
    write_text(path, report_page(result, found, compared, difference))


def report_page(
    result: Result, found: Report, compared: Sequence[Result] = (), difference: Difference | None = None
) -> str:
    """The whole page as text."""
    schedule = Schedule.of(result.problem, result.plan, result.timeline)
    script = "\n".join(_part(name) for name in SCRIPTS)
    every = [*compared, result] if all(other is not result for other in compared) else list(compared)
    said = answers(found)
    pointing = [sentence for _, sentences, _ in said for sentence in sentences if sentence.kind]
    slots = {
        "TITLE": escape(f"{found.graph} on {found.cluster}"),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_hash(script)}'",
        "STYLE": _part("page.css"),
        "BASIS": escape(f"Planned by {found.method}. {found.verdict.basis}{_assumed(result)}"),
        "FIGURES": _figures(result, found),
        "BOUNDS": _bars(found.verdict.bounds, value_text(found.objective)),
        "ANSWERS": _answers(found, said, pointing),
        "TABS": "".join(_tab(*tab) for tab in [*TABS.items(), *([("compare", "Compare")] if difference else [])]),
        "MODULES": modules_html(schedule),
        "METHODS": _methods(result, every, value_text(found.objective)),
        "WORDS": "".join(map(section_html, sections(found))),
        "PROVENANCE": "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in found.provenance),
        "COMPARE": "" if difference is None else _compare(difference),
        "PACKED": packed(schedule, found, pointing),
        "SCRIPT": script,
    }
    # In one pass, so that a model called {{SCRIPT}} stays a name.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda slot: slots[slot[1]], _part("page.html"))


def _assumed(result: Result) -> str:
    """The sentence that says how much of the model is a guess, where some is."""
    guessed = str(assumptions_of(result.problem.source) or "")
    return f" {guessed[:1].upper()}{guessed[1:]}." if guessed else ""


def _part(name: str) -> str:
    return resources.files("loadmaster.report").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _tab(name: str, title: str) -> str:
    return f"<button type=button role=tab id=tab-{name} data-tab={name} aria-controls=panel-{name}>{title}</button>"


# The strip


def _figures(result: Result, found: Report) -> str:
    verdict, shown = found.verdict, value_text(found.objective)
    rows = [("Step", time_text(verdict.step_ns), result.problem.basis)]
    if found.objective.column:
        rows.append((found.objective.column, shown(verdict.value), "the goal"))
    if verdict.speed_up is not None:
        rows.append(("Speed-up", f"{verdict.speed_up:.2f}x", "over one device"))
    most = found.peaks[fullest(found.peaks)]
    over = verdict.over_bytes
    full = f"{most.device} is {percent(most.peak_bytes, most.limit_bytes)} full"
    fit = full if not over else f"{size_text(over)} over"
    figures = "".join(figure_html(*row, over=False) for row in rows)
    return figures + figure_html("Fits", "no" if over else "yes", fit, over=bool(over))


def _bars(bounds: Bounds, shown: Callable[[float], str]) -> str:
    """This plan, the best there may be of its class, and of the widest: bars from nothing to its value, and words."""
    if not bounds.fits:
        return ""
    rows = [("this plan", shown(bounds.value), bounds.value)]
    for noun, bound in dict(zip(bounds.nouns, (bounds.choices, bounds.any_plan), strict=True)).items():
        if bound.value:
            rows.append((f"best {noun}", f"≥ {shown(bound.value)}", bound.value))
    cells = []
    for name, value, length in rows:
        wide = 96 * length / max(1, bounds.value)
        kind = " class=yours" if name == "this plan" else ""
        bar = f"<svg role=presentation><rect{kind} width={wide:.1f} height=8 /></svg>"
        cells.append(f"<span>{escape(name)}</span>{bar}<span>{escape(value)}</span>")
    words = escape(bounds.words(shown).rstrip("."))
    return f"<div class=best><div class=bounds>{''.join(cells)}</div><p class=hint>{words}</p></div>"


def figure_html(name: str, value: str, note: str, *, over: bool) -> str:
    """One number of the page's head with its name and a note; `over`: it is past a limit."""
    kind = "'figure over'" if over else "figure"
    note = f"<dd class=note>{escape(note)}</dd>" if note else ""
    return f"<div class={kind}><dt>{escape(name)}</dt><dd>{escape(value)}</dd>{note}</div>"


# Answers


def _answers(
    found: Report, said: Sequence[tuple[str, list[Sentence], list[NextStep]]], pointing: Sequence[Sentence]
) -> str:
    """All but the first, which the strip has."""
    parts = []
    for title, sentences, actions in said[1:]:
        lines = "".join(_sentence(sentence, pointing) for sentence in sentences)
        steps = "".join(_action(action, found) for action in actions)
        steps = f"<ol>{steps}</ol>" if steps else ""
        uses = ""
        commands = [command for command in found.uses if "--report" not in command]  # this page is one
        if title == "Next" and commands:
            codes = "".join(map(_command, commands))
            uses = f"<p class=hint>Put it to use:</p>{codes}"
        parts.append(f"<section class=answer id={title.lower()}><h2>{title}</h2>{lines}{steps}{uses}</section>")
    return "".join(parts)


def _sentence(sentence: Sentence, pointing: Sequence[Sentence]) -> str:
    text = escape(sentence.text)
    if not sentence.kind:
        return f"<p class=say>{text}</p>"
    number = next(at for at, other in enumerate(pointing) if other is sentence)
    data = f"data-kind={sentence.kind} data-set={number}"
    return f"<button type=button class=say aria-pressed=false {data}>{text}</button>"


def _action(action: NextStep, found: Report) -> str:
    return f"<li>{escape(action.text(value_text(found.objective)))}{_command(action.command)}</li>"


def _command(command: str) -> str:
    """In lines that a shell takes as one."""
    return f"<code>{escape(chr(10).join(line.strip() for line in command_lines(command, CODE_WIDTH)))}</code>"


# Tabs


def modules_html(schedule: Schedule, most: int = MOST_MODULES) -> str:
    """Which module runs where, as a table."""
    devices = schedule.problem.cluster.device_names
    rows = tuple(
        (row.name, f"{row.ops:,}", time_text(row.time_ns), size_text(row.weight_bytes), places_text(row, devices))
        for row in module_table(schedule, most)
    )
    return grid_html(Grid("", ("module", "ops", "time", "weights and inputs", "on"), rows, frozenset((1, 2, 3))))


def _methods(result: Result, every: Sequence[Result], shown: Callable[[float], str]) -> str:
    own = (column,) if (column := result.problem.objective.column) else ()
    rows = tuple(
        (
            other.method + (" (shown here)" if other is result else ""),
            time_text(other.timeline.step_ns),
            sizes_text([int(peak) for peak in other.timeline.peak_bytes]),
            "yes" if other.fits else f"no, {size_text(other.timeline.over_bytes)} over",
            *(shown(other.value) for _ in own),
            standing_beside(other, every),
            f"{other.simulations:,}",
            f"{other.seconds:.1f} s",
        )
        for other in sorted(every, key=lambda other: other.score)
    )
    head = ("method", "step", "peak per device", "fits", *own, "from the best", "simulations", "time")
    return grid_html(Grid("", head, rows, frozenset(set(range(1, len(head))) - {3})))


def _compare(difference: Difference) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in difference.lines())
    head = f"<p>{escape(difference.headline())}</p><ul>{lines}</ul>"
    return (
        "<section id=panel-compare class=panel role=tabpanel aria-labelledby=tab-compare>"
        f"{head}{difference.overlay()}</section>"
    )


def section_html(section: Section) -> str:
    """A title, its sentences and its tables."""
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
    return f"<h3>{escape(section.title)}</h3>{paragraphs}{''.join(map(grid_html, section.grids))}"


def grid_html(grid: Grid) -> str:
    """A table as HTML; what is over a dozen rows is shown when asked for."""

    def cells(row: Sequence[str], tag: str) -> str:
        kind = [" class='number'" if at in grid.numbers else "" for at in range(len(row))]
        return "".join(f"<{tag}{kind[at]}>{escape(cell)}</{tag}>" for at, cell in enumerate(row))

    title = f"<caption>{escape(grid.title)}</caption>" if grid.title else ""
    body = "".join(f"<tr{MORE if at >= ROWS_SHOWN else ''}>{cells(row, 'td')}</tr>" for at, row in enumerate(grid.rows))
    table = f"<table>{title}<thead><tr>{cells(grid.head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    many = len(grid.rows) > ROWS_SHOWN
    every = f"<button type='button' class='every'>All {len(grid.rows)} rows</button>" if many else ""
    label = escape(grid.title or "table")
    return f"<div class='across' tabindex='0' role='group' aria-label='{label}'>{table}{every}</div>"
