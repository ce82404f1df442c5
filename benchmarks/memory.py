"""Training steps in less memory: recomputation and offload against checkpoints and cuts, one device, simulated.

    PYTHONPATH=src python benchmarks/memory.py FOLDER [--corpus valid.jsonl.xz] [--only steps,offload,homes,size]
        [--workers 12] [--seconds 400]

Each model has two processes of its own, so many run at once; every figure is kept in FOLDER/cells as soon as it is
found, and those that are there are not found again. Writes steps.csv, offload.csv, homes.csv and size.csv into FOLDER.
The step that all are compared with is that of the fastest kernels that simple rules of fusion give, in program order.
Every search has a budget of simulations, so that answers repeat.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import loadmaster as lm
from loadmaster.baselines.fusion.greedy import Merges, sharing_of, simple_orders
from loadmaster.baselines.simple import Ready
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.files import graph_from_json
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.methods.memory.checkpoints import LayerCheckpointing, MinCut, SqrtCheckpointing
from loadmaster.methods.memory.recompute import Recompute
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds.peak import peak_bound
from loadmaster.search import Budget, Method, Result, solve
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
OURS, ONE = Budget(None, 60), Budget(None, 60)  # simulations, those of drafts among them
LONG = ("gpt2", "bert-base", "inception-v3-b32", "unet-ddpm", "rnnlm")  # the last takes longest
Cell = dict[str, Any]
Job = tuple[str, str, list[str]]  # table, model, figures


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
        yield data["name"], graph_from_json({"schema": "loadmaster.graph/1", **data, "ops": list(_halves(data))})


def _halves(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Its ops; what goes back through a convolution as its two halves, the gradient of what it read and that of its
    weight, as GPU libraries run it and as steps are captured now."""
    tensors = data["tensors"]
    for op in data["ops"]:
        inputs, outputs = op["inputs"], op["outputs"]
        both = op["kind"] == "aten.convolution_backward.default" and len(inputs) == 3 and len(outputs) > 1
        if not both or tensors[outputs[0]]["bytes"] != tensors[inputs[1]]["bytes"]:
            yield op
            continue
        came, read, weight = inputs
        part = {**op, "flops": op["flops"] // 2}
        yield {**part, "inputs": [came, weight], "outputs": outputs[:1]}
        yield {**part, "name": f"{op['name']}.weight", "inputs": [came, read], "outputs": outputs[1:]}


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


class Case:
    """A problem with its fused plan, which all others are compared with."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.plan = fused(self.problem)
        self.known = Ready(self.plan)
        line = simulate(self.problem, self.plan)
        self.peak, self.step = int(line.peak_bytes[0]), line.step_ns

    def told(self, found: Result) -> Cell:
        """Step and peak as shares, and whether it fits."""
        added = found.plan.added
        return {
            "step": found.timeline.step_ns / self.step,
            "peak": int(found.timeline.peak_bytes[0]) / self.peak,
            "fits": found.fits,
            "again": 0 if added is None else added.num_again,
            "away": 0 if added is None else added.num_stays,
        }

    def at(self, limit: float, method: Method, budget: Budget) -> Cell:
        return self.told(solve(limited(self.problem, int(limit)), method, budget))

    def ours(self, limit: float, budget: Budget = OURS) -> Cell:
        return self.at(limit, Recompute(self.known, offload=False), budget)


def facts(case: Case) -> Cell:
    """Beside step and peak, what no plan can do without: residents, and what is kept to the end."""
    least = peak_bound(case.problem, fusing=sharing_of(case.problem), adding=True) / case.peak
    return {"ops": case.problem.num_ops, "ms": case.step / 1e6, "mib": case.peak >> 20, "least": least}


def beside(method: Method) -> Callable[[Case], Cell]:
    """Another method, and ours at its peak where that is below that of the fused plan."""

    def found(case: Case) -> Cell:
        theirs = case.told(solve(case.problem, replace(method, inner=case.known), ONE))  # type: ignore[type-var]
        ours = case.ours(theirs["peak"] * case.peak) if theirs["peak"] < 1 else {}
        return {**theirs, **{f"our {key}": value for key, value in ours.items()}}

    return found


def at_share(share: float) -> Callable[[Case], Cell]:
    return lambda case: case.ours(share * case.peak)


STEPS: dict[str, Callable[[Case], Cell]] = {
    "facts": facts,
    "min-cut": beside(MinCut()),
    "sqrt": beside(SqrtCheckpointing()),
    "layers": beside(LayerCheckpointing()),
    "60": at_share(0.6),
    "40": at_share(0.4),
}


HALVES = (["facts", "60", "40"], ["min-cut", "sqrt", "layers"])


def with_host() -> Cluster:
    """An A100 and its host on PCIe 4: 25 GB/s each way."""
    gpu = Cluster.preset("1xa100-40-pcie").devices[0]
    host = Device("host", "cpu", 2**40, 1.1e12, 1.2e11, 1000)
    pairs = {(0, 1): Link(25e9, 10_000), (1, 0): Link(25e9, 10_000)}
    return Cluster("A100 and host", (gpu, host), pairs, ints([[-1, 0], [1, -1]]))


def away(again: bool, offload: bool, residents: bool = False, share: float = 0.4) -> Callable[[Case], Cell]:
    """At a share of the peak, with a host; `residents`: weights and state may live there."""

    def found(case: Case) -> Cell:
        method = Recompute(case.known, again=again, offload=offload, residents=residents)
        return case.at(share * case.peak, method, OURS)

    return found


OFFLOAD: dict[str, Callable[[Case], Cell]] = {
    "recomputation": away(True, False),
    "offload": away(False, True),
    "both": away(True, True),
    "offload with state": away(False, True, True),
    "both with state": away(True, True, True),
    "recomputation at 20": away(True, False, False, 0.2),
    "both at 20": away(True, True, False, 0.2),
    "both with state at 20": away(True, True, True, 0.2),
}


# Models on an A100 with so many GiB: less than their weights and state, or their weights, take.
HOMELESS = {
    "llama-8b/train": (40, 24),
    "llama-8b/infer": (12, 8, 4),
    "mixtral-8x7b/infer": (40,),
    "bert-base/train": (1,),
    "vit-base/train": (0.75,),
    "vit-base/infer": (0.25,),
}


def homeless(name: str, gib: float) -> Cell:
    """Under a limit below what is there before the step, which only a host can hold: our plan, and how long the link
    takes at least for what does not fit."""
    case = Case(lm.price(lm.load(f"zoo:{name}"), with_host()))
    graph, limit = case.problem.graph, int(gib * 2**30)
    there = int(graph.nbytes[graph.producer < 0].sum())
    sizes = {"there mib": there >> 20, "fused ms": case.step / 1e6, "fused mib": case.peak >> 20}
    return {**case.at(limit, Recompute(case.known), OURS), **sizes, "link ms": max(0, there - limit) / 25e6}


HOMES: dict[str, Callable[[], Cell]] = {
    f"{name} {gib}": partial(homeless, name, gib) for name, sizes in HOMELESS.items() for gib in sizes
}


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


def size(count: int, method: str) -> Cell:
    """Seconds for one plan at 60 %, all of it after the graph is there and what is compiled has been compiled."""
    for ops in (600, count):
        problem = lm.price(layers(ops // 6), "1xa100-nvlink")
        line = simulate(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
        begun = time.process_time(), time.perf_counter()
        small = limited(problem, int(line.peak_bytes[0] * 0.6))
        found = solve(small, method, Budget(SECONDS[count], None) if method == "auto" else Budget(None, 12))
        spent = time.process_time() - begun[0], time.perf_counter() - begun[1]
    return {
        "ops": problem.num_ops,
        "cpu_s": round(spent[0], 1),
        "wall_s": round(spent[1], 1),
        "fits": found.fits,
        "step": found.timeline.step_ns / line.step_ns,
    }


SECONDS = {5_000: 10.0, 50_000: 60.0}
SIZE: dict[str, Callable[[], Cell]] = {
    f"{count} {method}": partial(size, count, method) for count in SECONDS for method in ("recompute", "auto")
}


def cells_of(table: str, model: str, keys: list[str], corpus: Path | None) -> Iterator[tuple[str, Cell]]:
    if table in ("size", "homes"):
        yield from ((key, (SIZE if table == "size" else HOMES)[key]()) for key in keys)
    elif table == "offload":
        case = Case(lm.price(lm.load(f"zoo:{model}/train"), with_host()))
        yield from ((key, OFFLOAD[key](case)) for key in keys)
    else:
        graph = next(graph for name, graph in graphs(corpus, 0 if model in ZOO else len(ZOO), 99) if name == model)
        case = Case(lm.price(graph, "1xa100-nvlink"))
        yield from ((key, STEPS[key](case)) for key in keys)


def run_all(jobs: list[Job], given: argparse.Namespace) -> None:
    """Each in a process of its own that writes its cells."""
    corpus, commands = ["--corpus", str(given.corpus)] if given.corpus else [], []
    for table, model, keys in jobs:
        missing = [key for key in keys if not path_of(given.folder, table, model, key).exists()]
        if missing:
            cells = "|".join((table, model, ",".join(missing)))
            commands.append([sys.executable, __file__, str(given.folder), *corpus, "--cells", cells])
    run_beside(commands, given.workers, given.seconds)


def run_beside(commands: list[list[str]], workers: int, seconds: float) -> None:
    """So many at a time; what still runs after so many seconds is ended."""
    begun, running, waiting = time.perf_counter(), list[subprocess.Popen[bytes]](), list(commands)
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        if time.perf_counter() - begun > seconds:
            for process in running:
                process.kill()
            return
        while waiting and len(running) < workers:
            running.append(subprocess.Popen(waiting.pop(0)))
        time.sleep(0.2)


def path_of(folder: Path, *job: str) -> Path:
    return folder / "cells" / (re.sub(r"[^\w.@-]", "_", "--".join(job)) + ".json")


def write(folder: Path, table: str, jobs: list[Job]) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for of, model, keys in jobs:
        for key in keys if of == table else ():
            path = path_of(folder, of, model, key)
            if path.exists():
                row = rows.setdefault(model, {"model": model})
                row.update({f"{key}: {name}": value for name, value in json.loads(path.read_text()).items()})
    with open(folder / f"{table}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows.values() for key in row)))
        writer.writeheader()
        writer.writerows(rows.values())


def jobs_of(wanted: list[str], corpus: Path | None, count: int) -> list[Job]:
    """The longest first."""
    jobs: list[Job] = [("size", key.split()[0], [key]) for key in SIZE if "size" in wanted]
    jobs += [("offload", name, list(OFFLOAD)) for name in ZOO[:5] if "offload" in wanted]
    jobs += [("homes", key.replace("/", "-"), [key]) for key in HOMES if "homes" in wanted]
    models = [name for name, _ in graphs(corpus, 0, count)] if "steps" in wanted else []
    models = sorted(models, key=lambda name: -LONG.index(name) if name in LONG else 1)
    return jobs + [("steps", name, keys) for name in models for keys in HALVES]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--corpus", type=Path, default=None)
    options.add_argument("--count", type=int, default=20)
    options.add_argument("--only", default="steps,offload,homes,size")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--seconds", type=float, default=1e9)
    options.add_argument("--cells", default="", help="table|model|figure,figure: these, in this process")
    given = options.parse_args()
    (given.folder / "cells").mkdir(parents=True, exist_ok=True)
    if given.cells:
        table, model, keys = given.cells.split("|")
        begun = time.process_time()
        for key, cell in cells_of(table, model, keys.split(","), given.corpus):
            path_of(given.folder, table, model, key).write_text(json.dumps(cell))
            print(f"[{time.process_time() - begun:.0f}]", table, model, key, cell, flush=True)
        return
    wanted = given.only.split(",")
    jobs = jobs_of(wanted, given.corpus, given.count)
    run_all(jobs, given)
    for table in wanted:
        write(given.folder, table, jobs)


if __name__ == "__main__":
    main()
