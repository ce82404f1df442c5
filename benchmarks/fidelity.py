"""How far the model is from what happened: steps and peaks of one H200, from the kept measurements, without a GPU.

    python benchmarks/fidelity.py                 # tables for docs/fidelity.md

What was measured lies in benchmarks/fidelity/, gathered by benchmarks/fidelity_gpu.py. The host's constants were fitted
to the models in FITTED; all others are held out. What nothing was measured of is forecast: benchmarks/forecast.py.
"""

from __future__ import annotations

import csv
import json
import lzma
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadmaster.baselines.fusion.greedy import GreedyFusion
from loadmaster.cluster import Cluster
from loadmaster.cost import CostModel, Learned, Measured, OpTime, price
from loadmaster.cost.hosting import plain_ns
from loadmaster.files.graph import graph_from_json
from loadmaster.graph import OUTPUT, Graph
from loadmaster.graph.columns import ints
from loadmaster.graph.kinds import HEAVY, work_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate

HERE = Path(__file__).parent / "fidelity"
KIND = "h200"
FITTED = ("distilbert", "phi", "neox", "convnext", "swin", "regnet", "mobilenet", "electra", "mlp")
BARE_NS = 10_700  # what a bare call usually took the host, for steps beside which none was timed


@dataclass(frozen=True)
class Row:
    """One prediction beside what happened."""

    case: str
    held_out: bool
    what: str  # "graphs", "eager", "compiled" steps in ms; "peak" in MiB
    basis: str
    modelled: float
    measured: float

    @property
    def error(self) -> float:
        return self.modelled / self.measured - 1


def cases(more: bool = False) -> Iterator[Graph]:
    """The captured steps; `more`: with the inferences that only the host's constants are fitted to."""
    for name in ("graphs", *(["more"] if more else [])):
        with lzma.open(HERE / f"{name}.jsonl.xz", "rt") as file:
            for line in file:
                yield graph_from_json(json.loads(line))


def traced() -> dict[str, Graph]:
    """Steps that CUDA graphs and torch.compile see otherwise than an eager run: with masks."""
    with lzma.open(HERE / "traced.jsonl.xz", "rt") as file:
        return {graph.name: graph for graph in (graph_from_json(json.loads(line)) for line in file)}


def eager_steps() -> dict[str, tuple[float, float]]:
    """ms of each eager step, and ns of a bare call at that time."""
    return {case: (float(row["step_ms"]), float(row["host_ns"])) for case, row in steps("eager.csv").items()}


def steps(name: str = "steps.csv") -> dict[str, dict[str, str]]:
    with open(HERE / name, newline="") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


def host_steps(name: str = "host.csv") -> dict[str, tuple[float, float]]:
    """The same in another run, where the host was slower."""
    return {case: (float(row["step_ms"]), float(row["bare_ns"])) for case, row in steps(name).items()}


def compiled_steps() -> dict[str, tuple[float, float]]:
    """The same of compiled steps; beside some no bare call was timed."""
    found = {case: (float(row["step_ms"]), float(BARE_NS)) for case, row in steps("compiled.csv").items()}
    return found | host_steps("hostcompiled.csv")


def held_out(case: str) -> bool:
    return case.partition("-")[0] not in FITTED


Ops = dict[str, dict[str, str]]  # by signature


def op_rows() -> Ops:
    with lzma.open(HERE / "ops.csv.xz", "rt", newline="") as file:
        return {row["signature"]: row for row in csv.DictReader(file) if not row["note"]}


def times_of(graph: Graph, rows: Ops) -> dict[str, OpTime]:
    """The measured ops of one graph."""
    times = {}
    for op, name in enumerate(graph.op_name):
        row = rows.get(graph.signature.get(name, ""))
        if row is not None:
            facts = graph.kind[op], graph.dtype[op], int(graph.flops[op]), int(graph.bytes_moved[op])
            columns = ("hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns", "workspace_bytes")
            times[row["signature"]] = OpTime(*facts, *(int(row[key]) for key in columns), row["stable"] == "1")
    return times


def machine(mode: str, bare_ns: float = BARE_NS) -> Cluster:
    """One H200; launches are part of what was measured, and of the network that knows the others."""
    cluster = Cluster.preset("1xh200")
    device = replace(cluster.devices[0], kind=KIND, launch_ns=1_000)
    asked = {mode: plain_ns(mode, bare_ns) for mode in ("eager", "compiled")}
    return replace(cluster, devices=(device,), mode=mode, dispatch_ns={**asked, "graphs": 0})


def in_order(problem: Problem) -> Plan:
    return Plan.of(problem, np.zeros(problem.num_ops, np.int64), np.arange(problem.num_ops))


def step_ms(graph: Graph, mode: str, cost: CostModel, bare_ns: float = BARE_NS) -> float:
    """The modelled step of program order on one device; in the mode "compiled", of greedily fused kernels."""
    problem = price(graph, machine(mode, bare_ns), cost=cost)
    plan = in_order(problem)
    if mode == "compiled":
        plan = solve(problem, GreedyFusion(), Budget(None, 1), 0).plan
    return simulate(problem, plan).step_ns / 1e6


