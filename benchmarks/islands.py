"""Islands in one, two, four, eight processes of one machine: the same simulations, how long they take, the same plan.

    python benchmarks/islands.py --processes 1 2 4 8 --simulations 9600

Every process has one thread. Processes are started by a short run that is not timed. docs/scale.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import loadmaster as lm
from loadmaster.optimizers.auto import Auto
from loadmaster.optimizers.islands import Islands


def measure(problem: lm.Problem, method: Islands, simulations: int) -> dict[str, Any]:
    """Seconds to start, seconds of the run, and what came of it."""
    begun = time.perf_counter()
    lm.solve(problem, method, lm.Budget(None, 4 * method.islands * method.rounds))
    ready = time.perf_counter()
    found = lm.solve(problem, method, lm.Budget(None, simulations))
    took = time.perf_counter() - ready
    return {
        "processes": method.processes,
        "start s": round(ready - begun, 2),
        "run s": round(took, 2),
        "simulations/s": round(found.simulations / took),
        "step ms": round(found.value / 1e6, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:gnmt-4")
    parser.add_argument("--on", default="4xp100-pcie")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--islands", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--simulations", type=int, default=9600)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["LOADMASTER_THREADS"] = "1"
    problem, rows = lm.price(lm.load(given.model), given.on), list[dict[str, Any]]()
    for processes in given.processes:
        method = Islands(Auto(), given.islands, given.rounds, processes=processes)
        row = measure(problem, method, given.simulations)
        rows.append({**row, "times as fast": round((rows[0] if rows else row)["run s"] / row["run s"], 2)})
        print(json.dumps(rows[-1]), flush=True)
        if given.out:
            given.out.write_text(json.dumps({**vars(given), "out": str(given.out), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
