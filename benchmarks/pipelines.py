"""Pipelines of microbatches beside the schedules that people use.

    python benchmarks/pipelines.py [--models gpt2 llama-8b …] [--devices 4 8] [--microbatches 8 32] [--simulations 80]
        [--equal-memory] [--slow | --like]

A row for each model, number of A100 and of microbatches, and whether the last device has half the speed of the rest:
ours beside the lower bound and beside the best hand-made schedule on balanced stages and on stages of equal length, of
those that fit. With --equal-memory devices have as much memory as the best hand-made schedule on balanced stages needs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import loadmaster as lm
from loadmaster.cluster import Cluster, Device
from loadmaster.optimizers.pipeline.microbatched import Pipeline, PipelineResult, plan_pipeline
from loadmaster.search import Budget

MODELS = ("gpt2", "bert-base", "t5-base", "llama-8b", "mixtral-8x7b")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--models", nargs="+", default=list(MODELS))
    given.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    given.add_argument("--microbatches", type=int, nargs="+", default=[8, 32])
    given.add_argument("--simulations", type=int, default=80)
    given.add_argument("--equal-memory", action="store_true")
    given.add_argument("--slow", action="store_true", help="only clusters with one slow device")
    given.add_argument("--like", action="store_true", help="only clusters of like devices")
    words = given.parse_args()
    print("| model | devices | microbatches | bound, ms | ours, ms | best by hand | ÷ ours | best equal | ÷ ours | s |")
    print("|---|---|--:|--:|--:|---|--:|---|--:|--:|")
    for model in words.models:
        graph = lm.load(f"zoo:{model}/train")
        for count in words.devices:
            for unlike in [unlike for unlike in (False, True) if not (words.slow if not unlike else words.like)]:
                cluster = Cluster.preset(f"{count}xa100-nvlink")
                problem = lm.price(graph, with_a_slow_one(cluster) if unlike else cluster)
                for microbatches in words.microbatches:
                    begun = time.perf_counter()
                    found = plan_pipeline(problem, microbatches, Budget(None, words.simulations))
                    if words.equal_memory:
                        limit = balanced_peak(found)
                        limited = lm.price(graph, problem.cluster, memory_limit=limit)
                        found = plan_pipeline(limited, microbatches, Budget(None, words.simulations))
                    name = f"{count}, one slow" if unlike else str(count)
                    print(row(model, name, found, time.perf_counter() - begun), flush=True)


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
        f"| {own / 1e6:,.0f}{fits} | {' | '.join(cells)} | {seconds:.0f} |"
    )


def cell(own: int, others: list[Pipeline]) -> str:
    if not others:
        return "none fits | "
    best = min(others, key=lambda other: other.score)
    return f"{best.schedule} | {best.score.value / own:.2f}"


if __name__ == "__main__":
    main()
