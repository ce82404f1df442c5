"""Best-known values: the least that any method ever reached on a problem, in a dated file that only improves.

A value comes with the method, the seed and the simulations that reached it, so that it can be had again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from loadmaster.bench.records import Place, RunRecord
from loadmaster.errors import UnreadableFile
from loadmaster.files.text import read_json, write_json

SCHEMA = "loadmaster.best/1"


@dataclass(frozen=True)
class KnownValue:
    """The best value of a problem, and how it was found.

    Attributes:
        graph: digest.
        cluster: digest, memory sizes included.
        objective: by name.
        value: of the objective, in its unit.
        method, seed, simulations: that reached it, and after how many simulations.
        date: of the run.
        name: the graph's, for people.
    """

    graph: str
    cluster: str
    objective: str
    value: int
    method: str
    seed: int
    simulations: int
    date: str
    name: str

    @property
    def place(self) -> Place:
        return self.graph, self.cluster, self.objective

    @staticmethod
    def of(record: RunRecord) -> KnownValue:
        at = record.history[-1][0] if record.history else record.simulations
        return KnownValue(*record.place, record.value, record.spec, record.seed, at, record.date, record.row)


class BestKnown:
    """What is known, by problem: graph, cluster with its memory, and objective. An offer that is no better changes
    nothing."""

    def __init__(self, known: Iterable[KnownValue] = ()) -> None:
        self._known: dict[Place, KnownValue] = {}
        for each in known:
            self.offer(each)

    @property
    def values(self) -> Mapping[Place, int]:
        return {place: known.value for place, known in self._known.items()}

    @property
    def all(self) -> list[KnownValue]:
        return list(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, place: Place) -> KnownValue | None:
        return self._known.get(place)

    def offer(self, known: KnownValue) -> bool:
        """Takes it if it is better than what there was."""
        before = self._known.get(known.place)
        better = before is None or known.value < before.value
        if better:
            self._known[known.place] = known
        return better

    def offer_records(self, records: Iterable[RunRecord]) -> int:
        """How many of the runs were better; only plans that fit, fuse nothing and keep to the bound count."""
        usable = (r for r in records if not r.error and r.fits and not r.fuses and r.value >= r.bound)
        return sum(self.offer(KnownValue.of(record)) for record in usable)

    def save(self, path: Path) -> None:
        """Joins what the file holds by now, so that two writers never lose a better value, and replaces it at once."""
        for known in load_best(path)._known.values() if path.exists() else ():
            self.offer(known)
        rows = sorted(self._known.values(), key=lambda known: (known.objective, known.cluster, known.name, known.graph))
        today = datetime.now(UTC).date().isoformat()
        write_json({"schema": SCHEMA, "date": today, "rows": [asdict(row) for row in rows]}, path)


def shipped_path() -> Path:
    """The best values that come with the package."""
    return Path(str(resources.files("loadmaster.bench").joinpath("best_known.json")))


def load_best(path: Path | None = None) -> BestKnown:
    """The values of the file; those that ship with the package when none is given."""
    found = path or shipped_path()
    if not found.exists():
        return BestKnown()
    data = read_json(found)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UnreadableFile(f"'{found}' holds no best-known values", "", f'it must say "schema": "{SCHEMA}"')
    try:
        return BestKnown(KnownValue(**_renamed(row)) for row in data["rows"])
    except (KeyError, TypeError) as error:
        raise UnreadableFile(f"a row cannot be read: {error}", str(found), "restore the file") from None


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a file, which once said "optimizer" for the method."""
    return {"method" if key == "optimizer" else key: value for key, value in row.items()}


def long_specs(simulations: int) -> tuple[str, ...]:
    """Every method that searches, told to use the whole budget."""
    evolved = f"evaluations={simulations}"
    return (
        "placement",
        "anneal",
        "local-search",
        f"brkga:{evolved}",
        f"tuned-brkga:{evolved}",
        f"brkga:{evolved},order=given,by=mirror",
        f"brkga:{evolved},order=memory,by=mirror,blocks=32",
        f"brkga:{evolved},by=edges,blocks=64",
        "anneal:start=expert",
        f"regal:{evolved}",
        f"gas:{evolved}",
    )
