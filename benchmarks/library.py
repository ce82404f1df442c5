"""What a library of plans is worth on graphs that are not in it.

    python benchmarks/library.py LIBRARY CORPUS FOLDER [--on 2xa100-nvlink,4xp100-pcie] [--batch 8] [--graphs 60]
        [--limit N] [--seconds 10] [--workers 2] [--stop 280] [--evaluations 300]

For each graph and cluster: auto in 0.5 and 2 s (or in a number of simulations and four times that), the same begun
from the library's plans (finding and suiting them is part of the time), a control (the same library with the devices
of each plan shuffled op by op), and a long run of auto (`--seconds`). With `--oracle yes` also the best plan that any
way to match could choose: every plan of the library is suited to the graph and simulated, uncounted, and the best is
the one start. Plans of the graph itself are left out. FOLDER
keeps a line per row (rows.csv); a run that is repeated goes on where it stopped, and none begins after `--stop`
seconds.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import loadmaster as lm
from loadmaster.files import load_graphs
from loadmaster.graph.columns import ints
from loadmaster.learn.plans import PlanSettings, problem_of
from loadmaster.methods.experience import Library, adapt, starts_like
from loadmaster.methods.experience.entries import MAGIC, PlanHead, known_of
from loadmaster.methods.experience.likeness import Sight
from loadmaster.search import Budget, Start, solve

TIMES = 4  # the second budget in the first, which is of 0.5 s
COLUMNS = (
    "graph",
    "cluster",
    "ops",
    "starts",
    "auto_1",
    "with_1",
    "control_1",
    "auto_2",
    "with_2",
    "control_2",
    "long",
    "oracle_1",
)
PAIRS = (
    ("with_1", "auto_1"),
    ("control_1", "auto_1"),
    ("with_2", "auto_2"),
    ("long", "auto_1"),
    ("oracle_1", "auto_1"),
)


def shuffled(library: Library, path: Path) -> Library:
    """The same plans with the devices of each in another order."""
    rng, plans = np.random.default_rng(0), []
    for entry in library.entries():
        data = library.read(entry)
        known = known_of(data, entry.name)
        other = replace(known, device=ints(rng.permutation(known.device)))
        head = data[: data.index(b"\n", len(MAGIC)) + 1]
        plans.append((entry.name.removesuffix(".plan"), head + other.to_bytes()))
    return Library.write(path, plans, {"control": "devices shuffled"})


@dataclass(frozen=True)
class Others:
    """A library without the plans of one graph, so that a graph of the corpus it was made from is as good as unseen."""

    library: Library
    graph: str

    def entries(self) -> list[PlanHead]:
        return [entry for entry in self.library.entries() if entry.model != self.graph[:200]]

    def read(self, entry: PlanHead) -> bytes:
        return self.library.read(entry)

    def used(self, entry: PlanHead) -> None:
        self.library.used(entry)


def begun_from(library: Others, problem: lm.Problem, budget: Budget, method: str) -> tuple[int, int]:
    """(what the method finds from the library's plans within the budget, how many of these there are)."""
    clock = time.perf_counter()
    starts = starts_like(problem, [library])
    if budget.seconds is not None:
        budget = Budget(max(1e-3, budget.seconds - (time.perf_counter() - clock)))
    return solve(problem, method, budget, starts=starts).value, len(starts)


def best_of_all(library: Others, problem: lm.Problem) -> list[Start]:
    """The plan that is best once it is suited to the problem, whatever it was made for."""
    sights = {scopes: Sight.of(problem.graph, scopes) for scopes in (False, True)}
    found = []
    for entry in library.entries():
        known = known_of(library.read(entry), entry.name)
        plans, _ = adapt(known, problem, sights[entry.scopes])
        found += [Start(plan, entry.origin) for plan in plans]
    return sorted(found, key=lambda start: lm.simulate(problem, start.plan).step_ns)[:1]


def row(graph: Any, on: str, given: argparse.Namespace) -> dict[str, Any]:
    os.environ["LOADMASTER_THREADS"] = "1"
    problem = problem_of(graph, lm.Cluster.of(on), PlanSettings(corpus="", out="", batch=given.batch))
    found: dict[str, Any] = {"graph": graph.name, "cluster": on, "ops": problem.num_ops}
    paths = (given.library, given.folder / "control.zip")
    library, control = (Others(Library(path), graph.name) for path in paths)
    if not given.evaluations:
        begun_from(library, problem, Budget(0.5), given.method)  # what is compiled or read once is not counted
    for number, times in enumerate((1, TIMES), 1):
        budget = Budget(None, times * given.evaluations) if given.evaluations else Budget(0.5 * times)
        found[f"auto_{number}"] = solve(problem, given.method, budget).value
        found[f"with_{number}"], found["starts"] = begun_from(library, problem, budget, given.method)
        if number == 1:
            found["control_1"] = begun_from(control, problem, budget, given.method)[0]
    if given.oracle == "yes":
        budget = Budget(None, given.evaluations) if given.evaluations else Budget(0.5)
        found["oracle_1"] = solve(problem, given.method, budget, starts=best_of_all(library, problem)).value
    least = min(found["auto_2"], found["with_2"])
    found["long"] = least if given.evaluations else solve(problem, given.method, given.seconds).value
    return found


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open())) if path.exists() else []


