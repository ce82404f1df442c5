"""JSON on disk: plain, .gz or .xz, read with errors that say what is wrong, written a row a line.

Files come from anywhere: sizes are bounded as they are unpacked, NaN and bottomless nesting are refused, and `Row` asks
for every field by type, so that a wrong one is named with its place. The same data gives the same bytes.
"""

from __future__ import annotations

import gc
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from loadmaster.errors import LoadmasterError, UnknownName, UnreadableFile
from loadmaster.files.packing import open_unpacked, read_pieces
from loadmaster.files.writing import path_of, write_bytes

PathLike: TypeAlias = str | os.PathLike[str]

GRAPH_SCHEMA, CLUSTER_SCHEMA, PLAN_SCHEMA = "loadmaster.graph/1", "loadmaster.cluster/1", "loadmaster.plan/1"
MOST_CHARACTERS = 2**30  # of a document or a line: a million ops take a third of it; small files unpack to any size
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def checked_path(path: PathLike) -> Path:
    """The path, if an ordinary file is there."""
    found = path_of(path)
    try:
        there, ordinary = found.exists(), found.is_file()
    except OSError as error:
        raise UnreadableFile(f"'{found}' cannot be read: {error.strerror}", "", "check the path") from None
    if not there:
        near = get_close_matches(found.name, os.listdir(found.parent) if found.parent.is_dir() else [], n=2)
        named = " or ".join(str(found.parent / name) for name in near)
        raise UnreadableFile(f"there is no file '{found}'", "", f"did you mean {named}?" if named else "check the path")
    if not ordinary:
        kind = "a directory" if found.is_dir() else "not an ordinary file"
        raise UnreadableFile(f"'{found}' is {kind}", "", "give the path of a file")
    return found


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, which takes a third of the time when a large graph is read and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_json(path: PathLike) -> Any:
    """What a .json, .json.gz or .json.xz file holds."""
    found = checked_path(path)
    try:
        with open_unpacked(found) as file:
            raw = read_pieces(file, MOST_CHARACTERS)
    except _DAMAGE as error:
        raise _damaged(found, error) from None
    if len(raw) > MOST_CHARACTERS:
        raise _too_long(found)
    return parse_json(raw, str(found))


def read_json_lines(path: PathLike) -> Iterator[tuple[Any, str]]:
    """Each line of a .jsonl, .jsonl.gz or .jsonl.xz file with its place, one at a time; blank lines are skipped."""
    return _lines(checked_path(path))


def read_lines(path: PathLike) -> list[bytes]:
    """The lines of such a file as they are, without the blank ones."""
    found = checked_path(path)
    try:
        with open_unpacked(found) as file:
            return [line for line in _split(file, found) if line.strip()]
    except _DAMAGE as error:
        raise _damaged(found, error) from None


def _lines(path: Path) -> Iterator[tuple[Any, str]]:
    number = 0
    try:
        with open_unpacked(path) as file:
            for number, line in enumerate(_split(file, path), 1):
                if line.strip():
                    yield parse_json(line, f"{path}, line {number}"), f"{path}, line {number}"
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    if not number:
        raise UnreadableFile(f"'{path}' is empty", "", "give a file with one graph a line")


def _split(file: IO[bytes], path: Path) -> Iterator[bytes]:
    while line := file.readline(MOST_CHARACTERS + 1):
        if len(line) > MOST_CHARACTERS:
            raise _too_long(path)
        yield line


def _too_long(path: Path) -> UnreadableFile:
    what = f"'{path}' holds more than {MOST_CHARACTERS // 2**20:,} MiB of text"
    return UnreadableFile(what, "", "is it what its name says? No graph that can be planned is as long")


def _damaged(path: Path, error: Exception) -> UnreadableFile:
    packed = {".gz": "gzip", ".xz": "xz"}.get(path.suffix)
    if isinstance(error, OSError) and error.errno is not None:
        return UnreadableFile(f"'{path}' cannot be read: {error.strerror}", "", "check its permissions")
    what = f"'{path}' is not a whole {packed} file: {error}"
    return UnreadableFile(what, "", f"copy it again, or drop {path.suffix} from its name if it is not compressed")


def parse_json(raw: bytes, where: str) -> Any:
    """The value of JSON text; NaN, Infinity, lone surrogates and bottomless nesting are refused."""
    if not raw.strip():
        raise UnreadableFile(f"'{where}' is empty", "", "give a JSON file")
    try:
        data = json.loads(raw, parse_constant=_refuse, object_pairs_hook=_object)
        if _SURROGATE.search(raw):
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except UnicodeError:
        raise UnreadableFile("its text is not valid UTF-8", where, "save it as UTF-8") from None
    except ValueError as error:
        raise UnreadableFile(f"not valid JSON: {error}", where, _fix(error)) from None
    except RecursionError:
        raise too_deep(where) from None


def _fix(error: ValueError) -> str:
    return "give it once" if "given twice" in str(error) else "is the file cut short, or not JSON at all?"


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in names if names.count(key) > 1)[:60]}' is given twice")
    return data


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def too_deep(where: str) -> UnreadableFile:
    """The error for JSON whose nesting would exhaust the parser."""
    return UnreadableFile("it is nested too deeply", where, "none of our formats is deeper than six levels")


