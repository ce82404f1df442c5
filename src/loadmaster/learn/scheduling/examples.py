"""Problems to learn scheduling from: generated training steps, unrolled recurrences and layered graphs of many sizes,
and graphs of a corpus, on drawn clusters of 2 to 16 devices; memory binds in half of them.

An example is named by its seed (and the line of the corpus) alone, so that every process makes the same one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.learn.examples import graph_of
from loadmaster.learn.go2020.drawing import branching_step, vary
from loadmaster.learn.go2020.drawing import draw_cluster as draw_by_chances
from loadmaster.optimizers.annealing.anneal import improve
from loadmaster.optimizers.cuts import cuts
from loadmaster.optimizers.lists.schedulers import Etf, Heft, critical_rank
from loadmaster.optimizers.policy.views import View, view_of
from loadmaster.optimizers.simple import OneDevice
from loadmaster.passes.blocks import blocks
from loadmaster.passes.chaining import chain_small_ops
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import simulate
from loadmaster.zoo import synthetic

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
MOST_OPS = 1_500  # of an example; larger ones are joined into blocks
KEPT = 400  # examples in memory
SHORT = 60  # simulations of a search before the policy
COUNTS = (2, 2, 3, 4, 4, 4, 5, 6, 8, 8, 12, 16)  # of devices, each as likely


class ScheduleKey(NamedTuple):
    """Which example: a line of the corpus, or -1, and a seed."""

    line: int
    seed: int


@lru_cache(maxsize=KEPT)
def make_example(key: ScheduleKey) -> tuple[Problem, View, Plan] | None:
    """The problem, what the policy sees of it and a plan by rules; None where there is nothing to decide."""
    rng = np.random.default_rng([key.line + 1, key.seed, 7])
    graph = draw_graph(rng) if key.line < 0 else vary(graph_of(key.line), rng)
    problem = price(graph, draw_cluster(rng))
    if rng.random() < 0.5:
        problem = tightened(problem, float(rng.uniform(1.1, 1.8)), rng)
    small = coarser(problem, int(rng.choice([200, 600, MOST_OPS])))
    if small is None or small.num_ops < 24:
        return None
    return small, view_of(small), first_plan(small, int(rng.integers(1, 6)))


def first_plan(problem: Problem, kind: int) -> Plan:
    """What the policy is given: a plan by rules, of one kind or the best of all; or what a short search made of it."""
    plan = best_by_rule(problem, min(kind, 3))
    if kind <= 3:
        return plan
    search = Search(problem, Budget(None, SHORT))
    improve(search, plan, 0.0, 0.0, chains=1)
    return search.best or plan


def best_by_rule(problem: Problem, kinds: int = 3) -> Plan:
    """The best of contiguous cuts (1), list schedules (2) or both (3), which take next to no time."""
    search = Search(problem, Budget(None, 10**9))
    if kinds & 1:
        for device in cuts(problem):
            search.score(Plan.of(problem, device))
            search.score(Plan.of(problem, device, critical_rank(problem, device)))
    if kinds & 2:
        for method in (Heft(), Heft(memory=True), Etf(memory=True)):
            search.score(method.optimize(search))
    assert search.best is not None
    return search.best


def coarser(problem: Problem, most: int) -> Problem | None:
    """The problem, or one of its blocks, of at most so many ops; None where it has too many."""
    if problem.num_ops <= most:
        return problem
    found = blocks(problem, most) or chain_small_ops(problem, 1 / 64)
    problem = problem if found is None else found.problem
    return problem if problem.num_ops <= 2 * MOST_OPS else None


def draw_graph(rng: np.random.Generator) -> Graph:
    kind = rng.random()
    if kind < 0.45:
        return branching_step(rng)
    if kind < 0.8:
        return unrolled_step(rng)
    name = "layered" if kind < 0.95 else sorted(synthetic.KINDS)[int(rng.integers(len(synthetic.KINDS)))]
    return next(iter(synthetic.generate(name, 1, int(rng.integers(2**31)), (80, 800))))


def unrolled_step(rng: np.random.Generator) -> Graph:
    """The training step of a stack of recurrent layers: a cell reads the one below it and the one before it, all cells
    of a layer share a weight; a wide op on top at times reads every cell of the top layer."""
    builder = GraphBuilder("unrolled step")
    layers, steps = int(rng.integers(1, 9)), int(rng.integers(4, 25))
    size, flops, noise = 2.0 ** rng.uniform(16, 23), 2.0 ** rng.uniform(27, 33), float(rng.uniform(0.0, 0.5))
    parts = int(rng.integers(1, 4))  # ops of a cell
    weights = [builder.tensor(int(size * 2.0 ** rng.uniform(-2, 4)), "weight") for _ in range(layers)]
    head = builder.tensor(int(size * 2.0 ** rng.uniform(0, 5)), "weight")
    inputs = [builder.tensor(int(size), "input") for _ in range(steps)]
    forward: list[tuple[list[int], int, int, int]] = []  # reads, made, weight, work
    below, attends = inputs, rng.random() < 0.4

    def op(reads: list[int], weight: int, work: float) -> int:
        made = builder.tensor(int(size * np.exp(noise * rng.standard_normal())))
        done = int(work * np.exp(noise * rng.standard_normal()))
        named = [*reads, *([weight] if weight >= 0 else [])]
        builder.op(f"f{len(forward)}", "mm" if weight >= 0 else "add", named, [made], flops=done)
        forward.append((reads, made, weight, done))
        return made

    for layer in range(layers):
        row = list[int]()
        for step in range(steps):
            last = op([below[step], *row[-1:]], weights[layer], flops)
            for _ in range(parts - 1):
                last = op([last], -1, size / 4)
            row.append(last)
        below = row
    outs = [op([top, *([below[int(rng.integers(steps))]] if attends else [])], head, 2 * flops) for top in below]
    outs = [op([out], -1, size / 2) for out in outs]
    _backward(builder, forward, outs)
    return builder.build()


def _backward(builder: GraphBuilder, forward: list[tuple[list[int], int, int, int]], ends: list[int]) -> None:
    """The gradients, in the opposite order; those of one weight are summed before it is updated."""
    size = dict(enumerate(builder._nbytes))
    loss = builder.tensor(4)
    builder.op("loss", "sum", ends, [loss], flops=1_000)
    grads, makers = {end: [loss] for end in ends}, {made for _, made, *_ in forward}
    changes: dict[int, list[int]] = {}
    for at, (reads, made, weight, work) in reversed(list(enumerate(forward))):
        arriving = grads.get(made, [loss])
        for read in dict.fromkeys(reads):
            if read in makers:
                grad = builder.tensor(size[read])
                builder.op(f"b{at} {read}", "mm" if weight >= 0 else "add", [*arriving, *reads], [grad], flops=work)
                grads.setdefault(read, []).append(grad)
        if weight >= 0:
            change = builder.tensor(size[weight])
            builder.op(f"w{at}", "mm", [*arriving, reads[0]], [change], flops=work)
            changes.setdefault(weight, []).append(change)
    for weight, parts in changes.items():
        updated = builder.tensor(size[weight], "weight", alias_of=weight)
        builder.op(f"u{weight}", "add", [*parts, weight], [updated], flops=size[weight] // 4 * len(parts))


def draw_cluster(rng: np.random.Generator) -> Cluster:
    """2 to 16 devices: presets, or drawn ones, like or unlike."""
    return draw_by_chances(rng, COUNTS, presets=0.35, unlike=0.6, free=0.05)


def tightened(problem: Problem, spare: float, rng: np.random.Generator | None = None) -> Problem:
    """Memory for `spare` times what one device would hold at its peak, in shares that may differ by a factor of 2."""
    plan = OneDevice().optimize(Search(problem, Budget(None, 1)))
    peak = int(simulate(problem, plan).peak_bytes.sum())
    share = (
        np.ones(problem.num_devices) if rng is None or rng.random() < 0.5 else rng.uniform(1, 2, problem.num_devices)
    )
    memory = np.maximum(1, peak * spare * share / share.sum()).astype(np.int64)
    devices = tuple(
        replace(device, memory_bytes=int(size)) for device, size in zip(problem.cluster.devices, memory, strict=True)
    )
    cluster = replace(problem.cluster, devices=devices)
    return replace(problem, cluster=cluster, memory_bytes=cluster.memory_bytes)
