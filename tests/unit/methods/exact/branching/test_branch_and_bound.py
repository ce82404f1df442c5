"""Branch and bound: what it calls optimal is what brute force finds, on tiny problems of every kind it takes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import Budget, GraphBuilder, price, solve
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.graph.columns import ints
from loadmaster.methods.exact.branching.branch_and_bound import BranchAndBound, can_branch
from loadmaster.methods.exact.cp_sat import CpSat
from loadmaster.methods.exact.timelines import every_timeline
from loadmaster.problem import Problem
from loadmaster.search import WORST, Score, Search
from loadmaster.simulator import simulate
from tests.graphs.tiny import pair
from tests.reference import brute_force, is_allowed
from tests.strategies import problems

ENOUGH = Budget(None, 100_000)


def of_step(problem: Problem) -> Problem:
    return problem.with_objective("step-time")


def best_timeline(problem: Problem) -> Score:
    """The best over all placements of all timelines, by the simulator's own decisions."""
    best = WORST
    for place in product(range(problem.num_devices), repeat=problem.num_ops):
        if is_allowed(problem, place):
            for _, line in every_timeline(problem, ints(place)):
                best = min(best, Score.of(problem, line))
    return best


@settings(max_examples=30, deadline=None)
@given(problem=problems(max_ops=5, max_devices=3).map(of_step).filter(can_branch))
def test_equals_the_best_of_all_timelines(problem: Problem) -> None:
    """Memory limits, groups, ops that only some devices can run, updates in place and shared wires among them."""
    best = best_timeline(problem)
    search = Search(problem, ENOUGH)
    plan = BranchAndBound(start=OneDevice()).optimize(search)
    score = Score.of(problem, simulate(problem, plan))
    assert score.over_bytes == 0 or best.over_bytes > 0
    if best.over_bytes == 0:
        assert score == best
        assert search.bound == best.value


def few_sends(problem: Problem) -> bool:
    graph = problem.graph
    moving = {int(tensor) for tensor in graph.reads if graph.producer[tensor] >= 0 or problem.updater[tensor] >= 0}
    return len(moving) <= 3


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_ops_and_devices_that_are_alike_leave_the_best_in(data: st.DataObject) -> None:
    """Copies of few kinds of ops on equal devices: much of the tree is left out."""
    graph = GraphBuilder("copies")
    roots = [graph.tensor(data.draw(st.sampled_from([0, 10, 40]))) for _ in range(2)]
    for op, tensor in enumerate(roots):
        graph.op(f"root {op}", "any", [], [tensor], time_ns=data.draw(st.sampled_from([0, 3, 10])))
    for op in range(data.draw(st.integers(1, 3))):
        read = roots[data.draw(st.integers(0, 1))]
        graph.op(f"copy {op}", "any", [read], [graph.tensor(10)], time_ns=data.draw(st.sampled_from([4, 9])))
    problem = price(graph.build(), data.draw(st.sampled_from([pair(), "3xp100-pcie"])))
    search = Search(problem, ENOUGH)
    BranchAndBound(start=OneDevice()).optimize(search)
    best = best_timeline(problem)
    assert (search.best_score, search.bound) == (best, best.value)


@settings(max_examples=15, deadline=None)
@given(problem=problems(max_ops=3, max_devices=2).map(of_step).filter(lambda p: few_sends(p) and can_branch(p)))
def test_equals_brute_force_by_the_slow_reference(problem: Problem) -> None:
    best = brute_force(problem, problem.objective)
    found = solve(problem, BranchAndBound(), ENOUGH)
    assert found.score == best or best[0] > 0


def workflow(seed: int, ops: int, devices: int) -> Problem:
    """Ops that read up to three of the last eight, on devices of unlike speed, each pair with a wire of its own."""
    rng = np.random.default_rng(seed)
    graph, made = GraphBuilder(f"workflow {seed}"), list[int]()
    speed = rng.uniform(0.5, 2, devices)
    for op in range(ops):
        few = min(op, int(rng.integers(1, 4))) if op > 2 else 0
        reads = sorted(set(rng.choice(np.arange(max(0, op - 8), op), size=few, replace=False).tolist())) if few else []
        tensor = graph.tensor(int(rng.integers(10, 200)) * 1000)
        work = rng.uniform(20, 200) * 1000
        graph.op(f"op{op}", "any", [made[r] for r in reads], [tensor], time_ns=[int(work / s) for s in speed])
        made.append(tensor)
    ways = [(src, dst) for src in range(devices) for dst in range(devices) if src != dst]
    links = {way: Link(float(rng.uniform(1, 4)) * 1e9, 1000) for way in ways}
    channel = np.full((devices, devices), -1)
    for wire, way in enumerate(ways):
        channel[way] = wire
    all_devices = tuple(Device(f"d{i}", "toy", 2**40, 1e9, 1e9, 0) for i in range(devices))
    return price(graph.build(), Cluster("unlike", all_devices, links, dense_channels(channel)))


def test_a_workflow_of_23_ops_on_four_unlike_devices_is_closed() -> None:
    search = Search(workflow(0, 23, 4), Budget(None, 200_000))
    plan = BranchAndBound().optimize(search)
    assert search.note == "proved optimal"
    assert simulate(search.problem, plan).step_ns == search.bound
    # No other method finds better, nor a proof that a lower step is out of reach a lower bound.
    assert search.bound <= solve(search.problem, "local-search", Budget(None, 2_000)).value


def test_what_is_not_finished_is_not_called_optimal() -> None:
    problem = workflow(1, 23, 4)
    search = Search(problem, Budget(None, 500))
    plan = BranchAndBound().optimize(search)
    assert search.note.startswith("no plan is under")
    assert search.bound < simulate(problem, plan).step_ns
    assert search.simulations <= 500 + 40  # the options of the last decision are weighed together


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_cp_sat(seed: int) -> None:
    pytest.importorskip("ortools")
    problem = workflow(10 + seed, 11, 3)
    mine, theirs = (
        Search(problem, Budget(None, 100_000)),
        CpSat(start=Heft()).prove(problem, budget=Budget(None, 9_000)),
    )
    BranchAndBound().optimize(mine)
    assert mine.closed
    assert theirs.bound <= mine.best_score.value
    assert not theirs.optimal or theirs.bound == mine.best_score.value


def test_memory_limits_are_kept() -> None:
    # Eight ops with weights of 100 B; 450 B a device: four each, though one device would be quicker for a chain.
    graph = GraphBuilder("limits")
    read = graph.tensor(1, "input")
    for op in range(8):
        made = graph.tensor(1)
        graph.op(f"op{op}", "any", [read, graph.tensor(100, "weight")], [made], time_ns=10)
        read = made
    result = solve(price(graph.build(), pair(450)), BranchAndBound(), Budget(None, 50_000))
    assert result.fits
    assert result.optimal
    assert result.value == 80 + 6  # one send of 1 B


def test_like_devices_and_like_ops_are_not_tried_twice() -> None:
    # Thirteen ops of 10 on four equal devices take 40, though the work alone says 33.
    graph = GraphBuilder("loose")
    for op in range(13):
        graph.op(f"op{op}", "any", time_ns=10)
    problem = price(graph.build(), "4xp100-pcie")
    search = Search(problem, Budget(None, 20_000))
    BranchAndBound(start=OneDevice()).optimize(search)
    assert search.closed
    assert search.best_score.value == 40


def test_other_objectives_and_hosts_are_left_to_others() -> None:
    problem = workflow(0, 4, 2)
    assert can_branch(problem)
    assert not can_branch(problem.with_objective("peak-memory"))
    assert not can_branch(problem.with_objective("throughput"))
