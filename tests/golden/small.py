"""Writes afresh what loops make of many odd little problems: python -m tests.golden.small [SCENE ...]

Each problem is random and has, somewhere, all that plans must heed: updates in place, groups, waits without reads,
devices that cannot run an op, shared wires, little memory. They are small enough for loops that are not compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget, GraphBuilder, price
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.optimizers.branching import branch_and_bound
from loadmaster.optimizers.branching.branch_and_bound import SearchTree
from loadmaster.optimizers.fusion.sharing import sharing_of
from loadmaster.optimizers.genetic import breeding, brkga
from loadmaster.optimizers.lists import earliest, loop, rolling, schedulers
from loadmaster.optimizers.memory import exact_orders, order_moves
from loadmaster.optimizers.memory.orders import RULES, flow_of, memory_order
from loadmaster.optimizers.multilevel import refine
from loadmaster.optimizers.simple import legal
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Storages, held_up, lower_bound, peak_bound, step, step_bound
from loadmaster.problem.bounds.holding import device_bytes, op_residents
from loadmaster.problem.bounds.kernels import saving_of
from loadmaster.problem.bounds.kinds import kinds_of
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate
from tests.golden.bounds import calls
from tests.golden.plans import wired
from tests.golden.scenes import Scenes, Told, checksum, exact
from tests.golden.steps import plan_told

scene = Scenes(Path(__file__).with_suffix(".json"))


def odd(seed: int, ops: int = 10) -> Problem:
    rng, build = np.random.default_rng(seed), GraphBuilder(f"odd {seed}")
    devices = int(rng.integers(2, 5))
    weights = [build.tensor(int(rng.integers(20, 90)), "weight") for _ in range(3)]
    fixed = [build.tensor(int(rng.integers(20, 90)), "weight"), build.tensor(30, "input")]
    made = list[int]()
    if seed % 4 == 1:  # the first op updates, and nobody else reads what it does
        first = build.tensor(25, "weight")
        build.op("first", "any", [first], [build.tensor(0, "weight", alias_of=first)], time_ns=int(rng.integers(1, 30)))
    for at in range(ops):
        reads = {made[int(one)] for one in rng.integers(max(0, at - 5), at, rng.integers(0, 3))} if at else set()
        reads |= {weights[int(one)] for one in rng.integers(0, 3, 1) if rng.random() < 0.5}
        reads |= {fixed[int(one)] for one in rng.integers(0, 2, 1) if rng.random() < 0.3}
        makes = [build.tensor(int(rng.integers(0, 60)), "output" if rng.random() < 0.1 else "activation")]
        makes += [build.tensor(int(rng.integers(1, 40)))] if rng.random() < 0.2 else []
        times: list[int | None] = [int(rng.integers(0, 50)) for _ in range(devices)]
        if rng.random() < 0.2:
            times[int(rng.integers(devices))] = None
        build.op(
            f"op{at}", "any", sorted(reads), makes, time_ns=times if rng.random() < 0.6 else int(rng.integers(0, 50)),
            after=[f"op{int(rng.integers(at))}"] if at and rng.random() < 0.2 else [],
            colocate=int(rng.integers(2)) if rng.random() < 0.25 and None not in times else None,
            workspace_bytes=int(rng.integers(0, 40)) if rng.random() < 0.3 else 0,
        )  # fmt: skip
        made += makes
    for weight in weights[: int(rng.integers(0, 3))]:
        new = build.tensor(0, "weight", alias_of=weight)
        build.op(f"update {weight}", "any", [weight, made[-1]], [new], time_ns=5, colocate=1 if seed % 3 == 0 else None)
    pairs = [(one, two) for one in range(devices) for two in range(devices) if one != two]
    links = {pair: Link([None, 1e9, 4e9][rng.integers(3)], int(rng.integers(0, 12))) for pair in pairs}
    wires = np.full((devices, devices), -1)
    for one, two in pairs:
        wires[one, two] = (one, one * devices + two, min(one, two) * devices + max(one, two))[seed % 3]
    some = tuple(
        Device(f"d{at}", "toy", 2**30, 1e9, 1e9, launch_ns=3 * (seed % 2), overlap=(seed + at) % 3 > 0)
        for at in range(devices)
    )
    cluster = Cluster(f"odd {seed}", some, links, dense_channels(wires), contention=seed % 5 != 4)
    return price(build.build(), cluster, memory_limit=int(rng.integers(150, 600)))


def odds(count: int, ops: int = 10) -> Iterator[tuple[str, Problem]]:
    return ((f"{seed}", odd(seed, ops)) for seed in range(count))


@scene
def bounds() -> Told:
    found: Told = {}
    for name, problem in odds(20, 8):
        shared = sharing_of(problem)
        for way, fusing in (("plain", False), ("fused", True), ("shared", shared)):
            kinds, memory = kinds_of(problem, fusing, True), Storages(problem, fusing)
            row = [float(step_bound(problem, fusing=fusing, fitting=fitting)) for fitting in (False, True)]
            row += [float(peak_bound(problem, fusing=fusing, adding=adding)) for adding in (False, True)]
            row += [float(part) for part in (memory.resident_bytes, memory.kept_bytes, memory.last_bytes)]
            row += [exact(part)[-1] for part in (memory.appears, kinds.times, kinds.count, kinds.sends, kinds.column)]
            row += [exact(device_bytes(problem, fusing, elsewhere))[-1] for elsewhere in (False, True)]
            saving = saving_of(problem, fusing)
            parts = (saving.never_inner, saving.read_stored, saving.made_stored, saving.least_ns)
            found[f"{name} {way}"] = [*row, *(exact(part)[-1] for part in parts)]
        given = step._ways(problem, kinds_of(problem, False, False))
        row = [exact(column)[-1] for ways in given for column in ways] + [exact(op_residents(problem))[-1]]
        with mock.patch.object(step, "LEAST_SHARED", 2):
            row += [float(step_bound(problem))]
        busy = problem.with_objective("throughput")
        found[name] = [*row, float(lower_bound(busy)), float(held_up.least_load(busy, busy.op_ns))]
    return found


@scene
def lists() -> Told:
    """Where and when each op begins, by each rule."""
    found: Told = {}
    rules: list[Any] = [
        schedulers.Heft(*row) for row in product((True, False), (True, False), (0.0, 0.6))
    ]  # contention, memory, thrift
    rules += [schedulers.Cpop(memory=memory) for memory in (True, False)]
    rules += [schedulers.Etf(*row) for row in product((True, False), repeat=3)]  # contention, memory, favourite
    for name, problem in odds(40):
        with calls(loop, "in_order") as told, calls(earliest, "earliest_first") as more:
            plans = [rule.optimize(Search(problem, Budget(None, 1))) for rule in rules]
        found[name] = [*told["in_order"], *more["earliest_first"], checksum([plan_told(plan) for plan in plans])]
        parts = (schedulers.favourite_child(problem), schedulers.mean_sends(problem), *schedulers.fixed_reads(problem))
        found[f"{name} parts"] = [exact(part)[-1] for part in parts]
    return found


@scene
def lists_in_several_ways() -> Told:
    """By rolling, with room for few busy spans, and for all."""
    found: Told = {}
    plain = rolling.make_state
    for name, problem in odds(16, 24):
        for ways, spans in ((1, 3), (6, 4), (6, 64)):
            states = list[rolling.RollingState]()

            def made(*given: Any, spans: int = spans, states: list[rolling.RollingState] = states) -> Any:
                states.append(plain(*given, spans))
                return states[-1]

            with mock.patch.object(rolling, "make_state", made):
                plan = rolling.Rolling(ways).optimize(Search(problem, Budget(None, 1), 3))
            found[f"{name} {ways} {spans}"] = [*plan_told(plan), *(exact(column)[-1] for column in states[0])]
    return found


def alike(seed: int) -> Problem:
    """Ops that nothing tells apart, the first among them, on devices that are alike, or not."""
    rng, build = np.random.default_rng(seed), GraphBuilder(f"alike {seed}")
    given, ends = build.tensor(9, "input"), list[int]()
    for lane in range(3 + seed % 2):
        ends.append(build.tensor(20))
        build.op(f"lane{lane}", "any", [given], ends[-1:], time_ns=10 if seed < 3 else [11, 10, 12][: 2 + seed % 2])
    middle = build.tensor(int(rng.integers(1, 50)))
    build.op("join", "any", ends, [middle], time_ns=int(rng.integers(1, 20)))
    for lane in range(2):
        build.op(f"back{lane}", "any", [middle], [build.tensor(5, "output")], time_ns=8)
    return price(build.build(), wired((1e9,) * (2 + seed % 2), lambda one, two: seed < 3, lambda one, two: one))


@scene
def trees() -> Told:
    """Moments looked at, plans met, options with their bounds and what is proved, with memory for few moments, or
    many; where memory may be short nothing is remembered."""
    found: Told = {}
    wide = {f"{name} wide": replace(each, memory_bytes=ints(each.memory_bytes + 2**30)) for name, each in odds(12, 7)}
    problems = wide | dict(odds(5, 7)) | {f"alike {seed}": alike(seed) for seed in range(7)}
    for (name, problem), entries in product(problems.items(), (5, 4096)):
        plan = Plan.of(problem, legal(problem, np.zeros(problem.num_ops, np.int64)))
        best = Score.of(problem, simulate(problem, plan))
        with mock.patch.object(branch_and_bound, "ENTRIES", entries):
            tree = SearchTree(problem, plan)
        row = [checksum(branch_and_bound._twins(problem).tolist()), float(branch_and_bound.may_be_full(problem))]
        for _ in range(20):
            better, best = tree.go_on(best, 20) or (None, best)
            row += [float(tree.looked_at), float(tree.bound(best)), float(best.value)]
            row += plan_told(better) if better is not None else [float(tree.finished)]
            depth = int(tree.tree.depth[0])
            parts = (tree.tree.bound, tree.tree.option, tree.tree.rows)
            row.append(checksum([exact(part[:depth])[-1] for part in parts]))
        found[f"{name} {entries}"] = [float(len(row)), checksum(row), row[-3], row[-4]]
    return found


@scene
def orders() -> Told:
    """Of one device, by each rule; then moved op by op."""
    found: Told = {}
    for name, problem in odds(14, 16):
        flow = flow_of(problem)
        some = [memory_order(problem, rule) for rule in (*RULES, "best")]
        some += [exact_orders.greedy(flow, look) for look in (1, 2, 3)]
        some += [exact_orders.depth_first(flow, False)]
        found[name] = [exact(order)[-1] for order in some] + [exact(column)[-1] for column in flow]
        for window, temperature in ((1, 0.3), (30, 0.05)):
            order, best, state = some[0].copy(), some[0].copy(), np.array([5, window], np.uint64)
            peaks = order_moves.anneal(flow, order, best, 150, window, temperature, state)
            found[f"{name} {window}"] = [*map(float, peaks), exact(order)[-1], exact(best)[-1], float(state[0] >> 11)]
    return found


@scene
def windows() -> Told:
    """How late ops could start, how long the step goes on after them, and what windows come to."""
    found: Told = {}
    for name, problem in odds(12, 20):
        plan = Plan.of(problem, legal(problem, np.arange(problem.num_ops) // 3 % problem.num_devices))
        view = refine.WindowScene.of(problem, plan, simulate(problem, plan))
        row = [exact(part)[-1] for part in (view.order, view.latest_ns, view.follower, view.spare_bytes)]
        parts = [np.sort(view.order[low : low + 7]) for low in range(0, problem.num_ops, 5)]
        row += [exact(view.rest_ns(ints(part)))[-1] for part in parts]
        row += [exact(refine._bound(problem, ints(part)))[-1] for part in parts]
        found[name] = row
        with mock.patch.multiple(refine, OPS=6, OPS_PER_DEVICE=1):
            for turn, simulations in ((0, 30), (1, 30), (2, 4)):
                search = Search(problem, Budget(None, 60), turn)
                search.score(plan)
                waves = list[list[refine.FoundWindow]]()
                for odd in (False, True):
                    lows, cost = refine._lows(search, simulations, turn, odd)
                    waves.append(refine._wave(search, view, lows, cost, simulations, turn))
                rows = [[(w.ops.tolist(), w.device.tolist(), w.rank.tolist()) for w in wave] for wave in waves]
                told = [float(len(rows[0]) + len(rows[1])), checksum(rows), float(search.simulations)]
                better = refine._better(search, plan, [*waves[0], *waves[1]])
                found[f"{name} {turn}"] = [*told, *(one.gain for wave in waves for one in wave), *plan_told(better)]
    return found


def noting(breed: Any, told: list[Any]) -> Any:
    """The rows that it filled, and their values; threads take some each."""

    def call(*given: Any) -> None:
        breed(*given)
        new, turn, low, high, fresh = given[4], *given[8:12]
        told.extend((turn, row, new[row].tolist(), int(fresh[row])) for row in range(low, high))

    return call


@scene
def populations() -> Told:
    """Genes, and what they are worth, row by row."""
    found: Told = {}
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"order": "given", "width": 0.4, "by": "program", "blocks": 3},
        {"order": "memory", "sends": False},
        {"population": 1, "evaluations": 5},
        {"population": 40, "evaluations": 9, "by": "edges", "blocks": 2},
        {"elites": 0.9, "mutants": 0.9},
        {"elites": 0.0, "mutants": 0.0, "patience": 9, "rho": 0.3},
    )
    for (name, problem), (number, way) in product(odds(7), enumerate(ways)):
        given = {"population": 6 + number, "evaluations": 26, "elites": 0.34, "mutants": 0.2} | way
        settings = brkga.Brkga(**given)
        decoder, prior = brkga.decoder_of(problem, settings), brkga.prior_of(problem, settings)
        first = Plan.of(problem, legal(problem, np.arange(problem.num_ops) % problem.num_devices))
        search = Search(problem, Budget(None, 200), number)
        with mock.patch.object(breeding, "breed", noting(breeding.breed, told := [])):
            plan = brkga.evolve(search, settings, decoder, prior, first if number else None)
        genes = brkga.genes_of(problem, decoder, first)
        again = breeding.decode_one(brkga.layout(problem), decoder, genes)
        row = [float(search.simulations), float(search.best_score.value), float(search.best_score.over_bytes)]
        found[f"{name} {number}"] = [
            float(len(told)),
            checksum(sorted(told)),
            *row,
            *plan_told(plan),
            *(exact(part)[-1] for part in (genes, *again)),
        ]
    return found


if __name__ == "__main__":
    scene.write(sys.argv[1:])
