"""Plans to begin from: long searches on many graphs, kept in one library. Nothing is fitted; what is learned is what
the searches found, and a new problem begins from the plans of those that are most like it.

`loadmaster train plans` runs it. A plan is kept only where the long search found more than a short one by a given
share; searches that are done already are not repeated when a run is taken up again. `methods.experience` reads the
library.
"""

from __future__ import annotations

import json
import os
import platform
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.files.writing import write_bytes, write_text
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import digest, ints
from loadmaster.learn import examples
from loadmaster.methods.experience import Library
from loadmaster.methods.experience.entries import packed
from loadmaster.papers.training import TrainingSettings
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
FEW = 200  # simulations of the search that a kept plan must be better than


@dataclass(frozen=True)
class PlanSettings(TrainingSettings):
    """Which plans are kept.

    Attributes:
        on: clusters, with commas.
        seconds: of each search.
        simulations: of each, instead; the same plans on every machine.
        batch: times the activations and the work of the graphs.
        fewest: ops.
        graphs: at most so many; 0: all.
        scopes: whether ops are known by the names of their modules too; no: models of other people match.
        gain: over a short search, below which a plan is not worth its bytes.
    """

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


def train(settings: TrainingSettings) -> Path:
    """Searches where there is no plan yet, then packs all that there are; returns the library."""
    assert isinstance(settings, PlanSettings)
    begun, kept = time.monotonic(), Path(settings.out) / "plans"
    kept.mkdir(parents=True, exist_ok=True)
    lines, corpus = examples.read_corpus(settings.corpus, seed=settings.seed)
    lines = np.random.default_rng(settings.seed).permutation(lines).tolist()[: settings.graphs or None]
    clusters = [Cluster.of(name.strip()) for name in settings.on.split(",") if name.strip()]
    if not clusters:
        raise InvalidSetting("no cluster to plan for", "--set on", "name some, with commas: on=2xp100-pcie")
    jobs = [(line, cluster, settings) for line, cluster in product(lines, clusters)]
    searched, late = _search_all(jobs, settings, kept, begun)
    plans = [(path.stem, path.read_bytes()) for path in sorted(kept.glob("*.plan")) if path.stat().st_size]
    card = {
        "what": "plans of long searches, with the classes of their ops",
        "plans": len(plans),
        "searches": len(list(kept.glob("*.plan"))),
        "corpus": corpus,
        "settings": {k: v for k, v in vars(settings).items() if k not in ("corpus", "out", "valid", "ray", "device")},
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(time.monotonic() - begun),
        "complete": not late,
    }
    library = Library.write(Path(settings.out) / "plans.zip", plans, card)
    write_text(Path(settings.out) / "card.json", json.dumps(card, indent=1) + "\n")
    print(f"{len(plans)} plans of {searched} new searches kept", flush=True)
    return library.path


Job = tuple[int, Cluster, PlanSettings]


def _search_all(jobs: list[Job], settings: PlanSettings, kept: Path, begun: float) -> tuple[int, bool]:
    """(how many searches ended, whether the time ended before the jobs did); every plan is written when it is found,
    and an empty file where none was worth keeping."""
    minutes, waiting, done = settings.minutes, list(jobs), 0
    last = float("inf") if minutes is None else begun + 60 * minutes - 1.2 * settings.seconds
    running: dict[Future[bytes], Path] = {}
    with examples.crew(settings.workers or None) as pool:
        while waiting or running:
            while waiting and len(running) < (settings.workers or os.cpu_count() or 1) and time.monotonic() < last:
                job = waiting.pop(0)
                path = kept / f"{_name(job)}.plan"
                if not path.exists():
                    running[pool.submit(search_one, job)] = path
            if not running:
                break
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                write_bytes(running.pop(ended), ended.result(), durable=False)
                done += 1
                if done % 10 == 0:
                    print(f"[{time.monotonic() - begun:6.1f} s] {done} searches", flush=True)
    return done, bool(waiting)


def _name(job: Job) -> str:
    line, cluster, settings = job
    how = (settings.objective, settings.batch, settings.seconds, settings.simulations, settings.seed, settings.scopes)
    return digest(examples.line_of(line), cluster.digest, *map(str, how))[:16]


def search_one(job: Job) -> bytes:
    """The entry of the plan that a long search finds; nothing where the graph does not suit, the plan does not fit, or
    a short search finds about as good a one."""
    line, cluster, settings = job
    problem = problem_of(examples.graph_of(line), cluster, settings)
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
