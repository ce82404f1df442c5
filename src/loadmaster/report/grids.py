"""Grids: tables and sections of a report as data, and as text for a terminal.

What `words`, `policy` and `diff` say in, and what every view shows: the terminal by the functions here, the page and
the notebook by their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROWS_IN_TEXT = 10  # of a table in a terminal; the page has all


@dataclass(frozen=True)
class Grid:
    """A table: the first column is words, those of `numbers` stand to the right.

    Attributes:
        title: above it.
        head: names of the columns.
        rows: texts, as they are shown.
        numbers: columns that stand to the right.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int]


@dataclass(frozen=True)
class Section:
    """A part of an explanation: a title, sentences and tables.

    Attributes:
        title: of the section.
        sentences: a paragraph each.
        grids: tables under them.
    """

    title: str
    sentences: tuple[str, ...]
    grids: tuple[Grid, ...] = ()


def share_text(part: float, whole: float) -> str:
    """Such as "12.5 %", "-" of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def signed(value: int, shown: Callable[[float], str]) -> str:
    """With its sign, in the given unit."""
    return shown(0) if value == 0 else ("+" if value > 0 else "-") + shown(abs(value))


def section_text(section: Section) -> str:
    """A section for a terminal."""
    title = [section.title.upper()]
    return "\n".join([*title, *section.sentences, *(f"\n{grid_text(grid)}" for grid in section.grids)])


def grid_text(grid: Grid, most: int = ROWS_IN_TEXT) -> str:
    """A table for a terminal, cut off after `most` rows."""
    rows = [grid.head, *grid.rows[:most]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(grid.head))]
    lines = [_line(row, widths, grid.numbers) for row in rows]
    more = len(grid.rows) - most
    tail = [f"  … and {more} more"] if more > 0 else []
    return "\n".join([f"  {grid.title}", *(f"    {line}" for line in lines), *tail])


def _line(row: Sequence[str], widths: Sequence[int], numbers: frozenset[int]) -> str:
    padded = enumerate(zip(row, widths, strict=True))
    cells = [cell.rjust(width) if at in numbers else cell.ljust(width) for at, (cell, width) in padded]
    return "  ".join(cells).rstrip()


def percent(part: float, whole: float) -> str:
    """Such as "12 %", for sentences."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 1 or share == 0 else f"{share:.1f} %"
