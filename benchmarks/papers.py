"""Makes every table of docs/papers from a clean checkout: python benchmarks/papers.py OUT [--quick].

First the public corpus, which nobody trained on with its valid half; then the suites that the papers' tables are of,
each method beside its controls; then the ablations. A run that was stopped goes on. `--quick` takes two problems, one
seed and 100 simulations of each table, to see that all runs; a whole run takes days on one core, and --part K/N of
`loadmaster lab bench` shares it among machines.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUITES = ("regal", "go", "go-fusion", "placeto", "families", "mirhoseini")
SEEDS, SIMULATIONS = 3, 1_000

# table -> (suite whose problems it is of, what is compared)
ABLATIONS = {
    "go-parts": ("go", ("go-one", "go-one:attention=no", "go-one:modulation=no", "go-one:embedding=no")),
    "go-tasks": ("go", ("go:tasks=placement", "go:tasks=[placement,schedule]", "go:tasks=[fusion,placement,schedule]")),
    "placeto-parts": (
        "placeto",
        (
            "placeto:checkpoint=none",
            "placeto:checkpoint=none,traversal=random",
            "placeto:checkpoint=none,rounds=0",
            "placeto:checkpoint=none,rounds=0,pools=one",
        ),
    ),
    "rnn-groups": ("mirhoseini", ("rnn", "rnn:by=scope", "rnn:by=edges", "rnn:by=window")),
    "rnn-features": ("mirhoseini", ("rnn", "rnn:features=costs", "rnn:attention=no", "rnn:feed=no")),
}


def lab(*words: str) -> None:
    print("loadmaster lab", *words, flush=True)
    subprocess.run([sys.executable, "-m", "loadmaster", "lab", *words], check=True)


def main(out: Path, quick: bool) -> None:
    graphs = out / "graphs"
    lab("corpus", str(graphs), *(("--limit", "4") if quick else ()))
    few = ("--limit", "2", "--seeds", "1", "--simulations", "100") if quick else ("--seeds", str(SEEDS))
    for suite in SUITES:
        corpus = ("--corpus", str(graphs / "valid.jsonl.xz")) if suite == "regal" else ()
        lab("bench", suite, *corpus, *few, "--out", str(out / suite))
    budget = few if quick else (*few, "--simulations", str(SIMULATIONS))
    for table, (suite, methods) in ABLATIONS.items():
        lab("bench", suite, "--method", ",".join(methods), *budget, "--out", str(out / table))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv[2:])
