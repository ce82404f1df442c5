"""A result as a notebook shows it: figures in a line, a timeline, and which module runs where. No script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

import numpy as np

from loadmaster.report.cells import cells, held_in_columns
from loadmaster.report.modules import COLOURS, GREY, coloured, module_labels, module_table, places_text
from loadmaster.report.schedule import Schedule
from loadmaster.report.summary import result_line
from loadmaster.report.units import size_text, time_text
from loadmaster.search import Result

COLUMNS, WIDTH, LANE, MEMORY, MARGIN = 360, 900, 22, 14, 110  # columns of time; pixels: the width of a cell
MOST_DEVICES, MOST_MODULES = 16, 12  # what is seen without scrolling
_QUIET = "font-size:12px;opacity:.75"


def result_html(result: Result) -> str:
    """The whole of it, safe to put into any page."""
    schedule = Schedule.of(result.problem, result.plan, result.timeline)
    return f"<div><p><b>{escape(result_line(result))}</b></p>{_timeline(schedule)}{_modules(schedule)}</div>"


def _timeline(schedule: Schedule) -> str:
    length = schedule.end_ns - schedule.start_ns
    colour, names = coloured(module_labels(schedule, 3 * len(COLOURS)), length)
    shown = min(schedule.num_devices, MOST_DEVICES)
    work = cells(schedule.device, schedule.start_ns, schedule.end_ns, colour, shown, schedule.step_ns, COLUMNS)
    lanes = [
        _lane(schedule, device, work.main[device].tolist(), work.busy[device].tolist(), len(names))
        for device in range(shown)
    ]
    height = shown * (LANE + MEMORY) + 16
    axis = f"<text x='{MARGIN}' y='{height - 3}'>0</text>"
    axis += f"<text x='{WIDTH}' y='{height - 3}' text-anchor='end'>{time_text(schedule.step_ns)}</text>"
    more = schedule.num_devices - shown
    note = f"<p style='{_QUIET}'>… and {more} more devices</p>" if more else ""
    style = "font:11px sans-serif;max-width:100%;fill:currentColor"
    return (
        f"<svg viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' style='{style}' role='img' "
        f"aria-label='timeline of {shown} devices'>{''.join(lanes)}{axis}</svg>{note}{_legend(names)}"
    )


def _lane(schedule: Schedule, device: int, main: Sequence[int], busy: Sequence[float], known: int) -> str:
    """Bars of one device, and under them what it holds against its memory."""
    top, scale = device * (LANE + MEMORY), (WIDTH - MARGIN) / COLUMNS
    name = escape(schedule.problem.cluster.device_names[device])
    parts = [f"<text x='0' y='{top + 15}'>{name}</text>"]
    for first, last, label in _runs(main):
        full = float(np.mean(busy[first:last]))
        tone = COLOURS[label] if label < known else GREY
        box = f"x='{MARGIN + first * scale:.1f}' y='{top + 2}' width='{(last - first) * scale:.1f}' height='{LANE - 4}'"
        parts.append(f"<rect {box} fill='{tone}' fill-opacity='{0.25 + 0.75 * min(1.0, full):.2f}'/>")
    line, limit = schedule.timeline, max(1, int(schedule.problem.memory_bytes[device]))
    held = held_in_columns(*line.curve(device), schedule.step_ns, COLUMNS)
    full_bytes = max(limit if 2 * int(line.peak_bytes[device]) >= limit else 0, int(line.peak_bytes[device]), 1)
    low = top + LANE + MEMORY - 3
    heights = (low - (MEMORY - 4) * held / full_bytes).tolist()
    points = " ".join(f"{MARGIN + at * scale:.1f},{height:.1f}" for at, height in enumerate(heights))
    edge = f"{MARGIN},{low} {points} {WIDTH},{low}"
    over = int(line.peak_bytes[device]) > limit
    tone = "#b3452f" if over else "currentColor"
    title = f"<title>{name}: {size_text(int(line.peak_bytes[device]))} of {size_text(limit)}</title>"
    return "".join(parts) + f"<polygon points='{edge}' fill='{tone}' fill-opacity='.3'>{title}</polygon>"


def _runs(main: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first column, one past the last, label) of neighbours with one label; idle columns are left out."""
    edges = [0, *(at for at in range(1, len(main)) if main[at] != main[at - 1]), len(main)]
    return [(low, high, main[low]) for low, high in pairwise(edges) if main[low] >= 0]


def _legend(names: Sequence[str]) -> str:
    swatch = "display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px;background:"
    rows = [*zip(names, COLOURS, strict=False), ("other", GREY)]
    marks = "".join(f"<span style='{swatch}{tone}'></span>{escape(name)}" for name, tone in rows)
    return f"<p style='{_QUIET}'>{marks}</p>"


def _modules(schedule: Schedule) -> str:
    devices = schedule.problem.cluster.device_names
    rows = [
        (row.name, f"{row.ops:,}", time_text(row.time_ns), size_text(row.weight_bytes), places_text(row, devices))
        for row in module_table(schedule, MOST_MODULES)
    ]
    head = "".join(f"<th>{text}</th>" for text in ("module", "ops", "time", "weights and inputs", "on"))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
