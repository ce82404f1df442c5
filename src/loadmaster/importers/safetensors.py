"""Safetensors: names, types and shapes of a folder's tensors from the headers of its files; no weight is read.

A file begins with the length of its header in 8 bytes, then comes the header as JSON: name to dtype, shape and place
(huggingface/safetensors, README.md, "Format"). `model.safetensors.index.json` names the files of a model in parts.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from loadmaster.errors import UnreadableFile

LONGEST_HEADER = 100 * 2**20  # as the reference reader has it


@dataclass(frozen=True)
class StoredTensor:
    """A row of a header; the last dimension is the fastest."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int

    @property
    def values(self) -> int:
        return prod(self.shape)


def read_tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Every tensor of the folder's model; UnreadableFile says what is wrong where."""
    found = [tensor for file in _files(folder) for tensor in _read(file)]
    if len({tensor.name for tensor in found}) < len(found):
        raise UnreadableFile("a tensor is in two files", str(folder), "keep the files of one model in the folder")
    return tuple(found)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = folder / "model.safetensors"
        return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableFile(f"'{index}' is no index of files", str(index), "download the model again") from None
    files = [folder / Path(str(name)).name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        what = f"{len(missing)} of {len(files)} files of the model are not there, the first is '{missing[0]}'"
        raise UnreadableFile(what, str(folder), "download the missing files into the same folder")
    return files


def _read(path: Path) -> list[StoredTensor]:
    def wrong(what: str) -> UnreadableFile:
        return UnreadableFile(f"'{path.name}' {what}", str(path), "is it complete? download it again")

    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length + 8 > size or length > LONGEST_HEADER:
                raise wrong(f"claims a header of {length:,} bytes and has {size:,}")
            header = json.loads(file.read(length))
        rows = {name: row for name, row in header.items() if name != "__metadata__"}
        return [_row(name, row, size - 8 - length, wrong) for name, row in rows.items()]
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, RecursionError):
        raise wrong("has a header that is no JSON") from None


def _row(name: str, row: Any, most: int, wrong: Any) -> StoredTensor:
    try:
        begin, end = row["data_offsets"]
        shape = tuple(row["shape"])
        if not all(isinstance(n, int) and 0 <= n < 2**48 for n in (*shape, begin, end)) or not begin <= end <= most:
            raise wrong(f"ends before its tensor '{name}' does")
        return StoredTensor(name, shape, str(row["dtype"]), end - begin)
    except (KeyError, TypeError):
        raise wrong(f"does not say where '{name}' is") from None
