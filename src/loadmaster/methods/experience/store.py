"""The plans found so far, kept for the next problem that is like one of them.

A folder of small files, one for each problem, named by what the problem is; the least recently used go when it grows
too large. It is the user's alone: nothing is sent anywhere, and no file is more than one can delete.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadmaster.errors import UnwritableFile
from loadmaster.files.writing import write_bytes
from loadmaster.graph.columns import digest
from loadmaster.methods.experience.choosing import starts_like
from loadmaster.methods.experience.entries import MAGIC, MOST_HEADER, PlanHead, head_of, packed
from loadmaster.problem import Problem
from loadmaster.search import Result, Start

MOST_STORED = 64 * 2**20  # bytes in all: some thousand plans


@dataclass(frozen=True)
class Store:
    """The folder, and how much may be in it.

    Attributes:
        scopes: whether ops are known by the names of their modules too.
    """

    folder: Path
    most_bytes: int = MOST_STORED
    scopes: bool = True

    @staticmethod
    def default() -> Store | None:
        """The user's own: `$LOADMASTER_PLANS`, or where the platform keeps data; None where that is "off"."""
        given = os.environ.get("LOADMASTER_PLANS")
        if given:
            return None if given == "off" else Store(Path(given))
        base = _data_folder()
        return None if base is None else Store(base / "loadmaster" / "plans")

    def entries(self) -> list[PlanHead]:
        """All that can be read, the last used first."""
        with contextlib.suppress(OSError):
            paths = sorted(self.folder.glob("*.plan"), key=lambda path: -_used(path))
            return [entry for path in paths if (entry := _head(path)) is not None]
        return []

    def read(self, entry: PlanHead) -> bytes:
        return (self.folder / entry.name).read_bytes()

    def used(self, entry: PlanHead) -> None:
        """Notes that it was, so that others go first."""
        os.utime(self.folder / entry.name)

    def starts(self, problem: Problem) -> list[Start]:
        """Plans of problems like this one, made to suit it, the most alike first."""
        return starts_like(problem, [self])

    def remember(self, result: Result) -> bool:
        """Keeps the plan unless a better one of the same problem is there, or it cannot be written; True if kept."""
        if not result.fits:
            return False
        path = self.folder / f"{_key(result.problem)}.plan"
        before = _head(path)
        if before is not None and before.value <= result.value:
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(path, packed(result, self.scopes), durable=False)
        except (OSError, UnwritableFile):  # a home that cannot be written: every plan works without
            return False
        self._shrink()
        return True

    def clear(self) -> int:
        """Removes every plan; how many there were."""
        paths = list(self._paths())
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    @property
    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self._paths())

    def _paths(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from self.folder.glob("*.plan")

    def _shrink(self) -> None:
        total = self.nbytes
        for path in sorted(self._paths(), key=_used):
            if total <= self.most_bytes:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)


def _key(problem: Problem) -> str:
    limits = problem.memory_bytes.tolist()
    return digest(problem.source.digest, problem.cluster.digest, problem.objective.name, limits, problem.basis)


def _head(path: Path) -> PlanHead | None:
    """None for what is no plan of ours."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return head_of(file.read(len(MAGIC) + MOST_HEADER), path.name)
    return None


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _data_folder() -> Path | None:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Application Support")
    else:
        base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(base) if base and os.path.isabs(base) else None
