"""The plans found so far, kept for the next problem that is like one of them.

A folder of small files, one for each problem, named by what the problem is; the least recently used go when it grows
too large. It is the user's alone: nothing is sent anywhere, and no file is more than one can delete.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InvalidPlan, UnwritableFile
from loadmaster.files.writing import write_bytes
from loadmaster.graph.columns import digest
from loadmaster.optimizers.experience.adapting import adapt
from loadmaster.optimizers.experience.known import Known
from loadmaster.optimizers.experience.likeness import Sight
from loadmaster.problem import Problem
from loadmaster.search import Result, Start

MAGIC = b"loadmaster known plan 1\n"
MOST_HEADER = 4096
MOST_STORED = 64 * 2**20  # bytes in all: some thousand plans
SKETCHED = 64  # smallest hashes kept of a graph's classes: likeness to within about 0.06 (Broder 1997)
LEAST_LIKE = 0.1  # share of the sketch: less, and what is left in common are the names of ops
LOOKED_INTO = 4  # entries read whole, the most alike
LEAST_CLOSE = 0.5  # share of the work whose like is found by its surroundings


@dataclass(frozen=True)
class Entry:
    """What the head of a file says of a plan."""

    path: Path
    model: str
    cluster: str
    objective: str
    value: int
    ops: int
    sketch: tuple[int, ...]

    @property
    def origin(self) -> str:
        return f"{self.model} on {self.cluster}"


@dataclass(frozen=True)
class Store:
    """The folder, and how much may be in it."""

    folder: Path
    most_bytes: int = MOST_STORED

    @staticmethod
    def default() -> Store | None:
        """The user's own: `$LOADMASTER_PLANS`, or where the platform keeps data; None where that is "off"."""
        given = os.environ.get("LOADMASTER_PLANS")
        if given:
            return None if given == "off" else Store(Path(given))
        base = _data_folder()
        return None if base is None else Store(base / "loadmaster" / "plans")

    def entries(self) -> list[Entry]:
        """All that can be read, the last used first."""
        with contextlib.suppress(OSError):
            paths = sorted(self.folder.glob("*.plan"), key=lambda path: -_used(path))
            return [entry for path in paths if (entry := _head(path)) is not None]
        return []

    def starts(self, problem: Problem) -> list[Start]:
        """Plans of problems like this one, made to suit it, the most alike first."""
        seen = Sight.of(problem.graph)
        sketch = sketch_of(seen)
        named = problem.objective.name
        near = [(alike(sketch, entry.sketch), entry) for entry in self.entries() if entry.objective == named]
        near = sorted((pair for pair in near if pair[0] >= LEAST_LIKE), key=lambda pair: -pair[0])
        found: list[Start] = []
        for _, entry in near[:LOOKED_INTO]:
            with contextlib.suppress(InvalidPlan, OSError):  # torn or foreign: as good as absent
                plans, close = adapt(_known(entry.path), problem, seen)
                if close >= LEAST_CLOSE:
                    os.utime(entry.path)
                    found.extend(Start(plan, entry.origin) for plan in plans)
        return found

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
            write_bytes(path, _packed(result), durable=False)
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


def sketch_of(sight: Sight) -> tuple[int, ...]:
    """The smallest hashes of the classes that occur, at the level of two steps around an op."""
    return tuple(int(name) for name in np.unique(sight.classes[2])[:SKETCHED])


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The share that two sets of classes have in common, from their smallest hashes."""
    smallest = sorted({*one, *other})[:SKETCHED]
    return len({*smallest} & {*one} & {*other}) / max(1, len(smallest))


def _key(problem: Problem) -> str:
    limits = problem.memory_bytes.tolist()
    return digest(problem.source.digest, problem.cluster.digest, problem.objective.name, limits, problem.basis)


def _packed(result: Result) -> bytes:
    problem = result.problem
    head = {
        "model": problem.source.name[:200],
        "cluster": problem.cluster.name[:200],
        "objective": problem.objective.name,
        "value": result.value,
        "ops": problem.num_ops,
        "sketch": sketch_of(Sight.of(problem.graph)),
    }
    return MAGIC + json.dumps(head).encode() + b"\n" + Known.of(problem, result.plan).to_bytes()


def _head(path: Path) -> Entry | None:
    """None for what is no plan of ours."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            data: Any = json.loads(file.readline(MOST_HEADER))
        model, cluster, objective = (str(data[key]) for key in ("model", "cluster", "objective"))
        sketch = tuple(int(number) for number in data["sketch"])
        return Entry(path, model, cluster, objective, int(data["value"]), int(data["ops"]), sketch)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _known(path: Path) -> Known:
    data = path.read_bytes()
    return Known.from_bytes(data[data.index(b"\n", len(MAGIC)) + 1 :], str(path))


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
