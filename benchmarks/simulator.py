"""How fast the simulator is: ns per (op + read).

    python benchmarks/simulator.py [--ops 1000 10000 100000] [--devices 2 4] [--seconds 0.5] [--cores] [--json]

Each line simulates many placements of one random layered graph with `simulate_many`. "Time alone" is the loop without
memory (`step_time`), called from Python for each, which takes some microseconds a call. Both are CPU time of
one thread. With --cores, one thread and all cores simulate them turn by turn, both by the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster import GraphBuilder, Problem, price, simulate_many
from loadmaster.simulator import NO_LIMIT, layout
from loadmaster.simulator.loop import step_time
from loadmaster.simulator.state import make_run_scratch

PLACEMENTS = ("contiguous", "random")
TURNS = 7  # the best of which counts: what else the machine does only ever adds


@dataclass(frozen=True)
class Line:
    ops: int
    reads: int
    devices: int
    placement: str
    ours_ns: float  # CPU time per (op + read), on one core
    quick_ns: float  # of the loop that tells the time alone
    one_thread_ns: float | None  # by the clock on the wall
    all_cores_ns: float | None

    @property
    def speed_up(self) -> float | None:
        if self.one_thread_ns is None or self.all_cores_ns is None:
            return None
        return self.one_thread_ns / self.all_cores_ns


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


def ours(problem: Problem, places: NDArray[np.int32]) -> tuple[float, NDArray[np.int64]]:
    """(CPU seconds, steps) of the compiled loop on one core."""
    begun = time.thread_time()
    scores = simulate_many(problem, places, workers=1)
    return time.thread_time() - begun, np.asarray(scores.step_ns)


def alone(problem: Problem, places: NDArray[np.int32]) -> tuple[float, NDArray[np.int64]]:
    """(CPU seconds, steps) of the loop without memory."""
    plain = layout(problem)
    scratch, rank = make_run_scratch(plain, False), np.arange(problem.num_ops, dtype=np.int32)
    begun = time.thread_time()
    steps = [step_time(plain, place, rank, scratch, NO_LIMIT) for place in places]
    return time.thread_time() - begun, np.array(steps)


def on_the_wall(problem: Problem, places: NDArray[np.int32], workers: int | None) -> float:
    begun = time.perf_counter()
    simulate_many(problem, places, workers=workers)
    return time.perf_counter() - begun


def measure(problem: Problem, how: str, seconds: float, cores: bool) -> Line:
    reads = len(problem.graph.reads)
    size = problem.num_ops + reads
    count = int(max(4, min(seconds * 1e9 / TURNS / 60 / size, 4096))) // 2 * 2
    places = placements(problem, how, count)
    took: dict[str, list[float]] = {"ours": [], "quick": [], "one": [], "all": []}
    ours(problem, places), alone(problem, places)  # compiled, and in the caches
    for _ in range(TURNS):  # in turns, so that what else the machine does slows all of them
        begun, step = ours(problem, places)
        took["ours"].append(begun)
        begun, steps = alone(problem, places)
        took["quick"].append(begun)
        assert (steps == step).all(), "the two loops do not agree"
        if cores:
            took["one"].append(on_the_wall(problem, places, 1))
            took["all"].append(on_the_wall(problem, places, None))
    scale = 1e9 / (count * size)
    best = {name: min(seconds) * scale if seconds else None for name, seconds in took.items()}
    assert best["ours"] is not None and best["quick"] is not None
    figures = (best["ours"], best["quick"], best["one"], best["all"])
    return Line(problem.num_ops, reads, problem.num_devices, how, *figures)


def lines(ops: list[int], devices: list[int], seconds: float, cores: bool) -> Iterator[Line]:
    for count in ops:
        for width in devices:
            problem = layered(count, width)
            for how in PLACEMENTS:
                yield measure(problem, how, seconds, cores)


HEAD = (
    "ops",
    "reads",
    "devices",
    "placement",
    "ours",
    "time alone",
    "1 thread",
    "all cores",
    "speed-up",
)


def cell(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ops", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=0.5, help="of simulation per measurement, about")
    parser.add_argument("--cores", action="store_true", help="one thread and all cores, by the clock on the wall")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = lines(given.ops, given.devices, given.seconds, given.cores)
    if given.json:
        print(json.dumps([asdict(line) for line in found], indent=2))
        return
    print(f"ns per (op + read); {os.cpu_count()} cores")
    form = "{:>8} {:>8} {:>8}  {:<11} {:>6} {:>11} {:>9} {:>10} {:>9}".format
    print(form(*HEAD))
    for line in found:
        cells = (cell(line.ours_ns), cell(line.quick_ns))
        threads = (cell(line.one_thread_ns), cell(line.all_cores_ns), cell(line.speed_up, 2))
        print(form(f"{line.ops:,}", f"{line.reads:,}", line.devices, line.placement, *cells, *threads), flush=True)


if __name__ == "__main__":
    main()
