"""Plans that run ops again, on a GPU: peak and step beside what was modelled, and results beside those of the module.

    PYTHONPATH=src python3 benchmarks/memory_gpu.py FOLDER [--seconds 220] [--share 0.6] [--only gpt2,bert-base]
        [--plans program,share,fused,peaks] [--budgets 0.5] [--limits BYTES,…] [--inlining no]

For each training step of the zoo: torch's eager and compiled steps, the latter also with such budgets of activation
memory; then our plan in program order (`program`), one that fits into a share of its peak (`share`), both op by op, one
with kernels, compiled as regions (`fused`), and with kernels one each that is to fit into what torch.compile needed
(`peaks`), less what libraries take; peaks that are known may be given as `--limits`. With `--inlining no`, light ops
are not computed again in each kernel that reads them. Prints as it goes; writes memory.csv into FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._functorch import config as functorch
from torch.utils._pytree import tree_map_only

from loadmaster.baselines.fusion.greedy import GreedyFusion
from loadmaster.baselines.simple import OneDevice
from loadmaster.cost import Calibrated, price
from loadmaster.graph.columns import ints
from loadmaster.importers.torch.arguments import as_arguments, split
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.methods.memory.recompute import Recompute
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
SMALL, KERNELS = Budget(None, 24), Budget(None, 80)  # simulations, those of drafts among them
LIBRARIES = 100_000_000  # bytes that measured peaks are above modelled ones, at most
BEGUN = time.perf_counter()
FIELDS = ("model", "plan", "limit", "modelled_peak", "measured_peak", "modelled_ms", "measured_ms", "again", "verified")
FIELDS += ("kernels",)


def say(*words: Any) -> None:
    print(f"[{time.perf_counter() - BEGUN:6.1f}]", *words, flush=True)


def limited(problem: Problem, nbytes: int) -> Problem:
    return replace(problem, memory_bytes=ints(np.full(problem.num_devices, nbytes)))


def plans_of(
    problem: Problem, share: float, peaks: dict[str, int], wanted: Container[str]
) -> Iterator[tuple[str, int, Result]]:
    """In program order, fitted into a share of that peak, and, with kernels, into what torch.compile needed."""
    plain = solve(problem, OneDevice(), Budget(None, 1))
    limit = int(plain.timeline.peak_bytes[0] * share)
    if "program" in wanted:
        yield "program order", 0, plain
    if "share" in wanted:
        method = Recompute(OneDevice(), offload=False, fuse=False)
        yield "recompute", limit, solve(limited(problem, limit), method, SMALL)
    if "fused" in wanted:
        yield "fused", 0, solve(problem, GreedyFusion(OneDevice()), Budget(None, 1))
    for kind, peak in peaks.items() if "peaks" in wanted else ():
        limit = peak - LIBRARIES
        yield f"fused, as small as {kind}", limit, solve(limited(problem, limit), Recompute(offload=False), KERNELS)


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


def defaults_of(name: str, budgets: Sequence[float]) -> list[dict[str, Any]]:
    """What torch does by itself: eager, and compiled with such budgets of activation memory (1: the default)."""
    rows = []
    for budget in (0.0, *budgets):
        clean()
        torch.manual_seed(0)
        module, inputs = MODELS[name]()
        module.to(PLACE).train()
        inputs = tree_map_only(torch.Tensor, lambda value: value.to(PLACE), inputs)
        with functorch.patch(activation_memory_budget=budget or 1.0):
            peak, took = measured(loop_of(torch.compile(module) if budget else module), inputs)
        kind = "eager" if not budget else "torch.compile" + (f", budget {budget}" if budget < 1 else "")
        rows.append(row_of(model=name, plan=kind, measured_peak=peak, measured_ms=round(took, 3)))
        del module
        torch.compiler.reset()
    return rows


def row_of(**figures: Any) -> dict[str, Any]:
    say(*(f"{key}={value}" for key, value in figures.items()))
    return {**dict.fromkeys(FIELDS, ""), **figures}


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without a GPU


def rows_of(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    compiled = [1.0, *map(float, given.budgets.split(",") if given.budgets else ())]
    rows = defaults_of(name, compiled if name in given.compile.split(",") else [])
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=GPU))
    problem = price(captured.graph, "1xh200", cost=Calibrated.shipped())
    say(name, problem.num_ops, "ops captured")
    module.to(PLACE)
    peaks = {row["plan"]: row["measured_peak"] for row in rows[1:]}
    peaks |= {f"{int(limit):,} bytes": int(limit) for limit in given.limits.split(",") if limit}
    for kind, limit, result in plans_of(problem, given.share, peaks, given.plans.split(",")):
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
                kernels=str(step.kernels) if hasattr(step, "kernels") else "",
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
    options.add_argument("--plans", default="program,share,fused,peaks")
    options.add_argument("--budgets", default="", help="of activation memory, for torch.compile")
    options.add_argument("--compile", default="gpt2,bert-base,vit-base", help="also run by torch.compile")
    options.add_argument("--limits", default="", help="peaks to fit into, besides those measured here")
    options.add_argument("--inlining", default="yes", help="no: without it")
    given = options.parse_args()
    if given.inlining == "no":
        Recompute._firsts = lambda self, plan: ("nothing", "cut")  # type: ignore[method-assign]
    given.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in given.only.split(",") if given.only else [name for name in MODELS if name != "tiny"]:
        if time.perf_counter() - BEGUN > given.seconds:
            say("no time for", name)
            continue
        try:
            rows += rows_of(name, given)
        except Exception:
            traceback.print_exc()
        with open(given.folder / "memory.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
