"""Protocol buffers as they lie in a file, read without their packages: numbered fields, nothing more.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.errors import UnreadableFile

Value = int | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Message:
    """One message: its fields by number, each with all the values it was given, in order.

    Protocol buffers do not say what their fields are: whoever asks for a number, a text or a message knows the schema,
    and bytes that cannot be that raise UnreadableFile.
    """

    __slots__ = ("fields", "where")

    def __init__(self, raw: bytes, where: str) -> None:
        self.where = where
        self.fields: dict[int, list[Value]] = {}
        for number, value in _fields(raw, where):
            self.fields.setdefault(number, []).append(value)

    def number(self, field: int, default: int = 0) -> int:
        """A whole number; of two's complement as protobuf writes negative ones."""
        value = self.fields.get(field, [default])[-1]
        if not isinstance(value, int):
            raise broken(self.where, f"field {field} is no number")
        return value - 2**64 if value >= 2**63 else value

    def numbers(self, field: int) -> list[int]:
        """A repeated number, packed or not."""
        found: list[int] = []
        for value in self.fields.get(field, ()):
            found += [value] if isinstance(value, int) else _varints(value, self.where)
        return [value - 2**64 if value >= 2**63 else value for value in found]

    def raw(self, field: int) -> bytes:
        value = self.fields.get(field, [b""])[-1]
        if not isinstance(value, bytes):
            raise broken(self.where, f"field {field} is a number where a text or a message is needed")
        return value

    def text(self, field: int) -> str:
        return _text(self.raw(field), self.where)

    def texts(self, field: int) -> list[str]:
        return [_text(value, self.where) for value in self.fields.get(field, ()) if isinstance(value, bytes)]

    def message(self, field: int) -> Message:
        return Message(self.raw(field), self.where)

    def messages(self, field: int) -> list[Message]:
        return [Message(value, self.where) for value in self.fields.get(field, ()) if isinstance(value, bytes)]

    def table(self, field: int) -> dict[str, Message]:
        """A map from text to messages."""
        return {entry.text(1): entry.message(2) for entry in self.messages(field)}


def broken(where: str, what: str) -> UnreadableFile:
    """The error for bytes that are no message of the format."""
    return UnreadableFile(f"it is not what its name says: {what}", where, "is it cut short, or of another format?")


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeError:
        raise broken(where, "some of its names are not valid UTF-8") from None


def _fields(raw: bytes, where: str) -> Iterator[tuple[int, Value]]:
    place, end = 0, len(raw)
    while place < end:
        key, place = _varint(raw, place, where)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(raw, place, where)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(raw, place, where)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise broken(where, f"a field of unknown kind {kind} at byte {place}")
        if size > end - place:
            raise broken(where, f"a field of {size} bytes at byte {place}, where {end - place} are left")
        part = raw[place : place + size]
        place += size
        yield key >> 3, part if kind == _BYTES else int.from_bytes(part, "little")


def _varint(raw: bytes, place: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(raw) or shift > 63:
            raise broken(where, f"a number that does not end at byte {place}")
        byte = raw[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value & (2**64 - 1), place
        shift += 7


def _varints(raw: bytes, where: str) -> list[int]:
    found, place = [], 0
    while place < len(raw):
        value, place = _varint(raw, place, where)
        found.append(value)
    return found