def todo(given: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    done = {(row["graph"], row["cluster"]) for row in rows_of(given.folder / "rows.csv")}
    for number, graph in enumerate(load_graphs(given.corpus)):
        for on in given.on.split(","):
            if number < given.graphs and (graph.name, on) not in done:
                yield graph, on


def summary(rows: list[dict[str, str]]) -> None:
    """How much less time the one's plans take than the other's, with a 95 % interval over rows."""
    groups = {"all": rows, "with starts": [r for r in rows if int(r["starts"])]}
    groups |= {on: [r for r in rows if r["cluster"] == on] for on in dict.fromkeys(r["cluster"] for r in rows)}
    for name, members in groups.items():
        said = []
        for one, other in PAIRS if len(members) > 1 else ():
            gain = np.array([float(r[other]) / float(r[one]) - 1 for r in members if r[one]]) * 100
            if len(gain) < 2:
                continue
            rough = 1.96 * gain.std(ddof=1) / len(gain) ** 0.5
            said.append(f"{one} over {other} {gain.mean():+.2f} ± {rough:.2f} %")
        print(f"{name} ({len(members)} rows): {'; '.join(said)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("library", "corpus", "folder"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--on", default="2xa100-nvlink,4xp100-pcie")
    parser.add_argument("--method", default="auto", help="or placement, which fuses nothing")
    parser.add_argument("--batch", type=float, default=8.0)
    parser.add_argument("--graphs", type=int, default=60)
    parser.add_argument(
        "--evaluations", type=int, default=0, help="simulations in place of 0.5 s; finding is not counted"
    )
    parser.add_argument("--oracle", choices=("yes", "no"), default="no", help="also the best plan of all as a start")
    parser.add_argument("--limit", type=int, default=None, help="rows")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the long run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop", type=float, default=float("inf"), help="seconds after which no row is begun")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path, begun = given.folder / "rows.csv", time.monotonic()
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n")
    shuffled(Library(given.library), given.folder / "control.zip")
    waiting = list(todo(given))[: given.limit]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(row, *pair, given) for pair in waiting[: given.workers]}
        waiting = waiting[given.workers :]
        while running:
            ended = next(as_completed(running))
            running.discard(ended)
            with path.open("a") as file:
                csv.DictWriter(file, COLUMNS).writerow(ended.result())
            print(ended.result(), flush=True)
            if waiting and time.monotonic() - begun < given.stop:
                running.add(pool.submit(row, *waiting.pop(0), given))
    summary(rows_of(path))


if __name__ == "__main__":
    main()
