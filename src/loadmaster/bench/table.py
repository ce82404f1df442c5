"""Tables: plain values with a kind for each column, as text, markdown and CSV.

A cell is a value, or a text that stands for why there is none ("OOM", "skipped"); nothing is a dash. CSV has values as
they are, the others rounded for people.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadmaster.errors import printable

Kind = Literal["text", "number", "count", "percent", "share", "digits", "seconds", "bytes", "MB", "ns", "ms", "times"]

_SHOW: Mapping[Kind, Callable[[Any], str]] = {
    "text": str,
    "number": str,  # a text that is a number
    "count": lambda value: f"{value:,.0f}",
    "percent": lambda value: f"{100 * value:+.2f} %",
    "share": lambda value: f"{100 * value:.1f} %",
    "digits": lambda value: f"{value:.3f}",
    "seconds": lambda value: f"{value:.2f}" if value < 99.995 else f"{value:,.0f}",
    "MB": lambda value: f"{value / 1e6:,.2f}",
    "bytes": lambda value: f"{value:,.0f}",
    "ms": lambda value: f"{value / 1e6:,.2f}",
    "ns": lambda value: f"{value:,.0f}",
    "times": lambda value: f"{value:.2f}x",
}


@dataclass(frozen=True)
class Column:
    """A column of a table, and how its values are shown."""

    title: str
    kind: Kind = "text"

    def show(self, value: Any) -> str:
        """A text stands as it is, whatever the column holds: OOM, skipped. Nothing is a dash."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "-"
        return _one_line(value) if isinstance(value, str) else _SHOW[self.kind](value)


@dataclass(frozen=True)
class Table:
    """Rows under columns, to be written as Markdown, CSV or for a terminal.

    Attributes:
        title: above it.
        columns: with the kind of their values.
        rows: values, or a text that stands for why there is none.
        notes: below it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Any, ...]]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"a row of '{self.title}' has another width"

    def shown(self) -> list[list[str]]:
        """The cells as people read them, the head first."""
        head = [column.title for column in self.columns]
        return [head, *([c.show(v) for c, v in zip(self.columns, row, strict=True)] for row in self.rows)]

    def text(self) -> str:
        lines = self.shown()
        width = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        ruled = [lines[0], ["─" * w for w in width], *lines[1:]]
        body = ("  ".join(self._pad(at, cell, width[at]) for at, cell in enumerate(line)).rstrip() for line in ruled)
        return "\n".join([self.title, "", *body, *self.notes]) + "\n"

    def _pad(self, at: int, cell: str, width: int) -> str:
        return cell.ljust(width) if self.columns[at].kind == "text" else cell.rjust(width)

    def markdown(self, level: int = 3) -> str:
        head, *body = ([_in_markdown(cell) for cell in line] for line in self.shown())
        rule = ["---" if column.kind == "text" else "--:" for column in self.columns]
        lines = ["| " + " | ".join(line) + " |" for line in (head, *body)]
        lines.insert(1, "|" + "|".join(rule) + "|")
        notes = [f"\n{note[:1].upper()}{note[1:]}." for note in self.notes]
        return "\n".join([f"{'#' * level} {self.title}", "", *lines, *notes]) + "\n"

    def csv(self) -> str:
        """Values as they are, not rounded; nothing is an empty cell."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.title for column in self.columns])
        writer.writerows([[_harmless(value) for value in row] for row in self.rows])
        return out.getvalue()

    def as_data(self) -> dict[str, Any]:
        rows = [{c.title: _plain(v) for c, v in zip(self.columns, row, strict=True)} for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


def _one_line(text: str) -> str:
    """A name as one line of a table, whatever it has in it."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _in_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _harmless(value: Any) -> Any:
    """A spreadsheet takes a text that begins with one of these for a formula, and runs it."""
    if not isinstance(value, str):
        return value
    text = _one_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