def write_json(data: Mapping[str, Any], path: PathLike) -> None:
    """Writes the object; lists of objects a row a line. The same data gives the same bytes, compressed or not."""
    _write(to_text(data).encode(), path_of(path))


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: PathLike) -> int:
    """Writes one object a line, with the same promise; how many."""
    target = path_of(path)
    if ".jsonl" not in target.suffixes[-2:]:
        raise UnreadableFile(f"'{target}' is no name for many graphs", "", "end it in .jsonl, .jsonl.gz or .jsonl.xz")
    lines = [_tight(row) + "\n" for row in rows]
    _write("".join(lines).encode(), target)
    return len(lines)


def _write(raw: bytes, target: Path) -> None:
    if target.suffix == ".gz":
        import gzip

        raw = gzip.compress(raw, mtime=0)
    elif target.suffix == ".xz":
        raw = lzma.compress(raw)
    write_bytes(target, raw)


def to_text(data: Mapping[str, Any]) -> str:
    """Indented outside, one compact line for each row of a list of objects."""
    fields = [f"  {_compact(key)}: {_field(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _field(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return "[\n" + ",\n".join(f"    {_compact(row)}" for row in value) + "\n  ]"
    return _compact(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_compact = json.JSONEncoder(allow_nan=False, default=_plain).encode
_tight = json.JSONEncoder(allow_nan=False, default=_plain, separators=(",", ":")).encode


def shown(value: Any) -> str:
    """A value for an error message: short, whatever it is."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = (
        {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else repr(value)
    )
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"


class Row:
    """A JSON object being read: fields are asked for by type, and whatever is wrong is named with its place.

    `text`, `whole`, `amount`, `flag`, `rate` and `rows` give a field of that kind, or raise the given error with "FILE:
    ops[3]: device" as its place and what was expected as its fix.
    """

    def __init__(self, data: Any, where: str, error: type[LoadmasterError], known: Set[str] | None = None) -> None:
        self.where, self.error = where, error
        if not isinstance(data, dict):
            raise error(f"{shown(data)} stands where an object is needed", where, "write { … } there")
        self.data: dict[str, Any] = data
        if known is not None and not data.keys() <= known:
            raise unknown_key(data, known, where, error)

    def wrong(self, key: str, wanted: str) -> LoadmasterError:
        """The error that says what the field is, and what it should be."""
        return self.error(f"'{key}' is {shown(self.data[key])}", self.where, f"give {wanted}")

    def has(self, key: str) -> bool:
        """Whether the field is given; null counts as not given."""
        return self.data.get(key) is not None

    def any(self, key: str) -> Any:
        """The field whatever it is; the given error where it is missing."""
        if key not in self.data:
            raise self.error(f"'{key}' is missing", self.where, f'add "{key}"')
        return self.data[key]

    def text(self, key: str, default: str | None = None) -> str:
        value = self.any(key) if default is None or self.has(key) else default
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def rows(self, key: str) -> list[Any]:
        value = self.any(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def whole(self, key: str, most: int) -> int:
        """A whole number from 0 to `most`; 3.0 counts as one."""
        value = self.any(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(key, f"a whole number from 0 to {most}")
        return value

    def amount(self, key: str) -> float:
        """A number from 0 up, with or without a point."""
        value = self.any(key)
        if type(value) not in (int, float) or not 0 <= value <= 1e24:
            raise self.wrong(key, "a number from 0 up")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.any(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def rate(self, key: str) -> float:
        """A number above 0."""
        value = self.any(key)
        if type(value) not in (int, float) or not 0 < value <= 1e24:
            raise self.wrong(key, "a number above 0, per second")
        return float(value)


NEEDED = object()


@dataclass(frozen=True)
class Field:
    """How a key of an object is read, and what it is where it is left out; `NEEDED`: it may not be."""

    read: Callable[[Row, str], Any]
    default: Any = NEEDED


def up_to(most: int) -> Callable[[Row, str], int]:
    """A whole number from 0 to `most`."""
    return lambda row, key: row.whole(key, most)


def read_fields(row: Row, table: Mapping[str, Field]) -> dict[str, Any]:
    """The fields of a table, by key."""
    return {
        key: field.default if field.default is not NEEDED and not row.has(key) else field.read(row, key)
        for key, field in table.items()
    }


def without_defaults(source: object, table: Mapping[str, Field]) -> dict[str, Any]:
    """The attributes that a table names, but those that are what they would be if they were left out."""
    values = {key: getattr(source, key) for key in table}
    plain = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in plain.items() if value != table[key].default}


def unknown_key(data: Mapping[str, Any], known: Set[str], where: str, error: type[LoadmasterError]) -> LoadmasterError:
    """The error for a key that the format has not, with the nearest ones it has."""
    key = min(data.keys() - known)
    fix = UnknownName.among("key", key, known).fix
    return error(f"there is no key '{shown(key)[1:-1]}' in this format", where, fix)
