"""The problems of the suites: graphs of a corpus, of the zoo, generated ones and those that peers are compared on.

A row knows its cluster and its objective, and reads its graph when it is needed. Where memory is measured, devices get
room for all, so that what is compared is what plans need and not what they are allowed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from loadmaster.cluster import Cluster
from loadmaster.errors import UnreadableFile
from loadmaster.files import load_records
from loadmaster.graph import Graph
from loadmaster.problem.objective import objective_named
from loadmaster.zoo import ENTRIES, FAMILIES, MEMBERS
from loadmaster.zoo.shelf import index, load_zoo, on_shelf
from loadmaster.zoo.synthetic import KINDS, generate

TIB = 2**40

Mode = Literal["training", "inference", "all"]


@dataclass(frozen=True)
class SuiteRow:
    """A graph, where it runs, and what is to be small. The graph is read when it is needed.

    Attributes:
        name: of the graph.
        digest: of the graph, known before it is read.
        graph: reads it.
        cluster: that it runs on.
        objective: by name.
    """

    name: str
    digest: str
    graph: Callable[[], Graph]
    cluster: Cluster
    objective: str


@dataclass(frozen=True)
class Source:
    """Where graphs come from and how many are taken.

    Attributes:
        corpus: a .jsonl file of graphs, for suites of one.
        mode: training steps, inferences, or all.
        limit: at most so many graphs.
        part: the second of three machines takes (2, 3)
    """

    corpus: Path | None = None
    mode: Mode = "training"
    limit: int | None = None
    part: tuple[int, int] = (1, 1)

    def takes(self, number: int) -> bool:
        return number % self.part[1] == self.part[0] - 1


def _corpus_path(given: Path | None) -> Path:
    if given is not None:
        return given
    folder = Path(os.environ.get("LOADMASTER_SHARED", "../shared"))
    path = folder / "corpus" / "valid.jsonl.xz"
    if not path.is_file():
        fix = "make one: 'loadmaster lab corpus graphs', then --corpus graphs/valid.jsonl.xz; 'synthetic' needs none"
        raise UnreadableFile("there is no corpus of graphs here", "--corpus", fix)
    return path


def corpus_rows(source: Source, cluster: str, objective: str) -> Iterator[SuiteRow]:
    """Graphs of a .jsonl file, of one mode unless all are asked for; a line that says no mode counts as any. Where
    memory is what is measured, devices have room for each."""
    place, number = Cluster.preset(cluster), 0
    place = roomy(place) if objective_named(objective).of_memory else place
    for graph, origin in load_records(_corpus_path(source.corpus)):
        if source.mode != "all" and origin.get("mode", source.mode) != source.mode:
            continue
        if source.limit is not None and number >= source.limit:
            return
        if source.takes(number):
            yield SuiteRow(graph.name, graph.digest, partial(_same, graph), place, objective)
        number += 1


def _same(graph: Graph) -> Graph:
    return graph


def _some(source: Source, rows: Iterator[SuiteRow]) -> Iterator[SuiteRow]:
    for number, row in enumerate(rows):
        if source.limit is not None and number >= source.limit:
            return
        if source.takes(number):
            yield row


def _zoo_row(name: str, cluster: Cluster, objective: str) -> SuiteRow:
    facts = index().get(name)
    return SuiteRow(name, facts.digest if facts else load_zoo(name).digest, partial(load_zoo, name), cluster, objective)


def go_rows(source: Source, only: tuple[str, ...] = ()) -> Iterator[SuiteRow]:
    """GO's workloads, each on as many P100 as it was published for."""
    shipped = {place.name for place in on_shelf()}
    names = [entry.name for entry in ENTRIES.values() if entry.devices and (not only or entry.name in only)]
    rows = (
        _zoo_row(f"{name}/train", Cluster.preset(f"{ENTRIES[name].devices}xp100-pcie"), "step-time")
        for name in names
        if f"{name}/train" in shipped
    )
    return _some(source, rows)


