"""What devices hold along any order, against the count along the program of a problem whose ops are renumbered; moves,
which change it piece by piece, against counting afresh; and what comes of a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster import Budget, Cluster, GraphBuilder, load, price
from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.default.rebalancing import Profile, Rebalancer, needs_of, profile_of, rebalanced
from loadmaster.plans import Plan, check
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Search
from loadmaster.search.xorshift import seeded
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate

UNLIKE = "2xa100-nvlink+2xp100-pcie"


def drawn(seed: int = 0, cluster: str = UNLIKE, ops: int = 40) -> Problem:
    *_, graph = generate("erdos-renyi", 1, seed, (ops, ops + 20))
    return price(graph, Cluster.preset(cluster), objective="peak-memory")


def anyhow(problem: Problem, seed: int) -> tuple[Ints, Ints]:
    """(order, place): one of many orders in which each op comes after those it waits for, and any placement."""
    rng, order, known = np.random.default_rng(seed), list[int](), set[int]()
    start, before = problem.graph.dependencies
    while len(order) < problem.num_ops:
        ready = [
            op
            for op in range(problem.num_ops)
            if op not in known and known.issuperset(before[start[op] : start[op + 1]].tolist())
        ]
        order.append(int(rng.choice(ready)))
        known.add(order[-1])
    return ints(order), ints(rng.integers(0, problem.num_devices, problem.num_ops))


def counted(problem: Problem, order: Ints, place: Ints) -> list[int]:
    """[devices] the most that each holds, moment by moment: all that is needed there now or later and is there."""
    graph, at = problem.graph, np.argsort(order)
    most = np.zeros(problem.num_devices, np.int64)
    users = [set(graph.readers_of(tensor).tolist()) for tensor in range(graph.num_tensors)]
    for tensor in np.flatnonzero((graph.alias_of >= 0) & (graph.producer >= 0)).tolist():
        users[int(graph.owner[tensor])] |= {int(graph.producer[tensor])} | users[tensor]
    lasting = {int(graph.owner[tensor]) for tensor in np.flatnonzero(problem.stays)}
    for now, running in enumerate(order.tolist()):
        held = np.zeros(problem.num_devices, np.int64)
        held[place[running]] += graph.workspace_bytes[running]
        for tensor in np.flatnonzero(graph.alias_of < 0).tolist():
            maker = int(problem.updater[tensor] if problem.resident[tensor] else graph.producer[tensor])
            for here in range(problem.num_devices):
                needed = any(place[op] == here and at[op] >= now for op in users[tensor])
                if problem.resident[tensor]:
                    ever = any(place[op] == here for op in users[tensor])
                    there = place[maker] == here or needed if maker >= 0 else ever
                elif place[maker] == here:
                    there = at[maker] <= now and (needed or at[maker] == now or tensor in lasting)
                else:
                    there = at[maker] < now and needed
                held[here] += graph.nbytes[tensor] * there
        most = np.maximum(most, held)
    return [int(bytes_) for bytes_ in most]


def profiled(problem: Problem, order: Ints, place: Ints) -> Profile:
    return profile_of(needs_of(problem), order.copy(), place.copy(), np.empty(problem.num_ops, np.int64))


@pytest.mark.parametrize("seed", range(4))
def test_along_any_order_it_is_what_a_slow_count_gives(seed: int) -> None:
    problem = drawn(seed, ops=24)
    order, place = anyhow(problem, seed)
    assert profiled(problem, order, place).top.tolist() == counted(problem, order, place)


def test_updates_in_place_weights_and_workspace_are_counted_as_well() -> None:
    problem = price(load("zoo:transformer-xl-2/train"), "2xp100-pcie", objective="peak-memory")
    order = ints(np.arange(problem.num_ops))
    place = ints(np.arange(problem.num_ops) * 2 // problem.num_ops)
    assert profiled(problem, order, place).top.tolist() == counted(problem, order, place)


def together() -> Problem:
    """Ops of which two in four share a device, and every fifth cannot run on the last; with workspace."""
    graph = GraphBuilder("together")
    tensors = [graph.tensor(1_000, "input")]
    for op in range(30):
        made = graph.tensor(100 + 37 * op % 90, "output" if op == 29 else "activation")
        mate = f"g{op // 4}" if op % 4 < 2 else None
        given = sorted({tensors[op], tensors[max(0, op - 7)]})
        graph.op(f"op{op}", "task", given, [made], time_ns=100, colocate=mate, workspace_bytes=op % 3 * 10)
        tensors.append(made)
    problem = price(graph.build(), Cluster.preset(UNLIKE), objective="peak-memory")
    times = problem.op_ns.copy()
    for op in range(0, 30, 5):
        times[op, 3] = CANNOT
    return replace(problem, op_ns=ints(times))


def test_what_comes_of_a_plan_holds_less_and_breaks_no_rule() -> None:
    problems = [together(), *(drawn(seed, cluster) for seed in range(2) for cluster in (UNLIKE, "regal"))]
    for problem in problems:
        plan = Plan.of(problem, ints(np.zeros(problem.num_ops, np.int64)))
        line = simulate(problem, plan)
        found = rebalanced(problem, plan.device, line, seeded(1))
        assert found is not None
        check(found, problem)
        ran, kept = np.argsort(line.turn, kind="stable"), np.argsort(found.rank, kind="stable")
        assert max(counted(problem, ints(kept), found.device)) < max(counted(problem, ints(ran), plan.device))


def test_a_search_has_what_was_found_and_every_simulation_counts() -> None:
    problem = drawn(2)
    search = Search(problem, Budget(None, 40))
    plan = Plan.of(problem, ints(np.zeros(problem.num_ops, np.int64)))
    score = search.score(plan)
    found, better = Rebalancer(search).improve(score, plan, 4)
    assert found < score and search.best_score == found
    assert simulate(problem, better).peak_bytes.max() == found.value
    assert 1 < search.simulations <= 40
