"""Makes every table of docs/papers from a clean checkout: python benchmarks/papers.py OUT [--jobs 8] [--minutes 30].

First the public corpus, whose valid half nobody trained on; then each table, most telling first: the methods of a suite
beside their controls, then the ablations. A run that was stopped goes on where OUT stands; with --minutes it stops
itself. `--jobs` shares the problems of a table among so many processes. `--quick` takes two problems, one seed and 100
simulations of each table, to see that all runs. A whole run takes about a day of one core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

# table -> (suite whose problems it is of, budget, methods)
TABLES = {
    "regal": (
        "regal",
        "5000",
        "regal,gas,regal:actions=random,tuned-brkga,regal:checkpoint=none,regal:population=5000,"
        "local-search,gp-dfs",
    ),
    "regal-cp-sat": ("regal", "60 s", "regal,gp-dfs,cp-sat"),
    "go": (
        "go",
        "1000",
        "one-device,expert-best-order,metis,heft,go:checkpoint=none,go,go:finetune=50,rate=0,go:finetune=50,"
        "rnn:rate=0,rnn,hdp:rate=0,hdp",
    ),
    "families": ("families", "2000", "one-device,placeto:tune=no,placeto:rate=0,placeto"),
    "placeto": ("placeto", "2000", "one-device,scotch,placeto:tune=no,placeto:rate=0,placeto,rnn"),
    "go-fusion": (
        "go-fusion",
        "1000",
        "greedy-fusion:inner=expert,random-fusion:inner=expert,anneal-fusion:inner=expert,"
        "go:tasks=fusion,checkpoint=none,go:tasks=fusion",
    ),
    "mirhoseini": ("mirhoseini", "1000", "one-device,metis,scotch,rnn:rate=0,rnn"),
    "go-parts": ("go", "1000", "go-one:rate=0,go-one,go-one:attention=no,go-one:modulation=no,go-one:embedding=no"),
    "go-tasks": ("go", "100", "go:tasks=placement,go,go:tasks=[fusion,placement,schedule]"),
    "placeto-parts": ("placeto", "2000", "placeto:checkpoint=none,placeto:checkpoint=none,traversal=random,"
                      "placeto:checkpoint=none,rounds=0,placeto:checkpoint=none,rounds=0,pools=one"),
    "rnn-groups": ("mirhoseini", "1000", "rnn,rnn:by=scope,rnn:by=edges,rnn:by=window"),
    "rnn-features": ("mirhoseini", "1000", "rnn,rnn:features=costs,rnn:attention=no,rnn:feed=no"),
}  # fmt: skip


def lab(words: list[str], until: float, jobs: int = 1) -> None:
    """`loadmaster lab`, its problems shared among so many processes; none is left running after `until`."""
    print("loadmaster lab", *words, flush=True)
    parts = [[]] if jobs == 1 else [["--part", f"{part + 1}/{jobs}"] for part in range(jobs)]
    command, threads = [sys.executable, "-m", "loadmaster", "lab", *words], {"OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **(threads | {"LOADMASTER_THREADS": "1"} if jobs > 1 else {})}
    quiet = None if jobs == 1 else subprocess.DEVNULL
    running = [subprocess.Popen([*command, *part], env=environment, stdout=quiet, stderr=quiet) for part in parts]
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--corpus", type=Path, help="[default: OUT/graphs, made where it is not there]")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--limit", type=int, help="problems of a table, at most")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    corpus = given.corpus or given.out / "graphs"
    if not (corpus / "valid.jsonl.xz").is_file():
        lab(["corpus", str(corpus), *(["--limit", "4"] if given.quick else [])], until)
    for table in given.tables.split(","):
        suite, budget, methods = TABLES[table]
        seeds, budget, limit = (1, "100", 2) if given.quick else (given.seeds, budget, given.limit)
        kind = "--seconds" if budget.endswith(" s") else "--simulations"
        words = ["bench", suite, "--method", methods, "--seeds", str(seeds), kind, budget.removesuffix(" s")]
        words += ["--out", str(given.out / table), *(["--limit", str(limit)] if limit else [])]
        words += ["--corpus", str(corpus / "valid.jsonl.xz")] if suite == "regal" else []
        if given.jobs > 1:
            lab(words, until - 20, given.jobs)
        if time.monotonic() < until - 20:
            lab(words, until)


if __name__ == "__main__":
    main()
