"""Writes afresh what searches do from step to step: python -m tests.golden.traces [SCENE ...]

Whole methods have their place in `plans`, where most steps lead to the same plan; here it is kept where a search stands
after every few of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget, GraphBuilder, price
from loadmaster.cluster import Link
from loadmaster.errors import LoadmasterError
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.order import followers
from loadmaster.optimizers import balancing, crossing, rebalancing, splitting
from loadmaster.optimizers.annealing import engine
from loadmaster.optimizers.annealing.chains import Chains, ChainStart, Decisions, spread_ranks
from loadmaster.optimizers.annealing.proposals import Policy, chances, make_log
from loadmaster.optimizers.annealing.state import ARMS, LEVELS
from loadmaster.optimizers.annealing.xorshift import seeded
from loadmaster.optimizers.fusion import between, greedy
from loadmaster.optimizers.fusion.spaces import spaces_of
from loadmaster.optimizers.fusion.starts import fusing_for, kernels_of
from loadmaster.optimizers.policy.decoding import decode, former_of
from loadmaster.optimizers.policy.policy import net_of, size_of
from loadmaster.optimizers.policy.proposing import proposals
from loadmaster.optimizers.policy.views import view_of
from loadmaster.optimizers.simple import legal
from loadmaster.optimizers.starts import Scored
from loadmaster.passes import coarsen, stages
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.symmetry import alike_devices
from loadmaster.search import Search
from loadmaster.simulator import simulate
from tests.golden.inputs import sums_of
from tests.golden.plans import ALL, layers, wired
from tests.golden.scenes import Scenes, Told, checksum, exact
from tests.golden.shapes import drawn_problem

scene = Scenes(Path(__file__).with_suffix(".json"))


def much_read() -> Problem:
    """Tensors that a dozen ops read, ops that read seven; four unlike devices, of which some cannot run some ops."""
    build, rng = GraphBuilder("much read"), np.random.default_rng(8)
    weights = [build.tensor(int(size), "weight") for size in rng.integers(50, 400, 4)]
    made = [build.tensor(int(size), "input") for size in rng.integers(10, 200, 3)]
    for at in range(30):
        times: list[int | None] = [int(time) for time in rng.integers(5, 90, 4)]
        if at % 6 == 2:
            times[at % 4] = None
        reads = {*rng.choice(made[-9:], min(len(made), 1 + at % 7), replace=False).tolist(), weights[at % 4]}
        reads |= {made[3]} if 3 < at < 17 else set()
        makes = [build.tensor(int(size)) for size in rng.integers(10, 300, 1 + at % 2)] if at != 20 else []
        group = {"colocate": at // 12} if at % 12 > 9 else {}
        build.op(f"op{at}", "any", sorted(reads), makes, time_ns=times, **group)
        made += makes
    cluster = wired((1e9,) * 4, lambda one, two: one // 2 == two // 2, lambda one, two: one * 2 + two // 2)
    links = {pair: Link(3e9 if sum(pair) % 2 else 8e9, 2 + sum(pair)) for pair in cluster.links}
    return price(build.build(), replace(cluster, links=links), memory_limit=2_500)


KINDS = ("mm", "relu", "add.Tensor", "sum.dim_IntList", "_softmax", "native_layer_norm", "embedding", "slice.Tensor")


def assorted(seed: int) -> Problem:
    """Ops of many kinds, whose loops are of a few lengths; some write in place, some cannot run everywhere."""
    build, rng = GraphBuilder("assorted"), np.random.default_rng(seed)
    shapes = ((8, 64), (8, 1), (64,), (8, 8, 8), (16, 32), None)
    made = [build.tensor(2048, "input", shape=(8, 64)) for _ in range(2)]
    for at in range(34):
        kind = KINDS[int(rng.choice(len(KINDS), p=(0.08, 0.3, 0.3, 0.1, 0.06, 0.05, 0.05, 0.06)))]
        shape = shapes[int(rng.choice(len(shapes), p=(0.6, 0.1, 0.1, 0.05, 0.1, 0.05)))]
        reads = sorted({*rng.choice(made[-6:], min(len(made), 1 + at % 2), replace=False).tolist()})
        alias = {"alias_of": reads[-1]} if at % 13 == 12 and reads[-1] > 1 else {}
        size = int(rng.integers(1, 9)) * 256
        role = "output" if at % 9 == 8 and not alias else "activation"
        new = build.tensor(size, role, shape=shape, **alias)  # type: ignore[arg-type]
        times = {"time_ns": [None, 90]} if at % 15 == 7 else {"flops": int(rng.integers(1, 99)) * 10**4}
        build.op(f"op{at}", f"aten.{kind}", reads, [new], **times)  # type: ignore[arg-type]
        made = [*(tensor for tensor in made if tensor not in alias.values()), new]
    return price(build.build(), "2xp100-pcie")


def mixed() -> Problem:
    """Ops that may share a kernel, on three unlike devices, of which one is far away."""
    cluster = wired((3e12, 2e12, 1e12), lambda one, two: 2 not in (one, two), lambda one, two: one)
    return price(layers(2, 4, 31, fusable=True), cluster)


EVERY: dict[str, Callable[[], Problem]] = {
    **ALL,
    "much read": much_read,
    "mixed": mixed,
    "assorted": partial(assorted, 3),
}


@dataclass(frozen=True)
class Walk:
    """Which walk is watched: on which problem, what it changes, how hot, in how many stretches of how many moves."""

    problem: str
    decisions: Decisions = field(default_factory=Decisions)
    hot: float = 0.02
    ranked: bool = True
    stretches: int = 12


WALKS = {
    "placement": Walk("unlike"),
    "placement, tight": Walk("tight", Decisions(evict=True)),
    "placement, no memory": Walk("odd", Decisions(evict=True), 0.2),
    "placement, four devices": Walk("tasks", hot=0.005),
    "placement, for memory": Walk("small"),
    "placement, busiest": Walk("held", Decisions(ordering=False)),
    "placement, no aim": Walk("zero", Decisions(aim=0.0), 0.1),
    "placement, no ranks": Walk("apart", Decisions(ordering=False, follow=0.0), 0.0, ranked=False),
    "order": Walk("tasks", Decisions(placing=False), 0.05),
    "host": Walk("hosted", Decisions(evict=True), 0.0),
    "kernels": Walk("halves", Decisions(fusing=True), stretches=8),
    "kernels alone": Walk("brisk", Decisions(placing=False, ordering=False, fusing=True), 0.01, stretches=8),
    "kernels, unlike devices": Walk("mixed", Decisions(fusing=True), stretches=10),
    "kernels of all kinds": Walk("assorted", Decisions(fusing=True), 0.05, stretches=10),
    "kernels, no ranks": Walk(
        "halves", Decisions(ordering=False, fusing=True, follow=0.0), 0.01, ranked=False, stretches=6
    ),
}
MOVES = 16  # of a stretch
UNEVEN = np.arange(1, ARMS + 1) ** 1.5  # weights of a sum that tells its parts apart


def chains_of(problem: Problem, how: Walk, count: int = 1) -> Chains:
    """From a random plan."""
    search, rng = Search(problem, Budget(None, 10**6), 3), np.random.default_rng(7)
    device, own = legal(problem, rng.integers(0, problem.num_devices, problem.num_ops)), np.arange(problem.num_ops)
    rank = spread_ranks(search, Plan.of(problem, device, rng.permutation(problem.num_ops)))
    fusing = fusing_for(problem, count) if how.decisions.fusing else []
    fused = tuple(kernels_of(problem, ints(own))) if fusing else ChainStart.fused
    start = ChainStart(device, rank if how.ranked else ints([]), search.score(Plan.of(problem, device, rank)), fused)
    return Chains(search, coarsen(problem, ints(own)), how.decisions, [start] * count, fusing, fifo=not how.ranked)


def stands(chain: Any) -> list[float]:
    """Where a chain is, what it has counted and what has paid."""
    columns = (chain.place, chain.rank, chain.kernel, chain.sequence, chain.counts, chain.best_place, chain.best_rank)
    where = checksum([column.tolist() for column in columns])
    return [*map(float, chain.score), where, float(chain.priority.sum()), float(chain.gained @ UNEVEN)]


def walk(how: Walk) -> Told:
    found, chains = Told(), chains_of(EVERY[how.problem](), how)
    rest = (how.decisions.aim, how.hot, how.hot / 50, 10, 150, how.decisions.evict)
    given = (chains.chains[0], chains.scratch[0], None, chains.fusing[0])
    for stretch in range(how.stretches):
        habits = engine.Habits(chains.weights, 0.5, *rest)
        engine.walk(chains.layout, chains.terrain, *given, habits, MOVES, None)
        found[f"{stretch}"] = stands(chains.chains[0])
    return found | {"spent": [float(chains.chains[0].spent @ UNEVEN)]}


scene.made |= {f"walk: {name}": partial(walk, how) for name, how in WALKS.items()}


@scene
def walks_side_by_side() -> Told:
    """Several chains that look at each other, cooled and warmed again."""
    found: Told = {}
    for name in ("placement", "placement, tight"):
        chains = chains_of(ALL[WALKS[name].problem](), WALKS[name], count=3)
        for turn in range(3):
            chains.cool(160, 0.05 / (turn + 1), 0.001)
            found |= {f"{name} {turn} {at}": stands(chain) for at, chain in enumerate(chains.chains)}
            (chains.return_to_best, lambda chains=chains: chains.weigh_order(0.2), lambda: None)[turn]()
    return found


@scene
def walks_by_scores() -> Told:
    """Where a network has a say, and what is written down of it."""
    found: Told = {}
    for name, fusing in (("unlike", False), ("tasks", False), ("halves", True)):
        problem, rng = ALL[name](), np.random.default_rng(11)
        how = Walk(name, Decisions(fusing=fusing))
        chains, groups = chains_of(problem, how, count=2), 5
        rows = rng.normal(size=(problem.num_ops if fusing else 0, LEVELS)) * 2
        said = [rng.normal(size=(groups, wide)) for wide in (problem.num_devices, LEVELS)]
        policy = Policy(np.arange(problem.num_ops) % groups, *said, rows, chances(rows), 0.2)
        logs = [make_log(24, max(groups, problem.num_ops)) for _ in range(2)]
        for log in logs:
            log.every[0] = 3
        for turn in range(5):
            chains.cool(40, 0.03, 0.001, policy, logs)
            found |= {f"{name} {turn} {at}": stands(chain) for at, chain in enumerate(chains.chains)}
        for at, log in enumerate(logs):
            count = int(log.filled[0])
            parts = (log.kind, log.pick, log.chance, log.gain, log.share)
            found[f"{name} log {at}"] = [float(count), *(each for part in parts for each in exact(part[:count]))]
    return found


SOME = ("unlike", "tight", "small", "odd", "zero", "tasks")


@scene
def groups_moved() -> Told:
    """Until devices hold alike: what has become of a placement after some moves, and of the random numbers."""
    found: Told = {}
    for seed, name in enumerate(SOME):
        problem = ALL[name]()
        held, device = balancing.held_of(problem), begun(problem)
        pools = balancing._pools_of(problem, (("edges", 6), ("window", 4), ("op", 0)))()
        for moves in (1, 2, 3, 5, 9, 20, 45):
            state = seeded(seed + 1)
            moved = balancing.balance(held, *pools, device, moves, state)
            found[f"{name} {moves}"] = [*exact(moved), checksum(state.tolist()), float(balancing.fullest(held, moved))]
    return found


@scene
def ops_moved() -> Told:
    """The same op by op, with the order."""
    found: Told = {}
    for seed, name in enumerate(SOME):
        problem = ALL[name]()
        needs, device = rebalancing.needs_of(problem), begun(problem)
        found[f"{name} needs"] = [exact(column)[-1] for column in (*needs.held, *needs[1:])]
        first = np.argsort(simulate(problem, Plan.of(problem, device)).turn, kind="stable")
        for moves in (0, 1, 2, 3, 5, 9, 20, 45):
            order, place, state = first.copy(), device.copy(), seeded(seed + 5)
            paid = rebalancing.improve(needs, order, place, moves, state)
            profile = rebalancing.profile_of(needs, order, place, np.empty(len(order), np.int64))
            parts = (order, place, state, profile.top, profile.at_first, profile.start, profile.end)
            found[f"{name} {moves}"] = [float(paid), *(checksum(part.tolist()) for part in parts)]
    return found


@scene
def plans_crossed() -> Told:
    """A plan with stretches of others."""
    found: Told = {}
    for seed, name in enumerate(("unlike", "tight", "odd", "tasks", "zero", "crowded")):
        problem = ALL[name]()
        search, rng = Search(problem, Budget(None, 10**6), seed), np.random.default_rng(seed)
        plans = [
            Plan.of(problem, legal(problem, rng.integers(0, problem.num_devices, problem.num_ops))) for _ in range(9)
        ]
        crossed = crossing.Crossing(search)
        for at, plan in enumerate(plans):
            crossed.keep(plan, 2 * problem.num_ops - (at == 4))
        found[f"{name} kept"] = [checksum([plan.device.tolist() for plan in crossed.plans])]
        found[f"{name} due"] = [float(crossed.due)]
        for count in (1_999, 1, 9, 1):
            search.count(count)
            found[f"{name} due"] += [float(crossed.due)]
        best, crossed.used = Scored(search.score(plans[0]), plans[0]), 180
        for turn in range(4):
            search.count(150)
            with mock.patch.object(crossing, "LEAST", 12):
                due = crossed.due
                best = crossed.improve(best) if due else best
            told = (due, crossed.used, crossed.share, search.simulations, *best.score)
            said = (best.plan.device.tolist(), best.plan.rank.tolist())
            found[f"{name} {turn}"] = [*map(float, told), checksum(said)]
        alike = alike_devices(problem)
        renamed = [crossing.renamed_like(problem, one.device, plans[0].device, alike) for one in plans]
        found[f"{name} renamed"] = [checksum(each.tolist()) for each in renamed]
    return found


@scene
def scores_of_a_network() -> Told:
    """What the list scheduler's network is shown of ops and devices, by what it makes of them."""
    found: Told = {}
    for name in (*SOME, "apart", "much read"):
        problem = EVERY[name]()
        view, rng = view_of(problem), np.random.default_rng(6)
        weights = rng.normal(size=size_of(6)) * 0.5
        plan = Plan.of(problem, begun(problem))
        order = ints(np.lexsort((np.arange(problem.num_ops), -view.level)))
        for about, former in (("nothing", former_of(problem, None)), ("a plan", former_of(problem, plan))):
            found[f"{name} {about}"] = [each for part in former for each in sums_of(np.asarray(part, np.float64))]
            for how, more in (("best", {}), ("forced", {"forced": about == "a plan"}), ("drawn", {"noise": 0.4})):
                made = decode(problem, view, net_of(weights), order, former, **more)  # type: ignore[arg-type]
                found[f"{name} {about} {how}"] = [*exact(made.device), *exact(made.begin_ns), *sums_of(made.scores)]
        found |= {f"{name} {part}": sums_of(np.asarray(each)) for part, each in view._asdict().items()}
        told = proposals(problem, view, net_of(weights), plan)
        found[f"{name} proposals"] = [*sums_of(told.place), float(told.uniform), float(len(told.label))]
    return found


