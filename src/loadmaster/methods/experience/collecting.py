"""Long searches on many graphs, kept in one library: `loadmaster lab train plans`. Nothing is fitted; a new problem
begins from the plans of those that are most like it.

A plan is kept only where the long search found more than a short one by a given share. Searches that are done already
are not repeated when a run is taken up again.
"""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.files import graph_from_json
from loadmaster.files.text import parse_json, read_lines
from loadmaster.files.writing import write_bytes, write_text
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import digest, ints
from loadmaster.methods.experience.entries import packed
from loadmaster.methods.experience.library import Library
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.search.workers import in_order

FEW = 200  # simulations of the search that a kept plan must be better than
TRAINING_SHARE = 0.75  # of the graphs: inference has little to gain


@dataclass(frozen=True)
class PlanSettings:
    """Which plans are kept.

    Attributes:
        corpus: a .jsonl file of graphs.
        out: folder of the plans and the library.
        workers: processes that search; 0: one per core.
        minutes: no search begins that would not end by then.
        on: clusters, with commas.
        seconds: of each search.
        simulations: of each, instead; the same plans on every machine.
        batch: times the activations and the work of the graphs.
        fewest, most: ops of a graph.
        graphs: at most so many; 0: all.
        scopes: whether ops are known by the names of their modules too; no: models of other people match.
        gain: over a short search, below which a plan is not worth its bytes.
    """

    CORPUS: ClassVar[str] = ""

    corpus: str
    out: str
    policy: str = "plans"
    seed: int = 0
    workers: int = 0
    minutes: float | None = None
    on: str = "2xp100-pcie,4xp100-pcie"
    seconds: float = 20.0
    simulations: int = 0
    objective: str = "step-time"
    batch: float = 1.0
    fewest: int = 100
    most: int = 4_000
    graphs: int = 0
    scopes: bool = True
    gain: float = 0.02


SETTINGS = PlanSettings


class PlanJob(NamedTuple):
    """A search: a line of the corpus, and where it is planned."""

    line: bytes
    cluster: Cluster
    settings: PlanSettings

    @property
    def name(self) -> str:
        s = self.settings
        how = (s.objective, s.batch, s.seconds, s.simulations, s.seed, s.scopes)
        return digest(self.line, self.cluster.digest, *map(str, how))[:16]


def train(settings: PlanSettings) -> Path:
    """Searches where there is no plan yet, then packs all that there are; returns the library."""
    begun, kept = time.monotonic(), Path(settings.out) / "plans"
    kept.mkdir(parents=True, exist_ok=True)
    lines = read_lines(settings.corpus)
    clusters = [Cluster.of(name.strip()) for name in settings.on.split(",") if name.strip()]
    if not clusters:
        raise InvalidSetting("no cluster to plan for", "--set on", "name some, with commas: on=2xp100-pcie")
    jobs = [PlanJob(*pair, settings) for pair in product(chosen(lines, settings), clusters)]
    fresh = [job for job in jobs if not (kept / f"{job.name}.plan").exists()]
    searched = search_all(fresh, kept, begun)
    plans = [(path.stem, path.read_bytes()) for path in sorted(kept.glob("*.plan")) if path.stat().st_size]
    facts = {"corpus": digest(*lines), "seconds": round(time.monotonic() - begun), "complete": searched == len(fresh)}
    card = card_of(settings, plans=len(plans), searches=len(list(kept.glob("*.plan"))), **facts)
    library = Library.write(Path(settings.out) / "plans.zip", plans, card)
    write_text(Path(settings.out) / "card.json", json.dumps(card, indent=1) + "\n")
    print(f"{len(plans)} plans of {searched} new searches kept", flush=True)
    return library.path


def chosen(lines: list[bytes], settings: PlanSettings) -> list[bytes]:
    """Training steps, of the rest as many as their share leaves room for, in an order that the seed draws."""
    rng = np.random.default_rng(settings.seed)
    steps = [line for line in lines if b'"mode":"training"' in line[:4096].replace(b": ", b":")]
    rest = [line for line in lines if line not in set(steps)]
    room = int(len(steps) * (1 - TRAINING_SHARE) / TRAINING_SHARE) if steps else len(rest)
    wanted = [*steps, *(rest[i] for i in rng.permutation(len(rest))[:room])]
    return [wanted[i] for i in rng.permutation(len(wanted))[: settings.graphs or None]]


def search_all(jobs: list[PlanJob], kept: Path, begun: float) -> int:
    """How many searches ended before the time did. Every plan is written when it is found, and an empty file where none
    was worth keeping."""
    for done, job in enumerate(jobs):
        settings = job.settings
        at_once = settings.workers or os.cpu_count() or 1
        if done % at_once == 0:
            if (
                settings.minutes is not None
                and time.monotonic() > begun + 60 * settings.minutes - 1.2 * settings.seconds
            ):
                return done
            found = in_order(search_one, jobs[done : done + at_once], processes=at_once)
        write_bytes(kept / f"{job.name}.plan", next(found), durable=False)
        print(f"[{time.monotonic() - begun:6.1f} s] search {done + 1} of {len(jobs)}", flush=True)
    return len(jobs)


def card_of(settings: PlanSettings, **facts: Any) -> dict[str, Any]:
    return {
        "what": "plans of long searches, with the classes of their ops",
        "settings": {name: value for name, value in vars(settings).items() if name not in ("corpus", "out")},
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **facts,
    }


def search_one(job: PlanJob) -> bytes:
    """The entry of the plan that a long search finds; nothing where the graph does not suit, the plan does not fit, or
    a short search finds about as good a one."""
    line, cluster, settings = job
    problem = problem_of(graph_from_json(parse_json(line, settings.corpus), settings.corpus), cluster, settings)
    if not settings.fewest <= problem.num_ops <= settings.most:
        return b""
    long = Budget(None, settings.simulations) if settings.simulations else Budget(settings.seconds)
    short = solve(problem, "placement", Budget(None, FEW), settings.seed)
    found = solve(problem, "placement", long, settings.seed)
    if not found.fits or found.value > short.value * (1 - settings.gain):
        return b""
    return packed(found, settings.scopes)


def problem_of(graph: Graph, cluster: Cluster, settings: PlanSettings) -> Problem:
    times = settings.batch
    sizes = np.where(graph.role == ACTIVATION, times, 1.0)
    larger = replace(
        graph,
        nbytes=ints(np.ceil(graph.nbytes * sizes)),
        flops=ints(np.ceil(graph.flops * times)),
        bytes_moved=ints(np.ceil(graph.bytes_moved * times)),
    )
    return price(graph if times == 1.0 else larger, cluster, objective=settings.objective)
