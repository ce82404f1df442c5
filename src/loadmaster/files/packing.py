"""Compressed files, unpacked a piece at a time, and never to more than their size explains.

A few bytes of .gz or .xz unpack to any size. Graphs and plans pack 10 to 40 fold (the zoo: 35 at most), so a file that
unpacks to more than `MOST_RATIO` times its size is refused while it is read, before it fills the memory.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
from pathlib import Path
from typing import IO, Any, cast

from loadmaster.errors import UnreadableFile

MOST_RATIO = 200
ALWAYS_BYTES = 64 * 2**20  # that any file may unpack to, however small it is
PIECE_BYTES = 2**20  # asked for at once: a read takes the memory of what it asks for, not of what is there

_OPENS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def most_unpacked(packed_bytes: int) -> int:
    """How many bytes so many packed ones may unpack to."""
    return max(ALWAYS_BYTES, MOST_RATIO * packed_bytes)


def open_unpacked(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where its name ends in .gz or .xz. Too many raise UnreadableFile as they come."""
    if path.suffix not in _OPENS:
        return path.open("rb")
    return io.BufferedReader(cast(io.RawIOBase, _Unpacked(path)), PIECE_BYTES)


def read_pieces(file: IO[bytes], most: int) -> bytes:
    """All that is left of a file, or one byte more than `most`."""
    pieces, left = list[bytes](), most + 1
    while left > 0 and (piece := file.read(min(PIECE_BYTES, left))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class _Unpacked(io.RawIOBase):
    def __init__(self, path: Path) -> None:
        self.path, self.most, self.total = path, most_unpacked(os.path.getsize(path)), 0
        self.file = _OPENS[path.suffix](path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.file.readinto(buffer)
        self.total += count
        if self.total > self.most:
            what = f"'{self.path}' unpacks to more than {self.most >> 20:,} MiB, {MOST_RATIO} times its size or more"
            raise UnreadableFile(what, "", "is it what its name says? If it is, unpack it and give that file")
        return count

    def close(self) -> None:
        self.file.close()
        super().close()
