"""SAGA's problems and schedulers beside ours, links without contention as there.

    python benchmarks/saga.py --saga PYTHON [--seconds 2] [--method auto --method heft …] [--count 20] [--keep FOLDER]

PYTHON is an interpreter with SAGA (`python -m venv saga && saga/bin/pip install anrg-saga`; tried with 2.0.2). Its
generators make the problems there, from seeds, and all its schedulers but the exhaustive ones schedule them; makespans
are as SAGA reports them. Here each problem becomes a graph with one tensor for each dependency, on a cluster without
contention, a unit of SAGA's time a millisecond; plans are judged by the simulator. --keep writes graphs and clusters.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NS = 1_000_000  # of a unit of SAGA's time; bytes of a unit of its data
LEFT_OUT = ("BruteForceScheduler", "SMTScheduler", "HybridScheduler")  # exhaustive, solvers, or made of others
APPLICATIONS = ("etl", "stats", "train", "predict")


# Runs in SAGA's interpreter, without loadmaster


def make_problem(seed: int) -> tuple[str, Any, Any]:
    """(name, task graph, network) of the seed, the same each time: the first four from RIoTBench in a small fog, the
    others trees and chains with costs, sizes and speeds from 1 to 10 on 3 to 8 nodes."""
    import numpy
    from saga.schedulers.data import random as made
    from saga.schedulers.data import riotbench

    random.seed(seed)
    numpy.random.seed(seed)
    if seed < len(APPLICATIONS):
        name = APPLICATIONS[seed]
        network = riotbench.get_fog_networks(1, num_edges_nodes=4, num_fog_nodes=2, num_cloud_nodes=2)[0]
        return name, getattr(riotbench, f"get_{name}_task_graphs")(1)[0], network
    weights = (lambda *_: random.uniform(1, 10), lambda *_: random.uniform(1, 10))
    size, kind = divmod(seed, 4)
    network = made.gen_random_networks(1, 3 + seed % 6, *weights)[0]
    if kind == 0:
        return f"out-tree-{seed}", made.gen_out_trees(1, 2 + size % 3, 2 + size // 3 % 2, *weights)[0], network
    if kind == 1:
        return f"in-tree-{seed}", made.gen_in_trees(1, 2 + size % 3, 2 + size // 3 % 2, *weights)[0], network
    wide, long = ((3, 8), (5, 5), (8, 8), (10, 3), (16, 4))[(size + 2 * kind) % 5]
    return f"chains-{seed}", made.gen_parallel_chains(1, wide, long, *weights)[0], network


def fault(schedule: Any, network: Any, graph: Any) -> str:
    """The first rule of SAGA's own model that the schedule breaks; "" for none."""
    rate = {(edge.source, edge.target): edge.speed for edge in network.edges}
    speed = {node.name: node.speed for node in network.nodes}
    at, close = {}, 1e-6
    for node, tasks in schedule.mapping.items():
        free = 0.0
        for task in sorted(tasks, key=lambda task: (task.start, task.end)):
            if task.start < free - close:
                return f"{task.name} overlaps with another task on {node}"
            at[task.name], free = (node, task.start, task.end), max(free, task.end)
    for task in graph.tasks:
        if task.name not in at:
            return f"{task.name} is not scheduled"
        node, start, end = at[task.name]
        if end - start < task.cost / speed[node] - close:
            return f"{task.name} takes {end - start:.3f}, which is less than it needs"
    for edge in graph.dependencies:
        (source, _, end), (target, start, _) = at[edge.source], at[edge.target]
        way = edge.size / rate[min(source, target), max(source, target)] if source != target else 0.0
        if start < end + way - close:
            return f"{edge.target} starts at {start:.3f}, before what it reads of {edge.source} is there"
    return ""


def schedule_all(count: int) -> list[dict[str, Any]]:
    import logging

    import saga.schedulers

    logging.disable(logging.WARNING)
    found = []
    for seed in range(count):
        name, graph, network = make_problem(seed)
        spans = {}
        for scheduler in saga.schedulers.__all__:
            if scheduler not in LEFT_OUT:
                try:
                    schedule = getattr(saga.schedulers, scheduler)().schedule(network, graph)
                    wrong = fault(schedule, network, graph)
                except Exception as error:  # some refuse some graphs
                    wrong = f"{type(error).__name__}: {error}"
                if wrong:
                    print(f"{name}: {scheduler} is left out: {wrong}", file=sys.stderr)
                else:
                    spans[scheduler.removesuffix("Scheduler").lower()] = float(schedule.makespan)
        found.append(
            {
                "name": name,
                "tasks": [[task.name, task.cost] for task in graph.topological_sort()],
                "edges": [[edge.source, edge.target, edge.size] for edge in sorted(graph.dependencies)],
                "nodes": [[node.name, node.speed] for node in sorted(network.nodes)],
                "links": [[edge.source, edge.target, edge.speed] for edge in sorted(network.edges)],
                "spans": {key: span for key, span in spans.items() if math.isfinite(span)},
            }
        )
    return found


