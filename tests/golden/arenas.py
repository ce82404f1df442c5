"""Writes afresh where tensors lie: python -m tests.golden.arenas [SCENE ...]

Addresses that overlap or need too much, the unit tests see; a search that has become worse, or takes more work, they do
not.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import Ints, ints
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from loadmaster.simulator.arenas import assign_addresses, capacity, ejection, packing, rounding
from loadmaster.simulator.arenas.layout import Step
from loadmaster.simulator.arenas.orders import orders_of, peak_of
from loadmaster.simulator.arenas.sections import blocks_of
from tests.golden.plans import ALL, PROBLEMS
from tests.golden.scenes import Scenes, Told, exact
from tests.unit.simulator.arenas.test_capacity import columns, cut_up

scene = Scenes(Path(__file__).with_suffix(".json"))
ALONE = mock.patch.object(capacity, "cores", lambda: 1)  # how many are tried at once decides where the work ends
Lives = tuple[Ints, Ints, Ints]


def drawn(seed: int, count: int, *, wide: int = 12, sizes: int = 9) -> Lives:
    """(begin, end, nbytes) of blocks; some are twins, some have no bytes."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, wide, count)
    end = begin + rng.integers(1, wide // 2, count)
    nbytes = rng.integers(0, sizes, count) * 8 ** rng.integers(0, 2, count)
    return ints(begin), ints(end), ints(nbytes)


def tiled(seed: int, cuts: int) -> Lives:
    """A rectangle of 60 rounds and 1,000 bytes in pieces, which fill it without a gap."""
    rng, pieces = np.random.default_rng(seed), [(0, 60, 1000)]
    for _ in range(cuts):
        begin, end, size = pieces.pop(int(rng.integers(len(pieces))))
        middle, part = int(rng.integers(begin, end)), int(rng.integers(size + 1))
        if rng.random() < 0.5 and begin < middle:
            pieces += [(begin, middle, size), (middle, end, size)]
        else:
            pieces += [(begin, end, size - part), (begin, end, part)]
    return tuple(ints(column) for column in zip(*pieces, strict=True))  # type: ignore[return-value]


SETS: dict[str, Lives] = {f"drawn {count}": drawn(count, count) for count in (6, 14, 24)}
SETS |= {f"tiled {cuts}": tiled(cuts, cuts) for cuts in (5, 9, 16, 30, 45)}


def bricks(seed: int) -> Lives:
    """Pieces of whole thousands, some a byte larger, and small ones between."""
    rng, (begin, end, size) = np.random.default_rng(seed), tiled(seed, 14)
    odd = size * 1000 + rng.integers(0, 2, len(size))
    first = rng.integers(0, 40, 6)
    return (
        ints(np.concatenate([begin, first])),
        ints(np.concatenate([end, first + 20])),
        ints(np.concatenate([odd, np.ones(6)])),
    )


SETS["long"] = drawn(40, 20, wide=40, sizes=60)
SETS["bricks"] = bricks(3)


@scene
def blocks_within_a_capacity() -> Told:
    """At the peak, a little above and below it, with much work and with little."""
    found: Told = {}
    for name, lives in SETS.items():
        blocks, peak = blocks_of(*lives), peak_of(*lives)
        found[f"{name} blocks"] = [exact(part)[-1] for part in blocks]
        for most, work in product((peak - 1, peak, peak + peak // 50), (30_000, 150)):
            with ALONE:
                fit = capacity.fit_in(*lives, most, work=work)
            told = [float(fit.sure), float(fit.work), *(exact(fit.offset) if fit.offset is not None else [])]
            found[f"{name} {most - peak} {work}"] = told
    return found


@scene
def blocks_that_are_hard_to_fit() -> Told:
    """Searches that go back many times, at the peak and a little above it."""
    found: Told = {}
    for seed in range(50, 58):
        lives = drawn(seed, 16 + seed % 4 * 4, wide=16, sizes=30)
        peak = peak_of(*lives)
        for most, work in product((peak, peak + 2, peak + peak // 30), (6_000, 600)):
            with ALONE:
                fit = capacity.fit_in(*lives, most, work=work)
            told = [float(fit.sure), float(fit.work), *(exact(fit.offset) if fit.offset is not None else [])]
            found[f"{seed} {most - peak} {work}"] = told
    return found


@scene
def blocks_cut_from_a_whole() -> Told:
    """Not a byte is free, so that choices are given up by the section that failed last."""
    found: Told = {}
    for seed, count in ((1, 24), (2, 36), (3, 36), (1, 48), (4, 48), (5, 48)):
        lives = tuple(ints(column) for column in columns(cut_up(np.random.default_rng(seed), count, 60, 1000)))
        with ALONE:
            fit = capacity.fit_in(lives[0], lives[1], lives[2], 1000, work=20_000, seed=seed)
        told = [float(fit.sure), float(fit.work), *(exact(fit.offset) if fit.offset is not None else [])]
        found[f"{seed} {count}"] = told
    return found


@scene
def blocks_by_ejection() -> Told:
    """From nothing and from a layout with some blocks above the goal, with much work and with little."""
    found: Told = {}
    for seed, (name, lives) in enumerate(SETS.items()):
        begin, end, nbytes = lives
        peak, mates = peak_of(*lives), ejection.mates_of(*lives)
        high = packing.pack(orders_of(*lives)[3], *lives, 10**9)[0]
        for above, work, start in product((0, peak // 40, peak // 10), (1, 60, 1_500), ("empty", "packed")):
            goal = max(peak + above, int(nbytes.max()))
            offset = np.full(len(nbytes), -1) if start == "empty" else high.copy()
            told = ejection.eject(mates, offset, goal, ints(1 + nbytes), 2, work, seed)
            found[f"{name} {above} {work} {start}"] = [*map(float, told), *exact(offset)]
        for above, work in product((0, peak // 60), (1, 900, 6_000)):
            best = rounding.eject_in(begin, end, nbytes, peak + above, work=work, seed=seed)
            told_of = [] if best.offset is None else exact(best.offset)
            found[f"{name} {above} {work} in all"] = [float(best.top), float(best.work), *told_of]
        found[f"{name} quanta"] = [float(each) for each in rounding.quanta_of(*lives)]
    return found


@scene
def blocks_in_orders() -> Told:
    """First fit."""
    found: Told = {}
    for name, lives in SETS.items():
        for at, order in enumerate(orders_of(*lives)):
            offset, top, work = packing.pack(order, *lives, 10**9)
            found[f"{name} {at}"] = [float(top), float(work), exact(order)[-1], exact(offset)[-1]]
    return found


def bare() -> Problem:
    """Ops without tensors, of which one needs workspace."""
    build = GraphBuilder("bare")
    for at in range(3):
        build.op(f"op{at}", "any", [], [], time_ns=5, workspace_bytes=40 * at)
    return price(build.build(), "2xp100-pcie")


@scene
def addresses_of_plans() -> Told:
    found: Told = {}
    for name in (*PROBLEMS, "zero", "apart", "hosted", "held", "bare"):
        problem = bare() if name == "bare" else ALL[name]()
        device = np.arange(problem.num_ops) // 3 % problem.num_devices
        device = np.where(problem.able[np.arange(problem.num_ops), device], device, problem.able.argmax(1))
        plan = Plan.of(problem, device[problem.leader])
        line = simulate(problem, plan)
        step = Step(coarsen(problem, plan.kernel), plan, line)
        found[f"{name} rounds"] = [exact(each)[-1] for each in (step.begin, step.end, step.round_ns, *step.waits())]
        for effort in (100, 20_000):
            with ALONE:
                arenas = assign_addresses(problem, plan, line, effort=effort)
            found[f"{name} {effort}"] = [exact(each)[-1] for each in vars(arenas).values()]
            found[f"{name} {effort} bytes"] = [*map(float, (*arenas.size_bytes, *arenas.peak_bytes))]
    return found


if __name__ == "__main__":
    scene.write(sys.argv[1:])
