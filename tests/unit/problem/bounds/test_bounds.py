"""Bounds against brute force on thousands of tiny problems, and against sums done by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import Budget, Cluster, Graph, GraphBuilder, price, solve
from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.methods.exact.branching.branch_and_bound import BranchAndBound
from loadmaster.plans import Plan
from loadmaster.plans.additions import Additions
from loadmaster.problem import Problem
from loadmaster.problem.bounds import bounds, lower_bound
from loadmaster.problem.bounds.among import Work
from loadmaster.problem.bounds.cuts import largest_cut
from loadmaster.problem.bounds.holding import Storages
from loadmaster.problem.bounds.peak import cut_order, peak_bound
from loadmaster.problem.bounds.step import step_bound
from loadmaster.search import Search
from loadmaster.simulator import Scores, simulate, simulate_fused, simulate_many
from tests.graphs.tiny import chain, diamond, fork, join, ladder, pair, shared_weight
from tests.reference import is_allowed
from tests.strategies import is_acyclic, plans, problems

TINY_PROBLEMS = 3_000


def all_plans(problem: Problem) -> Scores:
    """Every legal placement in every order."""
    ops = problem.num_ops
    places = [place for place in product(range(problem.num_devices), repeat=ops) if is_allowed(problem, place)]
    ranks = np.array(list(permutations(range(ops))), np.int32)
    device = np.repeat(np.array(places, np.int32), len(ranks), axis=0)
    return simulate_many(problem, device, np.tile(ranks, (len(places), 1)))


def assert_bounds_hold(problem: Problem) -> tuple[bool, bool]:
    """Whether the bounds on step and peak are not only right but reached."""
    every = all_plans(problem)
    least_ns, least_bytes = int(every.step_ns.min()), int(every.peak_bytes.max(axis=1).min())
    step, peak = step_bound(problem), peak_bound(problem)
    assert 0 <= step <= least_ns
    assert 0 <= peak <= least_bytes
    # What may fuse includes what does not.
    assert step_bound(problem, fusing=True) <= least_ns
    assert peak_bound(problem, fusing=True) <= least_bytes
    fit = every.over_bytes == 0
    if fit.any():
        assert step <= step_bound(problem, fitting=True) <= int(every.step_ns[fit].min())
    return step == least_ns, peak == least_bytes


@settings(max_examples=400)
@given(problem=problems(max_ops=4, max_devices=3))
def test_no_plan_of_a_strange_tiny_problem_is_under_the_bound(problem: Problem) -> None:
    """Views, updates in place, colocation, ops that cannot run everywhere, shared wires, tight memory."""
    assert_bounds_hold(problem)


def random_problem(rng: np.random.Generator) -> Problem:
    """Up to five ops on one to three devices, with updated weights; times and sizes small, so that ties are common."""
    graph = GraphBuilder("random")
    weights = [graph.tensor(int(rng.integers(1, 60)), "weight") for _ in range(rng.integers(0, 3))]
    known: list[int] = []
    devices = int(rng.integers(1, 4))
    ops = int(rng.integers(2, 6 if devices < 3 else 5))
    for op in range(ops):
        reads = [t for t in known if rng.random() < 0.4] + [w for w in weights if rng.random() < 0.3]
        makes = [
            graph.tensor(int(rng.integers(0, 100)), "output" if rng.random() < 0.2 else "activation") for _ in range(2)
        ]
        updated = weights[0] if op == ops - 1 and weights and rng.random() < 0.5 else None
        if updated is not None:
            makes.append(graph.tensor(60, "state", alias_of=updated))
        times = [int(t) for t in rng.integers(0, 30, devices)] if rng.random() < 0.5 else int(rng.integers(0, 30))
        graph.op(
            f"op{op}",
            "any",
            sorted({*reads, *([updated] if updated is not None else [])}),
            makes,
            time_ns=times,
            flops=1,
        )
        known += makes[:2]
    return price(graph.build(), _machine(devices, rng), memory_limit=int(rng.choice([200, 10**9])))


def _machine(count: int, rng: np.random.Generator) -> Cluster:
    devices = tuple(Device(f"d{i}", "toy", 2**30, 1e9, 1e9, 0) for i in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    links = {at: Link([None, 1e9, 1e10][rng.integers(3)], int(rng.integers(0, 6))) for at in pairs}
    channel = np.full((count, count), -1)
    for a, b in pairs:
        channel[a, b] = a if rng.random() < 0.5 else a * count + b + count
    return Cluster("random", devices, links, dense_channels(channel))


def test_no_plan_of_thousands_of_tiny_problems_is_under_the_bound_and_most_reach_it() -> None:
    rng = np.random.default_rng(4)
    reached = np.array([assert_bounds_hold(random_problem(rng)) for _ in range(TINY_PROBLEMS)])
    # A bound that is right but idle would be 0; these are nearly always the optimum itself.
    assert reached[:, 0].mean() > 0.8
    assert reached[:, 1].mean() > 0.8


@settings(max_examples=400)
@given(problems(max_ops=9, max_devices=3).flatmap(lambda problem: st.tuples(st.just(problem), plans(problem))))
def test_no_plan_is_under_the_bound_fused_or_not(given_pair: tuple[Problem, Plan]) -> None:
    problem, plan = given_pair
    line = simulate(problem, plan)
    assert step_bound(problem, fusing=plan.fuses) <= line.step_ns
    assert peak_bound(problem, fusing=plan.fuses) <= int(line.peak_bytes.max())
    if line.over_bytes == 0:
        assert step_bound(problem, fusing=plan.fuses, fitting=True) <= line.step_ns


def all_kernels(problem: Problem) -> Iterator[np.ndarray]:
    """Every way to fuse: every partition of the ops in which no kernel waits for itself."""
    labels: list[list[int]] = [[]]
    for op in range(problem.num_ops):
        labels = [[*known, head] for known in labels for head in (*sorted(set(known)), op)]
    yield from (np.array(kernel) for kernel in labels if is_acyclic(problem, np.array(kernel)))


def all_fused_plans(problem: Problem) -> Scores:
    """Every legal placement of every way to fuse, in every order."""
    ranks = np.array(list(permutations(range(problem.num_ops))), np.int32)
    device, rank, kernels = [], [], []
    for kernel in all_kernels(problem):
        for place in product(range(problem.num_devices), repeat=problem.num_ops):
            if is_allowed(problem, place) and (np.array(place)[kernel] == place).all():
                device.append(np.tile(np.array(place, np.int32), (len(ranks), 1)))
                rank.append(ranks)
                kernels.append(np.tile(kernel.astype(np.int32), (len(ranks), 1)))
    return simulate_fused(problem, np.concatenate(device), np.concatenate(rank), np.concatenate(kernels))


def fusible_problem(rng: np.random.Generator) -> Problem:
    """Up to four ops on two devices, with given times around the cost of a launch, which fusing can take off; some ops
    run on one device alone, some have a time from the cost model."""
    graph, known = GraphBuilder("fusible"), list[int]()
    for op in range(int(rng.integers(2, 5))):
        reads = [t for t in known if rng.random() < 0.5]
        made = graph.tensor(int(rng.integers(0, 100)), "output" if rng.random() < 0.2 else "activation")
        times: list[int | None] = [int(rng.choice([0, 1, 5, 20, 50])) for _ in range(2)]
        if rng.random() < 0.5:
            times[rng.integers(2)] = None
        how = times if rng.random() < 0.8 else None
        graph.op(f"op{op}", "any", reads, [made], time_ns=how, flops=int(rng.integers(0, 40)))
        known.append(made)
    launch = [int(ns) for ns in rng.choice([0, 5, 20, 100], 2)]
    devices = tuple(Device(f"d{i}", "toy", 2**30, 1e9, 1e9, launch[i]) for i in range(2))
    links = {at: Link([None, 1e9][rng.integers(2)], int(rng.choice([0, 7, 50]))) for at in ((0, 1), (1, 0))}
    return price(graph.build(), Cluster("random", devices, links, dense_channels(np.array([[-1, 0], [1, -1]]))))


def test_no_fused_plan_of_many_tiny_problems_with_given_times_is_under_the_bound() -> None:
    rng, over = np.random.default_rng(7), 0
    for _ in range(400):
        problem = fusible_problem(rng)
        every = all_fused_plans(problem)
        bound = step_bound(problem, fusing=True)
        assert 0 <= bound <= int(every.step_ns.min())
        assert step_bound(problem, fusing=True, fitting=True) <= int(every.step_ns.min())
        assert peak_bound(problem, fusing=True) <= int(every.peak_bytes.max(axis=1).min())
        over += bound > 0
    assert over > 200, "a bound of 0 is right but idle"


def test_given_times_under_a_launch_leave_no_gap_under_zero() -> None:
    graph = GraphBuilder("short")
    a, b, c = (graph.tensor(1) for _ in range(3))
    graph.op("a", "any", [], [a], time_ns=[1, None])
    graph.op("b", "any", [a], [b], time_ns=[None, 1])
    graph.op("c", "any", [b], [c], time_ns=[None, 1])
    devices = tuple(Device(f"d{i}", "toy", 2**30, 1e9, 1e9, 100) for i in range(2))
    links = {at: Link(None, 50) for at in ((0, 1), (1, 0))}
    cluster = Cluster("pair", devices, links, dense_channels(np.array([[-1, 0], [1, -1]])))
    result = solve(price(graph.build(), cluster), "greedy-fusion", Budget(None, 50))
    # b and c, fused, take as long as one of them: with 1 ns of a and 50 of the link 52.
    assert result.value == 52
    assert 50 <= result.lower_bound <= 52


@pytest.mark.parametrize(
    ("graph", "step_ns", "peak_bytes"),
    [
        (chain(), 35, 150),  # 10 + 20 + 5 in a row; b holds 100 and 50
        (
            diamond(),
            55,
            150,
        ),  # a path of 50, more with all before its end; best 59; b holds 100, 50
        (fork(), 30, 97),  # 10, then two of three in a row: reached by a plan; a makes 60 + 30 + 7
        (join(), 55, 128),  # (10 + 20 + 30 + 40) / 2, then 5; d reads 60, makes 4, works in 64
        (ladder(), 90, 208),  # 3 x 10 + 3 x 20; f3 reads 100 and makes 100 and 8
        (
            shared_weight(),
            34,
            280,
        ),  # 10 and 15, sent or in turn; best 35; u needs 200 + 40 + 40 on one device
    ],
)
def test_bounds_of_drawn_graphs_on_two_devices(graph: Graph, step_ns: int, peak_bytes: int) -> None:
    problem = price(graph, pair())
    every = all_plans(problem)
    assert step_bound(problem) == step_ns <= int(every.step_ns.min())
    assert peak_bound(problem) == peak_bytes <= int(every.peak_bytes.max(axis=1).min())


def test_work_between_two_ops_that_all_pass_through_is_shared_out() -> None:
    #          ┌-> 4 x 10 ─┐            ┌-> 6 x 10 ─┐
    #  10 a ---┤           ├--> 10 b ---┤           ├--> 10 c      on two devices: 10 + 23 + 10 + 33 + 10
    graph = GraphBuilder("hourglass")
    read = graph.tensor(1)
    graph.op("a", "any", [], [read], time_ns=10)
    for stage, (name, wide) in enumerate((("b", 4), ("c", 6))):
        made = [graph.tensor(1) for _ in range(wide)]
        for lane, tensor in enumerate(made):
            graph.op(f"{stage}.{lane}", "any", [read], [tensor], time_ns=10)
        read = graph.tensor(1)
        graph.op(name, "any", made, [read], time_ns=10)
    # The path alone is 50 and the work alone 13 x 10 / 2 = 65. A send takes 6: the other device is of no use then.
    assert step_bound(price(graph.build(), pair())) == 86


def test_ops_that_start_late_and_end_early_share_the_time_between() -> None:
    # 50 a -> six ops of 20 -> 50 z, beside an idle op of 1: on two devices, of which one loses a send of 6,
    # 50 + 63 + 50
    graph = GraphBuilder("waist")
    first, made = graph.tensor(1), [graph.tensor(1) for _ in range(6)]
    graph.op("a", "any", [], [first], time_ns=50)
    for lane, tensor in enumerate(made):
        graph.op(f"lane {lane}", "any", [first], [tensor], time_ns=20)
    graph.op("z", "any", made, [graph.tensor(1, "output")], time_ns=50)
    graph.op("idle", "any", [], [graph.tensor(1, "output")], time_ns=1)
    assert step_bound(price(graph.build(), pair())) == 163


@pytest.mark.parametrize(("nbytes", "bound"), [(10, 114), (100_000, 194)])
def test_lanes_that_are_far_apart_do_not_run_side_by_side(nbytes: int, bound: int) -> None:
    # 10, six lanes of 30, 4 on two devices; a lane's result is sent in 5 + bytes / 10: 6 ns or 10,005.
    graph = GraphBuilder("lanes")
    root, made = graph.tensor(1), [graph.tensor(nbytes) for _ in range(6)]
    graph.op("root", "any", [], [root], time_ns=10)
    for lane, tensor in enumerate(made):
        graph.op(f"lane {lane}", "any", [root], [tensor], time_ns=30)
    graph.op("end", "any", made, [graph.tensor(1, "output")], time_ns=4)
    problem = price(graph.build(), pair())
    # Near: 10, then 180 and 6 lost shared by two, 93; far: all 180 on one device.
    assert bound - 8 <= step_bound(problem) <= bound
    found = solve(problem, "branch-and-bound", Budget(None, 50_000))
    assert found.optimal
    assert step_bound(problem) <= found.value


def equal_problem(rng: np.random.Generator) -> Problem:
    """Six to eight ops on two or three equal devices, times and sends of some us, so that sends of all classes are
    worth as much as ops."""
    graph, known = GraphBuilder("equal"), list[int]()
    for op in range(int(rng.integers(6, 9))):
        reads = [tensor for tensor in known if rng.random() < 0.35]
        tensor = graph.tensor(int(2 ** rng.integers(8, 17)))
        graph.op(f"op{op}", "any", reads, [tensor], time_ns=int(2 ** rng.integers(10, 16)))
        known.append(tensor)
    count = int(rng.integers(2, 4))
    devices = tuple(Device(f"d{i}", "toy", 2**40, 1e9, 1e9, 0) for i in range(count))
    ways = [(a, b) for a in range(count) for b in range(count) if a != b]
    channel = np.full((count, count), -1)
    for wire, way in enumerate(ways):
        channel[way] = wire if rng.random() < 0.7 else 0
    links = {way: Link(1e9, int(rng.choice([0, 3_000, 20_000]))) for way in ways}
    return price(graph.build(), Cluster("equal", devices, links, dense_channels(channel)))


def test_no_optimum_of_equal_devices_is_under_the_bound() -> None:
    rng, reached = np.random.default_rng(11), 0
    for _ in range(150):
        problem = equal_problem(rng)
        search = Search(problem, Budget(None, 30_000))
        BranchAndBound(start=OneDevice()).optimize(search)
        bounds_apart = step_bound(problem), step_bound(problem, fusing=True)
        assert max(bounds_apart) <= search.best_score.value
        reached += search.best_score.value == bounds_apart[0]
    assert reached > 75, "a bound that is seldom met says little"


def test_the_path_pays_for_going_between_unlike_devices() -> None:
    # a is fast on d0 only, b on d1 only: 1 + send (5 + 100 / 10) + 1, unless one of them is slow (1 + 40)
    graph = GraphBuilder("apart")
    between = graph.tensor(100)
    graph.op("a", "any", [], [between], time_ns=[1, 40])
    graph.op("b", "any", [between], [graph.tensor(1, "output")], time_ns=[40, 1])
    problem = price(graph.build(), pair())
    assert step_bound(problem) == 17 == int(all_plans(problem).step_ns.min())


def test_work_on_unlike_devices_is_the_fractional_optimum() -> None:
    # 12 ops of 30 on a device and of 60 on one half as fast: 8 there, 4 here, 240 each
    graph = GraphBuilder("work")
    for op in range(12):
        graph.op(f"op{op}", "any", [], [graph.tensor(1, "output")], time_ns=[30, 60])
    assert 238 <= step_bound(price(graph.build(), pair())) <= 240


def test_memory_sends_work_to_the_slow_device() -> None:
    # Ten matmuls of 10 ns and a weight of 100 B each; the fast device holds 400 B: at least six run on the slow one,
    # where they take 50 ns.
    graph = GraphBuilder("offload")
    for op in range(10):
        weight = graph.tensor(100, "weight")
        graph.op(f"mm {op}", "mm", [weight], [graph.tensor(0, "output")], time_ns=[10, 50])
    cluster = pair()
    small = replace(cluster, devices=(replace(cluster.devices[0], memory_bytes=400), cluster.devices[1]))
    problem = price(graph.build(), small)
    assert step_bound(problem) <= 84  # ten ops shared out 5 to 1
    assert 299 <= step_bound(problem, fitting=True) <= 300


def test_an_op_too_large_for_a_device_does_not_run_there() -> None:
    graph = GraphBuilder("too large")
    graph.op("big", "any", [], [graph.tensor(500, "output")], time_ns=[1, 70])
    cluster = pair()
    small = replace(cluster, devices=(replace(cluster.devices[0], memory_bytes=400), cluster.devices[1]))
    problem = price(graph.build(), small)
    assert (step_bound(problem), step_bound(problem, fitting=True)) == (1, 70)


def test_when_nothing_fits_the_bound_is_still_one_of_all_plans() -> None:
    graph = GraphBuilder("too large")
    graph.op("big", "any", [], [graph.tensor(500, "output")], time_ns=7)
    assert step_bound(price(graph.build(), pair(memory_bytes=100)), fitting=True) == 7


def test_a_group_holds_all_it_updates_at_once() -> None:
    # Two updates of 100 B and 200 B in one group, and a gradient of 50 B read by the second: 350 B on their device.
    graph = GraphBuilder("group")
    gradient = graph.tensor(50, "input")
    for size, reads in ((100, []), (200, [gradient])):
        weight = graph.tensor(size, "weight")
        new = graph.tensor(size, "state", alias_of=weight)
        graph.op(f"update {size}", "any", [weight, *reads], [new], flops=1, time_ns=1, colocate="g")
    problem = price(graph.build(), pair(), objective="peak-memory")
    assert peak_bound(problem) == 350 == int(all_plans(problem).peak_bytes.max(axis=1).min())


def test_fusing_hides_inner_tensors_but_not_residents_and_outputs() -> None:
    graph = GraphBuilder("hidden")
    weight, inner, out = graph.tensor(30, "weight"), graph.tensor(1000), graph.tensor(7, "output")
    graph.op("a", "any", [weight], [inner], time_ns=1)
    graph.op("b", "any", [inner], [out], time_ns=1)
    problem = price(graph.build(), "1xp100-pcie", objective="peak-memory")
    fused = simulate(problem, Plan.of(problem, [0, 0], kernel=[0, 0]))
    assert peak_bound(problem, fusing=True) == 37 == int(fused.peak_bytes.max())
    assert peak_bound(problem) == 1037


def down_sets(problem: Problem) -> Iterator[frozenset[int]]:
    """Every set of ops that holds all its members wait for."""
    start, before = problem.graph.dependencies
    waits = [set(before[start[op] : start[op + 1]].tolist()) for op in range(problem.num_ops)]
    for size in range(problem.num_ops + 1):
        for members in combinations(range(problem.num_ops), size):
            if all(waits[op] <= set(members) for op in members):
                yield frozenset(members)


def cut_by_hand(problem: Problem) -> int:
    """The largest over ops of the least, over sets that may have ended when it starts, of what is then alive."""
    graph = problem.graph
    start, before = graph.dependencies
    sets, best = list(down_sets(problem)), 0
    for op in range(problem.num_ops):
        waits, least = set(before[start[op] : start[op + 1]].tolist()), None
        for ended in sets:
            if op in ended or not waits <= ended:
                continue
            alive = int(graph.workspace_bytes[op]) + sum(int(graph.nbytes[t]) for t in graph.makes_of(op))
            for tensor in range(graph.num_tensors):
                needed = problem.stays[tensor] or any(int(r) not in ended for r in graph.readers_of(tensor))
                alive += int(graph.nbytes[tensor]) if int(graph.producer[tensor]) in ended and needed else 0
            least = alive if least is None else min(least, alive)
        best = max(best, least or 0)
    return best


@pytest.mark.parametrize("seed", range(25))
def test_the_largest_cut_is_that_of_all_down_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = GraphBuilder("cut")
    known: list[int] = []
    for op in range(9):
        reads = [t for t in known if rng.random() < 0.3]
        makes = [
            graph.tensor(int(rng.integers(1, 100)), "output" if rng.random() < 0.1 else "activation") for _ in range(2)
        ]
        graph.op(f"op{op}", "any", reads, makes, time_ns=1, workspace_bytes=int(rng.integers(0, 30)))
        known += makes
    problem = price(graph.build(), "1xp100-pcie")
    found, order, _ = largest_cut(Storages(problem).net, np.arange(problem.num_ops), 0, 10**9)
    assert found == cut_by_hand(problem)
    rank = np.empty(problem.num_ops, np.int64)
    rank[order] = np.arange(problem.num_ops)
    # The order that comes with it is a legal one, and its peak is no less.
    assert int(simulate(problem, Plan.of(problem, [0] * problem.num_ops, rank)).peak_bytes[0]) >= found


def test_less_effort_gives_a_bound_that_is_no_higher_and_always_the_same() -> None:
    problem = price(_unrolled(6, 8), "1xp100-pcie", objective="peak-memory")
    some = [peak_bound(problem, allowed=Work(s)) for s in (1e-8, 1e-5, 1e-4, 1e-3, 10.0)]
    assert some == sorted(some)
    assert some == [peak_bound(problem, allowed=Work(s)) for s in (1e-8, 1e-5, 1e-4, 1e-3, 10.0)]
    given_order = int(simulate(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64))).peak_bytes[0])
    assert some[0] < some[-1] <= given_order


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_a_bound_without_time_is_lower_and_is_made_up_for(objective: str) -> None:
    hasty, whole = (price(waist(), "2xp100-pcie", objective=objective) for _ in range(2))
    low, full = lower_bound(hasty, seconds=0.0), lower_bound(whole)
    assert 0 < low < full
    assert lower_bound(hasty) == full, "what was left out is made up for"
    assert lower_bound(hasty, seconds=0.0) == low, "the same work gives the same bound"


def _asked(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Problems whose bound of the step time is worked out from now on."""
    asked: list[Problem] = []

    def step(problem: Problem, **settings: Any) -> int:
        asked.append(problem)
        return step_bound(problem, **settings)

    monkeypatch.setattr(bounds, "step_bound", step)
    return asked


