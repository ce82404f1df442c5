"""CP-SAT: brute force on tiny problems, optima known by hand, bounds that hold, and what it says of them."""

from __future__ import annotations

import importlib
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from loadmaster import Budget, Graph, GraphBuilder, MissingExtra, check, price, solve
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.baselines.simple import OneDevice, RoundRobin
from loadmaster.methods.exact.cp_sat import CpSat
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate, simulate_many
from tests.graphs.tiny import GRAPHS, pair
from tests.reference import brute_force, is_allowed
from tests.strategies import problems

pytest.importorskip("ortools")
ENOUGH = Budget(None, 50_000)


def best_of_all(problem: Problem) -> Score:
    """As reference.brute_force, with the compiled simulator: for problems of up to six ops."""
    ops = problem.num_ops
    places = [place for place in product(range(problem.num_devices), repeat=ops) if is_allowed(problem, place)]
    ranks = np.array(list(permutations(range(ops))), np.int32)
    device = np.repeat(np.array(places, np.int32), len(ranks), axis=0)
    scores = simulate_many(problem, device, np.tile(ranks, (len(places), 1)))
    value = scores.objective(problem)
    first = np.lexsort((value, scores.over_bytes))[0]
    return Score(int(scores.over_bytes[first]), int(value[first]))


def few_sends(problem: Problem) -> bool:
    """Few enough to try all their orders."""
    graph = problem.graph
    moving = {int(tensor) for tensor in graph.reads if graph.producer[tensor] >= 0 or problem.updater[tensor] >= 0}
    return len(moving) <= 3


@settings(max_examples=15, deadline=None)
@given(problem=problems(max_ops=3, max_devices=2).filter(few_sends))
def test_equals_brute_force_by_the_slow_reference(problem: Problem) -> None:
    assert solve(problem, CpSat(), ENOUGH).score == brute_force(problem, problem.objective)


@settings(max_examples=20, deadline=None)
@given(problem=problems(max_ops=4, max_devices=2))
def test_what_is_called_optimal_is_no_worse_than_brute_force(problem: Problem) -> None:
    search = Search(problem, ENOUGH)
    plan = CpSat().optimize(search)
    line, best = simulate(problem, plan), best_of_all(problem)
    assert search.note != "proved optimal" or Score.of(problem, line) <= best
    assert search.bound <= best.value or best.over_bytes


def test_the_order_of_sends_is_tried_before_a_plan_is_called_optimal() -> None:
    """Two sends wait for one wire; the reader of the larger has the lower rank, whatever the order of ops, and yet the
    smaller should go first."""
    graph = GraphBuilder("wire")
    big, small = graph.tensor(1000), graph.tensor(10)
    graph.op("a", "any", [], [big, small], time_ns=[10, None])
    between = graph.tensor(0)
    graph.op("b", "any", [big, small], [between], time_ns=[None, 10])
    graph.op("c", "any", [small], [], time_ns=[None, 60])
    problem = price(graph.build(), pair())
    search = Search(problem, Budget(None, 5_000))
    plan = CpSat(start=OneDevice()).optimize(search)
    # 10, then 5 + 1 for the small one, then c for 60 while the big one takes 105; then b.
    assert search.note == "proved optimal"
    assert Score(0, simulate(problem, plan).step_ns) == brute_force(problem, "step-time")


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_drawn_graphs(name: str, objective: Any) -> None:
    problem = price(GRAPHS[name](), pair(), objective=objective)
    assert solve(problem, CpSat(), ENOUGH).score <= best_of_all(problem)


@settings(max_examples=60)
@given(problem=problems(max_ops=5, max_devices=3))
def test_the_model_bounds_what_brute_force_finds(problem: Problem) -> None:
    """The constraint model itself, which larger problems rest on."""
    best = best_of_all(problem)
    proof = CpSat(start=Heft()).prove(problem, budget=Budget(None, 500))
    check(proof.plan, problem)
    line = simulate(problem, proof.plan)
    score = Score.of(problem, line)
    if best.over_bytes == 0:
        assert proof.bound <= best.value
    if proof.optimal:
        assert score == (0, proof.bound) <= best


def loose_ops(times: list[int]) -> Graph:
    graph = GraphBuilder("loose")
    for op, time_ns in enumerate(times):
        graph.op(f"op{op}", "any", time_ns=time_ns)
    return graph.build()


def test_shares_out_loose_ops_perfectly_and_says_so() -> None:
    # 23 + 17 + 8 + 2 = 19 + 13 + 11 + 7: perfect, but not what taking the longest first gives.
    problem = price(loose_ops([23, 19, 17, 13, 11, 8, 7, 2]), pair())
    search = Search(problem, Budget(None, 5_000))
    plan = CpSat(start=OneDevice()).optimize(search)
    assert simulate(problem, plan).step_ns == 50
    assert search.note == "proved optimal"


