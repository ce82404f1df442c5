"""GGUF: the header of a model file as llama.cpp reads it. In: a path. Out: metadata and a table of tensors.

Only the header is read, through a map of the file; of no array more is kept than `LONGEST` numbers, of a tokenizer's
none. A model in several files (`-00001-of-00003.gguf`) is read as one. Format: ggml-org/ggml, docs/gguf.md. Everything
a file claims is checked against its length before anything is made of it.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from loadmaster.errors import UnreadableFile

LONGEST = 4096  # numbers of an array that are kept: one for each layer, never one for each word
MOST_FILES = 4096

# ggml type -> (name, values in a block, bytes of a block): ggml/src/ggml-common.h
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GgufTensor:
    """One row of the table: the shape counts the fastest dimension first, as ggml does."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int

    @property
    def values(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Gguf:
    """A model's header.

    Attributes:
        path: of its first file.
        metadata: by key; arrays of words, and long ones, as their length alone.
        tensors: of all its files.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


@dataclass(frozen=True)
class Length:
    """Stands for an array that is not kept."""

    count: int


def read_gguf(path: str | Path) -> Gguf:
    """The header of a model, of all its files where there are several; UnreadableFile says what is wrong where."""
    files = _files(Path(path))
    parts = [_read(file) for file in files]
    metadata, tensors = parts[0][0], tuple(tensor for _, found in parts for tensor in found)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _wrong(files[0], f"the tensor '{twice}' is there twice")
    told = metadata.get("split.tensors.count")
    if len(files) > 1 and isinstance(told, int) and told != len(tensors):
        raise _wrong(files[0], f"its files have {len(tensors)} tensors, not {told}")
    return Gguf(files[0], metadata, tensors)


def _files(path: Path) -> list[Path]:
    found = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if found is None:
        return [path]
    count = int(found[3])
    if not 1 <= int(found[2]) <= count <= MOST_FILES:
        raise _wrong(path, f"'{path.name}' is no part of {count} files")
    files = [path.with_name(f"{found[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        what = f"{len(missing)} of {count} files of the model are not there, the first is '{missing[0]}'"
        raise UnreadableFile(what, str(path), "download the missing files into the same folder")
    return files


def _read(path: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()
    except ValueError:
        raise _wrong(path, f"'{path}' is empty") from None
    except OSError as error:
        raise UnreadableFile(f"'{path}' cannot be read: {error.strerror}", str(path), "check the path") from None


def _wrong(path: Path, what: str) -> UnreadableFile:
    return UnreadableFile(what, str(path), "is it a complete GGUF file? download or convert it again")


class _Reader:
    """Goes through a header from its start; every length is checked before it is used."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def header(self) -> tuple[dict[str, Any], list[GgufTensor]]:
        if self.data[:4] != b"GGUF":
            raise _wrong(self.path, f"'{self.path}' is no GGUF file")
        self.at = 4
        version = self.take("I")
        if version not in (2, 3):
            swapped = "it is big-endian" if version in (0x02000000, 0x03000000) else f"its version is {version}"
            raise _wrong(self.path, f"{swapped}; versions 2 and 3, little-endian, can be read")
        num_tensors, num_keys = self.count(24, "tensors"), self.count(13, "keys")
        metadata = {}
        for _ in range(num_keys):
            key = self.text("a key")
            metadata[key] = self.value(self.take("I"), key)
        rows = [self.tensor() for _ in range(num_tensors)]
        self._check_length(metadata, rows)
        return metadata, [tensor for tensor, _ in rows]

    def _check_length(self, metadata: dict[str, Any], rows: list[tuple[GgufTensor, int]]) -> None:
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= 2**20:
            raise _wrong(self.path, f"its alignment is {align}")
        start = -(-self.at // align) * align
        end = max((start + offset + tensor.nbytes for tensor, offset in rows), default=0)
        if end > len(self.data):
            raise _wrong(self.path, f"it ends at byte {len(self.data):,}, its tensors at {end:,}")

    def take(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        self.need(size)
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += size
        return value

    def need(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise _wrong(self.path, f"its header is cut off at byte {len(self.data):,}")

    def count(self, least: int, what: str) -> int:
        """A number of things of which each takes so many bytes at least."""
        count = int(self.take("Q"))
        if count * least > len(self.data) - self.at:
            raise _wrong(self.path, f"it claims {count:,} {what} in {len(self.data):,} bytes")
        return count

    def text(self, what: str) -> str:
        size = self.count(1, f"bytes of {what}")
        self.at += size
        try:
            return self.data[self.at - size : self.at].decode()
        except UnicodeDecodeError:
            raise _wrong(self.path, f"{what} is not UTF-8 at byte {self.at - size:,}") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.text(f"'{key}'")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise _wrong(self.path, f"'{key}' is of the unknown type {kind}")
        return self.take(_SCALARS[kind])

    def array(self, key: str) -> Any:
        kind = self.take("I")
        if kind == _STRING:
            count = self.count(8, f"words in '{key}'")
            for _ in range(count):
                size = self.take("Q")
                self.need(size)
                self.at += size
            return Length(count)
        if kind not in _SCALARS:
            raise _wrong(self.path, f"'{key}' is an array of the unknown type {kind}")
        code = _SCALARS[kind]
        size = struct.calcsize(f"<{code}")
        count = self.count(size, f"numbers in '{key}'")
        start, self.at = self.at, self.at + count * size
        return Length(count) if count > LONGEST else list(struct.unpack_from(f"<{count}{code}", self.data, start))

    def tensor(self) -> tuple[GgufTensor, int]:
        name, dims = self.text("a tensor's name"), self.take("I")
        if dims > 4:
            raise _wrong(self.path, f"the tensor '{name}' has {dims} dimensions")
        shape = tuple(int(self.take("Q")) for _ in range(dims)) or (1,)
        kind, offset = self.take("I"), int(self.take("Q"))
        if kind not in TYPES:
            what = f"the tensor '{name}' is of type {kind}, which is not known here"
            raise UnreadableFile(what, str(self.path), "convert the model to a type such as Q4_K, Q8_0 or BF16")
        label, block, size = TYPES[kind]
        if min(shape) < 1 or prod(shape) > 2**60 or shape[0] % block or offset > 2**60:
            raise _wrong(self.path, f"the tensor '{name}' of type {label} cannot have the shape {shape}")
        return GgufTensor(name, shape, label, prod(shape) // block * size), offset
