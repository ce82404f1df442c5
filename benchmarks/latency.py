"""How long what a user waits for takes, on this machine: nothing here is asserted in a test, machines differ.

    python benchmarks/latency.py [help bounds addresses explain page regal]

Prints the shortest of three runs, in seconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import loadmaster as lm
from loadmaster.zoo.synthetic import generate


def layered(ops: int, cluster: str) -> lm.Problem:
    return lm.price(next(generate("layered", 1, seed=1, ops=(ops, ops))), cluster)


def in_shares(problem: lm.Problem) -> lm.Result:
    from loadmaster.report.explain import replayed

    device = np.arange(problem.num_ops) * problem.num_devices // problem.num_ops
    return replayed(problem, lm.Plan.of(problem, device))


def help_text() -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-m", "loadmaster.cli.verbs", "--help"], capture_output=True)


def bounds() -> Callable[[], object]:
    from loadmaster.problem.bounds import peak_bound, step_bound

    problem = layered(20_000, "8xp100-pcie")
    return lambda: (step_bound(problem), peak_bound(problem))


def addresses() -> Callable[[], object]:
    from loadmaster.simulator.arenas import assign_addresses

    result = in_shares(layered(20_000, "4xp100-pcie"))
    return lambda: assign_addresses(result.problem, result.plan, result.timeline)


def explanation() -> Callable[[], object]:
    result = in_shares(layered(20_000, "4xp100-pcie"))
    return lambda: result.explain()


def page() -> Callable[[], object]:
    from loadmaster.report.html import write_report

    result = in_shares(layered(20_000, "8xp100-pcie"))
    found = result.explain(seconds=0.5)
    folder = Path(tempfile.mkdtemp())
    return lambda: write_report(folder / "page.html", result, found)


def regal() -> Callable[[], object]:
    from loadmaster.learn.features import features_of
    from loadmaster.learn.regal2020.optimizer import Regal

    problem = layered(1_000, "regal")
    search = lm.Search(problem, lm.Budget(None, 10))
    return lambda: Regal().act(features_of(problem), search)


WAITS = {
    "help": help_text,
    "bounds": bounds,
    "addresses": addresses,
    "explain": explanation,
    "page": page,
    "regal": regal,
}


def seconds(make: Callable[[], Callable[[], object]], runs: int = 3) -> float:
    """The shortest of a few runs; the first loads what is compiled."""
    call, taken = make(), []
    for _ in range(runs):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)


if __name__ == "__main__":
    for name in sys.argv[1:] or WAITS:
        print(f"{name:10} {seconds(WAITS[name]):8.3f} s", flush=True)