@scene
def kernels_merged() -> Told:
    """Which pairs may share a kernel, and what becomes of them in some orders."""
    found: Told = {}
    for seed in range(6):
        problem, rng = assorted(seed), np.random.default_rng(seed)
        merges, count = greedy.Merges.of(problem), problem.num_ops
        columns = (merges.producers, merges.consumers, merges.saved, merges.alone)
        rules = [getattr(merges.rules, name) for name in ("barred_start", "barred", "given", "points", "rows", "apart")]
        found[f"{seed} pairs"] = [exact(column)[-1] for column in (*columns, *rules)]
        device = rng.integers(0, 2, (4, count))
        priority = rng.integers(-2, 6, (4, count)) / 2
        found[f"{seed} by priority"] = [exact(row)[-1] for row in merges.kernels(device, priority)]
        found[f"{seed} on one device"] = [exact(row)[-1] for row in merges.kernels(device[0] * 0, priority)]
        found[f"{seed} greedy"] = [exact(merges.greedy(each))[-1] for each in (None, ints(device[0]), ints(device[1]))]
        ways = [greedy.narrow(part) for part in (*problem.graph.dependencies, *followers(*problem.graph.dependencies))]
        pairs = np.stack([rng.integers(0, count - 1, 60), rng.integers(1, count, 60)])
        low, high = pairs.min(axis=0), np.maximum(pairs.max(axis=0), pairs.min(axis=0) + 1)
        for most in (2, 4, 64):
            able = between.possible(*ways, low, high, ~merges.alone, most)
            found[f"{seed} possible {most}"] = exact(able)
        spaces = spaces_of(problem.graph)
        found[f"{seed} loops"] = [exact(column)[-1] for column in spaces]
    return found