def model_rows(source: Source, models: tuple[str, ...], clusters: tuple[str, ...]) -> Iterator[SuiteRow]:
    """Training steps of some models of the zoo on each cluster, for step time."""
    rows = (_zoo_row(f"{name}/train", Cluster.preset(place), "step-time") for name in models for place in clusters)
    return _some(source, (replace(row, name=f"{row.name} on {row.cluster.name}") for row in rows))


def family_rows(source: Source, clusters: tuple[str, ...]) -> Iterator[SuiteRow]:
    """Members of the families that no policy was trained on: those whose number leaves 3 when divided by 4."""
    names = (f"{family}/{number}/train" for number in range(3, MEMBERS, 4) for family in FAMILIES)
    rows = (
        SuiteRow(f"{name} on {place}", graph.digest, partial(_same, graph), Cluster.preset(place), "step-time")
        for name in names
        for graph in (load_zoo(name),)
        for place in clusters
    )
    return _some(source, rows)


def zoo_rows(source: Source, cluster: str, objective: str) -> Iterator[SuiteRow]:
    """Every shipped step of the wanted mode, smallest first, with room for each: memory is what is measured."""
    wanted = {"training": ("train",), "inference": ("infer",), "all": ("train", "infer")}[source.mode]
    facts = index()
    names = [place.name for place in on_shelf() if place.mode in wanted and place.name in facts]
    names.sort(key=lambda name: facts[name].planned_ops)
    place = roomy(Cluster.preset(cluster))
    return _some(source, (_zoo_row(name, place, objective) for name in names))


def roomy(cluster: Cluster) -> Cluster:
    """The cluster without limits of memory."""
    return replace(cluster, devices=tuple(replace(device, memory_bytes=TIB) for device in cluster.devices))


OF_EACH_KIND = 10  # generated graphs where no limit is given: fifty in all


def synthetic_rows(source: Source, cluster: str, objective: str) -> Iterator[SuiteRow]:
    """Generated graphs, the kinds in turn; the limit may ask for more than there are otherwise."""
    place = Cluster.preset(cluster)
    count = OF_EACH_KIND if source.limit is None else -(-source.limit // len(KINDS))
    by_kind = [list(generate(kind, max(1, count))) for kind in KINDS]
    graphs = (graph for turn in zip(*by_kind, strict=True) for graph in turn)
    rows = (SuiteRow(graph.name, graph.digest, partial(_same, graph), place, objective) for graph in graphs)
    return _some(source, rows)


def peer_zoo_rows(source: Source) -> Iterator[SuiteRow]:
    return zoo_rows(source, "1xa100-nvlink", "peak-memory")


# Training steps, with how many P100 they are planned on and the least memory of each: the largest peak of the best
# plan that `auto` finds for peak memory in 30,000 simulations, seed 0, on devices without limits. Fixed, so that the
# rows stay the same when searches get better.
LEAST_BYTES: Mapping[str, tuple[int, int]] = {
    "transformer-xl-4": (4, 2_441_195_520),
    "transformer-xl-8": (8, 2_457_268_224),
    "wavenet-4x36": (4, 3_413_646_340),
    "vit-base": (4, 1_342_404_000),
    "gpt2": (4, 6_610_826_240),
    "bert-base": (8, 1_500_250_112),
    "inception-v3-b32": (2, 1_767_745_500),
    "unet-ddpm": (8, 2_888_869_376),
}
TIGHT = (1.1, 1.25, 1.5)  # times the least


def tight_rows(source: Source) -> Iterator[SuiteRow]:
    """Each on devices with little more memory than the least it needs."""
    rows = (_tight_row(name, times) for name in LEAST_BYTES for times in TIGHT)
    return _some(source, rows)


def _tight_row(name: str, times: float) -> SuiteRow:
    devices, least = LEAST_BYTES[name]
    cluster = Cluster.preset(f"{devices}xp100-pcie")
    small = tuple(replace(device, memory_bytes=math.ceil(times * least)) for device in cluster.devices)
    cluster = replace(cluster, name=f"{cluster.name}, {times:g} of the least", devices=small)
    row = _zoo_row(f"{name}/train", cluster, "step-time")
    return replace(row, name=f"{name} x {times:g}")