def _once_more(graph: Graph, op: int) -> Additions:
    """The op is run again for the last op that reads its first result."""
    made = int(graph.makes_of(op)[0])
    return Additions(*(ints([value]) for value in (op, -1, -1, int(graph.readers_of(made)[-1]), made, 0)))


def waist() -> Graph:
    """Six ops make a large tensor and a small one each; one op needs all the small ones before six others read the
    large ones, which take far longer to send than to make. So all are there at once, and better on one device."""
    build = GraphBuilder("waist")
    small, large = ([build.tensor(size) for _ in range(6)] for size in (8, 1 << 26))
    for lane in range(6):
        build.op(f"make {lane}", "any", [], [small[lane], large[lane]], flops=10**9)
    middle = build.tensor(8)
    build.op("middle", "any", [*small, *large[:2]], [middle], flops=10**6)
    for lane in range(6):
        build.op(f"read {lane}", "any", [large[lane], middle], [build.tensor(8, "output")], flops=10**9)
    return build.build()


def test_the_order_that_comes_with_the_cut_is_legal_and_better_than_the_given_one() -> None:
    # Four ops make 100 B each, four others turn each into 10 B: one pair after the other needs 100 + 10 + 3 x 10.
    graph = GraphBuilder("pairs")
    big, small = [graph.tensor(100) for _ in range(4)], [graph.tensor(10) for _ in range(4)]
    for lane in range(4):
        graph.op(f"make {lane}", "any", [], [big[lane]], time_ns=1)
    for lane in range(4):
        graph.op(f"use {lane}", "any", [big[lane]], [small[lane]], time_ns=1)
    graph.op("end", "any", small, [graph.tensor(1, "output")], time_ns=1)
    problem = price(graph.build(), "1xp100-pcie", objective="peak-memory")
    place = np.argsort(cut_order(problem))
    start, before = problem.graph.dependencies
    assert (place[before] < place[np.repeat(np.arange(problem.num_ops), np.diff(start))]).all()
    nowhere = np.zeros(problem.num_ops, np.int64)
    found, given_order = (int(simulate(problem, Plan.of(problem, nowhere, r)).peak_bytes[0]) for r in (place, None))
    assert peak_bound(problem) <= found < given_order == 410


