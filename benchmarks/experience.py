"""What earlier plans are worth: models of the zoo are planned, changed, and planned again, with and without the plan of
the unchanged one as a start.

    python benchmarks/experience.py FOLDER [--seconds 20] [--method auto] [--workers 2] [--limit N] [--stop 500]

FOLDER keeps the captured graphs, the plans of the unchanged models, what long searches found and a line per row
(rows.csv); a run that is repeated goes on where it stopped, and none is begun after `--stop` seconds. Each row compares
values at 0.5 and 2 seconds with the best of all runs on that problem, one of them of `--seconds`, which no other is
longer than; what it takes to suit the earlier plan to the changed problem is part of its 0.5 and 2 seconds. The control
begins from the plan of the unchanged model with its devices shuffled op by op: nothing is learned from that. Every run
has a problem of its own, of which nothing is remembered; only compiled code is loaded before.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import loadmaster as lm
from loadmaster.files import save_graph
from loadmaster.graph.columns import ints
from loadmaster.methods.experience import Known, adapt
from loadmaster.search import Start, solve
from loadmaster.zoo import find

WORKLOADS = (
    "transformer-xl-4",
    "rnnlm-2",
    "gnmt-2",
    "inception-v3-b32",
    "wavenet-2x18",
    "resnet50",
    "vit-base",
    "bert-base",
    "gpt2",
    "t5-base",
    "amoebanet-4",
    "unet-ddpm",
)
ON = "4xp100-pcie"
BUDGETS = (0.5, 2.0)
COLUMNS = ("workload", "change", "auto_0.5", "like_0.5", "control_0.5", "auto_2.0", "like_2.0", "long", "adapted")


def settings_after(change: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Of the zoo's builder; None where the model has no such size."""
    if change == "batch halved":
        return {**settings, "batch": max(1, settings["batch"] // 2)}
    if change == "batch doubled":
        return {**settings, "batch": settings["batch"] * 2}
    if change == "a further layer":
        return {**settings, "layers": settings["layers"] + 1} if "layers" in settings else None
    return dict(settings)


def cluster_after(change: str) -> lm.Cluster:
    if change == "a further device":
        return lm.Cluster.of("5xp100-pcie")
    if change == "other devices":
        return lm.Cluster.of("4xv100-nvlink")
    cluster = lm.Cluster.of(ON)
    times = {"links halved": 0.5, "links doubled": 2.0}.get(change)
    if times is None:
        return cluster
    links = {
        pair: replace(link, bytes_per_s=link.bytes_per_s and link.bytes_per_s * times)
        for pair, link in cluster.links.items()
    }
    return replace(cluster, name=f"{ON}, {change}", links=links)


CHANGES = (
    "batch halved",
    "batch doubled",
    "a further layer",
    "a further device",
    "links halved",
    "links doubled",
    "other devices",
    "half precision",
)


def graph_after(change: str, graph: lm.Graph) -> lm.Graph:
    if change != "half precision":
        return graph
    half = {name: ints(np.ceil(getattr(graph, name) / 2)) for name in ("nbytes", "bytes_moved")}
    return replace(graph, **half)


def problem_after(workload: str, change: str, folder: Path) -> lm.Problem | None:
    entry = find(workload)[0]
    settings = settings_after(change, dict(entry.settings))
    if settings is None:
        return None
    sizes = "".join(f"-{key}{settings[key]}" for key in ("batch", "layers") if key in settings)
    path = folder / f"{workload}{sizes}.json.xz"
    if not path.exists():
        from loadmaster.zoo.capture import capture_entry

        save_graph(capture_entry(replace(entry, settings=settings), True), path)
    return lm.price(graph_after(change, lm.load(path)), cluster_after(change))


def known_before(workload: str, folder: Path, seconds: float, method: str) -> Known:
    """The plan of the unchanged model, found once."""
    path = folder / f"{workload}.known"
    if not path.exists():
        before = problem_after(workload, "", folder)
        assert before is not None
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(Known.of(before, solve(before, method, seconds).plan).to_bytes())
        part.replace(path)
    return Known.from_bytes(path.read_bytes(), str(path))


def long_after(workload: str, change: str, changed: lm.Problem, folder: Path, seconds: float, method: str) -> int:
    """What a long search of the changed problem finds, once."""
    path = folder / f"{workload}-{change.replace(' ', '-')}.long"
    if not path.exists():
        path.write_text(str(found_in(changed, seconds, method)))
    return int(path.read_text())


def anew(problem: lm.Problem) -> lm.Problem:
    """The same, of which no earlier run has left anything behind."""
    fresh = lm.price(replace(problem.source), problem.cluster)
    gc.collect()
    return fresh


def found_in(changed: lm.Problem, seconds: float, method: str) -> int:
    """What a search without an earlier plan finds."""
    return solve(anew(changed), method, seconds).value


def begun_from(known: Known, changed: lm.Problem, seconds: float, method: str) -> int:
    """What it finds from an earlier plan in that time, all of it counted."""
    changed = anew(changed)
    clock = time.perf_counter()
    starts = [Start(plan, "earlier") for plan in adapt(known, changed)[0]]
    left = max(1e-3, seconds - (time.perf_counter() - clock))
    return solve(changed, method, left, starts=starts).value


def row(workload: str, change: str, folder: Path, seconds: float, method: str) -> dict[str, Any] | None:
    os.environ["LOADMASTER_THREADS"] = "1"
    changed = problem_after(workload, change, folder)
    if changed is None:
        return None
    known = known_before(workload, folder, seconds, method)
    shuffled = replace(known, device=ints(np.random.default_rng(0).permutation(known.device)))
    found: dict[str, Any] = {"workload": workload, "change": change}
    short, longer = (min(budget, seconds) for budget in BUDGETS)
    begun_from(known, changed, short, method)  # what is compiled is not counted
    for name, budget in zip(BUDGETS, (short, longer), strict=True):
        found[f"auto_{name}"] = found_in(changed, budget, method)
        found[f"like_{name}"] = begun_from(known, changed, budget, method)
    found["control_0.5"] = begun_from(shuffled, changed, short, method)
    found["long"] = long_after(workload, change, changed, folder, seconds, method)
    found["adapted"] = min(lm.simulate(changed, plan).step_ns for plan in adapt(known, changed)[0])
    return found


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open())) if path.exists() else []


