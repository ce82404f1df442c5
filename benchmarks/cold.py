"""How long a first plan takes: seconds on the clock and of CPU, from an empty cache and again.

    python benchmarks/cold.py [--methods auto placement] [--seconds 5] [--cores 2]

Each run is a process of its own that loads, prices and plans zoo:gnmt-4 on four P100, search included.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

PLANS = """
import loadmaster as lm
result = lm.solve(lm.price(lm.load("zoo:gnmt-4"), "4xp100-pcie"), {method!r}, {seconds})
print(f"{{result.value / 1e6:.1f}} ms a step, {{result.simulations:,}} simulations in {{result.seconds:.1f}} s")
"""


def run(method: str, seconds: float) -> tuple[float, float, str]:
    """(seconds on the clock, of CPU in all its processes, what it says)."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    text = PLANS.format(method=method, seconds=seconds)
    said = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout.strip()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["auto", "placement"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of search")
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    os.environ["LOADMASTER_THREADS"] = str(given.cores)
    print(
        f"{given.cores} cores, {given.seconds} s of search\n{'method':<12} {'cache':<6} {'clock':>7} {'CPU':>7}  found"
    )
    for method in given.methods:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LOADMASTER_CACHE"] = folder
            for cache in ("empty", "full"):
                clock, cpu, said = run(method, given.seconds)
                print(f"{method:<12} {cache:<6} {clock:>7.1f} {cpu:>7.1f}  {said}", flush=True)


if __name__ == "__main__":
    main()