def _unrolled(layers: int, steps: int) -> Graph:
    """A recurrent net unrolled in time, forward and backward, each layer's weight updated in place."""
    graph = GraphBuilder(f"rnn {layers} x {steps}")
    weight = [graph.tensor(4_000, "weight") for _ in range(layers)]
    state = {(layer, -1): graph.tensor(100, "input") for layer in range(layers)}
    saved: dict[tuple[int, int], int] = {}
    for step in range(steps):
        below = graph.tensor(100, "input")
        for layer in range(layers):
            saved[layer, step], state[layer, step] = graph.tensor(400), graph.tensor(100)
            graph.op(
                f"f{layer}.{step}",
                "mm",
                [weight[layer], below, state[layer, step - 1]],
                [saved[layer, step]],
                time_ns=20,
            )
            graph.op(f"t{layer}.{step}", "tanh", [saved[layer, step]], [state[layer, step]], time_ns=3)
            below = state[layer, step]
    loss = graph.tensor(8, "output")
    graph.op("loss", "sum", [state[layers - 1, step] for step in range(steps)], [loss], time_ns=5)
    total: dict[int, int] = {}
    for layer in reversed(range(layers)):
        for step in reversed(range(steps)):
            gradient = graph.tensor(4_000)
            graph.op(
                f"b{layer}.{step}",
                "mm",
                [loss, saved[layer, step], *([total[layer]] if layer in total else [])],
                [gradient],
                time_ns=40,
            )
            total[layer] = gradient
        graph.op(
            f"u{layer}",
            "sgd",
            [weight[layer], total[layer]],
            [graph.tensor(4_000, "state", alias_of=weight[layer])],
            time_ns=9,
            flops=1,
        )
    return graph.build()


def test_long_programs_are_bounded_below_what_they_take() -> None:
    problem = price(_unrolled(10, 330), "8xp100-pcie")
    line = simulate(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    assert problem.num_ops > 9_000
    assert 0 < step_bound(problem) <= line.step_ns
    assert 0 < peak_bound(problem) <= line.peak_bytes.max()


def test_the_bound_over_fused_plans_counts_one_launch() -> None:
    graph = GraphBuilder("one")
    graph.op("only", "any", [], [graph.tensor(8, "output")], flops=10**9)
    problem = price(graph.build(), "1xp100-pcie")
    assert problem.launch_ns[0] > 0
    assert step_bound(problem, fusing=True) == step_bound(problem) == int(problem.op_ns[0, 0])
