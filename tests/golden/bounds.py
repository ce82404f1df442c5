"""Writes afresh what bounds say, and the steps to it: python -m tests.golden.bounds [SCENE ...]

That no plan goes under a bound, the unit tests see; a bound that says less than it did, they do not. Of the loops that
work it out, what every call gave is kept as sums.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.problem import Problem
from loadmaster.problem.bounds import (
    Storages,
    crowds,
    cut_order,
    held_up,
    levels,
    lower_bound,
    peak_bound,
    sharing,
    step,
    step_bound,
    together,
)
from loadmaster.problem.bounds.cuts import largest_cut
from loadmaster.problem.bounds.holding import device_bytes, op_residents
from loadmaster.problem.bounds.kernels import Fusing, saving_of
from loadmaster.problem.bounds.kinds import kinds_of, work_of
from tests.golden.inputs import arrays
from tests.golden.plans import PROBLEMS, drawing, held, layers, wired, zero
from tests.golden.scenes import Scenes, Told, checksum, exact
from tests.unit.problem.bounds.test_cuts import random_net

scene = Scenes(Path(__file__).with_suffix(".json"))


def equal() -> Problem:
    """Ops that are long to send between two equal devices."""
    return price(layers(2, 4, 8), wired((2e12, 2e12), lambda one, two: False, lambda one, two: one))


def three() -> Problem:
    return price(layers(4, 2, 9), wired((4e12,) * 3, lambda one, two: True, lambda one, two: one * 3 + two))


def brief() -> Problem:
    """Given times, of which some are under a launch, for ops that may share a kernel."""
    cluster = Cluster.preset("2xp100-pcie")
    pairs = zip(cluster.devices, (30_000, 50_000), strict=True)
    slow = replace(cluster, devices=tuple(replace(device, launch_ns=launch) for device, launch in pairs))
    return price(layers(2, 3, 13, given=2, fusable=True), slow, memory_limit=14 << 20)


def crammed() -> Problem:
    """Unlike devices, each too small for all weights."""
    cluster = wired((5e13, 1e12, 1e12), lambda one, two: True, lambda one, two: one)
    return price(layers(2, 5, 22, training=True), cluster, memory_limit=6 << 20)


def moving() -> Problem:
    """Slow memory: what ops read and write takes as long as what they compute."""
    cluster = wired((2e12, 1e12), lambda one, two: True, lambda one, two: one)
    devices = tuple(replace(device, bytes_per_s=1e9 * (2 + at)) for at, device in enumerate(cluster.devices))
    return price(layers(2, 3, 24, fusable=True), replace(cluster, devices=devices))


ALL: dict[str, Callable[[], Problem]] = PROBLEMS | {
    make.__name__: make for make in (equal, three, held, drawing, zero, brief, crammed, moving)
}


def ways(problem: Problem) -> dict[str, Fusing]:
    shared = sharing_of(problem)
    return {"plain": False, "fused": True, "shared": shared, "copied": shared.copying(problem.graph) or True}


@contextmanager
def calls(module: Any, *names: str) -> Iterator[Told]:
    """Of every function the number of its calls, and a checksum of what they gave; where that is nothing, of the arrays
    they were given, as they are afterwards."""
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    told: Told = {}

    def noting(name: str, own: Any) -> Any:
        def call(*given: Any) -> Any:
            result = own(*given)
            parts = result if isinstance(result, tuple) else (result,) if result is not None else given
            plain = [part for part in parts if isinstance(part, np.ndarray | np.number | int)]
            rows[name].append([exact(part)[-1] for part in plain if not isinstance(part, bool)])
            return result

        return call

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(module, name, noting(name, getattr(module, name))))
        yield told
    told |= {name: [float(len(row)), checksum(row)] for name, row in rows.items() if row}


@scene
def what_no_plan_can_beat() -> Told:
    found: Told = {}
    for name, make in ALL.items():
        problem = make()
        for way, fusing in ways(problem).items():
            told = [float(peak_bound(problem, fusing=fusing, adding=adding)) for adding in (False, True)]
            for fitting, adding in ((False, False), (True, False), (False, True)):
                told.append(float(lower_bound(problem, fusing=fusing, fitting=fitting, adding=adding)))
            found[f"{name} {way}"] = told
    return found


@scene
def what_it_is_made_from() -> Told:
    """Kinds of devices, bytes that must be there, times that kernels save."""
    found: Told = {}
    for name, make in ALL.items():
        problem = make()
        found[f"{name} cut order"] = exact(cut_order(problem))
        found[f"{name} residents"] = exact(op_residents(problem))
        for way, fusing in ways(problem).items():
            for fitting in (False, True):
                kinds = kinds_of(problem, fusing, fitting)
                work, share = work_of(kinds)
                found[f"{name} {way} {fitting} work"] = [float(share), *exact(work)]
                found |= {f"{name} {way} {fitting} {part}": exact(each) for part, each in arrays("kinds", kinds)}
            memory, saving = Storages(problem, fusing), saving_of(problem, fusing)
            told = [memory.resident_bytes, memory.kept_bytes, memory.last_bytes, saving.least_launch_ns]
            found[f"{name} {way} bytes"] = [*map(float, told), *exact(memory.appears)[-2:]]
            each = (saving.least_ns, saving.never_inner, saving.read_stored, saving.made_stored)
            found[f"{name} {way} saved"] = [exact(part)[-1] for part in each]
            alone = [exact(device_bytes(problem, fusing, elsewhere))[-1] for elsewhere in (False, True)]
            cuts = [largest_cut(memory.net, np.arange(problem.num_ops), 0, work) for work in (10**9, 500, 60)]
            found[f"{name} {way} alone"] = [*alone, *(float(cut) for cut, _ in cuts)]
            found[f"{name} {way} orders"] = [exact(order)[-1] for _, order in cuts]
    return found


@scene
def cuts_by_effort() -> Told:
    """After how many arcs, looked at one more at a time, another cut or order is found, and which."""
    found: Told = {}
    for seed in range(5):
        net = random_net(np.random.default_rng(seed), 9 + seed)
        some = [largest_cut(net, np.arange(len(net.own)), 0, work) for work in range(1, 700)]
        rows = [(float(cut), exact(order)[-1]) for cut, order in some]
        turns = [work for work in range(1, len(rows)) if rows[work] != rows[work - 1]]
        found[f"{seed}"] = [number for work in turns for number in (float(work), *rows[work])]
    return found


@scene
def soonest_starts() -> Told:
    """Of the loops that raise the bound on the step."""
    found: Told = {}
    names = ("bottlenecks", "prices", "cheapest", "heads", "tails")
    for name in ("unlike", "halves", "tasks", "odd", "equal", "three", "brief"):
        problem = ALL[name]()
        for way, fusing in ways(problem).items():
            with calls(levels, *names) as told, calls(crowds, "crowd", "apart", "least_span") as more:
                step_bound(problem, fusing=fusing, fitting=way == "shared")
            found |= {f"{name} {way} {part}": row for part, row in (told | more).items()}
    return found


@scene
def what_shares_a_device() -> Told:
    """Small problems, too, which are otherwise closed in other ways."""
    found: Told = {}
    for name in ("equal", "three", "tasks"):
        for most in (2_000, 0):
            limits = mock.patch.multiple(step, LEAST_SHARED=2, MOST_TOGETHER=most)
            tries = mock.patch.object(together, "TRIES", 5 if name == "three" else together.TRIES)
            with limits, tries, calls(sharing, "reach", "follow", "in_turn", "longest_alone") as told:
                bound = step_bound(ALL[name]())
            found |= {f"{name} {most} {part}": row for part, row in told.items()}
            found[f"{name} {most}"] = [float(bound)]
    return found


@scene
def devices_that_are_held_up() -> Told:
    found: Told = {}
    for seed in range(12):
        rng, problem = np.random.default_rng(seed), held()
        free = rng.integers(0, 2, 3).astype(bool)
        devices = tuple(
            replace(each, overlap=bool(one)) for each, one in zip(problem.cluster.devices, free, strict=True)
        )
        problem = price(
            layers(2, 2 + seed % 3, seed), replace(problem.cluster, devices=devices), objective="throughput"
        )
        group, few = held_up._components(ints([]), ints([]), problem.leader), held_up._Ways(problem)
        between = held_up._between(group, few)
        found[f"{seed}"] = [float(held_up.least_load(problem, problem.op_ns)), float(lower_bound(problem))]
        found[f"{seed} ways"] = [float(few.groups), *(exact(part)[-1] for part in (*between, few.send_ns))]
    return found


if __name__ == "__main__":
    scene.write(sys.argv[1:])
