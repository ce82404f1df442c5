"""What was measured on this machine, in the user's cache folder under a digest of hardware and versions.

Where that folder cannot be written to, this process remembers it, and says so once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from loadmaster.cluster import Cluster
from loadmaster.compiled.entries import cache_folder
from loadmaster.cost import Learned, Measured
from loadmaster.errors import UnwritableFile
from loadmaster.files import load_cluster, save_cluster
from loadmaster.files.costs import load_costs, save_costs
from loadmaster.files.text import read_json, write_json
from loadmaster.files.writing import unwritable
from loadmaster.graph.columns import digest
from loadmaster.runtime.machine import identity
from loadmaster.runtime.quiet import was_busy

Kind = TypeVar("Kind")
References = dict[str, int]  # by kind of device, ns

_UNWRITTEN: dict[Path, Any] = {}  # what no folder takes


@dataclass(frozen=True)
class Kept:
    """The files of this machine: its cluster, times of ops, and references.

    Attributes:
        folder: where they lie.
        name: of this machine's hardware and versions.
    """

    folder: Path
    name: str

    @staticmethod
    def here() -> Kept:
        compiled = cache_folder()
        folder = Path(os.devnull) if compiled is None else compiled.parent  # no home: nothing can be written
        return Kept(folder / "measured", digest("here", *identity()))

    def cluster(self) -> Cluster | None:
        return _read(self._path("cluster"), load_cluster)

    def costs(self) -> Measured:
        return _read(self._path("costs"), load_costs) or Measured({})

    def keep_costs(self, costs: Measured) -> None:
        _write(self._path("costs"), costs, save_costs)

    def quietest_ns(self) -> References:
        """The quietest references ever seen."""
        return self._references("quietest")

    def keep_quietest(self, quietest: Mapping[str, int]) -> None:
        self._keep_references({**self.quietest_ns(), **quietest}, self._references("machine"))

    def forget_references(self) -> None:
        self._keep_references({}, {})

    def keep_machine(self, cluster: Cluster, learned: Mapping[str, Learned], beside: Mapping[str, int]) -> None:
        """A machine as it was measured, and the references beside that."""
        _write(self._path("cluster"), cluster, save_cluster)
        costs = self.costs()
        self.keep_costs(Measured(costs.times, {**costs.fallback, **learned}))
        self._keep_references(self.quietest_ns(), beside)

    def machine_was_busy(self) -> bool:
        """Whether the cluster was measured under load, as far as is known today."""
        quietest = self.quietest_ns()
        return any(was_busy(ns, quietest.get(kind, 0)) for kind, ns in self._references("machine").items())

    def _path(self, what: str) -> Path:
        return self.folder / f"{what}-{self.name}.json"

    def _references(self, what: str) -> References:
        data = _read(self._path("references"), read_json)
        found = data.get(what) if isinstance(data, dict) else None
        return {str(kind): ns for kind, ns in found.items() if type(ns) is int} if isinstance(found, dict) else {}

    def _keep_references(self, quietest: Mapping[str, int], machine: Mapping[str, int]) -> None:
        data = {"quietest": dict(quietest), "machine": dict(machine)}
        _write(self._path("references"), data, write_json)


def _read(path: Path, load: Callable[[Path], Kind]) -> Kind | None:
    if path in _UNWRITTEN:
        found: Kind = _UNWRITTEN[path]
        return found
    return load(path) if os.path.exists(path) else None


def _write(path: Path, value: Kind, save: Callable[[Kind, Path], None]) -> None:
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        save(value, path)
    except UnwritableFile as error:
        if not _UNWRITTEN:
            fix = "set LOADMASTER_CACHE to a folder that can be written"
            warnings.warn(f"measurements cannot be kept beyond this process ({error.what}); {fix}", stacklevel=3)
        _UNWRITTEN[path] = value
