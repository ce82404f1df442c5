"""How fast the simulator is: ns per (op + read), on one core and on all of them.

    python benchmarks/simulator.py [--ops 100 1000 10000 100000] [--devices 2 4 8] [--seconds 0.5] [--c] [--json]

Each line simulates many placements of one random layered graph with `simulate_many`. The figures to be no slower than,
on one core: 45 to 60 ns on contiguous placements and 65 to 120 ns on random ones. "Time alone" is the loop that leaves
memory out (`simulator/quick.py`), called from Python for each, which takes some microseconds a call. With --c,
`simulator.c` simulates the same placements, turn by turn with the compiled loop, and both must find the same steps and
peaks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster import GraphBuilder, Problem, price, simulate_many
from loadmaster.simulator import NO_LIMIT, layout
from loadmaster.simulator.quick import step_time
from loadmaster.simulator.state import make_run_scratch

AIMS_NS = {"contiguous": (45, 60), "random": (65, 120)}


@dataclass(frozen=True)
class Line:
    ops: int
    reads: int
    devices: int
    placement: str
    one_core_ns: float  # per (op + read)
    all_cores_ns: float
    speed_up: float
    quick_ns: float  # of the loop that tells the time alone, on one core
    c_ns: float | None = None  # of simulator.c, on one core


def layered(ops: int, devices: int, seed: int = 0) -> Problem:
    """Layers of about sqrt(ops), 64 at most; an op reads one to three tensors of the two layers before, or a weight."""
    rng = np.random.default_rng(seed)
    width = min(64, max(4, int(ops**0.5)))
    graph = GraphBuilder(f"layered-{ops}")
    weights = [graph.tensor(int(rng.integers(1, 1 << 20)), "weight") for _ in range(max(1, ops // 20))]
    made: list[int] = []
    for op in range(ops):
        recent = made[max(0, len(made) - 2 * width) : len(made) - len(made) % width] or made[-1:]
        reads = {recent[int(i)] for i in rng.integers(0, len(recent), rng.integers(1, 4))} if recent else set()
        if rng.random() < 0.2 or not reads:
            reads.add(weights[int(rng.integers(0, len(weights)))])
        tensor = graph.tensor(int(rng.integers(1, 1 << 20)))
        graph.op(f"op{op}", "any", sorted(reads), [tensor], flops=int(rng.integers(1, 10**8)))
        made.append(tensor)
    return price(graph.build(), f"{devices}xp100-pcie")


def placements(problem: Problem, how: str, count: int, seed: int = 0) -> NDArray[np.int32]:
    """[count, ops]: the program order cut into shares at random places, or devices drawn at random."""
    rng = np.random.default_rng(seed)
    if how == "random":
        return rng.integers(0, problem.num_devices, (count, problem.num_ops), dtype=np.int32)
    cuts = np.sort(rng.integers(0, problem.num_ops, (count, problem.num_devices - 1)), axis=1)
    return np.stack([np.searchsorted(row, np.arange(problem.num_ops), side="right") for row in cuts]).astype(np.int32)


def seconds_of(problem: Problem, places: NDArray[np.int32], workers: int | None, repeats: int = 3) -> float:
    """The best of a few runs: the machine's noise only ever adds. Of one worker, the seconds that it had a core."""
    clock = time.thread_time if workers == 1 else time.perf_counter
    best = float("inf")
    for _ in range(repeats):
        begun = clock()
        simulate_many(problem, places, workers=workers)
        best = min(best, clock() - begun)
    return best


def quick_seconds(problem: Problem, places: NDArray[np.int32]) -> float:
    """Of the loop that leaves memory out; it must find the same times."""
    plain = layout(problem)
    scratch, rank = make_run_scratch(plain, False), np.arange(problem.num_ops, dtype=np.int32)
    begun = time.thread_time()
    steps = [step_time(plain, place, rank, scratch, NO_LIMIT) for place in places]
    seconds = time.thread_time() - begun
    assert steps[:4] == simulate_many(problem, places[:4]).step_ns.tolist(), "the two do not agree"
    return seconds


NUMBERS = ("ops", "tensors", "devices", "channels", "classes", "most_sends", "packed", "heap_entries")
LONG = ("op_ns", "workspace", "nbytes", "send_ns", "heap_start")
NARROW = ["tie", "op_of_tie", "waits", "make_start", "makes", "read_start", "reads", "next_start", "nexts"]
NARROW += ["reader_start", "readers", "maker", "base", "send_class", "channel"]
BYTES = ("origin", "stays")


