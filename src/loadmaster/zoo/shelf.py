"""The shelf: graphs of the zoo that ship with the package, what is known of each, and remaking them.

A model is a compressed graph and a row of facts, so that planning one needs no torch and no download; remaking it from
its code does. Members of families do not ship: they are captured, and kept where compiled code is.
"""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadmaster.compiled.entries import cache_folder
from loadmaster.errors import LoadmasterError, UnknownName
from loadmaster.files import load_graph, save_graph
from loadmaster.files.writing import write_text
from loadmaster.graph import ACTIVATION, WEIGHT, Graph
from loadmaster.graph.columns import digest
from loadmaster.zoo import ENTRIES, ZooEntry, find

GRAPHS = "graphs"
INDEX = "index.json"
MODES = ("train", "infer")
MEASURED_ON = "1xp100-pcie"  # work and critical path are those of the roofline on this cluster


@dataclass(frozen=True)
class Spot:
    """One graph of the zoo.

    Attributes:
        entry: the model.
        mode: "train" or "infer".
    """

    entry: ZooEntry
    mode: str

    @property
    def name(self) -> str:
        return f"{self.entry.name}/{self.mode}"

    @property
    def file(self) -> str:
        return f"{self.entry.name.replace('/', '.')}.{self.mode}.json.xz"


@dataclass(frozen=True)
class GraphFacts:
    """What the index says of a graph, so that listing the zoo reads none.

    Attributes:
        ops: views included.
        activation_bytes: all that a step makes, alive at once or not.
    """

    digest: str
    ops: int
    planned_ops: int
    tensors: int
    weight_bytes: int
    activation_bytes: int
    flops: int
    work_ns: int
    critical_path_ns: int

    @property
    def parallelism(self) -> float:
        return self.work_ns / self.critical_path_ns


def spot(name: str) -> Spot:
    """The place of "gnmt-4", "gnmt-4/train", "gnmt-4/infer" or "nas-cells/7"; training when nothing is said."""
    entry, training = find(name)
    return Spot(entry, MODES[0] if training else MODES[1])


def on_shelf() -> list[Spot]:
    """Every graph that ships with the package, in the order of the zoo."""
    there = {item.name for item in _folder().iterdir()} if _folder().is_dir() else set()
    return [place for entry in ENTRIES.values() for mode in MODES if (place := Spot(entry, mode)).file in there]


def load_zoo(name: str) -> Graph:
    """The shipped graph of that name; a member of a family is captured, which takes torch and some seconds, once."""
    place = spot(name)
    file = _folder() / place.file
    if file.is_file():
        return load_graph(file)
    if place.entry.name in ENTRIES:
        shipped = [place.name for place in on_shelf()]
        fix = f"make it with 'loadmaster zoo capture {place.name}' and plan that file"
        raise UnknownName.among("shipped graph", place.name, shipped, fix)
    return _captured(place)


def _captured(place: Spot) -> Graph:
    """As the same code made it before, if it did; else made and kept, in place of what other code made."""
    home, name = cache_folder(), place.file.removesuffix(".json.xz")
    if home is None or find_spec("torch") is None:
        return capture_graph(place)
    path = home.parent / "captured" / f"{name}-{_made_from()}.json.xz"
    with suppress(LoadmasterError):
        return load_graph(path)
    graph = capture_graph(place)
    with suppress(LoadmasterError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{name}-*.json.xz"):
            old.unlink()
        save_graph(graph, path)
    return graph


@cache
def _made_from() -> str:
    """Of all that decides what a capture gives: the models, the rooms that make a graph of them, and versions."""
    package = Path(str(resources.files("loadmaster")))
    rooms = ("zoo", "importers", "files", "graph")
    texts = [path.read_bytes() for room in rooms for path in sorted((package / room).rglob("*.py"))]
    return digest(platform.python_version(), version("torch"), *texts)


def capture_graph(place: Spot) -> Graph:
    """Builds the model and captures one step of it. Imports torch."""
    from loadmaster.zoo.capture import capture_entry

    return capture_entry(place.entry, training=place.mode == "train")


def capture(name: str, folder: Path) -> Path:
    """Captures a graph and writes it to the folder; to the shelf itself with its line in the index."""
    place = spot(name)
    graph = capture_graph(place)
    folder.mkdir(parents=True, exist_ok=True)
    save_graph(graph, folder / place.file)
    if folder.resolve() == _folder().resolve() and place.entry.name in ENTRIES:
        _note(place, facts_of(graph))
    return folder / place.file


def facts_of(graph: Graph) -> GraphFacts:
    from loadmaster.cost import price
    from loadmaster.graph.order import longest_path_to

    problem = price(graph, MEASURED_ON)
    own = graph.own_bytes
    return GraphFacts(
        digest=graph.digest,
        ops=graph.num_ops,
        planned_ops=problem.num_ops,
        tensors=graph.num_tensors,
        weight_bytes=int(own[graph.role == WEIGHT].sum()),
        activation_bytes=int(own[graph.role == ACTIVATION].sum()),
        flops=int(graph.flops.sum()),
        work_ns=int(problem.best_ns.sum()),
        critical_path_ns=int(longest_path_to(*problem.graph.dependencies, problem.best_ns).max()),
    )


@cache
def index() -> dict[str, GraphFacts]:
    """What is known of each shipped graph, by its name with the mode."""
    rows = json.loads((_folder() / INDEX).read_text()) if (_folder() / INDEX).is_file() else {}
    return {name: GraphFacts(**row) for name, row in rows.items()}


def shelf_rows() -> list[dict[str, Any]]:
    """A row per shipped graph: name, sizes, work ÷ critical path and source; no graph is read."""
    return [
        {
            "name": place.name,
            "devices": place.entry.devices or None,
            **asdict(facts),
            "work_over_critical_path": round(facts.parallelism, 2),
            "sizes": place.entry.note,
            "source": place.entry.source,
        }
        for place in on_shelf()
        if (facts := index().get(place.name))
    ]


def _note(place: Spot, facts: GraphFacts) -> None:
    """Writes the graph's line of the index, which is in the order of the zoo."""
    known = {**index(), place.name: facts}
    names = [f"{name}/{mode}" for name in ENTRIES for mode in MODES]
    rows = [f"{json.dumps(name)}: {json.dumps(asdict(known[name]))}" for name in names if name in known]
    write_text(_folder() / INDEX, "{\n" + ",\n".join(rows) + "\n}\n")
    index.cache_clear()


def _folder() -> Path:
    return Path(str(resources.files("loadmaster.zoo").joinpath(GRAPHS)))
