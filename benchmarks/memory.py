"""Training steps in less memory: recomputation and offload against checkpoints and cuts, one device, simulated.

    PYTHONPATH=src python benchmarks/memory.py FOLDER [--corpus valid.jsonl.xz] [--only steps,offload,size]

Writes steps.csv, offload.csv and size.csv into FOLDER as it goes, and prints them. The step that all are compared with
is that of the fastest kernels that simple rules of fusion give, in program order. Every search has a budget of
simulations, so that answers repeat.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import loadmaster as lm
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.files import graph_from_json
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.optimizers.fusion.greedy import Merges
from loadmaster.optimizers.fusion.starts import simple_orders
from loadmaster.optimizers.memory.checkpoints import ActivationBudget, LayerCheckpointing, MinCut, SqrtCheckpointing
from loadmaster.optimizers.memory.recompute import Recompute
from loadmaster.optimizers.simple import Known
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Result, solve
from loadmaster.simulator import simulate, simulate_fused

ZOO = (
    "gpt2",
    "bert-base",
    "vit-base",
    "resnet50",
    "unet-ddpm",
    "transformer-xl-2",
    "wavenet-2x18",
    "inception-v3-b32",
    "rnnlm",
)
OURS, ONE = Budget(None, 8), Budget(None, 40)


def limited(problem: Problem, nbytes: int) -> Problem:
    return replace(problem, memory_bytes=ints([nbytes, *problem.memory_bytes[1:]]))


def fused(problem: Problem) -> Plan:
    """The fastest kernels of simple rules, all on the first device, in program order."""
    device = np.zeros(problem.num_ops, np.int64)
    merges, program = Merges.of(problem), np.arange(problem.num_ops)
    if not len(merges.producers):
        return Plan.of(problem, device)
    kernels = np.vstack([program, merges.greedy(), merges.kernels(device, np.stack(simple_orders(problem)))])
    scores = simulate_fused(
        problem, np.broadcast_to(device, kernels.shape), np.broadcast_to(program, kernels.shape), kernels
    )
    # Of kernels within 2 % of the fastest, those of the least peak: some rules keep far more alive than others.
    near = scores.step_ns <= 1.02 * scores.step_ns.min()
    return Plan.of(problem, device, None, ints(kernels[np.where(near, scores.peak_bytes[:, 0], 2**62).argmin()]))


def graphs(corpus: Path | None, start: int, count: int) -> Iterator[tuple[str, Graph]]:
    """Those of the zoo, then of a corpus, from the one of that number on."""
    for name in ZOO[start:count]:
        yield name, lm.load(f"zoo:{name}/train")
    if corpus is None:
        return
    left = count - len(ZOO)
    for data in _training(corpus):
        if left <= 0:
            return
        left -= 1
        yield data["name"], graph_from_json({"schema": "loadmaster.graph/1", **data})


def _training(corpus: Path) -> Iterator[dict[str, Any]]:
    """Training steps of 300 to 1,000 ops that hold far more than their weights, in their order, four of a family."""
    seen: dict[str, int] = {}
    with lzma.open(corpus, "rt") as lines:
        for line in lines:
            data = json.loads(line)
            made = sum(
                t["bytes"] for t in data["tensors"] if t.get("role") == "activation" and t.get("alias_of") is None
            )
            held = sum(t["bytes"] for t in data["tensors"] if t.get("role") == "weight")
            few = data["mode"] == "training" and 300 <= len(data["ops"]) <= 1000
            if few and seen.get(data["family"], 0) < 4 and made > 4 * held:
                seen[data["family"]] = seen.get(data["family"], 0) + 1
                yield data


def row_of(name: str, graph: Graph) -> dict[str, Any]:
    problem = lm.price(graph, "1xa100-nvlink")
    plan = fused(problem)
    line = simulate(problem, plan)
    peak, step = int(line.peak_bytes[0]), line.step_ns
    known = Known(plan)
    row: dict[str, Any] = {
        "model": name,
        "ops": problem.num_ops,
        "fused_ms": round(step / 1e6, 3),
        "peak_mib": peak >> 20,
    }

    def at(limit: float) -> str:
        found = solve(limited(problem, int(limit)), Recompute(known, offload=False, fuse=False), OURS)
        return told(found)

    def told(found: Result, with_peak: bool = False) -> str:
        more = f"{found.timeline.step_ns / step - 1:+.2%}"
        share = f" at {found.timeline.peak_bytes[0] / peak:.0%}" if with_peak else ""
        return f"{more}{share}" if found.fits else f"does not fit ({found.timeline.peak_bytes[0] / peak:.0%})"

    for key, method in (
        ("min-cut", MinCut(known)),
        ("sqrt", SqrtCheckpointing(known)),
        ("layers", LayerCheckpointing(known)),
    ):
        found = solve(problem, method, ONE)
        row[key] = told(found, True)
        row[f"ours at the peak of {key}"] = (
            at(found.timeline.peak_bytes[0]) if found.timeline.peak_bytes[0] < peak else "-"
        )
    for share in (0.6, 0.4):
        row[f"ours at {share:.0%}"] = at(peak * share)
        row[f"activation budget at {share:.0%}"] = told(
            solve(limited(problem, int(peak * share)), ActivationBudget(known), ONE)
        )
    return row


def with_host() -> Cluster:
    """An A100 and its host on PCIe 4: 25 GB/s each way."""
    gpu = Cluster.preset("1xa100-40-pcie").devices[0]
    host = Device("host", "cpu", 2**40, 1.1e12, 1.2e11, 1000)
    pairs = {(0, 1): Link(25e9, 10_000), (1, 0): Link(25e9, 10_000)}
    return Cluster("A100 and host", (gpu, host), pairs, ints([[-1, 0], [1, -1]]))


def offload_row(name: str) -> dict[str, Any]:
    problem = lm.price(lm.load(f"zoo:{name}/train"), with_host())
    plan = fused(problem)
    line = simulate(problem, plan)
    small = limited(problem, int(line.peak_bytes[0] * 0.4))
    row: dict[str, Any] = {
        "model": name,
        "fused_ms": round(line.step_ns / 1e6, 3),
        "peak_mib": int(line.peak_bytes[0]) >> 20,
    }
    for key, again, away in (("recomputation", True, False), ("offload", False, True), ("both", True, True)):
        found = solve(small, Recompute(Known(plan), again=again, offload=away, fuse=False), OURS)
        added = found.plan.added
        share = f"{found.timeline.step_ns / line.step_ns - 1:+.2%}"
        row[key] = share if found.fits else f"does not fit ({found.timeline.peak_bytes[0] / line.peak_bytes[0]:.0%})"
        row[f"{key}: again, away"] = "" if added is None else f"{added.num_again}, {added.num_stays}"
    return row


def layers(count: int, big: int = 1 << 24) -> Graph:
    """Layers of a product and two light ops, and back: six ops each."""
    g = GraphBuilder(f"{6 * count} ops")
    x, kept = g.tensor(big, "input"), []
    for i in range(count):
        weight, made, shifted, out = g.tensor(1 << 18, "weight"), g.tensor(big), g.tensor(big), g.tensor(big)
        g.op(f"mm{i}", "aten.mm.default", [x, weight], [made], flops=2 * 10**9, bytes_moved=2 * big)
        g.op(f"add{i}", "aten.add.Tensor", [made], [shifted], flops=big, bytes_moved=2 * big)
        g.op(f"gelu{i}", "aten.gelu.default", [shifted], [out], flops=big, bytes_moved=2 * big)
        kept.append((x, weight, shifted))
        x = out
    grad = g.tensor(big)
    g.op("loss", "aten.mul.Tensor", [x], [grad], flops=big, bytes_moved=2 * big)
    for i in reversed(range(count)):
        came, weight, shifted = kept[i]
        back, down, of_weight = g.tensor(big), g.tensor(big), g.tensor(1 << 18, "output")
        g.op(f"gelu{i}.back", "aten.gelu_backward.default", [grad, shifted], [back], flops=big, bytes_moved=3 * big)
        g.op(f"mm{i}.weight", "aten.mm.default", [back, came], [of_weight], flops=2 * 10**9, bytes_moved=2 * big)
        g.op(f"mm{i}.down", "aten.mm.default", [back, weight], [down], flops=2 * 10**9, bytes_moved=2 * big)
        grad = down
    return g.build()


def size_row(count: int) -> dict[str, Any]:
    """Seconds for one plan at 60 %, all of it after the graph is there."""
    graph = layers(count // 6)
    problem = lm.price(graph, "1xa100-nvlink")
    plan = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    line = simulate(problem, plan)
    begun = time.process_time(), time.perf_counter()
    small = limited(problem, int(line.peak_bytes[0] * 0.6))
    found = solve(small, Recompute(Known(plan), fuse=False, offload=False), Budget(None, 6))
    spent = time.process_time() - begun[0], time.perf_counter() - begun[1]
    return {
        "ops": problem.num_ops,
        "cpu_s": round(spent[0], 1),
        "wall_s": round(spent[1], 1),
        "fits": found.fits,
        "more": f"{found.timeline.step_ns / line.step_ns - 1:+.2%}",
    }


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(rows[-1], flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--corpus", type=Path, default=None)
    options.add_argument("--start", type=int, default=0)
    options.add_argument("--count", type=int, default=20)
    options.add_argument("--only", default="steps,offload,size")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    wanted = given.only.split(",")
    if "size" in wanted:
        rows = []
        for count in (5_000, 50_000):
            rows.append(size_row(count))
            write(given.folder / "size.csv", rows)
    if "offload" in wanted:
        rows = []
        for name in ZOO[:5]:
            rows.append(offload_row(name))
            write(given.folder / "offload.csv", rows)
    if "steps" in wanted:
        rows = []
        for name, graph in graphs(given.corpus, given.start, given.count):
            rows.append(row_of(name, graph))
            write(given.folder / "steps.csv", rows)


if __name__ == "__main__":
    main()
