"""How long a first plan takes: seconds on the clock and of CPU, from an empty cache and again.

    python benchmarks/cold.py [--methods auto placement] [--simulations 300] [--cores 2]

Each run is the command `loadmaster plan zoo:gnmt-4 --on 4xp100-pcie`, from the start of its process to the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

PLAN = ("-m", "loadmaster", "plan", "zoo:gnmt-4", "--on", "4xp100-pcie")


def run(method: str, simulations: int) -> tuple[float, float, str]:
    """(seconds on the clock, of CPU in all its processes, what it found)."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    named = [] if method == "auto" else ["--method", method]
    command = [sys.executable, *PLAN, "--simulations", str(simulations), *named]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, cpu, " ".join(said.split()[1:5])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["auto", "placement"])
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    os.environ["LOADMASTER_THREADS"] = str(given.cores)
    print(f"{given.cores} cores, {given.simulations} simulations")
    print(f"{'method':<12} {'cache':<6} {'clock':>7} {'CPU':>7}  found")
    for method in given.methods:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LOADMASTER_CACHE"] = folder
            for cache in ("empty", "full"):
                clock, cpu, said = run(method, given.simulations)
                print(f"{method:<12} {cache:<6} {clock:>7.1f} {cpu:>7.1f}  {said}", flush=True)


if __name__ == "__main__":
    main()
