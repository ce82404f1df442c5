"""How time and memory grow with the size of a graph: load, price, one-shot plans, auto. docs/scale.md has the figures.

    python benchmarks/scale.py --ops 10000 100000 --devices 16 --seconds 10

Layered graphs: layers of 1 to 2 x devices ops, each of which reads one to three of the layer before and at times one
further back; sizes and times of `loadmaster lab generate layered`, so that a send over PCIe takes about as long as an
op. Every size runs in a process of its own, whose CPU seconds and largest memory are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster import load
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.search import Budget, solve

UNIT_BYTES, UNIT_NS = 2**20, 100_000  # of sizes and times, each of mean 50 and deviation 10
FURTHEST = 1000  # ops back that one may read: so that tensors do not live for ever and the step fits in memory


def layered(ops: int, widest: int, seed: int = 0) -> Iterator[str]:
    """The lines of a graph file."""
    rng = np.random.default_rng((seed, ops, widest))
    sizes = np.maximum(1, rng.normal(50, 10, ops).astype(int)) * UNIT_BYTES
    costs = np.maximum(1, rng.normal(50, 10, ops).astype(int)) * UNIT_NS
    reads, last = _edges(ops, widest, rng)
    yield f'{{"schema": "loadmaster.graph/1", "name": "layered-{ops}-{widest}", "ops": [\n'
    for op in range(ops):
        row = f'{{"name":"op{op}","kind":"layered","flops":0,"inputs":{reads[op]},"outputs":[{op}],'
        yield row + f'"time_ns":{costs[op]}}}' + (",\n" if op < ops - 1 else "\n")
    yield '], "tensors": [\n'
    for op in range(ops):
        role = "output" if op in last else "activation"
        yield f'{{"id":{op},"bytes":{sizes[op]},"role":"{role}"}}' + (",\n" if op < ops - 1 else "\n")
    yield "]}\n"


def _edges(ops: int, widest: int, rng: np.random.Generator) -> tuple[list[list[int]], set[int]]:
    """What each op reads, and the ops of the last layer."""
    reads: list[list[int]] = []
    before, here = range(0), range(0, min(ops, int(rng.integers(1, widest + 1))))
    while here:
        rows = [_drawn(row, before, here.start) for row in rng.random((len(here), 5))]
        for op in sorted(set(before) - {read for row in rows for read in row}):  # nobody's work is for nothing
            rows[int(rng.integers(len(rows)))].add(op)
        reads += map(sorted, rows)
        before, here = here, range(here.stop, min(ops, here.stop + int(rng.integers(1, widest + 1))))
    return reads, set(before)


def _drawn(row: np.ndarray, before: range, start: int) -> set[int]:
    """One to three ops of the layer before, and at times one further back."""
    found = {before[int(draw * len(before))] for draw in row[: 1 + int(row[3] * 3)]} if before else set()
    return found | ({start - 1 - int(row[4] * 8 * min(start, FURTHEST))} if row[4] < 1 / 8 and start else set())


@contextmanager
def timed(stages: dict[str, float], stage: str) -> Iterator[None]:
    """Seconds on the clock and of the processors, and memory so far, under the name of the stage."""
    begun, used = time.perf_counter(), time.process_time()
    yield
    stages[stage] = round(time.perf_counter() - begun, 3)
    stages[f"{stage} cpu"] = round(time.process_time() - used, 3)
    stages[f"{stage} MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"  {stage:14} {stages[stage]:9.2f} s {stages[f'{stage} cpu']:9.2f} CPU s", end="", file=sys.stderr)
    print(f" {stages[f'{stage} MB']:7,} MB", file=sys.stderr, flush=True)


def measure(ops: int, cluster: str, widest: int, methods: list[str], seconds: float) -> dict[str, Any]:
    """One size: stages in the order of the data, then what each method made of it."""
    stages: dict[str, Any] = {"ops": ops, "cluster": cluster, "widest": widest, "seconds": seconds}
    on = Cluster.of(cluster)
    _warm(on, methods, widest)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layered.json"
        with path.open("w") as file:
            file.writelines(layered(ops, widest))
        with timed(stages, "load"):
            graph = load(path)
    with timed(stages, "price"):
        problem = price(graph, on)
    for method in methods:
        with timed(stages, method):
            result = solve(problem, method, Budget(seconds))
        stages[f"{method} step ms"] = round(result.value / 1e6, 3)
        stages[f"{method} bound ms"] = round(result.lower_bound / 1e6, 3)
        stages[f"{method} search s"] = round(result.seconds, 2)
    return stages


def _warm(cluster: Cluster, methods: list[str], widest: int) -> None:
    """Compiled loops are made or loaded before anything is timed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.json"
        path.write_text("".join(layered(400, widest)))
        problem = price(load(path), cluster)
    for method in methods:
        solve(problem, method, Budget(0.5))


def exponents(rows: list[dict[str, Any]], stages: list[str]) -> dict[str, float]:
    """Of each stage's CPU seconds from the smallest to the largest graph: 1 is linear."""
    first, last = rows[0], rows[-1]
    grown = np.log(last["ops"] / first["ops"])
    return {stage: round(float(np.log(last[f"{stage} cpu"] / first[f"{stage} cpu"]) / grown), 3) for stage in stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--cluster", default="16xp100-pcie")
    parser.add_argument("--widest", type=int, default=0, help="ops of the widest layer; twice the devices by default")
    parser.add_argument("--methods", nargs="+", default=["one-device", "expert", "heft", "placement"])
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0], help="of each size, or one for all")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    widest = given.widest or 2 * Cluster.of(given.cluster).num_devices
    if len(given.ops) == 1:
        print(json.dumps(measure(given.ops[0], given.cluster, widest, given.methods, given.seconds[0])))
        return
    seconds = given.seconds * len(given.ops) if len(given.seconds) == 1 else given.seconds
    rows = [_apart(ops, given, widest, each) for ops, each in zip(given.ops, seconds, strict=True)]
    table = {"rows": rows, "exponents": exponents(rows, ["load", "price", *given.methods[:-1]])}
    text = json.dumps(table, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


def _apart(ops: int, given: argparse.Namespace, widest: int, seconds: float) -> dict[str, Any]:
    """One size in a process of its own."""
    command = [sys.executable, __file__, "--ops", str(ops), "--cluster", given.cluster, "--widest", str(widest)]
    command += ["--seconds", str(seconds), "--methods", *given.methods]
    print(f"{ops:,} ops", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ, check=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


if __name__ == "__main__":
    main()
