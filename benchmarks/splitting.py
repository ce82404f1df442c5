"""What --split auto finds beside pipelines and beside plans of whole ops.

    python benchmarks/splitting.py [--models gpt2 llama-8b] [--devices 4 8] [--simulations 1000] [--microbatches 8]

Steps in ms by the simulator on A100 with NVLink. Pipelines take the graph of the zoo as one microbatch: their step is
divided by the number of microbatches.
"""

from __future__ import annotations

import argparse

import loadmaster as lm
from loadmaster.cluster import Cluster
from loadmaster.graph import Graph
from loadmaster.methods.splitting import solve_split
from loadmaster.passes.splitting import sharded_graph
from loadmaster.passes.splitting.sharding import WAYS, Way
from loadmaster.pipelines.microbatched import plan_pipeline
from loadmaster.plans import Plan
from loadmaster.search import Budget
from loadmaster.simulator import simulate


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--models", nargs="+", default=["gpt2", "llama-8b"])
    given.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    given.add_argument("--simulations", type=int, default=1000)
    given.add_argument("--microbatches", type=int, default=8)
    words = given.parse_args()
    columns = ("one device", "whole ops", "--split auto", "by samples", "by features", "pipeline")
    print(f"| model | devices | {' | '.join(columns)} |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for model in words.models:
        graph = lm.load(f"zoo:{model}/train")
        for count in words.devices:
            print(row(model, graph, count, words.simulations, words.microbatches), flush=True)


def row(model: str, graph: Graph, count: int, simulations: int, microbatches: int) -> str:
    cluster = Cluster.preset(f"{count}xa100-nvlink")
    problem = lm.price(graph, cluster)
    alone = simulate(problem, Plan.of(problem, [0] * problem.num_ops))
    found = solve_split(problem, lambda split: lm.price(split, cluster), "auto", Budget(None, simulations))
    pipeline = plan_pipeline(problem, microbatches, Budget(None, 60)).result.value / microbatches
    shares = [on_shares(graph, cluster, way) for way in WAYS]
    steps = [alone.step_ns, found.before.value, found.result.value, *shares, pipeline]
    cells = " | ".join("" if step is None else f"{step / 1e6:,.0f}" for step in steps)
    return f"| {model} | {count} | {cells} |"


def on_shares(graph: Graph, cluster: Cluster, way: Way) -> int | None:
    """Every op on every device."""
    made = sharded_graph(graph, cluster, way)
    if made is None:
        return None
    problem = lm.price(made.graph, cluster)
    return simulate(problem, Plan.of(problem, [made.device[name] for name in problem.graph.op_name])).step_ns


if __name__ == "__main__":
    main()
