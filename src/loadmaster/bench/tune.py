"""Tuning BRKGA: one setting for all graphs, by grid on a training corpus.

python -m loadmaster.bench.tune train.jsonl.xz --graphs 24 --seed 0 --out tuned_brkga.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.baselines.genetic.brkga import Brkga
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.files import graph_from_json, graph_to_json, load_records
from loadmaster.files.writing import write_text
from loadmaster.graph import Graph
from loadmaster.graph.columns import digest
from loadmaster.search import Budget, solve

GRID: dict[str, tuple[Any, ...]] = {
    "elites": (0.1, 0.2, 0.3),
    "mutants": (0.1, 0.2),
    "rho": (0.6, 0.7, 0.8),
    "order": ("uniform", "given"),
    "by": ("op", "mirror"),
    "blocks": (8, 32, 128),
}
CLUSTERS: dict[str, str] = {"peak-memory": "regal", "step-time": "4xp100-pcie"}
EVALUATIONS = 5_000  # as REGAL gives BRKGA (Paliwal et al. 2020)


def settings_of_grid() -> Iterator[dict[str, Any]]:
    """Every setting once; the number of blocks says nothing where affinities are per op."""
    for values in itertools.product(*GRID.values()):
        setting = dict(zip(GRID, values, strict=True))
        if setting["by"] != "op" or setting["blocks"] == GRID["blocks"][0]:
            yield setting


def sample(corpus: Path, graphs: int, seed: int) -> list[Graph]:
    """Training graphs of 100 to 1,500 ops, drawn at random."""
    fitting = [g for g, extra in load_records(corpus) if extra.get("mode") == "training" and 100 <= g.num_ops <= 1_500]
    chosen = np.random.default_rng(seed).permutation(len(fitting))[:graphs]
    return [fitting[index] for index in sorted(chosen)]


def _score(job: tuple[dict[str, Any], str, dict[str, Any], int]) -> int:
    data, objective, setting, seed = job
    graph = graph_from_json(data, "corpus")
    problem = price(graph, Cluster.preset(CLUSTERS[objective]), objective=objective)
    return solve(problem, Brkga(evaluations=EVALUATIONS, **setting), Budget(None, EVALUATIONS), seed).value


def tune(corpus: Path, graphs: int, seed: int, workers: int) -> dict[str, Any]:
    """The setting with the best mean improvement over the standard one, for each objective, and how it was found."""
    sampled = sample(corpus, graphs, seed)
    data = [{"schema": "loadmaster.graph/1", **graph_to_json(graph)} for graph in sampled]
    grid = [{}, *settings_of_grid()]
    found: dict[str, Any] = {"settings": {}, "found": {}}
    with ProcessPoolExecutor(workers) as pool:
        for objective in CLUSTERS:
            jobs = [(graph, objective, setting, seed) for setting in grid for graph in data]
            values = np.array(list(pool.map(_score, jobs, chunksize=4)), float).reshape(len(grid), len(data))
            gain = (1 - values / values[0]).mean(axis=1)
            best = int(gain.argmax())
            found["settings"][objective] = grid[best]
            found["found"][objective] = _account(grid, gain, best)
    found["how"] = {
        "command": f"python -m loadmaster.bench.tune train.jsonl.xz --graphs {graphs} --seed {seed}",
        "date": date.today().isoformat(),
        "graphs": [graph.name for graph in sampled],
        "corpus_digest": digest(*(graph.digest for graph in sampled)),
        "clusters": CLUSTERS,
        "evaluations": EVALUATIONS,
        "grid": {key: list(values) for key, values in GRID.items()},
        "standard": {key: asdict(Brkga())[key] for key in GRID},
    }
    return found


def _account(grid: list[dict[str, Any]], gain: Iterable[float], best: int) -> dict[str, Any]:
    ranked = sorted(enumerate(gain), key=lambda pair: -pair[1])
    return {
        "mean_improvement_over_standard": round(float(dict(enumerate(gain))[best]), 5),
        "settings_tried": len(grid),
        "next_best": [{**grid[index], "improvement": round(float(value), 5)} for index, value in ranked[1:4]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--graphs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = tune(options.corpus, options.graphs, options.seed, options.workers)
    write_text(options.out, json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["settings"]))


if __name__ == "__main__":
    main()
