"""Largest loads of stages on the graphs that MSR and PipeDream published, beside what their planners find.

    python benchmarks/throughput.py msr DIR [--simulations 2000] [--theirs FILE]
    python benchmarks/throughput.py pipedream DIR [--devices 4 8] [--simulations 2000]

DIR is a clone of msr-fiddle/dnn-partitioning or of msr-fiddle/pipedream; nothing of them comes with loadmaster.
FILE has a line "LayerGraphs/bert24_inference 17.79" for each graph: their largest load in ms. Loads are worked out,
from the files, by the definition of the authors: MSR's adds to the time of an accelerator what it receives and, once,
what it sends; PipeDream's is the time of the slowest stage.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import loadmaster as lm
from loadmaster.cluster import Device, Link
from loadmaster.graph.columns import ints
from loadmaster.importers.benchmarks.msr import msr_cluster

METHODS = ("pipeline:goal=max-load", "downsets", "placement")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("whose", choices=("msr", "pipedream"))
    given.add_argument("folder", type=Path)
    given.add_argument("--simulations", type=int, default=2000)
    given.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    given.add_argument("--methods", nargs="+", default=list(METHODS))
    given.add_argument("--theirs", type=Path)
    given.add_argument("--only", default="")
    words = given.parse_args()
    theirs = dict(line.split() for line in words.theirs.read_text().splitlines()) if words.theirs else {}
    print("| graph | ops | lower bound |", " | ".join(words.methods), "| theirs |")
    rows = of_msr(words) if words.whose == "msr" else of_pipedream(words)
    for name, problem, load in rows:
        cells = [cell(problem, method, words.simulations, load) for method in words.methods]
        bound = lm.lower_bound(problem) / 1e6
        print(
            "|",
            name,
            "|",
            problem.num_ops,
            f"| {bound:.2f} |",
            " | ".join(cells),
            "|",
            theirs.get(name, ""),
            "|",
            flush=True,
        )


def cell(problem: lm.Problem, method: str, simulations: int, load: object) -> str:
    begun = time.perf_counter()
    found = lm.solve(problem, method, lm.Budget(None, simulations), seed=0)
    assert callable(load)
    shown = f"{load(problem, found.plan.device):.2f}" + ("" if found.fits else " (does not fit)")
    return f"{shown} in {time.perf_counter() - begun:.0f} s"


def of_msr(words: argparse.Namespace):
    for path in sorted(words.folder.rglob("throughput-inputs/*/*.json")):
        name = f"{path.parent.name}/{path.stem}"
        if words.only in name:
            problem = lm.price(lm.load(f"msr:{path}"), msr_cluster(path), objective="throughput")
            yield name, problem, lambda problem, device, path=path: msr_load(path, problem, device)


def msr_load(path: Path, problem: lm.Problem, device: np.ndarray) -> float:
    data = json.loads(path.read_text())
    names = (int(name.rpartition(" ")[2]) for name in problem.graph.op_name)
    on, fpgas = dict(zip(names, device.tolist(), strict=True)), data["maxFPGAs"]
    loads: dict[int, float] = defaultdict(float)
    for node in data["nodes"]:
        loads[on[node["id"]]] += node["fpgaLatency" if on[node["id"]] < fpgas else "cpuLatency"]
    cost, there = {}, defaultdict(set)
    for edge in data["edges"]:
        cost[edge["sourceId"]] = edge["cost"]
        there[edge["sourceId"]].add(on[edge["destId"]])
    for source, ends in there.items():
        if away := ends - {on[source]}:
            for end in {*away, on[source]}:
                loads[end] += cost[source] if end < fpgas else 0.0
    return max(loads.values())


def of_pipedream(words: argparse.Namespace):
    for path in sorted(words.folder.rglob("graph.txt")):
        graph = lm.load(f"pipedream:{path}")
        for count in words.devices:
            if words.only in graph.name:
                problem = lm.price(graph, like(count), objective="throughput")
                yield f"{graph.name}/{count}", problem, slowest_stage


def like(count: int) -> lm.Cluster:
    """Devices whose links take no time, as PipeDream's planner has it unless activations are compressed."""
    devices = tuple(Device(f"gpu:{at}", "gpu", 2**50, 1e13, 1e12) for at in range(count))
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    channel = np.full((count, count), -1, np.int64)
    for number, ends in enumerate(pairs):
        channel[ends] = number
    return lm.Cluster(f"{count} like", devices, dict.fromkeys(pairs, Link(None, 0)), ints(channel))


def slowest_stage(problem: lm.Problem, device: np.ndarray) -> float:
    return float(np.bincount(device, problem.op_ns[np.arange(problem.num_ops), device]).max()) / 1e6


if __name__ == "__main__":
    main()
