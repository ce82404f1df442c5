"""A step cut into columns of equal time: who keeps each device busy there, and what it holds.

What every picture of a step is drawn from, in the terminal and on the page. Shares are exact: nothing short is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints


@dataclass(frozen=True, eq=False)
class Cells:
    """A step cut into columns of equal time.

    Attributes:
        busy: [rows, columns] share of the time that is used.
        main: [rows, columns] the label that takes most of it, or -1.
    """

    busy: NDArray[np.float64]  # [rows, columns]
    main: Ints  # [rows, columns]


def cells(row: Ints, start: Ints, end: Ints, label: Ints, rows: int, step_ns: int, columns: int) -> Cells:
    """How much of each column each label takes. Shares are exact: a long op fills many columns, short ones add up."""
    kinds = int(label.max(initial=-1)) + 1
    edges = np.linspace(0.0, max(1, step_ns), columns + 1)
    taken = np.zeros((rows, columns, max(1, kinds)))
    first = np.minimum((start * columns) // max(1, step_ns), columns - 1)
    last = np.minimum((end * columns) // max(1, step_ns), columns - 1)
    for at in np.flatnonzero((row < rows) & (end > start)).tolist():
        part = slice(int(first[at]), int(last[at]) + 1)
        low, high = np.maximum(edges[part], start[at]), np.minimum(edges[1:][part], end[at])
        taken[row[at], part, label[at]] += np.maximum(high - low, 0.0)
    busy = taken.sum(axis=2) * columns / max(1, step_ns)
    main = np.where(busy > 1e-9, taken.argmax(axis=2), -1)
    return Cells(busy, main)


def held_in_columns(times: Ints, sizes: Ints, step_ns: int, columns: int) -> Ints:
    """[columns] the most that is held at any time in it."""
    edge = np.arange(columns) * max(1, step_ns) // columns
    held = sizes[np.maximum(np.searchsorted(times, edge, side="right") - 1, 0)].copy()
    np.maximum.at(held, np.minimum(times * columns // max(1, step_ns), columns - 1), sizes)
    return held
