"""Is `auto` ever behind `placement` or `joint` where all have the same budget? Rows of some suites, over seeds.

    python benchmarks/equal.py FOLDER [--rows go:0-13 regal-time:0-23] [--budgets 300 1000 3000 1s 5s 15s] [--seeds 3]
        [--workers 2] [--stop SECONDS] [--methods auto placement joint]

Each run is one call of `solve` on one thread. FOLDER/quality.csv gets a line for each run and is gone on from when the
command is given again. The tables have the geometric mean over the seeds that all methods have run: for each suite and
budget how far `auto` is from the better of the others in the mean of all rows and on the worst, and where it is behind.
(The rows of the suite `joint` are those of `go`.)
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Iterator
from math import exp, log
from pathlib import Path

from quality import Job, compile_all, read, run_all

ROWS = ("go:0-13", "regal-time:0-23")
BUDGETS = ("300", "1000", "3000", "1s", "5s", "15s")
METHODS = ("auto", "placement", "joint")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("--rows", nargs="+", default=list(ROWS), help="SUITE:FIRST-LAST or SUITE:NUMBER,NUMBER…")
    given.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    given.add_argument("--methods", nargs="+", default=list(METHODS))
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--workers", type=int, default=2)
    given.add_argument("--stop", type=float, default=1e9, help="no run begins so many seconds after loops are compiled")
    words = given.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    path = words.folder / "quality.csv"
    done = read(path)
    jobs = [job for job in wanted(words) if job not in done]
    compile_all(words.methods)
    run_all(jobs, path, words.workers, 1, time.monotonic() + words.stop)
    show(path, words.methods)


def wanted(words: argparse.Namespace) -> list[Job]:
    """One seed and budget after another, so that what there is time for is whole."""
    return [
        (suite, number, budget, seed, method)
        for seed in range(words.seeds)
        for budget in words.budgets
        for text in words.rows
        for suite, number in numbers(text)
        for method in words.methods
    ]


def numbers(text: str) -> Iterator[tuple[str, int]]:
    suite, _, some = text.partition(":")
    for piece in some.split(","):
        low, _, high = piece.partition("-")
        yield from ((suite, number) for number in range(int(low), int(high or low) + 1))


Values = dict[int, tuple[int, int]]  # seed -> (bytes over the limits, value)


def show(path: Path, methods: list[str]) -> None:
    found: dict[tuple[str, str, str], dict[str, Values]] = defaultdict(lambda: defaultdict(dict))
    with path.open() as lines:
        for line in csv.DictReader(lines):
            values = found[line["suite"], line["budget"], line["row"]][line["method"]]
            values[int(line["seed"])] = (int(line["over"]), int(line["value"]))
    focus, *others = methods
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    print(f"| suite | row | budget | seeds | {' | '.join(methods)} | {focus} ÷ best other |")
    print("|---|---|--:|--:|" + "--:|" * (len(methods) + 1))
    for (suite, budget, row), by_method in sorted(found.items(), key=_by_budget):
        seeds = set.intersection(*({*by_method[method]} for method in methods))
        if not seeds:
            continue
        means = [mean([by_method[method][seed] for seed in sorted(seeds)]) for method in methods]
        ratio = means[0] / min(means[1:])
        ratios[suite, budget].append(ratio)
        cells = " | ".join(f"{value / 1e6:.2f}" for value in means)
        print(f"| {suite} | {row.partition(' ')[2]} | {budget} | {len(seeds)} | {cells} | {ratio:.4f} |")
    print(f"\n| suite | budget | rows | mean of {focus} ÷ best of {', '.join(others)} | worst | behind by over 0.5 % |")
    print("|---|--:|--:|--:|--:|--:|")
    for (suite, budget), some in ratios.items():
        behind = sum(ratio > 1.005 for ratio in some)
        middle = exp(sum(map(log, some)) / len(some))
        print(f"| {suite} | {budget} | {len(some)} | {middle:.4f} | {max(some):.4f} | {behind} |")


def _by_budget(item: tuple[tuple[str, str, str], object]) -> tuple[str, bool, float, int]:
    suite, budget, row = item[0]
    return suite, budget.endswith("s"), float(budget.rstrip("s")), int(row.split()[0])


def mean(scores: list[tuple[int, int]]) -> float:
    """Geometric; a plan that does not fit counts for ten times as much."""
    return exp(sum(log(max(1, value) * (10 if over else 1)) for over, value in scores) / len(scores))


if __name__ == "__main__":
    main()