# Runs here


def our_problem(data: dict[str, Any]) -> Any:
    import numpy as np

    import loadmaster as lm
    from loadmaster.cluster import Cluster, Device, Link, dense_channels

    number = {name: at for at, (name, _) in enumerate(data["nodes"])}
    speed = [speed for _, speed in data["nodes"]]
    graph = lm.GraphBuilder(data["name"])
    reads: dict[str, list[int]] = {name: [] for name, _ in data["tasks"]}
    makes: dict[str, list[int]] = {name: [] for name, _ in data["tasks"]}
    for source, target, size in data["edges"]:
        tensor = graph.tensor(round(size * NS))
        makes[source].append(tensor)
        reads[target].append(tensor)
    for name, cost in data["tasks"]:
        graph.op(name, "task", reads[name], makes[name], time_ns=[round(cost / one * NS) for one in speed])
    devices = tuple(Device(name, "node", 2**50, 1e12, 1e12, 0) for name in number)
    links, channel = {}, np.full((len(number), len(number)), -1)
    for source, target, rate in data["links"]:
        for way in {(number[source], number[target]), (number[target], number[source])} if source != target else ():
            links[way] = Link(None if not math.isfinite(rate) else rate * 1e9, 0)
            channel[way] = len(links) - 1
    cluster = Cluster(data["name"], devices, links, dense_channels(channel), contention=False)
    return lm.price(graph.build(), cluster)


def compare(found: list[dict[str, Any]], specs: list[str], seconds: float) -> dict[str, list[float]]:
    """Ratios to the best of SAGA's schedulers, printed as they come."""
    import loadmaster as lm

    ratios: dict[str, list[float]] = {spec: [] for spec in specs}
    own: dict[str, list[float]] = {"heft": [], "etf": [], "cpop": []}
    for data in found:
        problem, best = our_problem(data), min(data["spans"].values())
        who = min(data["spans"], key=lambda name: data["spans"][name])
        cells = [f"{data['name']:14} {problem.num_ops:4} ops {problem.num_devices} devices, SAGA {best:9.3f} ({who})"]
        for spec in specs:
            begun = time.process_time()
            result = lm.solve(problem, spec, lm.Budget(seconds))
            ratio = result.value / NS / best
            ratios[spec].append(ratio)
            proved = ", optimal" if result.optimal else ""
            cells.append(f"{spec} {ratio:.4f} ({time.process_time() - begun:.1f} CPU s{proved})")
            if spec in own and spec in data["spans"]:
                own[spec].append(result.value / NS / data["spans"][spec])
        print("; ".join(cells), flush=True)
    for spec in specs:
        lost = sum(ratio > 1 + 1e-6 for ratio in ratios[spec])
        mean = math.exp(sum(math.log(ratio) for ratio in ratios[spec]) / len(found))
        same = (
            f"; {math.exp(sum(map(math.log, own[spec])) / len(found)):.4f} of the same there" if own.get(spec) else ""
        )
        print(
            f"{spec}: {mean:.4f} of SAGA's best, {lost} of {len(found)} behind it, worst {max(ratios[spec]):.4f}{same}"
        )
    return ratios


def keep(found: list[dict[str, Any]], folder: Path) -> None:
    from loadmaster.files import save_cluster, save_graph

    folder.mkdir(parents=True, exist_ok=True)
    for data in found:
        problem, name = our_problem(data), data["name"]
        save_graph(problem.graph, folder / f"{name}.json")
        save_cluster(problem.cluster, folder / f"{name}.cluster.json")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--saga", help="an interpreter that has SAGA")
    words.add_argument("--seconds", type=float, default=2.0)
    words.add_argument("--count", type=int, default=20)
    words.add_argument("--method", dest="specs", action="append")
    words.add_argument("--keep", type=Path)
    words.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.peer:
        sys.path.pop(0)  # else this file would be taken for SAGA
        json.dump(schedule_all(given.count), sys.stdout)
        return
    if given.saga is None:
        words.error("--saga: say which interpreter has SAGA")
    command = [given.saga, __file__, "--peer", "--count", str(given.count)]
    alike = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": ""}  # SAGA's ties go by the order of sets
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=alike).stdout)
    if given.keep is not None:
        keep(found, given.keep)
    compare(found, given.specs or ["placement", "heft", "etf", "cpop"], given.seconds)


if __name__ == "__main__":
    main()