def todo(path: Path, limit: int | None, changes: str) -> Iterator[tuple[str, str]]:
    done = {(row["workload"], row["change"]) for row in rows_of(path)}
    some = [change for change in CHANGES if not changes or change in changes.split(",")]
    # One of each model in turn, each with another change: what is left out for want of time is spread over both.
    pairs = [
        (workload, some[(number + turn) % len(some)])
        for turn in range(len(some))
        for number, workload in enumerate(WORKLOADS)
    ]
    yield from (pair for pair in pairs[:limit] if pair not in done)


def summary(rows: list[dict[str, str]]) -> None:
    """How far above the best of all, in the geometric mean."""
    groups = {"all": rows, **{change: [r for r in rows if r["change"] == change] for change in CHANGES}}
    print(f"{'':18}{'rows':>5}" + "".join(f"{name:>13}" for name in COLUMNS[2:]))
    for name, members in groups.items():
        if members:
            values = np.array([[float(member[column]) for column in COLUMNS[2:]] for member in members])
            above = np.exp(np.log(values / values.min(axis=1, keepdims=True)).mean(axis=0)) - 1
            print(f"{name:18}{len(members):>5}" + "".join(f"{100 * share:>11.1f} %" for share in above), flush=True)
    if rows:
        over = np.log([float(row["like_0.5"]) / float(row["long"]) for row in rows])
        rough = 1.96 * over.std(ddof=1) / len(over) ** 0.5 if len(over) > 1 else float("nan")
        print(f"like_0.5 over long: {100 * np.expm1(over.mean()):.2f} ± {100 * rough:.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the long runs")
    parser.add_argument("--method", default="placement", help="that plans all of them; a folder is of one method")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None, help="rows")
    parser.add_argument("--changes", default="", help="some of them, with commas")
    parser.add_argument("--stop", type=float, default=float("inf"), help="seconds after which no row is begun")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "rows.csv"
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n")
    rest = (given.folder, given.seconds, given.method)
    begun, waiting = time.monotonic(), list(todo(path, given.limit, given.changes))
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(row, *pair, *rest) for pair in waiting[: given.workers]}
        waiting = waiting[given.workers :]
        while running:
            ended = next(as_completed(running))
            running.discard(ended)
            found = ended.result()
            if found is not None:
                with path.open("a") as file:
                    csv.DictWriter(file, COLUMNS).writerow(found)
                print(found, flush=True)
            if waiting and time.monotonic() - begun < given.stop:
                running.add(pool.submit(row, *waiting.pop(0), *rest))
    summary(rows_of(path))


if __name__ == "__main__":
    main()
