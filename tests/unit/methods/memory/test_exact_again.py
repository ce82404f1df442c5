"""Recomputation decided exactly, against a search over what may be in memory after every run of an op."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.methods.memory import exact_again
from loadmaster.methods.memory.exact_again import least_time
from loadmaster.plans import check
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate

pytest.importorskip("ortools")
ENOUGH = 20.0


def drawn(seed: int) -> Problem:
    """Ops there and back, as in training: those of the second half also read what the first half made."""
    rng = np.random.default_rng(seed)
    builder, half = GraphBuilder("drawn"), int(rng.integers(2, 4))
    made = [builder.tensor(1000, "input")]
    for op in range(2 * half):
        reads = {made[-1], made[2 * half - 1 - op] if op >= half else int(rng.choice(made))}
        role = "output" if rng.random() < 0.2 else "activation"
        makes = [builder.tensor(int(rng.integers(1, 6)) * 1000, role)]
        if rng.random() < 0.2:
            makes.append(builder.tensor(int(rng.integers(1, 6)) * 1000))
        extra = {"workspace_bytes": 1000} if rng.random() < 0.3 else {}
        flops = int(rng.integers(1, 9)) * 10**9
        builder.op(f"op{op}", "aten.mm.default", sorted(reads), makes, flops=flops, **extra)
        made.append(makes[0])
    return price(builder.build(), Cluster.preset("1xp100-pcie"))


def limited(problem: Problem, nbytes: int) -> Problem:
    return replace(problem, memory_bytes=ints([nbytes]))


def by_states(problem: Problem) -> int | None:
    """The least time over all ways to run ops, each at most twice, and to drop tensors: a shortest way through what may
    be in memory. None where nothing fits."""
    graph, limit = problem.graph, int(problem.memory_bytes[0])
    size = graph.nbytes.tolist()
    held = sum(size[t] for t in {int(t) for t in graph.reads} if graph.producer[t] < 0)
    outputs = {t for t in range(graph.num_tensors) if problem.stays[t]}
    reads = [{t for t in graph.reads_of(op).tolist() if graph.producer[t] >= 0} for op in range(graph.num_ops)]
    makes = [frozenset(graph.makes_of(op).tolist()) for op in range(graph.num_ops)]
    start = ((0,) * graph.num_ops, frozenset[int]())
    heap, seen, number = [(0, 0, start)], set(), 0
    while heap:
        time, _, state = heapq.heappop(heap)
        if state in seen:
            continue
        seen.add(state)
        counts, live = state
        if all(counts) and outputs <= live:
            return time
        nexts = [(time, (counts, live - {t})) for t in live]
        for op in range(graph.num_ops):
            inside = live | makes[op]
            fits = held + sum(size[t] for t in inside) + int(graph.workspace_bytes[op]) <= limit
            if counts[op] < 2 and reads[op] <= live and fits:
                more = (*counts[:op], counts[op] + 1, *counts[op + 1 :])
                nexts.append((time + int(problem.op_ns[op, 0]), (more, frozenset(inside))))
        for cost, after in nexts:
            if after not in seen:
                number += 1
                heapq.heappush(heap, (cost, number, after))
    return None


def test_no_way_to_run_ops_twice_is_faster() -> None:
    again = 0
    for seed in range(12):
        problem = drawn(seed)
        peak = int(solve(problem, "one-device", Budget(None, 1)).timeline.peak_bytes[0])
        for share in (0.95, 0.8):
            tight = limited(problem, int(peak * share))
            expected, found = by_states(tight), least_time(tight, None, ENOUGH)
            assert (found is None) == (expected is None)
            if found is not None:
                check(found, tight)
                line = simulate(tight, found)
                assert (line.over_bytes, line.step_ns) == (0, expected)
                again += found.added is not None
    assert again >= 5


def test_what_is_overwritten_in_place_is_held_and_never_made_again() -> None:
    builder = GraphBuilder("updates")
    weight, x = builder.tensor(1000, "weight"), builder.tensor(1000, "input")
    big, small, grad = builder.tensor(8000), builder.tensor(1000), builder.tensor(1000)
    builder.op("big", "aten.mm.default", [x, weight], [big], flops=10**9)
    builder.op("wide", "aten.mm.default", [big], [small], flops=10**9)
    middle = builder.tensor(7000)
    builder.op("middle", "aten.mm.default", [small], [middle], flops=10**9)
    late = builder.tensor(1000)
    builder.op("late", "aten.mm.default", [middle], [late], flops=10**9)
    builder.op("back", "aten.mm.default", [late, big], [grad], flops=10**9)
    updated = builder.tensor(1000, "output", alias_of=weight)
    last = builder.op("update", "aten.add_.Tensor", [weight, grad], [updated], flops=10**6)
    assert last is not None
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    tight = limited(problem, 13_500)
    found = least_time(tight, None, ENOUGH)
    assert found is not None and found.added is not None
    assert [problem.graph.op_name[op] for op in found.added.op] == ["big"]
    check(found, tight)
    line = simulate(tight, found)
    assert line.over_bytes == 0
    assert line.step_ns == problem.op_ns[:, 0].sum() + problem.op_ns[0, 0]


def test_recompute_takes_it_for_small_graphs() -> None:
    """Where no kernel is fused, the method is as good as the proof."""
    for seed in (0, 3, 5):
        problem = drawn(seed)
        peak = solve(problem, "one-device", Budget(None, 1)).timeline.peak_bytes[0]
        tight = limited(problem, int(peak * 0.85))
        expected = by_states(tight)
        if expected is not None:
            assert solve(tight, "recompute:inner=one-device", Budget(None, 60)).value <= expected


def row(ops: int, cluster: Cluster | str = "1xp100-pcie") -> Problem:
    builder = GraphBuilder("row")
    made = [builder.tensor(1000, "input")]
    for op in range(ops):
        made.append(builder.tensor(1000))
        builder.op(f"op{op}", "aten.mm.default", made[-2:-1], made[-1:], flops=10**9)
    return price(builder.build(), cluster)


def test_which_problems_the_model_is_for() -> None:
    assert exact_again.suits(row(40)) and not exact_again.suits(row(41))
    assert not exact_again.suits(row(3, "2xp100-pcie"))
    hosted = replace(row(3), dispatch_ns=ints([1, 1, 1]))
    assert not exact_again.suits(hosted)
    assert least_time(row(41), None, ENOUGH) is None


def test_weights_and_inputs_are_held_all_the_time() -> None:
    """Two weights of 4,000 bytes and an input beside two tensors of 1,000: with a byte less nothing fits."""
    builder = GraphBuilder("weights")
    weights = [builder.tensor(4000, "weight") for _ in range(2)]
    made = [builder.tensor(1000, "input")]
    for op in range(2):
        made.append(builder.tensor(1000, "output" if op else "activation"))
        builder.op(f"op{op}", "aten.mm.default", [made[-2], weights[op]], made[-1:], flops=10**9)
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    assert least_time(limited(problem, 11_000), None, ENOUGH) is not None
    assert least_time(limited(problem, 10_999), None, ENOUGH) is None
    assert least_time(limited(problem, 8_000), None, ENOUGH) is None, "less than what is there from the start"


def test_memory_that_is_just_enough() -> None:
    """What has no bytes needs none beside the weights; what nobody reads is gone with its op; what is written over
    tensor 0 takes no more."""
    builder = GraphBuilder("nothing")
    weight = builder.tensor(4000, "weight")
    builder.op("op", "aten.mm.default", [weight], [builder.tensor(0, "output")], flops=10**9)
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    assert least_time(limited(problem, 4000), None, ENOUGH) is not None
    assert least_time(limited(problem, 3999), None, ENOUGH) is None
    builder = GraphBuilder("unread")
    builder.op("first", "aten.mm.default", [], [builder.tensor(1000)], flops=10**9)
    builder.op("second", "aten.mm.default", [], [builder.tensor(1000, "output")], flops=10**9)
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    assert least_time(limited(problem, 1000), None, ENOUGH) is not None
    builder = GraphBuilder("updated")
    weight, grad = builder.tensor(1000, "weight"), builder.tensor(500)
    builder.op("grad", "aten.mm.default", [weight], [grad], flops=10**9)
    updated = builder.tensor(1000, "weight", alias_of=weight)
    builder.op("update", "aten.add_.Tensor", [weight, grad], [updated], flops=10**6)
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"))
    assert least_time(limited(problem, 1500), None, ENOUGH) is not None
    assert least_time(limited(problem, 1499), None, ENOUGH) is None
