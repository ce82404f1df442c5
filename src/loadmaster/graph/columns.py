"""Read-only integer columns, ragged rows over them, and digests of both.

All types from Graph to Timeline are made of these. `ints` makes a column read-only, so that types can share columns and
frozen means frozen. A ragged column is a pair (start, values): row i is values[start[i]:start[i + 1]].

>>> start, values = ragged([[5, 6], [], [7]])
>>> start.tolist(), values.tolist(), rows_of(start).tolist()
([0, 2, 2, 3], [5, 6, 7], [0, 0, 2])
>>> back, rows = inverse(start, values, 8)  # which rows hold 7?
>>> rows[back[7] : back[8]].tolist()
[2]
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InvalidSetting

Ints: TypeAlias = NDArray[np.int64]
Ints32: TypeAlias = NDArray[np.int32]
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = int | np.signedinteger[Any]  # a whole number in compiled loops
Truth: TypeAlias = bool | np.bool_  # likewise

Item = TypeVar("Item")


def taken(column: Sequence[Item], rows: Ints) -> tuple[Item, ...]:
    """The entries of some rows, of a column of names or shapes."""
    return tuple([column[row] for row in rows.tolist()])  # a third of the time of a generator or map


def ints(values: Any) -> Ints:
    """A read-only int64 copy of the values; the values themselves where they already are one."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and not values.flags.writeable:
        return values
    column = np.array(values, dtype=np.int64, order="C")
    column.flags.writeable = False
    return column


def flags(values: Any) -> Bools:
    """A read-only column of yes and no."""
    column = np.array(values, dtype=np.bool_, order="C")
    column.flags.writeable = False
    return column


def given_ints(values: Any, where: str) -> Ints:
    """The same of what a caller gave. Raises InvalidSetting for what are no whole numbers."""
    try:
        column = np.asarray(values)
    except ValueError:  # rows of unequal length
        column = np.empty(0, object)
    kind = column.dtype.kind
    if kind not in "iubf" or (kind == "f" and not (np.isfinite(column) & (column == np.trunc(column))).all()):
        raise InvalidSetting.instead_of("column of whole numbers", values, where, "give one for each op")
    return ints(column)


def ragged(rows: Iterable[Sequence[int]]) -> tuple[Ints, Ints]:
    """Rows of unequal length as (start, values): row i is values[start[i]:start[i + 1]]."""
    rows = list(rows)
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=start[1:])
    return ints(start), ints(np.fromiter(chain.from_iterable(rows), np.int64, int(start[-1])))


def rows_of(start: Ints) -> Ints:
    """The row number of every value of a ragged column."""
    return np.repeat(np.arange(len(start) - 1), np.diff(start))


def positions(order: Any) -> Ints:
    """Where each value of a permutation is in it: the permutation read backwards."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return ints(place)


def numbered(values: Iterable[Hashable]) -> Ints:
    """0, 1, … in the order in which values first come; equal values have one number."""
    values = list(values)
    number = {value: at for at, value in enumerate(dict.fromkeys(values))}
    return ints([number[value] for value in values])


def inverse(start: Ints, values: Ints, size: int) -> tuple[Ints, Ints]:
    """The ragged column read backwards: for each value, the rows that hold it, in order."""
    order = np.argsort(values, kind="stable")
    back = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(values, minlength=size), out=back[1:])
    return ints(back), ints(rows_of(start)[order])


def from_pairs(rows: Ints, values: Ints, size: int) -> tuple[Ints, Ints]:
    """Unique (row, value) pairs as a ragged column of `size` rows, values ascending within a row."""
    if len(rows):
        most = int(values.max()) + 1
        pairs = np.sort(np.asarray(rows, np.int64) * most + values)
        rows, values = np.divmod(pairs[np.append(True, pairs[1:] != pairs[:-1])], most)
    start = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=size), out=start[1:])
    return ints(start), ints(values)


def digest(*parts: Any) -> str:
    """A content hash of arrays, numbers and strings, equal on every machine."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            state.update(f"{part.dtype.str}{part.shape}".encode())
            state.update(np.ascontiguousarray(part).tobytes())
        else:
            state.update(repr(part).encode())
        state.update(b"\0")
    return state.hexdigest()[:16]
