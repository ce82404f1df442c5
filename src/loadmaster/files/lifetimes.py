"""Blocks of memory as CSV: read with the time each is alive, written with its offset.

The format of minimalloc's benchmarks (id, lower, upper, size), so that `loadmaster lab pack` takes the same files.
"""

from __future__ import annotations

import csv
import io
from os import PathLike
from typing import NamedTuple

import numpy as np

from loadmaster.errors import UnreadableFile
from loadmaster.files.text import checked_path
from loadmaster.files.writing import write_text
from loadmaster.graph.columns import Ints, ints

COLUMNS = ("id", "lower", "upper", "size")
MOST = 2**62  # so that sums of two still are whole numbers of 64 bits


class Lifetimes(NamedTuple):
    """Blocks of a file, a row each; two that are alive at one time must not overlap in memory.

    Attributes:
        id: names, as the file has them.
        lower, upper: [blocks] alive from the first until just before the second.
        nbytes: [blocks]
    """

    id: tuple[str, ...]
    lower: Ints
    upper: Ints
    nbytes: Ints


def load_lifetimes(path: str | PathLike[str]) -> Lifetimes:
    """Reads columns id, lower, upper and size, in any order and among others."""
    try:
        text = checked_path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"'{path}' could not be read: {error}", "", "give a CSV file") from error
    rows = list(csv.reader(io.StringIO(text)))
    rows = [row for row in rows if row]
    header = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        fix = f"the first line names the columns: {','.join(COLUMNS)}"
        raise UnreadableFile(f"'{path}' has no column '{missing[0]}'", "line 1", fix)
    at = [header.index(name) for name in COLUMNS]
    parsed = [_block(row, at, f"'{path}', row {number}") for number, row in enumerate(rows[1:], 1)]
    names = tuple(name for name, *_ in parsed)
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UnreadableFile(f"two blocks are called '{twice}'", f"'{path}'", "give every block an id of its own")
    columns = np.array([numbers for _, *numbers in parsed], np.int64).reshape(-1, 3)
    if int(columns[:, 2].astype(object).sum()) > MOST:
        raise UnreadableFile("the sizes add up to more than 2^62", f"'{path}'", "give sizes in bytes")
    return Lifetimes(names, *(ints(column) for column in columns.T))


def _block(row: list[str], at: list[int], where: str) -> tuple[str, int, int, int]:
    fix = "each row has an id, a first time, a time after the last, and a size in bytes, in whole numbers"
    if len(row) <= max(at):
        raise UnreadableFile(f"a row of {len(row)} fields", where, fix)
    name, *texts = (row[place].strip() for place in at)
    try:
        lower, upper, size = (int(text) for text in texts)
    except ValueError as error:
        raise UnreadableFile(f"block '{name}': {error}", where, fix) from error
    if size < 0 or upper < lower or max(size, abs(lower), abs(upper)) > MOST:
        what = f"block '{name}' lives from {lower} to {upper} and has {size} bytes"
        raise UnreadableFile(what, where, "upper is not under lower, and size not under 0")
    return name, lower, upper, size


def save_offsets(blocks: Lifetimes, offset: Ints, path: str | PathLike[str]) -> None:
    """Writes a CSV with the offset of each block, in the order of the file they came from."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("id", "offset"))
    writer.writerows(zip(blocks.id, offset.tolist(), strict=True))
    write_text(path, text.getvalue())
