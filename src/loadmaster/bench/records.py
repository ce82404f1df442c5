"""Records: what one run of one method gave, a JSON line each, so that a benchmark that was stopped can continue.

The key of a record is the problem (by digests), the method, the budget and the seed: what is there already is not run
again, and files of several machines can be put together.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from loadmaster.cluster import Cluster
from loadmaster.errors import UnreadableFile
from loadmaster.files.writing import unwritable
from loadmaster.graph.columns import digest

Place = tuple[str, str, str]  # digests of graph and cluster, objective: which problem it was


@dataclass(frozen=True)
class RunRecord:
    """One run: which problem, which method under which budget, and what came of it.

    Attributes:
        row: the graph's name.
        graph: its digest.
        cluster: its name.
        cluster_digest: memory sizes included.
        objective: by name.
        spec, budget, seed: of the method.
        ops, devices: of the problem.
        value: step ns, or the largest peak in bytes.
        over_bytes: over the memory of the devices; 0: it fits.
        bound: what no plan can beat, in the unit of the value.
        fuses: whether the plan has kernels of several ops.
        step_ns, peak_bytes: of the plan, whatever the objective.
        simulations, seconds: that it took.
        history: (simulations, value) of improvements that fit.
        date, version: of the run and of loadmaster.
        error: why there is no plan; "": there is one.
    """

    row: str
    graph: str
    cluster: str
    cluster_digest: str
    objective: str
    spec: str
    budget: str
    seed: int
    ops: int = 0
    devices: int = 0
    value: int = 0
    over_bytes: int = 0
    bound: int = 0
    fuses: bool = False
    step_ns: int = 0
    peak_bytes: int = 0
    simulations: int = 0
    seconds: float = 0.0
    history: tuple[tuple[int, int], ...] = ()
    date: str = ""
    version: str = ""
    error: str = ""

    @property
    def place(self) -> Place:
        return self.graph, self.cluster_digest, self.objective

    @property
    def key(self) -> tuple[str, ...]:
        return *self.place, self.spec, self.budget, str(self.seed)

    @property
    def fits(self) -> bool:
        return self.over_bytes == 0

    def to_line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=True) + "\n"


def cluster_key(cluster: Cluster) -> str:
    """As Cluster.digest, with the memory sizes: they decide what fits."""
    return digest("bench/1", cluster.digest, cluster.memory_bytes.tolist())


class RunLedger:
    """The records of a suite in one file. Lines are only ever added; the last one of a key holds.

    A line that a kill cut short is ended and left out when the file is next opened: its run counts as not done.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records = {record.key: record for record in read_records(path)}

    @property
    def records(self) -> list[RunRecord]:
        return list(self._records.values())

    def finished(self, key: tuple[str, ...]) -> bool:
        """A run that failed is not finished: it may have been repaired since."""
        return key in self._records and not self._records[key].error

    def get(self, key: tuple[str, ...]) -> RunRecord | None:
        return self._records.get(key)

    def add(self, record: RunRecord) -> None:
        self._records[record.key] = record
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path.parent, error) from error
        append(self.path, record.to_line())


class Sheet(RunLedger):
    """Records of a row that runs elsewhere: what is known of it, and what it adds. No file."""

    def __init__(self, known: Iterable[RunRecord]) -> None:
        self._records = {record.key: record for record in known}
        self.added: list[RunRecord] = []

    def add(self, record: RunRecord) -> None:
        self._records[record.key] = record
        self.added.append(record)


def append(path: Path, line: str) -> None:
    """Adds a line in one write, after ending one that a kill cut short; several processes may do so at once."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        size = os.lseek(handle, 0, os.SEEK_END)
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        _write_all(handle, (b"\n" if torn else b"") + line.encode())
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    """A write may take a part only, on a disk that is nearly full; the rest then says why."""
    while data:
        data = data[os.write(handle, data) :]


def read_records(path: Path) -> Iterable[RunRecord]:
    """Every whole line; one that a kill cut short is left out, and its run counts as not done."""
    return [_record(data, path) for data in read_lines(path) if "spec" in data]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a ledger; one that was cut off when a run was killed is left out."""
    if not os.path.exists(path):
        return []
    found = []
    for line in path.read_bytes().split(b"\n"):  # of bytes: in text, other characters end lines too
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            found.append(data)
    return found


_FIELDS = frozenset(field.name for field in fields(RunRecord))


def _record(data: dict[str, Any], path: Path) -> RunRecord:
    known = {key: value for key, value in data.items() if key in _FIELDS}
    for key, value in known.items():
        if key != "history" and not _is_kind(value, _KINDS[key]):
            raise _no_record(f"'{key}' is {str(value)[:40]!r}", path)
    try:
        known["history"] = tuple((int(at), int(value)) for at, value in known.get("history", ()))
        return RunRecord(**known)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_record(str(error), path) from None


_KINDS = {field.name: str(field.type) for field in fields(RunRecord)}
_MOST = 2**63  # of a whole number


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "int":
        return type(value) is int and abs(value) < _MOST
    if kind == "float":
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value).__name__ == kind


def _no_record(what: str, path: Path) -> UnreadableFile:
    return UnreadableFile(f"a line is no record: {what}", str(path), "remove that line, or give another --out folder")