def test_a_bound_is_given_where_no_proof_is_found() -> None:
    # Three ops of 10 on two devices take 20; the work alone says 15.
    problem = price(loose_ops([10] * 7), pair())
    proof = CpSat(start=RoundRobin()).prove(problem, budget=Budget(None, 2_000))
    assert proof.optimal
    assert proof.bound == simulate(problem, proof.plan).step_ns == 40


def fork_join(wide: int, nbytes: int) -> Graph:
    graph = GraphBuilder("fork join")
    root, made = graph.tensor(nbytes), [graph.tensor(nbytes) for _ in range(wide)]
    graph.op("root", "any", [], [root], time_ns=10)
    for lane, tensor in enumerate(made):
        graph.op(f"lane {lane}", "any", [root], [tensor], time_ns=30)
    graph.op("end", "any", made, [graph.tensor(1, "output")], time_ns=10)
    return graph.build()


def test_sends_share_their_wire() -> None:
    # Six lanes of 30; root is sent once (5 + 100 / 10 = 15) and read there too. With k lanes and the end there:
    # there 10 + 15 + 30 k, here 10 + 30 (6 - k) and the last result's 15 more: k = 3 gives 115 and 115, and 10 to end.
    problem = price(fork_join(6, 100), pair())
    proof = CpSat(start=OneDevice()).prove(problem, budget=Budget(None, 5_000))
    line = simulate(problem, proof.plan)
    assert line.step_ns == 125
    assert proof.optimal


def test_order_for_least_memory_on_one_device() -> None:
    # Four producers of 100 B, each read by an op that leaves 10 B: one after the other, 100 + 10 + 3 x 10.
    graph = GraphBuilder("pairs")
    small = [graph.tensor(10) for _ in range(4)]
    big = [graph.tensor(100) for _ in range(4)]
    for lane in range(4):
        graph.op(f"make {lane}", "any", [], [big[lane]], time_ns=lane)
    for lane in range(4):
        graph.op(f"use {lane}", "any", [big[lane]], [small[lane]], time_ns=1)
    graph.op("end", "any", small, [graph.tensor(1, "output")], time_ns=1)
    problem = price(graph.build(), "1xcpu", objective="peak-memory")
    given_order = int(simulate(problem, OneDevice().optimize(Search(problem, Budget(None, 1)))).peak_bytes[0])
    proof = CpSat(start=OneDevice()).prove(problem, budget=Budget(None, 5_000))
    assert given_order == 410
    assert int(simulate(problem, proof.plan).peak_bytes[0]) == proof.bound == 140
    assert proof.optimal


def test_memory_limits_are_kept() -> None:
    # Eight ops with weights of 100 B; 450 B a device: four each, though one device would be quicker for a chain.
    graph = GraphBuilder("limits")
    read = graph.tensor(1, "input")
    for op in range(8):
        made = graph.tensor(1)
        graph.op(f"op{op}", "any", [read, graph.tensor(100, "weight")], [made], time_ns=10)
        read = made
    problem = price(graph.build(), pair(450))
    result = solve(problem, CpSat(start=OneDevice()), Budget(None, 5_000))
    assert result.fits
    assert result.timeline.step_ns == 80 + 6  # one send of 1 B
    assert np.bincount(result.plan.device).tolist() == [4, 4]


@pytest.mark.parametrize("start", [OneDevice(), RoundRobin(), Heft()])
@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_never_worse_than_its_start(start: Any, objective: Any) -> None:
    problem = price(fork_join(9, 300), pair(), objective=objective)
    plan = start.optimize(Search(problem, Budget(None, 10)))
    line = simulate(problem, plan)
    first = line.step_ns if objective == "step-time" else int(line.peak_bytes.max())
    one, two = (solve(problem, CpSat(start=start), Budget(None, 100), seed=3) for _ in range(2))
    assert one.value <= first
    assert one.plan.device.tolist() == two.plan.device.tolist()
    assert one.plan.rank.tolist() == two.plan.rank.tolist()


def test_a_problem_too_large_to_model_keeps_its_start() -> None:
    problem = price(fork_join(3_000, 8), "8xp100-pcie")
    proof = CpSat(start=Heft()).prove(problem, budget=Budget(5))
    assert simulate(problem, proof.plan).step_ns >= proof.bound > 0


def test_a_missing_package_is_said_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("ortools"):
            raise ModuleNotFoundError(name)
        return original(name, *rest)

    monkeypatch.setattr("loadmaster.methods.exact.cp_sat.importlib.import_module", without)
    with pytest.raises(MissingExtra, match="ortools") as caught:
        solve(price(fork_join(9, 300), pair()), CpSat(start=OneDevice()), Budget(None, 10))
    assert "loadmaster[exact]" in caught.value.fix
