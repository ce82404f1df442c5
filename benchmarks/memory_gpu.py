"""Plans that run ops again, on a GPU: peak and step beside what was modelled, and results beside those of the module.

    PYTHONPATH=src python3 benchmarks/memory_gpu.py FOLDER [--seconds 220] [--share 0.6] [--only gpt2,bert-base]

For each training step of the zoo: torch's eager and compiled steps; then the plan in program order, one that fits
into a share of its peak, both op by op, one with kernels (compiled as regions), and one with kernels that is to fit
into what torch.compile needed. Prints as it goes; writes memory.csv into FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from loadmaster.cost import Calibrated, price
from loadmaster.graph.columns import ints
from loadmaster.importers.torch.arguments import as_arguments, split
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.optimizers.fusion.greedy import GreedyFusion
from loadmaster.optimizers.memory.recompute import Recompute
from loadmaster.optimizers.simple import OneDevice
from loadmaster.problem import Problem
from loadmaster.runtime.apply import build, planning_of
from loadmaster.runtime.verify import verify_step
from loadmaster.search import Budget, Result, solve
from loadmaster.zoo import language, vision

MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: language.gpt2(True, batch=4, steps=1024),
    "bert-base": lambda: language.bert(True, batch=8, steps=512),
    "vit-base": lambda: vision.vit(True, batch=16),
    "resnet50": lambda: vision.resnet50(True, batch=32),
    "t5-base": lambda: language.t5(True, batch=4, steps=512, targets=114),
    "tiny": lambda: language.gpt2(True, batch=2, steps=32, layers=1, vocabulary=64),  # to try it out
}
GPU = torch.cuda.is_available()  # without one it shows that it runs, no more
PLACE = "cuda:0" if GPU else "cpu"
SMALL = Budget(None, 12)
BEGUN = time.perf_counter()
FIELDS = ("model", "plan", "limit", "modelled_peak", "measured_peak", "modelled_ms", "measured_ms", "again", "verified")


def say(*words: Any) -> None:
    print(f"[{time.perf_counter() - BEGUN:6.1f}]", *words, flush=True)


def limited(problem: Problem, nbytes: int) -> Problem:
    return replace(problem, memory_bytes=ints(np.full(problem.num_devices, nbytes)))


def plans_of(problem: Problem, share: float, peaks: dict[str, int]) -> Iterator[tuple[str, int, Result]]:
    """In program order, fitted into a share of that peak, and, with kernels, into what torch.compile needed."""
    plain = solve(problem, OneDevice(), Budget(None, 1))
    yield "program order", 0, plain
    limit = int(plain.timeline.peak_bytes[0] * share)
    yield "recompute", limit, solve(limited(problem, limit), Recompute(OneDevice(), offload=False, fuse=False), SMALL)
    kernels = solve(problem, GreedyFusion(OneDevice()), Budget(None, 1))
    yield "fused", 0, kernels
    if limit := peaks.get("torch.compile", 0):
        yield "fused, as small as torch.compile", limit, solve(limited(problem, limit), Recompute(offload=False), SMALL)


def finish() -> None:
    if GPU:
        torch.cuda.synchronize()


def measured(step: Any, inputs: Any, steps: int = 8) -> tuple[int, float]:
    """(peak bytes, median ms)."""
    args, kwargs = split(as_arguments(inputs, "memory"))
    times = []
    for number in range(steps + 2):
        if number == 2 and GPU:
            torch.cuda.reset_peak_memory_stats()
        finish()
        begun = time.perf_counter()
        step(*args, **kwargs)
        finish()
        times.append(1e3 * (time.perf_counter() - begun))
    return torch.cuda.max_memory_allocated() if GPU else 0, statistics.median(times[2:])


def loop_of(module: torch.nn.Module) -> Callable[..., Any]:
    """An ordinary training step."""
    optimizer = torch.optim.Adam(module.parameters(), fused=GPU)

    def step(*args: Any, **kwargs: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(module(*args, **kwargs), "module").backward()
        optimizer.step()

    return step


def defaults_of(name: str, compiled: bool) -> list[dict[str, Any]]:
    """What torch does by itself: eager, and compiled."""
    rows = []
    for kind in ("eager", *(["torch.compile"] if compiled else [])):
        clean()
        torch.manual_seed(0)
        module, inputs = MODELS[name]()
        module.to(PLACE).train()
        inputs = tree_map_only(torch.Tensor, lambda value: value.to(PLACE), inputs)
        step = loop_of(module if kind == "eager" else torch.compile(module))
        peak, took = measured(step, inputs)
        rows.append(row_of(model=name, plan=kind, measured_peak=peak, measured_ms=round(took, 3)))
        del module, step
    torch.compiler.reset()
    return rows


def row_of(**figures: Any) -> dict[str, Any]:
    say(*(f"{key}={value}" for key, value in figures.items()))
    return {**dict.fromkeys(FIELDS, ""), **figures}


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without a GPU


def rows_of(name: str, share: float, compiled: bool) -> list[dict[str, Any]]:
    rows = defaults_of(name, compiled)
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=GPU))
    problem = price(captured.graph, "1xh200", cost=Calibrated.shipped())
    say(name, problem.num_ops, "ops captured")
    module.to(PLACE)
    for kind, limit, result in plans_of(problem, share, {row["plan"]: row["measured_peak"] for row in rows}):
        clean()
        step = build(module, captured, planning_of(captured, result), devices=[PLACE], cuda_graphs=False)
        found = verify_step(step, inputs)
        peak, took = measured(step, inputs)
        added = result.plan.added
        rows.append(
            row_of(
                model=name,
                plan=kind,
                limit=limit,
                modelled_peak=int(result.timeline.peak_bytes[0]),
                measured_peak=peak,
                modelled_ms=round(result.timeline.step_ns / 1e6, 3),
                measured_ms=round(took, 3),
                again=0 if added is None else added.num_again,
                verified=f"{found.ok}: {found}",
            )
        )
        step.detach()
        del step
    return rows


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--seconds", type=float, default=220)
    options.add_argument("--share", type=float, default=0.6)
    options.add_argument("--only", default="")
    options.add_argument("--compile", default="gpt2,bert-base,vit-base", help="also run by torch.compile")
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.only.split(",") if given.only else [name for name in MODELS if name != "tiny"]:
        if time.perf_counter() - BEGUN > given.seconds:
            say("no time for", name)
            continue
        try:
            rows += rows_of(name, given.share, name in given.compile.split(","))
        except Exception:
            traceback.print_exc()
        with open(given.folder / "memory.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
