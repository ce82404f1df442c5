"""What blocks under a capacity take, in seconds of the processor, beside minimalloc.

    python benchmarks/packing.py FOLDER [--only D H] [--seeds 1] [--runs 1] [--minimalloc PROGRAM]

FOLDER has files NAME.CAPACITY.csv, such as benchmarks/challenging of https://github.com/google/minimalloc. Prints for
each `fit_in` with each seed, checked afresh; `loadmaster lab pack` with Python's start; and minimalloc's
whole process where its program is given: of several runs the least.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from loadmaster.files.lifetimes import Lifetimes, load_lifetimes
from loadmaster.simulator.arenas import fit_in


def fitted(blocks: Lifetimes, capacity: int, seed: int) -> float:
    """Seconds of the processor, both threads together."""
    begun = time.process_time()
    offset = fit_in(blocks.lower, blocks.upper, blocks.nbytes, capacity, seed=seed).offset
    took = time.process_time() - begun
    assert offset is not None
    top = offset + blocks.nbytes
    meet = (blocks.lower[:, None] < blocks.upper) & (blocks.lower < blocks.upper[:, None])
    overlap = meet & (offset[:, None] < top) & (offset < top[:, None])
    assert offset.min() >= 0 and top.max() <= capacity and np.array_equal(overlap.sum(1), np.ones(len(top)))
    return took


def of_process(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("--only", nargs="+", default=[])
    given.add_argument("--seeds", type=int, default=1)
    given.add_argument("--runs", type=int, default=1)
    given.add_argument("--minimalloc", default="")
    words = given.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "offsets.csv")
        for path in sorted(words.folder.glob("*.*.csv")):
            name, capacity, _ = path.name.split(".")
            if words.only and name not in words.only:
                continue
            blocks = load_lifetimes(path)
            fitted(blocks, int(capacity), 0)  # compiled code is there from now on
            own = [min(fitted(blocks, int(capacity), seed) for _ in range(words.runs)) for seed in range(words.seeds)]
            pack = [sys.executable, "-m", "loadmaster", "lab", "pack", str(path), "--capacity", capacity, "--out", out]
            line = f"{name}  fit_in {' '.join(f'{each:.2f}' for each in own)}"
            line += f"  pack {min(of_process(pack) for _ in range(words.runs)):.2f}"
            if words.minimalloc:
                other = [words.minimalloc, f"--capacity={capacity}", f"--input={path}", f"--output={out}"]
                line += f"  minimalloc {min(of_process(other) for _ in range(words.runs)):.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
