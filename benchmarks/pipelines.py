"""Pipelines of microbatches beside the schedules that people use.

    python benchmarks/pipelines.py [--models gpt2 llama-8b …] [--devices 4 8] [--microbatches 8 32] [--simulations 80]
        [--equal-memory] [--slow | --like]

A row for each model, number of A100 and of microbatches, and whether the last device has half the speed of the rest:
ours beside the lower bound and beside the best hand-made schedule on balanced stages and on stages of equal length, of
those that fit. "Line": what a pipeline could reach whose stages, two on each device, could be cut anywhere, if only the
first microbatch's way to a stage and back kept it waiting. With --equal-memory devices have as much memory as the best
hand-made schedule on balanced stages needs.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import loadmaster as lm
from loadmaster.cluster import Cluster, Device
from loadmaster.pipelines.judging import Pipeline
from loadmaster.pipelines.microbatched import PipelineResult, plan_pipeline
from loadmaster.pipelines.stages import UPDATE, phases_of
from loadmaster.report.pipeline import stage_rows
from loadmaster.search import Budget

MODELS = ("gpt2", "bert-base", "t5-base", "llama-8b", "mixtral-8x7b")
COLUMNS = ("bound, ms", "line, ms", "ours, ms", "GiB", "balanced", "GiB", "÷ ours", "equal", "GiB", "÷ ours", "s")


@dataclass(frozen=True)
class Case:
    """A row."""

    model: str
    devices: int
    unlike: bool
    microbatches: int
    simulations: int
    equal_memory: bool

    @property
    def cluster(self) -> Cluster:
        cluster = Cluster.preset(f"{self.devices}xa100-nvlink")
        return with_a_slow_one(cluster) if self.unlike else cluster


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--models", nargs="+", default=list(MODELS))
    given.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    given.add_argument("--microbatches", type=int, nargs="+", default=[8, 32])
    given.add_argument("--simulations", type=int, default=80)
    given.add_argument("--equal-memory", action="store_true")
    given.add_argument("--slow", action="store_true", help="only clusters with one slow device")
    given.add_argument("--like", action="store_true", help="only clusters of like devices")
    given.add_argument("--jobs", type=int, default=1, help="rows at a time, each in a process")
    given.add_argument("--out", type=Path, help="a file that rows are written to as well")
    words = given.parse_args()
    speeds = [unlike for unlike in (False, True) if not (words.slow if not unlike else words.like)]
    cases = [
        Case(model, devices, unlike, microbatches, words.simulations, words.equal_memory)
        for model, devices, unlike, microbatches in product(words.models, words.devices, speeds, words.microbatches)
    ]
    tell(f"| model | devices | microbatches | {' | '.join(COLUMNS)} |", words.out)
    tell("|---|---|--:|--:|--:|--:|--:|---|--:|--:|---|--:|--:|--:|", words.out)
    if words.jobs == 1:
        for case in cases:
            tell(row_of(case), words.out)
        return
    with ProcessPoolExecutor(words.jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(row_of, case) for case in cases]):
            tell(done.result(), words.out)


def tell(line: str, out: Path | None) -> None:
    print(line, flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(line + "\n")


def row_of(case: Case) -> str:
    graph = lm.load(f"zoo:{case.model}/train")
    problem = lm.price(graph, case.cluster)
    begun = time.perf_counter()
    found = plan_pipeline(problem, case.microbatches, Budget(None, case.simulations))
    if case.equal_memory and found.result.fits:
        limited = lm.price(graph, problem.cluster, memory_limit=balanced_peak(found))
        found = plan_pipeline(limited, case.microbatches, Budget(None, case.simulations))
    name = f"{case.devices}, one slow" if case.unlike else str(case.devices)
    return row(case.model, name, found, time.perf_counter() - begun)


def balanced_peak(found: PipelineResult) -> int:
    """Bytes that the best hand-made schedule on balanced stages needs on its fullest device."""
    balanced = [other for other in found.others if other.cut.name != "equal" and not other.score.over_bytes]
    return int(min(balanced, key=lambda other: other.score).peak_bytes.max())


def with_a_slow_one(cluster: Cluster) -> Cluster:
    *others, last = cluster.devices
    return replace(cluster, name=f"{cluster.name}, one slow", devices=(*others, halved(last)))


def halved(device: Device) -> Device:
    rates = device.flops_per_s
    slow = {key: rate / 2 for key, rate in rates.items()} if not isinstance(rates, float) else rates / 2  # type: ignore[union-attr]
    return replace(device, flops_per_s=slow, bytes_per_s=device.bytes_per_s / 2)


def row(model: str, devices: str, found: PipelineResult, seconds: float) -> str:
    own = found.best.score.value
    by_hand = [other for other in found.others if not other.score.over_bytes]
    cells = [cell(own, [o for o in by_hand if (o.cut.name == "equal") == equal]) for equal in (False, True)]
    fits = "" if found.result.fits else " (does not fit)"
    return (
        f"| {model} | {devices} | {found.microbatches} | {found.result.lower_bound / 1e6:,.0f} "
        f"| {line_ns(found) / 1e6:,.0f} | {own / 1e6:,.0f}{fits} | {gib(found.best)} | {' | '.join(cells)} "
        f"| {seconds:.0f} |"
    )


def line_ns(found: PipelineResult, chunks: int = 2) -> float:
    """A device works for all microbatches but for the time in which the first one goes to its first stage and back,
    through the first stages of those before it: forward passes and gradients of activations. Updates are left out."""
    base, count = found.base, found.microbatches
    rows = stage_rows(found)
    passes = sum(row["forward_ns"] + row["backward_ns"] for row in rows)
    apart = sum(row["weight_gradients_ns"] for row in rows)
    share = passes / (passes + apart) if apart else 2 / 3
    work = np.where(phases_of(base)[:, None] == UPDATE, 0, base.op_ns).sum(axis=0).astype(float)
    turned = [np.roll(np.sort(work), by).tolist() for by in range(len(work))]  # one device is unlike the rest at most
    return min(_line(order, count, share / chunks) for order in turned)


def _line(work: list[float], count: int, share: float) -> float:
    """`work`: ns of one microbatch, all of it, on each device in order. Linear in the step, so for a step of 1."""
    done, waited = 0.0, 0.0
    for whole in work:
        own = (1 - waited) / count
        waited += share * own
        done += own / whole
    return 1 / done


def cell(own: int, others: list[Pipeline]) -> str:
    if not others:
        return "none fits | | "
    best = min(others, key=lambda other: other.score)
    return f"{best.schedule} | {gib(best)} | {best.score.value / own:.3f}"


def gib(pipeline: Pipeline) -> str:
    """Of its fullest device."""
    return f"{pipeline.peak_bytes.max() / 2**30:.1f}"


if __name__ == "__main__":
    main()
