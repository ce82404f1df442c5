"""Writes afresh what splits and pipelines are made of: python -m tests.golden.splits [SCENE ...]

Dynamic programmes over lines and downsets of odd little problems, rehearsals of random lines of stages move by move,
and what the planner of pipelines tries, with limits that small problems reach.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget, price
from loadmaster.cluster import Link
from loadmaster.graph.columns import ints
from loadmaster.optimizers.annealing.xorshift import seeded
from loadmaster.optimizers.downsets import downsets, replicated, units
from loadmaster.optimizers.downsets import stages as downset_stages
from loadmaster.optimizers.pipeline import cuts, microbatched, rehearsal, replicas, schedules, split
from loadmaster.optimizers.pipeline import stages as line_stages
from loadmaster.optimizers.pipeline.cuts import Rehearsals, StageLine
from loadmaster.optimizers.pipeline.rehearsal import Slots
from loadmaster.passes.groups import mirrored_position
from loadmaster.passes.stages import phases_of
from loadmaster.search import Search
from tests.golden.bounds import calls
from tests.golden.plans import layers, wired
from tests.golden.scenes import Scenes, Told, checksum, exact
from tests.golden.small import odds
from tests.golden.steps import lines, plan_told

scene = Scenes(Path(__file__).with_suffix(".json"))


@scene
def splits_of_lines() -> Told:
    found: Told = {}
    for name, problem in odds(14):
        labels = (np.arange(problem.num_ops), np.arange(problem.num_ops) // 2, mirrored_position(problem))
        for number, label in enumerate(labels):
            slot = split._together(problem, ints(label))
            for rule, states in product((split.least_loads, split.least_totals), (4_096, 3)):
                with mock.patch.object(split, "MOST_STATES", states), calls(line_stages, "best_splits") as told:
                    some = rule(problem, slot)
                row = [number for load, device in some for number in (load, exact(device)[-1])]
                found[f"{name} {number} {rule.__name__} {states}"] = [*told["best_splits"], *row]
        with mock.patch.object(split, "MOST_SLOTS", 4):
            row = [(load, device.tolist()) for load, device in split.least_loads(problem, ints(labels[0]))]
        found[f"{name} few"] = [checksum(row), *(exact(each)[-1] for each in split._folds(problem, "auto"))]
    return found


@scene
def splits_over_downsets() -> Told:
    found: Told = {}
    for name, problem in odds(12, 8):
        problem = problem.with_objective("throughput")
        for number, label in enumerate(downsets._labels(problem)):
            made = units.units_of(problem, label)
            found[f"{name} {number} units"] = [*exact(made.unit), checksum((made.before, made.after))]
            weight = np.arange(made.count)[::-1] + 1.0
            join = [units.joined(made, weight, light).tolist() for light in (2.0, 5.0, 9.0)]
            some = [units.downsets(made, most) for most in (3, 17, 10_000)]
            sets = [None if each is None else (each.members, each.start.tolist(), each.after.tolist()) for each in some]
            found[f"{name} {number} sets"] = [checksum(join), checksum(sets)]
            for effort, most in ((10**6, 60_000), (40, 60_000), (10**6, 9)):
                with calls(downset_stages, "best_stages") as told:
                    best = downsets.split_of(problem, label, effort, most)
                row = [-1.0] if best is None else [float(best[0]), exact(best[1])[-1]]
                found[f"{name} {number} {effort} {most}"] = [*told.get("best_stages", []), *row]
        for most in (1_500, 5):
            with mock.patch.object(replicated, "MOST_SETS", most):
                stages = replicated.replicated_stages(problem, downsets._labels(problem)[0], 3, cost)
            row = [stages.busiest, float(stages.exact), exact(stages.stage)[-1], checksum(stages.replicas)]
            found[f"{name} replicated {most}"] = row
    return found


def cost(work: np.ndarray, nbytes: np.ndarray, r: int) -> np.ndarray:
    return (work + (r - 1) / r * nbytes) / r


def random_slots(rng: np.random.Generator, size: int, devices: int) -> Slots:
    def sums(most: int, *shape: int) -> np.ndarray:
        return np.concatenate(
            [np.zeros((1, *shape), np.int64), np.cumsum(rng.integers(0, most, (size, *shape)), axis=0)]
        )

    tables = [sums(most, devices) for most in (60, 90, 40, 9)]
    sends = [rng.integers(0, 30, size + 1) for _ in range(2)]
    return Slots(*tables, sums(50), sums(30), *sends, ints(rng.integers(150, 400, devices)))


def random_line(rng: np.random.Generator, size: int, devices: int, count: int) -> StageLine:
    stages = int(rng.integers(1, 2 * devices))
    edges = np.sort(rng.choice(np.arange(1, size), stages - 1, replace=False))
    device, most = rng.integers(0, devices, stages), rng.integers(1, count + 1, stages)
    return StageLine(tuple(edges.tolist()), tuple(device.tolist()), tuple(most.tolist()))


@scene
def rehearsals() -> Told:
    found: Told = {}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        size, devices, count = int(rng.integers(8, 40)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
        devices = max(devices, 2) if seed else 1
        made = Rehearsals(random_slots(rng, size, devices), count, seed)
        some = [random_line(rng, size, devices, count) for _ in range(6)]
        row: list[float] = []
        for line in some:
            row += [*map(float, made.worth(line)), checksum(made.actions(line)), *map(float, made.scratch.peak)]
        worth, line = made.anneal(some[0], 120)
        found[f"{seed}"] = [*row, *map(float, worth), checksum(line)]
        found[f"{seed} best"] = [checksum(made.best(some, 60, 4)), checksum(made.state.tolist())]
    return found


@scene
def moves_of_stages() -> Told:
    """One by one, from the same line; whether something could be moved, and what came out."""
    found: Told = {}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        made = Rehearsals(random_slots(rng, 40, 3), 4, seed)
        line, state, rows = random_line(rng, 40, 3, 4), seeded(seed), list[Any]()
        for turn in range(300):
            stages = made._stages(line)
            done = rehearsal._move(made.slots, stages, 4, state)
            rows.append((bool(done), [column.tolist() for column in stages]))
            if done and turn % 4 == 0:
                number = int(stages.number[0])
                parts = (stages.begin[1:number], stages.device[:number], stages.most[:number])
                line = StageLine(*(tuple(column.tolist()) for column in parts))
        found[f"{seed}"] = [float(sum(done for done, _ in rows)), checksum(rows)]
    return found


@scene
def pipelines_that_are_tried() -> Told:
    found: Told = {}
    unlike = wired((4e12, 2e12, 3e12), lambda one, two: abs(one - two) == 1, lambda one, two: one * 3 + two)
    problems = lines() | {"idle": price(layers(1, 3, 9), unlike)}
    for (name, problem), count in product(problems.items(), (2, 3, 6)):
        planner = microbatched._Planner(problem, count, Budget(None, 90), 1)
        found[f"{name} {count} layouts"] = [exact(slot)[-1] for slot in planner.layouts]
        slots = cuts_of = microbatched.slots_of(problem, planner.layouts[0], planner.phase)
        orders = [planner._orders(), planner._turned(), [cut.edges for cut in planner.cuts(2 * problem.num_devices)]]
        found[f"{name} {count} lines"] = [checksum(orders), checksum(list(planner._lines(planner.layouts[0])))]
        with mock.patch.multiple(microbatched, MOST_REHEARSED=2_000, REHEARSALS=70, REHEARSALS_EACH=3):
            some = [planner._rehearsals(slots)]
            for given in (None, 1, 10, 100):
                planner.budget = Budget(None if given else 1.0, given)
                some.append(planner._rehearsals(cuts_of))
        found[f"{name} {count} rehearsals"] = [float(each) for each in some]
        made = sorted([*planner.by_hand(), *planner.bidirectional()], key=lambda pipeline: pipeline.score)
        several = [*planner.eager(made), *planner.replicated()]
        rows = [(each.name, each.score, each.most, each.peak_bytes.tolist()) for each in (*made, *several)]
        found[f"{name} {count} made"] = [float(len(rows)), checksum(rows), *(each.bubble for each in made)]
        best = planner.improve(several[:1])
        tight = microbatched._tighter(slots, several)
        found[f"{name} {count} moved"] = [float(best.score.value), checksum(best.cut.edges), *exact(tight.memory)]
        near = microbatched._near([each.score for each in several])
        chosen = list(microbatched._lines_of([*made, *several], planner.layouts[0]))
        found[f"{name} {count} near"] = [checksum(near), checksum(chosen), float(planner.search.simulations)]
        adding = microbatched._adding_ns(problem, count)
        found[f"{name} {count} adding"] = exact(adding)
    return found


@scene
def orders_of_stages() -> Told:
    """Eager ones that hold so much, on devices of their own, shared or several times over."""
    found: Told = {}
    for name, problem in lines().items():
        slot = split.scope_slots(problem)
        for (number, places), count in product(enumerate((((0,), (1,)), ((1,), (0,), (1,)), ((0, 1), (1, 0)))), (1, 4)):
            edges = tuple((int(slot.max()) + 1) * at // len(places) for at in range(1, len(places)))
            cut = microbatched.StageCut(slot, edges, places, "given")
            judge = microbatched.Judge(problem, count, Search(problem, Budget(None, 99)))
            for apart, most in product((True, False), (1, 2, 9)):
                staged = judge._staged(cut, apart)
                times = schedules.ActionTimes.of(staged, places)
                orders = schedules.eager(times, count, (most,) * len(places))
                found[f"{name} {number} {count} {apart} {most}"] = [
                    *exact(times.time_ns),
                    checksum(times.waits),
                    checksum(orders),
                ]
            ring = judge._replicas(cut)
            found[f"{name} {number} {count} ring"] = [checksum(ring)]
        found[f"{name} phases"] = exact(phases_of(problem))
    for seed in range(8):
        rng = np.random.default_rng(seed)
        work, nbytes = ints(rng.integers(1, 90, 9)), ints(rng.integers(0, 900, 9))
        link = Link([1e9, None][seed % 2], int(rng.integers(0, 20)))
        for most in (128, 4):
            with mock.patch.object(replicas, "MOST_SLOTS", most):
                ways = replicas.replicated_splits(work, nbytes, 2 + seed % 4, 1 + seed % 3, link)
            row = [way.busiest for way in ways]
            found[f"replicas {seed} {most}"] = [*row, checksum([(way.edges, way.replicas) for way in ways])]
    return found


@scene
def pipelines_that_were_rehearsed() -> Told:
    """Lines that are found by rehearsals, judged, and tried again with less memory where they do not fit."""
    found: Told = {}
    few = mock.patch.multiple(microbatched, REHEARSALS_EACH=1, JUDGED=2)
    for name, problem in lines().items():
        for limit in (1 << 40, 9 << 20):
            tight = price(problem.source, problem.cluster, memory_limit=limit)
            planner = microbatched._Planner(tight, 3, Budget(None, 40), 2)
            with few, mock.patch.object(cuts, "MOST_CHUNKS", 2):
                made = list(planner.by_hand())
                more = list(planner.rehearsed(made))
            rows = [(each.name, each.score, each.most, each.cut.edges, each.cut.device) for each in more]
            best = planner.judge.remembering(min(more, key=lambda each: each.score))
            found[f"{name} {limit}"] = [float(len(rows)), checksum(rows), *plan_told(best.plan)]
    return found


if __name__ == "__main__":
    scene.write(sys.argv[1:])
