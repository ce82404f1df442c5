"""A result as a notebook shows it: the four answers, a timeline, and which module runs where. No script."""

from __future__ import annotations

from html import escape

from loadmaster.report.bottleneck import bottleneck
from loadmaster.report.critical import critical_path
from loadmaster.report.drawing import drawing_of, svg
from loadmaster.report.html import modules_html
from loadmaster.report.occupancy import wire_loads
from loadmaster.report.schedule import Schedule
from loadmaster.report.summary import result_line
from loadmaster.search import Result

COLUMNS, MOST_MODULES = 360, 12  # columns of time; rows seen without scrolling


def result_html(result: Result) -> str:
    """The whole of it, safe to put into any page."""
    schedule = Schedule.of(result.problem, result.plan, result.timeline)
    path, wires = critical_path(schedule), wire_loads(schedule)
    why = " ".join(sentence.text for sentence in bottleneck(schedule, path, wires).sentences)
    head = f"<p><b>{escape(result_line(result))}</b></p><p>{escape(why)}</p>"
    return f"<div>{head}{svg(drawing_of(schedule, COLUMNS))}{modules_html(schedule, MOST_MODULES)}</div>"
