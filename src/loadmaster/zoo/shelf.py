"""The shelf: graphs of the zoo that ship with the package, and remaking them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from loadmaster.errors import UnknownName
from loadmaster.files import load_graph, save_graph
from loadmaster.graph import Graph
from loadmaster.zoo import ENTRIES, Entry

GRAPHS = "graphs"
MODES = ("train", "infer")


@dataclass(frozen=True)
class Spot:
    """One graph on the shelf: an entry in one mode."""

    entry: Entry
    mode: str

    @property
    def name(self) -> str:
        return f"{self.entry.name}/{self.mode}"

    @property
    def file(self) -> str:
        return f"{self.entry.name}.{self.mode}.json.xz"


def spot(name: str) -> Spot:
    """The place of "gnmt-4", "gnmt-4/train" or "gnmt-4/infer"; training is meant when nothing is said."""
    base, slash, mode = name.rpartition("/")
    if not slash or mode not in MODES:
        base, mode = name, "train"
    if base not in ENTRIES:
        raise UnknownName.among("model in the zoo", name, ENTRIES, f"zoo:{name}")
    return Spot(ENTRIES[base], mode)


def on_shelf() -> list[Spot]:
    """Every graph that ships with the package, in the order of the zoo."""
    there = {item.name for item in resources.files("loadmaster.zoo").joinpath(GRAPHS).iterdir()}
    return [place for entry in ENTRIES.values() for mode in MODES if (place := Spot(entry, mode)).file in there]


def load_zoo(name: str) -> Graph:
    """The shipped graph of that name."""
    place = spot(name)
    item = resources.files("loadmaster.zoo").joinpath(GRAPHS, place.file)
    if not item.is_file():
        shipped = [place.name for place in on_shelf()]
        raise UnknownName.among("shipped graph", place.name, shipped, f"make it: loadmaster zoo capture {place.name}")
    with resources.as_file(item) as path:
        return load_graph(path)


def capture(name: str, folder: Path | None = None) -> Path:
    """Builds the model, captures its graph and writes it to the folder (the shelf itself when none is given)."""
    from loadmaster.zoo.capture import capture_entry

    place = spot(name)
    graph = capture_entry(place.entry, training=place.mode == "train")
    target = folder or Path(str(resources.files("loadmaster.zoo").joinpath(GRAPHS)))
    target.mkdir(parents=True, exist_ok=True)
    save_graph(graph, target / place.file)
    return target / place.file