def peak_mib(graph: Graph, cost: CostModel, measured: dict[str, str]) -> tuple[float, float]:
    """Of what a training step allocates beside its weights and states, modelled and measured, plus these."""
    problem = price(_keeping_results(graph), machine("graphs"), cost=cost)
    resident = int(problem.graph.nbytes[problem.resident].sum())
    modelled = int(simulate(problem, in_order(problem)).peak_bytes[0])
    real = int(measured["peak_bytes"]) - int(measured["before_bytes"]) + resident
    return modelled / 2**20, real / 2**20


def inference_peak_mib(rows: list[dict[str, str]], ops: Ops, measured: dict[str, str]) -> tuple[float, float]:
    """Of an inference, with what Python's variables hold during each op."""
    modelled = max(int(row["live_bytes"]) + _workspace(ops.get(row["signature"])) for row in rows)
    real = int(measured["peak_bytes"]) - int(measured["before_bytes"]) + int(rows[0]["resident_bytes"])
    return modelled / 2**20, real / 2**20


def _workspace(row: dict[str, str] | None) -> int:
    return 0 if row is None else int(row["workspace_bytes"])


def frames() -> dict[str, list[dict[str, str]]]:
    """By inference: bytes that are alive during each op, as `loadmaster.runtime.frames` finds them."""
    found: dict[str, list[dict[str, str]]] = {}
    with lzma.open(HERE / "frames.csv.xz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["case"], []).append(row)
    return found


def _keeping_results(graph: Graph) -> Graph:
    """With the logits kept to the end, as the loop that was measured does: it holds on to the model's output."""
    losses = [op for op, kind in enumerate(graph.kind) if kind.startswith("aten._log_softmax.")]
    heavy = [op for op in range(losses[0]) if work_of(graph.kind[op]) == HEAVY] if losses else []
    if not heavy or not any(kind.startswith("optim.") for kind in graph.kind):
        return graph
    role = graph.role.copy()
    role[graph.makes_of(heavy[-1])] = OUTPUT
    return replace(graph, role=ints(role))


def table() -> Iterator[Row]:
    """All predictions that can be compared with something."""
    ops, real, eager, compiled = op_rows(), steps(), eager_steps(), compiled_steps()
    held, masked = frames(), traced()
    for graph in cases():
        row, case, out = real[graph.name], graph.name, held_out(graph.name)
        seen = masked.get(case, graph)
        measured, as_seen = (Measured({KIND: times_of(one, ops)}, {KIND: Learned()}) for one in (graph, seen))
        yield Row(case, out, "busy", "measured", step_ms(graph, "graphs", measured), float(row["busy_ms"]))
        if same_work(row) or case in masked:
            taken = float(row["graph_ms"])
            yield Row(case, out, "graphs", "measured", step_ms(seen, "graphs", as_seen), taken)
        taken, bare = eager[case]
        yield Row(case, out, "eager", "measured", step_ms(graph, "eager", measured, bare), taken)
        if case in compiled:
            taken, bare = compiled[case]
            yield Row(case, out, "compiled", "measured", step_ms(seen, "compiled", as_seen, bare), taken)
        if case in held:
            yield Row(case, out, "peak", "measured", *inference_peak_mib(held[case], ops, row))
        else:
            yield Row(case, out, "peak", "measured", *peak_mib(graph, measured, row))


def same_work(row: dict[str, str]) -> bool:
    """While a CUDA graph is recorded, transformers gives attention a mask that it otherwise leaves out: such a graph
    takes much longer than the kernels of the same step run eagerly. It is another step, and not all were captured."""
    return float(row["graph_ms"] or 0) < 1.15 * float(row["busy_ms"])


def summary(rows: list[Row]) -> list[str]:
    lines = [
        "| what | rests on | models | cases | median error | within 10 % | worst |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for key in dict.fromkeys((row.what, row.basis) for row in rows):
        for label, wanted in (("held out", True), ("fitted", False)):
            errors = [abs(r.error) for r in rows if (r.what, r.basis) == key and r.held_out == wanted]
            if errors:
                near = sum(error <= 0.1 for error in errors)
                figures = f"{statistics.median(errors):.1%} | {near} | {max(errors):.0%}"
                lines.append(f"| {key[0]} | {key[1]} | {label} | {len(errors)} | {figures} |")
    return lines


def floor() -> list[str]:
    """How much the same eager step differed between two runs on machines of the same kind, hours apart."""
    first, again = steps(), eager_steps()
    apart: dict[str, list[float]] = {"host": [], "GPU": []}
    for case, (step, _) in again.items():
        before, busy = float(first[case]["eager_ms"]), float(first[case]["busy_ms"])
        apart["GPU" if busy > 0.85 * before else "host"].append(abs(step / before - 1))
    return [
        f"{len(some)} eager steps that wait for the {who}: two runs differ by {statistics.median(some):.1%}"
        f" (median), {max(some):.0%} at most"
        for who, some in apart.items()
    ]


def main() -> None:
    rows = list(table())
    print("\n".join([*summary(rows), "", *floor()]))
    print("\n| case | what | rests on | modelled | measured | error |\n|---|---|---|--:|--:|--:|")
    for row in sorted(rows, key=lambda row: (row.case, row.what, row.basis)):
        shown = f"{row.modelled:,.1f} | {row.measured:,.1f} | {row.error:+.0%}"
        print(f"| {row.case} | {row.what} | {row.basis} | {shown} |")


if __name__ == "__main__":
    main()
