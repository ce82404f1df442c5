"""Writes afresh what methods are made of: python -m tests.golden.steps [SCENE ...]

Starts that searches go on from, plans made from those of other problems, pipelines of microbatches, graphs in which ops
are split, every order of a placement. Whole methods have their place in `plans`; a start that is worse than it was need
not change what a search comes to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget, GraphBuilder, price
from loadmaster.cluster import Cluster, Link
from loadmaster.cluster.growing import with_host
from loadmaster.graph.columns import ints
from loadmaster.optimizers import balancing, cuts, dealing, rejoining, starts, timelines
from loadmaster.optimizers.annealing import critical
from loadmaster.optimizers.annealing.sets import draw_set
from loadmaster.optimizers.annealing.state import SHIFT, make_scratch, terrain_of
from loadmaster.optimizers.annealing.xorshift import seeded
from loadmaster.optimizers.branching.branch_and_bound import SearchTree
from loadmaster.optimizers.downsets.units import units_of
from loadmaster.optimizers.experience import adapting, entries, likeness, trying
from loadmaster.optimizers.experience.known import Known
from loadmaster.optimizers.grouped import Groups, Way, grouped
from loadmaster.optimizers.multilevel import refine
from loadmaster.optimizers.partition import partitioners, parts
from loadmaster.optimizers.pipeline import edges, microbatched, replicas, schedules, slots, split
from loadmaster.optimizers.splitting import solve_split
from loadmaster.passes.groups import GROUPERS, group_ops, grouping
from loadmaster.passes.stages import phases_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search, solve
from loadmaster.simulator import layout, simulate
from tests.golden.inputs import arrays
from tests.golden.plans import ALL, METHODS, layers, tiny, wired
from tests.golden.scenes import Scenes, Told, checksum, exact

scene = Scenes(Path(__file__).with_suffix(".json"))
SOME = ("unlike", "tight", "small", "tasks", "odd", "held", "apart", "zero")


def plan_told(plan: Plan) -> list[float]:
    order = np.argsort(plan.rank, kind="stable")
    return [checksum(plan.device.tolist()), checksum(order.tolist())]


def placed(problem: Problem) -> Plan:
    device = np.arange(problem.num_ops) // 3 % problem.num_devices
    device = np.where(problem.able[np.arange(problem.num_ops), device], device, problem.able.argmax(1))
    return Plan.of(problem, device[problem.leader])


@scene
def plans_to_begin_from() -> Told:
    found: Told = {}
    for name in SOME:
        search = Search(ALL[name](), Budget(None, 2_000), 4)
        made = starts.starts(search)
        found[f"{name} recipes"] = [float(start.price) for start in made] + [checksum([s.family for s in made])]
        own = [start for start in made if start.family != "partition"]  # which need packages
        some = list(starts.made(search, own))
        found[f"{name} plans"] = [checksum([(start.score, plan_told(start.plan)) for start in some])]
        found[f"{name} scores"] = [float(start.score.value) for start in some]
        some = starts.ordered(search, some, 3)
        chosen = (some, starts.of_each_family(some, 5), starts.unlike(some, 4))
        found[f"{name} chosen"] = [checksum([start.score for start in each]) for each in chosen]
    return found


@scene
def placements_by_rule() -> Told:
    """Groups in a list, cuts, groups dealt out, groups moved until devices hold alike."""
    found: Told = {}
    for name in SOME:
        problem = ALL[name]()
        for by, most in product(GROUPERS, (5, 16)):
            for rule, sends in (("finish", 1.0), ("load", 3.0)):
                way = Way(by, most, rule, sends)  # type: ignore[arg-type]
                found[f"{name} {by} {most} {rule}"] = plan_told(grouped(problem, way))
        groups = Groups.of(problem, group_ops(problem, 6, "window"))
        found |= {f"{name} {part}": exact(each) for part, each in arrays("groups", groups)}
        some = [*cuts.cuts(problem), *cuts.cut_by_held(problem, starts.HELD)]
        found[f"{name} cuts"] = [checksum(device.tolist()) for device in some]
        found[f"{name} held"] = exact(cuts.held_bytes(problem))
        found[f"{name} order"] = [checksum(cuts.device_order(problem).tolist())]
        dealt = dealing.dealt(problem, {4: 3, 9: 2})
        found[f"{name} dealt"] = [checksum(device.tolist()) for device in dealt]
        found[f"{name} fullest"] = [float(balancing.fullest(balancing.held_of(problem), device)) for device in some]
        stage = balancing.Stage((("edges", 6), ("window", 4)), 200)
        told = [balancing.balanced(problem, some, (stage, balancing.OPS._replace(moves=200)), seed) for seed in (0, 1)]
        found[f"{name} balanced"] = [checksum(device.tolist()) for device in told]
        again = [rejoining.rejoined(problem, placed(problem), dear) for dear in (0.01, 0.3, 2.0)]
        found[f"{name} rejoined"] = [number for plan in again for number in plan_told(plan)]
    return found


@scene
def parts_to_cut() -> Told:
    """What partitioners are given, and what is done with their answers."""
    found: Told = {}
    for name in SOME:
        search = Search(ALL[name](), Budget(None, 50), 1)
        for balance in ("auto", "time", "memory"):
            made = parts.parts_of(search.problem, balance)  # type: ignore[arg-type]
            found |= {f"{name} {balance} {part}": exact(each) for part, each in arrays("parts", made)}
            found[f"{name} {balance} edges"] = [exact(each)[-1] for each in made.edges]
            placed_so = (partitioners._spread(made), partitioners._in_shares(made), partitioners._seats(made))
            found[f"{name} {balance} spread"] = [exact(each)[-1] for each in placed_so]
            nbytes = np.bincount(made.unit, weights=parts.op_bytes(search.problem))
            there, last = ints(np.zeros(search.problem.num_ops)), search.problem.num_devices - 1
            moved = partitioners._move_off(made, there, 0, last, int(nbytes.sum() / 3), nbytes)
            found[f"{name} {balance} moved"] = [checksum(moved.tolist()), *exact(nbytes)]
            found[f"{name} {balance} text"] = [checksum(partitioners._target_text(made))]
    return found


@scene
def plans_of_other_problems() -> Told:
    """Of a problem made to suit another: with more layers, other devices, other sizes."""
    found: Told = {}
    stacks = {count: layers(2, count, 3, training=True) for count in (2, 3, 5)}
    clusters = {"two": "2xp100-pcie", "four": "4xp100-pcie", "unlike": ALL["unlike"]().cluster}
    for scopes, (count, graph) in product((True, False), stacks.items()):
        sight = likeness.Sight.of(graph, scopes)
        found[f"sight {scopes} {count}"] = [exact(each)[-1] for _, each in arrays("sight", sight)]
        sketches = [entries.sketch_of(likeness.Sight.of(other, scopes)) for other in stacks.values()]
        found[f"alike {scopes} {count}"] = [entries.alike(entries.sketch_of(sight), each) for each in sketches]
    for (old, one), (new, other) in product(product(stacks, ("two", "unlike")), product(stacks, clusters)):
        problem, target = price(stacks[old], clusters[one]), price(stacks[new], clusters[other])
        known = Known.of(problem, placed(problem))
        plans, close = adapting.adapt(known, target)
        found[f"{old} {one} {new} {other}"] = [close, *(number for plan in plans for number in plan_told(plan))]
    for name in ("unlike", "odd"):
        problem = ALL[name]()
        search = Search(problem, Budget(None, 200), 2)
        search.starts = (placed(problem), Plan.of(problem, problem.able.argmax(1)[problem.leader]))
        for plan in search.starts:
            search.score(plan)
        found[f"{name} suited"] = [float(start.score.value) for start in trying.suited(search)]
        found[f"{name} stands out"] = [float(trying.stands_out(search, search.best_score)), float(search.simulations)]
    return found


def lines() -> dict[str, Problem]:
    unlike = wired((4e12, 2e12, 3e12), lambda one, two: abs(one - two) == 1, lambda one, two: one * 3 + two)
    return {
        "two": price(layers(1, 4, 5, training=True), "2xp100-pcie"),
        "unlike": price(layers(1, 5, 6, training=True), unlike, memory_limit=12 << 20),
        "given": price(layers(2, 3, 7, given=2, training=True), "2xp100-pcie"),
    }


@scene
def pipelines_of_microbatches() -> Told:
    found: Told = {}
    few = mock.patch.multiple(microbatched, REHEARSALS_EACH=4, CHUNKS=2)
    for (name, problem), (count, replicate) in product(lines().items(), ((3, False), (4, True))):
        with few:
            made = microbatched.plan_pipeline(problem, count, Budget(None, 70), 1, replicate=replicate)
        result = made.result
        told = [result.value, result.timeline.over_bytes, result.simulations, result.lower_bound, len(made.others)]
        found[f"{name} {count}"] = [*map(float, told), checksum(made.best.schedule), *plan_told(result.plan)]
        others = [(other.schedule, other.score, other.peak_bytes.tolist()) for other in made.others]
        found[f"{name} {count} others"] = [checksum(others), *(float(score.value) for _, score, _ in others)]
    return found


@scene
def lines_of_stages() -> Told:
    """What pipelines are cut by, and the orders in which stages run."""
    found: Told = {}
    for name, problem in lines().items():
        phase, slot = phases_of(problem), split.scope_slots(problem)
        seen = slots.slots_of(problem, slot, phase)
        found |= {f"{name} {part}": exact(each) for part, each in arrays("slots", seen)}
        work = edges.work_of(problem, slot, phase, 4)
        crossing, gradients = edges.crossing_of(problem, slot), edges.gradients_of(problem, slot)
        found[f"{name} edges"] = [exact(each)[-1] for each in (work, crossing, gradients)]
        for device in ((0, 1), (1, 0, 1)):
            cut = [edges.balanced_edges(work, device), edges.balanced_edges(work, device, crossing)]
            found[f"{name} balanced {len(device)}"] = [float(edge) for each in cut for edge in each]
        for devices in (2, 4):
            some = replicas.replicated_splits(ints(work[:, 0]), gradients, devices, 3, Link(1e10, 5_000))
            found[f"{name} replicated {devices}"] = [float(len(some)), checksum(some)]
        merged = [split.merged_slots(slot, problem.best_ns.astype(float), most) for most in (2, 3)]
        found[f"{name} merged"] = [checksum(each.tolist()) for each in merged]
        for rule in (split.least_loads, split.least_totals):
            some = rule(problem, slot)
            found[f"{name} {rule.__name__}"] = [number for load, device in some for number in (load, exact(device)[-1])]
        found[f"{name} bound"] = [float(microbatched.bound_of(problem, 5, replicate=both)) for both in (False, True)]
    for stages, count in ((1, 3), (2, 4), (3, 2), (4, 6)):
        orders: Any = [rule(stages, count) for rule in (schedules.gpipe, schedules.one_f_one_b, schedules.zb_h1)]
        orders.append(schedules.interleaved(stages, 2, stages * 2))
        found[f"orders {stages} {count}"] = [checksum(each) for each in orders]
    return found


def tangled(seed: int, count: int = 18) -> Problem:
    """Ops that read what earlier ones made, some of no time, some that only wait."""
    rng, build, made = np.random.default_rng(seed), GraphBuilder("tangled"), list[int]()
    for at in range(count):
        reads = sorted({made[int(one)] for one in rng.integers(max(0, at - 6), at, rng.integers(0, 3))}) if at else []
        made.append(build.tensor(int(rng.integers(1, 60))))
        after = [f"op{int(rng.integers(at))}"] if at and rng.random() < 0.2 else []
        time = int(rng.integers(1, 90)) if rng.random() < 0.7 else 0
        build.op(f"op{at}", "any", reads, made[-1:], time_ns=time, after=after, scope=f"part{at % 5}")
    return price(build.build(), ALL["held"]().cluster, objective="throughput")


@scene
def units_of_downsets() -> Told:
    found: Told = {}
    for seed in range(8):
        problem = tangled(seed)
        each = np.arange(problem.num_ops)
        for name, label in (("op", each), ("pairs", each // 2), ("folded", np.minimum(each, each[::-1]))):
            made = units_of(problem, ints(label))
            found[f"{seed} {name}"] = [*exact(made.unit), checksum((made.before, made.after))]
        result = solve(problem, "downsets", Budget(None, 1))
        found[f"{seed} plan"] = [float(result.value), *plan_told(result.plan)]
    return found


@scene
def lists_of_tangled_graphs() -> Told:
    """In which ops also wait for others whose tensors they do not read."""
    found: Told = {}
    methods = (
        "heft",
        "etf",
        "cpop",
        "sct",
        "m-heft",
        "m-sct",
        "rolling",
        "rolling:ways=3",
        "heft:thrift=0.6",
        "expert",
    )
    for seed, method in product(range(4), methods):
        result = solve(tangled(seed, 26).with_objective("step-time"), method, Budget(None, 4), seed=2)
        found[f"{method} {seed}"] = [float(result.value), *plan_told(result.plan)]
    return found


@scene
def ops_in_parts() -> Told:
    found: Told = {}
    for name in ("2xp100-pcie", "4xa100-nvlink"):
        cluster, graph = Cluster.preset(name), layers(1, 3, 21, training=True)
        made = solve_split(
            price(graph, cluster), lambda other, on=cluster: price(other, on), "heft", Budget(None, 90), 3
        )
        told = [made.result.value, made.before.value, made.result.simulations, len(made.splits)]
        found[name] = [*map(float, told), checksum(made.splits), checksum(made.way), *plan_told(made.result.plan)]
    return found


@scene
def ops_that_move_together() -> Told:
    """Of every kind of move, about any op and about one that the step waits for."""
    found: Told = {}
    for name in ("unlike", "tight", "odd", "zero"):
        problem = ALL[name]()
        plan, plain, terrain = placed(problem), layout(problem), terrain_of(problem, grouping(problem))
        line, scratch, place = simulate(problem, plan), make_scratch(plain, False, True), plan.device.astype(np.int32)
        record = scratch.record
        record.start_ns[:], record.end_ns[:], record.turn[:] = line.start_ns, line.end_ns, line.turn
        count = int(critical.critical_ops(plain, terrain, place, scratch))
        scratch.turn_of[:] = line.turn
        waited = scratch.critical[:count].tolist()
        found[f"{name} waited"] = [float(op) for op in waited]
        for kind, aimed in product(range(SHIFT + 1), (False, True)):
            state, rows = seeded(kind + 1), []
            for turn in range(12):
                seed = waited[turn % count] if aimed else turn % problem.num_ops
                size, toward = draw_set(plain, terrain, place, scratch, kind, seed, aimed, state)
                rows.append((int(toward), scratch.members[:size].tolist()))
            found[f"{name} {kind} {aimed}"] = [float(sum(len(ops) for _, ops in rows)), checksum(rows)]
    return found


def assorted() -> Iterator[tuple[str, Problem]]:
    """Small problems that differ in what memory and kernels depend on, with room for a part of what they need."""
    unlike, (host, _) = ALL["unlike"]().cluster, with_host(Cluster.preset("1xp100-pcie"))
    clusters = (Cluster.preset("1xp100-pcie"), Cluster.preset("2xp100-pcie"), host, unlike)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        graph = layers(1 + seed % 2, 2 + seed % 3, 30 + seed, training=seed % 4 != 3, fusable=seed % 3 > 0)
        sizes = np.where(graph.alias_of >= 0, 1, rng.integers(1, 9, graph.num_tensors))
        graph = replace(graph, nbytes=ints(graph.nbytes * sizes[graph.owner] // 4))
        free = price(graph, clusters[seed % 4])
        peak = simulate(free, Plan.of(free, np.zeros(free.num_ops, np.int64))).peak_bytes[0]
        yield f"{seed}", price(graph, clusters[seed % 4], memory_limit=int(peak * (0.55 + 0.05 * (seed % 5))))


@scene
def searches_short_of_memory() -> Told:
    found: Told = {}
    methods = ("recompute", "recompute:inner=one-device", "joint", "min-cut", "auto", "inline", "memory-order")
    for (name, problem), method in product(assorted(), methods):
        result = solve(problem, method, Budget(None, 25), seed=1)
        told = [result.value, result.timeline.over_bytes, result.simulations]
        kernels = checksum(result.plan.kernel.tolist()) if result.plan.fuses else 0.0
        found[f"{method} {name}"] = [*map(float, told), *plan_told(result.plan), kernels]
    return found


@scene
def searches_of_kernels() -> Told:
    """Long enough for what a search does after its starts."""
    found: Told = {}
    for seed, method in product(range(4), ("joint", "anneal-fusion", "separate")):
        cluster = wired((3e12, 2e12), lambda one, two: True, lambda one, two: one)
        problem = price(layers(2 + seed % 2, 4, 40 + seed, fusable=True, training=seed == 3), cluster)
        result = solve(problem, method, Budget(None, 700), seed=seed)
        kernels = checksum(result.plan.kernel.tolist()) if result.plan.fuses else 0.0
        found[f"{method} {seed}"] = [float(result.value), float(result.simulations), *plan_told(result.plan), kernels]
    return found


@scene
def little_to_spend() -> Told:
    """Every method with one simulation, two and five."""
    found: Told = {}
    for method in METHODS:
        for count in (1, 2, 5):
            result = solve(ALL["halves"](), method, Budget(None, count), seed=3)
            told = [result.value, result.timeline.over_bytes, result.simulations]
            found[f"{method} {count}"] = [*map(float, told), *plan_told(result.plan)]
    return found


@scene
def trees_gone_through() -> Told:
    """Branch and bound, some moments at a time: how many it looks at, what it meets and what is proven by then."""
    found: Told = {}
    small = {"tiny": tiny(), "apart": price(layers(2, 2, 18), ALL["apart"]().cluster)}
    small |= {"given": price(layers(2, 2, 23, given=2), ALL["apart"]().cluster), "zero": ALL["zero"]()}
    for name, problem in small.items():
        plan = placed(problem)
        trunk, best = SearchTree(problem, plan), Score.of(problem, simulate(problem, plan))
        for turn in range(6):
            better, best = trunk.go_on(best, 150) or (None, best)
            told = [trunk.looked_at, trunk.bound(best), best.value, trunk.finished]
            found[f"{name} {turn}"] = [*map(float, told), *(plan_told(better) if better is not None else [])]
    return found


@scene
def windows_refined() -> Told:
    """Parts of a step annealed by themselves, of a few ops each."""
    found: Told = {}
    with mock.patch.multiple(refine, OPS=8, OPS_PER_DEVICE=3):
        for name, turn in product(("unlike", "tight", "tasks", "zero"), (0, 1, 2)):
            problem = ALL[name]()
            search, plan = Search(problem, Budget(None, 200), turn), placed(problem)
            search.score(plan)
            better = refine.refine(search, plan, 25, turn)
            told = [float(search.simulations), float(search.best_score.value)]
            found[f"{name} {turn}"] = [*told, *plan_told(better)]
    return found


@scene
def every_order() -> Told:
    found: Told = {}
    for seed, problem in enumerate((tiny(), price(layers(2, 2, 18), ALL["apart"]().cluster), ALL["odd"]())):
        rows = [(line.step_ns, *plan_told(plan)) for plan, line in islice(_all(problem), 150)]
        found[f"{seed}"] = [float(len(rows)), float(min(row[0] for row in rows)), checksum(rows)]
    return found


def _all(problem: Problem) -> Any:
    return timelines.every_timeline(problem, solve(problem, "round-robin", Budget(None, 1)).plan.device)


if __name__ == "__main__":
    scene.write(sys.argv[1:])