@scene
def drawn_steps_in_stages_and_parts() -> Told:
    """Phases and stages of their ops, what stages need; which ways there are to split each op, and what devices stand
    idle while it runs."""
    found: Told = {}
    for seed in range(8):
        problem = drawn_problem(seed)
        phase, count = stages.phases_of(problem), 2 + seed % 2
        wanted = ints(np.random.default_rng(seed).integers(0, count, problem.num_ops))
        stage = stages.settle_stages(problem, wanted, phase)
        parts = (phase, stage, stages.weight_ops(problem, stage, phase))
        found[f"{seed} stages"] = [exact(part)[-1] for part in parts]
        for split in (False, True):
            try:
                made = stages.in_stages(problem, stage, phase, split_backward=split)
            except LoadmasterError as error:
                found[f"{seed} {split}"] = [checksum(str(error))]
                continue
            columns = (made.stage, made.phase, made.problem.graph.workspace_bytes, made.problem.op_ns)
            found[f"{seed} {split}"] = [exact(column)[-1] for column in columns]
        ways = [list(splitting._ways(problem, op)) for op in range(problem.num_ops)]
        plan = Plan.of(problem, begun(problem))
        line = simulate(problem, plan)
        idle = [splitting._idle_ns(problem, plan, line.start_ns, line.end_ns, op) for op in range(problem.num_ops)]
        place = {name: int(there) for name, there in zip(problem.graph.op_name, plan.device, strict=True)}
        homes = splitting._homes(problem, place)
        found[f"{seed} parts"] = [float(sum(map(len, ways))), checksum(ways), checksum(idle), checksum(homes)]
    return found


def begun(problem: Problem) -> Ints:
    return legal(problem, np.random.default_rng(2).integers(0, problem.num_devices, problem.num_ops))


if __name__ == "__main__":
    scene.write(sys.argv[1:])
