"""Libraries: many plans in one file, made by training, which nobody writes to any more.

`loadmaster lab train plans` writes one: a zip archive, so that a plan is read without the others,
with a card that says how they came about.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from loadmaster.errors import InvalidPlan
from loadmaster.files.writing import writing
from loadmaster.methods.experience.entries import MAGIC, MOST_HEADER, PlanHead, head_of

CARD = "card.json"
# What Python's zip files raise where bytes are not as they should be: RuntimeError asks for a password.
_DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
MOST_ENTRY = 2**26  # bytes, packed


@dataclass(frozen=True)
class Library:
    """A zip archive with an entry for each plan, and a card that says how they came about."""

    path: Path

    @staticmethod
    def write(path: str | PathLike[str], plans: Iterable[tuple[str, bytes]], card: Mapping[str, Any]) -> Library:
        """The same plans and card always give the same bytes."""
        with writing(path) as part, zipfile.ZipFile(part, "w") as archive:
            archive.writestr(zipfile.ZipInfo(CARD), json.dumps(card, indent=1))
            for name, data in sorted(plans):
                archive.writestr(zipfile.ZipInfo(f"{name}.plan"), data)  # packed already
        return Library(Path(path))

    @property
    def card(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._member(CARD, MOST_ENTRY))
        return found

    def entries(self) -> list[PlanHead]:
        return list(_heads(self.path, self.path.stat().st_mtime_ns))

    def read(self, entry: PlanHead) -> bytes:
        return self._member(entry.name, MOST_ENTRY)

    def used(self, entry: PlanHead) -> None:
        """Nothing is noted: the file is not ours to write."""

    def _member(self, name: str, most: int) -> bytes:
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(name) as file:
                return file.read(most)
        except (KeyError, *_DAMAGE) as error:
            raise InvalidPlan(f"this is no library of plans ({error})", str(self.path), "train it again") from error


def is_library(path: str | PathLike[str]) -> bool:
    """Whether it is a library of plans (a zip file), not the file of one plan."""
    try:
        return zipfile.is_zipfile(path)
    except ValueError:  # no name that a file can have
        return False


@lru_cache(maxsize=4)
def _heads(path: Path, changed: int) -> tuple[PlanHead, ...]:
    """Those that can be read; a library that changes is read again."""
    found = []
    with contextlib.suppress(*_DAMAGE), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".plan"):
                with archive.open(info) as file:
                    found.append(head_of(file.read(len(MAGIC) + MOST_HEADER), info.filename))
    return tuple(entry for entry in found if entry is not None)
