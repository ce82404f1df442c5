"""How far modelled steps are from what a CPU takes, with each distinct op timed alone on it.

    python benchmarks/fidelity_cpu.py OUT.csv [--threads 8] [--seconds 120]
    python benchmarks/fidelity_cpu.py OUT.csv --alone [--small]  # one thread, its own CPU time: a busy machine will do

Else it wants a quiet machine. Training steps and inferences of small sizes, eager, fused Adam; a line per case as it
is done. Without a GPU in sight, so that the CPU is the only device.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("LOADMASTER_CACHE", tempfile.mkdtemp())

import torch

sys.path.insert(0, str(Path(__file__).parent))
from fidelity_models import Case

from loadmaster.cost import price
from loadmaster.importers.torch.export import capture
from loadmaster.importers.torch.step import Target
from loadmaster.plans import Plan
from loadmaster.runtime import timing
from loadmaster.runtime.machine import measure_machine
from loadmaster.runtime.measure import measure_ops
from loadmaster.simulator import simulate

SIZES = [
    ("bert", 4, 128), ("gpt2", 2, 128), ("vit", 4, 224), ("resnet", 8, 224), ("t5", 4, 128), ("albert", 4, 128),
    ("distilbert", 8, 128), ("electra", 8, 128), ("convnext", 4, 224), ("mlp", 256, 2048),
    ("qwen2", 1, 128), ("swin", 4, 224),
]  # fmt: skip
REPEATS = 7


def cases(small: bool) -> list[Case]:
    """In turns training and not; `small`: half of the batch, and of the tokens."""
    sizes = [(m, max(1, b // 2), n // 2 if n == 128 else n) for m, b, n in SIZES] if small else SIZES
    return [Case(model, "float32", training, b, n) for model, b, n in sizes for training in (True, False)]


def step_of(module: torch.nn.Module, inputs: dict[str, torch.Tensor], training: bool) -> Callable[[], object]:
    if not training:

        def infer() -> object:
            with torch.no_grad():
                return module(**inputs)

        return infer
    optimizer = torch.optim.Adam(module.parameters(), fused=True)  # what a captured step updates with

    def train() -> object:
        out = module(**inputs)
        made = out if isinstance(out, torch.Tensor) else out.loss if getattr(out, "loss", None) is not None else out[0]
        loss = made.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return out

    return train


def measured_ms(step: Callable[[], object]) -> tuple[float, float]:
    """(median, spread between the quartiles as a share of it)"""
    for _ in range(2):
        step()
    times = []
    for _ in range(REPEATS):
        start = timing.time.perf_counter_ns()
        step()
        times.append((timing.time.perf_counter_ns() - start) / 1e6)
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own number")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", default="", help="one model")
    parser.add_argument("--alone", action="store_true", help="one thread, and only the time that it had a core")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    if given.alone:
        given.threads = 1
        timing.time = SimpleNamespace(perf_counter_ns=time.process_time_ns)  # type: ignore[assignment]
    if given.threads:
        torch.set_num_threads(given.threads)
    cluster = measure_machine().cluster
    until, rows = time.monotonic() + given.seconds, []
    with given.out.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["case", "ops", "modelled_ms", "measured_ms", "spread", "timed_share"])
        for case in (case for case in cases(given.small) if given.only in ("", case.model)):
            if time.monotonic() > until:
                break
            module, inputs = case.build("cpu")
            target = Target(keep=True)
            graph = capture(module, inputs, training=case.training, name=case.name, target=target)
            before, spread = measured_ms(step_of(module, inputs, case.training))
            costs = measure_ops(graph, cluster, seconds=15)
            after, _ = measured_ms(step_of(module, inputs, case.training))
            problem = price(graph, cluster, cost=costs)
            modelled = simulate(problem, Plan.of(problem, [0] * problem.num_ops)).step_ns / 1e6
            table = costs.times[cluster.devices[0].kind]
            timed = sum(graph.signature.get(name) in table for name in problem.graph.op_name) / problem.num_ops
            rows.append((modelled, (before + after) / 2))
            row = [
                case.name,
                problem.num_ops,
                round(modelled, 2),
                round(rows[-1][1], 2),
                round(spread, 3),
                round(timed, 3),
            ]
            lines.writerow(row)
            file.flush()
            print(*row, f"{modelled / rows[-1][1] - 1:+.1%}", flush=True)
    errors = sorted(abs(modelled / measured - 1) for modelled, measured in rows)
    print(f"{len(errors)} steps: median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}")


if __name__ == "__main__":
    main()
