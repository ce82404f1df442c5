"""Bytes of files that are not ours, compressed or not, and never more than a bounded amount of them.

A few bytes of .xz may unpack to any size: what passes the bound is refused while it is unpacked, as UnreadableFile.
"""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path

from loadmaster.errors import UnreadableFile
from loadmaster.files.packing import open_unpacked, read_pieces
from loadmaster.files.text import PathLike, checked_path, uncollected

__all__ = ["MOST_BYTES", "read_bytes", "read_text", "start_of", "stem_of", "uncollected"]

MOST_BYTES = 2**30  # of a file once it is unpacked: small ones unpack to any size


def start_of(path: PathLike) -> bytes:
    """The first few thousand bytes."""
    return _read(checked_path(path), 4095)


def read_bytes(path: PathLike) -> bytes:
    """What a file holds; .gz and .xz are unpacked."""
    found = checked_path(path)
    raw = _read(found, MOST_BYTES)
    if len(raw) > MOST_BYTES:
        raise UnreadableFile(f"'{found}' holds more than {MOST_BYTES >> 30} GiB", "", "give a smaller file")
    if not raw.strip():
        raise UnreadableFile(f"'{found}' is empty", "", "give a file with a graph in it")
    return raw


def _read(path: Path, most: int) -> bytes:
    """All of it, or one byte more than `most`."""
    try:
        with open_unpacked(path) as file:
            return read_pieces(file, most)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UnreadableFile(f"'{path}' cannot be read: {error}", "", "is it whole? copy it again") from None


def read_text(path: PathLike) -> str:
    """A file's text, unpacked where its name ends in .gz or .xz; UnreadableFile where it is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeError:
        raise UnreadableFile(f"the text of '{path}' is not valid UTF-8", "", "save it as UTF-8") from None


def stem_of(path: PathLike) -> str:
    """The name of a file without what says its format."""
    name = Path(path).name
    for suffix in (".gz", ".xz"):
        name = name.removesuffix(suffix)
    return name.rpartition(".")[0] or name
