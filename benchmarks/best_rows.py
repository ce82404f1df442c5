"""Long searches for best-known values, a process for each row: what `loadmaster bench best` does with one part.

    python benchmarks/best_rows.py FOLDER --suite go --part 4/14 --seconds 300 [--with placement anneal] [--seeds 1]

FOLDER gets the records of all parts in one file, and a file of best-known values for each part; `--join FOLDER` offers
them to those that ship with the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadmaster.bench.best import load_best, shipped_path
from loadmaster.bench.command import BenchSettings, bench_best, parse_part
from loadmaster.bench.rows import Source
from loadmaster.bench.suite import Allowance


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("--suite", default="go")
    given.add_argument("--part", default="1/1")
    given.add_argument("--with", dest="methods", nargs="+", default=["placement"])
    given.add_argument("--seconds", type=float, default=300.0)
    given.add_argument("--simulations", type=int, default=10**7)
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--join", action="store_true", help="offer what the folder holds to the shipped values")
    words = given.parse_args()
    if words.join:
        join(words.folder)
        return
    part, of = parse_part(words.part)
    settings = BenchSettings(
        specs=words.methods,
        seeds=words.seeds,
        allowance=Allowance(simulations=words.simulations, seconds=words.seconds),
        source=Source(part=(part, of)),
        out=words.folder,
        best=words.folder / f"best-{words.suite}-{part}-{of}.json",
    )
    for report in bench_best(words.suite, settings):
        print(report.text(), flush=True)


def join(folder: Path) -> None:
    """Only better values are taken."""
    best = load_best()
    found = [known for path in sorted(folder.glob("best-*.json")) for known in load_best(path).all]
    for known in found:
        if best.offer(known):
            print(f"{known.name}: {known.value:,} by {known.optimizer}, {known.simulations:,} simulations")
    best.save(shipped_path())


if __name__ == "__main__":
    main()
