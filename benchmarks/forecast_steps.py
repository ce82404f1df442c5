"""How far forecasts of whole steps are from what an H200 did, on families that nothing was fitted to.

    python benchmarks/forecast_steps.py           # tables for docs/fidelity.md
    python benchmarks/forecast_steps.py --rows    # also every case

Steps were measured by benchmarks/forecast_gpu.py and lie in benchmarks/forecast/. A forecast knows the graph, the data
sheet and the mode, and nothing of the machine's host; "host timed" knows what a bare call took beside the step.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import fidelity
import forecast
import numpy as np

from loadmaster.baselines.fusion.greedy import greedy_kernels
from loadmaster.cluster import Cluster
from loadmaster.cost import CostModel, Learned, Roofline, hosted, price
from loadmaster.cost.features import facts_of
from loadmaster.cost.hosting import plain_ns
from loadmaster.files.graph import graph_from_json
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.kinds import HEAVY, work_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.report.certainty import interval
from loadmaster.search import Budget, Method, Search, solve
from loadmaster.simulator import simulate

H200 = Cluster.preset("1xh200")


@dataclass(frozen=True)
class Row:
    """One forecast beside what happened; `low` and `high` are the ends of its interval."""

    case: str
    held_out: bool
    mode: str
    basis: str
    told_ms: float
    took_ms: float
    low: float = 0.0
    high: float = math.inf

    @property
    def error(self) -> float:
        return self.told_ms / self.took_ms - 1

    @property
    def family(self) -> str:
        return self.case.partition("-")[0]


@dataclass(frozen=True)
class Told(Roofline):
    """A control of benchmarks/forecast.py as a cost model."""

    times: forecast.Model = field(default=lambda facts: np.zeros(len(facts)))

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        column = np.maximum(np.rint(self.times(facts_of(graph))), 0)
        return ints(np.tile(column[None, :, None], (3, 1, 1)))


@dataclass(frozen=True)
class Ready:
    """Program order on one device, with kernels where a compiler makes them."""

    compiled: bool

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        order = np.arange(problem.num_ops)
        place = np.zeros(problem.num_ops, np.int64)
        if not self.compiled:
            return Plan.of(problem, place, order)
        kernel = greedy_kernels(problem)
        last = np.zeros(problem.num_ops, np.int64)
        np.maximum.at(last, kernel, order)
        return Plan.of(problem, place, last[kernel], kernel)


def step(graph: Graph, cluster: Cluster, cost: CostModel | None) -> tuple[float, float, float, Problem]:
    """ms, the ends of its interval, and the priced problem."""
    problem = price(graph, cluster, cost=cost)
    method: Method = Ready(cluster.mode == "compiled")
    found = solve(problem, method, Budget(None, 1), 0)
    low, high = interval(found) or (found.timeline.step_ns,) * 2
    return found.timeline.step_ns / 1e6, low / 1e6, high / 1e6, problem


def graphs(name: str) -> dict[str, Graph]:
    with lzma.open(forecast.HERE / f"{name}.jsonl.xz", "rt") as file:
        return {graph.name: graph for graph in (graph_from_json(json.loads(line)) for line in file)}


def measured() -> list[dict[str, str]]:
    with open(forecast.HERE / "steps.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row["step_ms"]]


def busy_ms() -> dict[tuple[str, str], float]:
    """By case and mode: the sum of the kernels' own times."""
    found: dict[tuple[str, str], float] = {}
    with lzma.open(forecast.HERE / "kernels.csv.xz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            key = row["case"], row["mode"]
            found[key] = found.get(key, 0.0) + int(row["total_ns"]) / 1e6
    return found


@cache
def controls() -> dict[str, CostModel | None]:
    known = [*forecast.sweep(), *forecast.steps()]
    return {"table by kind and size": Told(times=forecast.table(known)), "learned": Learned()}


def rows() -> Iterator[Row]:
    plain, traced, busy = graphs("graphs"), graphs("traced"), busy_ms()
    for found in measured():
        case, mode, took = found["case"], found["mode"], float(found["step_ms"])
        graph = traced.get(case, plain.get(case)) if mode == "compiled" else plain.get(case)
        if graph is None:
            continue
        held = found["held_out"] == "1"
        yield Row(case, held, mode, "roofline", step(graph, H200, None)[0], took)
        for name, cost in controls().items():
            told, low, high, _ = step(graph, hosted(H200, mode), cost)
            yield Row(case, held, mode, name, told, took, low, high)
        run = hosted(H200, mode)
        asked = replace(run, dispatch_ns={mode: plain_ns(mode, float(found["bare_ns"]))}, basis="measured")
        told, low, high, _ = step(graph, asked, Learned())
        yield Row(case, held, mode, "learned, host timed", told, took, low, high)
        if (case, mode) in busy:
            for name, cost in {**controls(), "roofline": None}.items():
                told, low, high, _ = step(graph, replace(run, dispatch_ns={mode: 0}), cost)
                yield Row(case, held, f"{mode}, kernels alone", name, told, busy[case, mode], low, high)


def peaks() -> Iterator[Row]:
    """Of eager training steps: what a step allocates beside its weights and states, and these, in MiB."""
    plain = graphs("graphs")
    for found in measured():
        if found["mode"] != "eager" or "-train-" not in found["case"] or found["case"] not in plain:
            continue
        graph = fidelity._keeping_results(plain[found["case"]])
        problem = price(graph, H200)
        resident = int(problem.graph.nbytes[problem.resident].sum())
        modelled = int(simulate(problem, fidelity.in_order(problem)).peak_bytes[0])
        real = int(found["peak_bytes"]) - int(found["before_bytes"]) + resident
        yield Row(found["case"], found["held_out"] == "1", "peak", "shapes", modelled / 2**20, real / 2**20)


def kernels() -> Iterator[tuple[str, int, int]]:
    """(case, kernels that the rule says Inductor generates, launches of generated kernels in the compiled step)."""
    launched: dict[str, int] = {}
    with lzma.open(forecast.HERE / "kernels.csv.xz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "compiled" and row["op"].startswith("triton"):
                launched[row["case"]] = launched.get(row["case"], 0) + int(row["count"])
    plain, traced = graphs("graphs"), graphs("traced")
    for case, count in launched.items():
        problem = price(traced.get(case, plain[case]), H200)
        called = [
            op for op, kind in enumerate(problem.graph.kind) if work_of(kind) == HEAVY or kind.startswith("optim.")
        ]
        kernel = greedy_kernels(problem)
        yield case, len(set(kernel.tolist()) - set(kernel[called].tolist())), count


def summary(some: Sequence[Row]) -> list[str]:
    lines = [
        "| mode | forecast | cases | median error | within 30 % | worst | its interval holds |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for mode, basis in dict.fromkeys((row.mode, row.basis) for row in some):
        mine = [row for row in some if (row.mode, row.basis) == (mode, basis)]
        errors = np.abs([row.error for row in mine])
        held = np.mean([row.low <= row.took_ms <= row.high for row in mine])
        shown = f"{held:.0%}" if any(row.low < row.told_ms < row.high < math.inf for row in mine) else ""
        figures = f"{np.median(errors):.1%} | {np.mean(errors <= 0.3):.0%} | {errors.max():.0%} | {shown}"
        lines.append(f"| {mode} | {basis} | {len(mine)} | {figures} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", action="store_true")
    settings = parser.parse_args()
    for phase in ("train", "infer"):
        shares = [ours / theirs for case, ours, theirs in kernels() if f"-{phase}-" in case]
        print(f"{phase}: kernels foretold over generated, median of {len(shares)}: {np.median(shares):.2f}")
    some = [*rows(), *peaks()]
    for title, held in (("held out", True), ("fitted", False)):
        mine = [row for row in some if row.held_out == held]
        print(f"\n{title}: {len({row.family for row in mine})} families")
        print("\n".join(summary(mine)), flush=True)
    if settings.rows:
        for row in sorted(some, key=lambda row: (row.mode, row.case, row.basis)):
            print(
                f"| {row.case} | {row.mode} | {row.basis} | {row.told_ms:.2f} | {row.took_ms:.2f} | {row.error:+.0%} |"
            )


if __name__ == "__main__":
    main()
