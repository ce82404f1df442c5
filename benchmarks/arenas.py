"""How far the arenas of plans are above their peaks, and what finding them takes.

    python benchmarks/arenas.py [--plans heft expert] [--only gnmt-2] [--seeds 1] [--effort N] [--generated]

GO's workloads of up to 6,000 ops, each on as many P100 as it was published for; `--generated`: 30 layered graphs of 150
to 300 ops on four. Prints arena ÷ peak of the device where that is largest, and seconds of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from loadmaster import Budget, Problem, price, solve
from loadmaster.bench.rows import Source, go_rows
from loadmaster.simulator.arenas import assign_addresses
from loadmaster.simulator.arenas.layout import EFFORT
from loadmaster.zoo.synthetic import generate

MOST_OPS = 6_000


def workloads(only: list[str]) -> Iterator[tuple[str, Problem]]:
    for row in go_rows(Source()):
        name = row.name.split("/")[0]
        if only and name not in only:
            continue
        problem = price(row.graph(), row.cluster)
        if problem.num_ops <= MOST_OPS:
            yield name, problem


def generated(only: list[str]) -> Iterator[tuple[str, Problem]]:
    for number, graph in enumerate(generate("layered", 30, seed=1, ops=(150, 300))):
        if not only or str(number) in only:
            yield str(number), price(graph, "4xp100-pcie")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--plans", nargs="+", default=["heft", "expert"])
    given.add_argument("--only", nargs="+", default=[])
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--effort", type=int, default=EFFORT, help="comparisons of two blocks over all devices")
    given.add_argument("--generated", action="store_true")
    words = given.parse_args()
    near = rows = 0
    worst = 1.0
    for name, problem in (generated if words.generated else workloads)(words.only):
        for method in words.plans:
            result = solve(problem, method, Budget(None, 1))
            for seed in range(words.seeds):
                begun = time.process_time()
                arenas = assign_addresses(problem, result.plan, result.timeline, effort=words.effort, seed=seed)
                took = time.process_time() - begun
                print(f"{name:18} {method:8} seed {seed}  {arenas.ratio:.5f}  {took:5.1f} s", flush=True)
                rows, near, worst = rows + 1, near + (arenas.ratio <= 1.001), max(worst, arenas.ratio)
    print(f"{near} of {rows} within 1.001, the worst {worst:.5f}")


if __name__ == "__main__":
    main()
