"""FlatBuffers as they lie in a file: tables found by offsets, every one of them checked. https://flatbuffers.dev/internals/"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from loadmaster.errors import UnreadableFile


@dataclass(frozen=True, slots=True)
class Buffer:
    """The bytes of a file; whatever points outside of them is an error."""

    raw: bytes
    where: str

    def number(self, kind: str, place: int) -> int:
        size = struct.calcsize(kind)
        if place < 0 or place + size > len(self.raw):
            raise UnreadableFile(f"it points to byte {place} of {len(self.raw)}", self.where, "is it cut short?")
        return int(struct.unpack_from(f"<{kind}", self.raw, place)[0])

    def follow(self, place: int) -> int:
        return place + self.number("I", place)

    def root(self) -> FlatTable:
        return FlatTable(self, self.follow(0))


@dataclass(frozen=True, slots=True)
class FlatTable:
    """One table: its fields by their number in the schema."""

    buffer: Buffer
    place: int

    def _field(self, field: int) -> int:
        """Where a field lies, or 0 where it has its default."""
        layout = self.place - self.buffer.number("i", self.place)
        if 4 + 2 * field + 2 > self.buffer.number("H", layout):
            return 0
        offset = self.buffer.number("H", layout + 4 + 2 * field)
        return self.place + offset if offset else 0

    def number(self, field: int, kind: str = "i", default: int = 0) -> int:
        place = self._field(field)
        return self.buffer.number(kind, place) if place else default

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """Where its elements start, and how many there are."""
        place = self._field(field)
        if not place:
            return 0, 0
        start = self.buffer.follow(place)
        count = self.buffer.number("I", start)
        if start + 4 + count * size > len(self.buffer.raw):
            what = f"a list of {count} at byte {start} goes past the end"
            raise UnreadableFile(what, self.buffer.where, "is it cut short?")
        return start + 4, count

    def numbers(self, field: int, kind: str = "i") -> list[int]:
        start, count = self.vector(field, struct.calcsize(kind))
        return list(struct.unpack_from(f"<{count}{kind}", self.buffer.raw, start)) if count else []

    def tables(self, field: int) -> list[FlatTable]:
        start, count = self.vector(field, 4)
        return [FlatTable(self.buffer, self.buffer.follow(start + 4 * index)) for index in range(count)]

    def table(self, field: int) -> FlatTable | None:
        place = self._field(field)
        return FlatTable(self.buffer, self.buffer.follow(place)) if place else None

    def text(self, field: int) -> str:
        start, count = self.vector(field, 1)
        return self.buffer.raw[start : start + count].decode(errors="replace")
