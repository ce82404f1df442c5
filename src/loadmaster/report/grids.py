"""Grids: tables and sections of a report as data, and as text for a terminal.

What `sections`, `policy` and `diff` say in, and what every view shows: the terminal by the functions here, the page and
the notebook by their own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST_WORDS = 12  # letters of a column of words, where a table is cut
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


def section_text(section: Section, width: int | None = None) -> str:
    """A section for a terminal so wide; None: as wide as it is."""
    said = [line if width is None else textwrap.fill(line, width) for line in section.sentences]
    return "\n".join([section.title.upper(), *said, *(f"\n{grid_text(grid, width)}" for grid in section.grids)])


def grid_text(grid: Grid, width: int | None = None, most: int = ROWS_IN_TEXT) -> str:
    """A table for a terminal, cut off after `most` rows; where it is too wide, words are cut, then the last columns."""
    rows = [grid.head, *grid.rows[:most]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(grid.head))]
    if width is not None:
        widths = _fitted(widths, grid.numbers, width - 4)
    lines = [_line(row, widths, grid.numbers) for row in rows]
    more = len(grid.rows) - most
    tail = [f"  … and {more} more"] if more > 0 else []
    return "\n".join([f"  {grid.title}", *(f"    {line}" for line in lines), *tail])


def _fitted(widths: list[int], numbers: frozenset[int], room: int) -> list[int]:
    words = [column for column in range(len(widths)) if column not in numbers]
    while sum(widths) + 2 * len(widths) - 2 > room:
        widest = max((column for column in words if column < len(widths)), key=lambda column: widths[column])
        if widths[widest] > LEAST_WORDS:
            widths[widest] -= 1
        elif len(widths) > 2:
            widths = widths[:-1]
        else:
            break
    return widths


def _line(row: Sequence[str], widths: Sequence[int], numbers: frozenset[int]) -> str:
    cut = [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell, width in zip(row, widths, strict=False)]
    padded = enumerate(zip(cut, widths, strict=True))
    cells = [cell.rjust(width) if at in numbers else cell.ljust(width) for at, (cell, width) in padded]
    return "  ".join(cells).rstrip()