class Given(ctypes.Structure):
    """As in simulator.c."""

    _fields_ = [(name, ctypes.c_int64) for name in NUMBERS] + [
        (name, ctypes.c_void_p) for name in (*LONG, *NARROW, *BYTES)
    ]


class InC:
    """simulator.c, built with the machine's C compiler."""

    def __init__(self) -> None:
        library = Path(tempfile.mkdtemp()) / "simulator.so"
        source = Path(__file__).with_name("simulator.c")
        flags = ("-O3", "-march=native", "-shared", "-fPIC")
        subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", library, source], check=True)
        self.run_many = ctypes.CDLL(str(library)).run_many

    def seconds_of(self, problem: Problem, places: NDArray[np.int32]) -> float:
        """Of simulating them once; what it finds must be what the compiled loop finds."""
        plain = layout(problem)
        kinds = [*((name, np.int64) for name in LONG), *((name, np.int32) for name in NARROW)]
        kinds += [(name, np.int8) for name in BYTES]
        columns = {name: np.ascontiguousarray(getattr(plain, name), kind) for name, kind in kinds}
        numbers = (problem.num_ops, len(plain.nbytes), plain.devices, plain.channels, plain.send_classes)
        heaps = (plain.most_sends, plain.packed, plain.heap_entries)
        given = Given(*numbers, *heaps, *(column.ctypes.data for column in columns.values()))
        rank = np.arange(problem.num_ops, dtype=np.int32)
        step, peaks = np.zeros(len(places), np.int64), np.zeros((len(places), plain.devices), np.int64)
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (places, rank, step, peaks)]
        begun = time.thread_time()
        self.run_many(ctypes.byref(given), *arrays[:2], ctypes.c_int64(len(places)), *arrays[2:])
        seconds = time.thread_time() - begun
        ours = simulate_many(problem, places[:4])
        assert (ours.step_ns == step[:4]).all() and (ours.peak_bytes == peaks[:4]).all(), "the two do not agree"
        return seconds


def measure(problem: Problem, how: str, seconds: float, in_c: InC | None) -> Line:
    reads = len(problem.graph.reads)
    size = problem.num_ops + reads
    count = int(max(8, min(seconds * 1e9 / 60 / size, 4096))) // 2 * 2
    places = placements(problem, how, count)
    seconds_of(problem, places[:2], 1, repeats=1)
    scale = 1e9 / (count * size)
    quick_seconds(problem, places[:2])
    alone, quick, others = list[float](), list[float](), list[float]()
    for _ in range(3):  # in turns, so that what else the machine does slows both
        if in_c is not None:
            others.append(in_c.seconds_of(problem, places) * scale)
        alone.append(seconds_of(problem, places, 1, repeats=1))
        quick.append(quick_seconds(problem, places) * scale)
    one, together = min(alone), seconds_of(problem, places, None)
    figures = (one * scale, together * scale, one / together, min(quick), min(others, default=None))
    return Line(problem.num_ops, reads, problem.num_devices, how, *figures)


def lines(ops: list[int], devices: list[int], seconds: float, in_c: InC | None = None) -> Iterator[Line]:
    for count in ops:
        for width in devices:
            problem = layered(count, width)
            for how in AIMS_NS:
                yield measure(problem, how, seconds, in_c)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ops", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seconds", type=float, default=0.5, help="of simulation per measurement, about")
    parser.add_argument("--c", action="store_true", help="compare with simulator.c, which takes a C compiler")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = lines(given.ops, given.devices, given.seconds, InC() if given.c else None)
    if given.json:
        print(json.dumps([asdict(line) for line in found], indent=2))
        return
    print(f"ns per (op + read); {os.cpu_count()} cores; aims are for one core")
    form = "{:>8} {:>8} {:>8}  {:<11} {:>9} {:>10} {:>10} {:>9} {:>10} {:>8} {:>9}".format
    print(
        form(
            "ops",
            "reads",
            "devices",
            "placement",
            "one core",
            "aim",
            "all cores",
            "speed-up",
            "time alone",
            "in C",
            "÷ C",
        )
    )
    for line in found:
        aim = "{} to {}".format(*AIMS_NS[line.placement])
        cells = (
            f"{line.one_core_ns:.1f}",
            aim,
            f"{line.all_cores_ns:.1f}",
            f"{line.speed_up:.2f}x",
            f"{line.quick_ns:.1f}",
        )
        c = ("", "") if line.c_ns is None else (f"{line.c_ns:.1f}", f"{line.one_core_ns / line.c_ns:.2f}")
        print(form(f"{line.ops:,}", f"{line.reads:,}", line.devices, line.placement, *cells, *c), flush=True)


if __name__ == "__main__":
    main()
