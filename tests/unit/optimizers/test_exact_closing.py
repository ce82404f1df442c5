"""What CP-SAT is given and when it runs beside a search, with a solver that only notes what it was told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.graph.columns import ints
from loadmaster.optimizers import exact
from loadmaster.optimizers.simple import OneDevice
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from tests.graphs.tiny import diamond, pair


def many(ops: int, devices: int = 2) -> Problem:
    graph = GraphBuilder("many")
    for op in range(ops):
        graph.op(f"op{op}", "any", [], [graph.tensor(1)], time_ns=10 + op)
    every = tuple(Device(f"d{at}", "toy", 2**30, 1e9, 1e9, 0) for at in range(devices))
    pairs = [(one, two) for one in range(devices) for two in range(devices) if one != two]
    wires = np.full((devices, devices), -1)
    for number, ends in enumerate(pairs):
        wires[ends] = number
    return price(graph.build(), Cluster("many", every, dict.fromkeys(pairs, Link(1e9, 1)), ints(wires)))


def started(problem: Problem, budget: Budget) -> Search:
    search = Search(problem, budget)
    search.score(OneDevice().optimize(search))
    return search


class Told:
    """A solver that finds what it is told to."""

    OPTIMAL, FEASIBLE, UNKNOWN = 4, 2, 0

    def __init__(self, status: int = 4, bound: float = 0.0) -> None:
        self.parameters, self.status, self.best_objective_bound = SimpleNamespace(), status, bound

    def CpSolver(self) -> Told:
        return self

    def solve(self, _: Any) -> int:
        return self.status


def solved(monkeypatch: pytest.MonkeyPatch, told: Told, budget: Budget, threads: int = 2, seed: int = 0) -> list[Any]:
    problem = price(diamond(), pair())
    plan = OneDevice().optimize(Search(problem, Budget(None, 1)))
    model = SimpleNamespace(model=None, unit=5, plans=lambda _: [plan])
    monkeypatch.setattr(exact, "cp_model", lambda: told)
    monkeypatch.setattr(exact, "CpModel", lambda *_: model)
    return exact._solved(Search(problem, budget, seed), plan, 0, threads, budget)


@pytest.mark.parametrize(("threads", "workers"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_by_the_clock_one_or_two_workers(threads: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    solved(monkeypatch, told, Budget(3.5), threads, 2**31 + 7)
    assert vars(told.parameters) == {"random_seed": 7, "num_workers": workers, "max_time_in_seconds": 3.5}


@pytest.mark.parametrize(("simulations", "effort"), [(10, 0.1), (100, 0.2), (5_000, 10.0), (10**6, 30.0)])
def test_by_simulations_one_worker_and_its_own_seconds(
    simulations: int, effort: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    solved(monkeypatch, told, Budget(None, simulations))
    assert vars(told.parameters) == {
        "random_seed": 0,
        "num_workers": 1,
        "max_deterministic_time": pytest.approx(effort),
    }


@pytest.mark.parametrize(("bound", "proved"), [(6.9999999, 35), (7.0000001, 35), (7.1, 40), (7.9, 40)])
def test_bounds_are_rounded_up_to_whole_units(bound: float, proved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ns for _, ns in solved(monkeypatch, Told(bound=bound), Budget(1.0))] == [proved]
    assert [ns for _, ns in solved(monkeypatch, Told(Told.FEASIBLE, bound), Budget(1.0))] == [proved]
    assert solved(monkeypatch, Told(Told.UNKNOWN, bound), Budget(1.0)) == []


def test_how_many_timelines_of_a_tiny_problem_are_tried() -> None:
    problem = price(diamond(), pair())
    full = Search(problem, Budget(None, 10_000))
    assert exact.try_all(full, 10_000) and full.note == "proved optimal"
    every = full.simulations
    enough = Search(problem, Budget(None, 10_000))
    assert exact.try_all(enough, every) and enough.simulations == every
    few = Search(problem, Budget(None, 10_000))
    assert not exact.try_all(few, every - 1) and few.simulations == every - 1
    short = Search(problem, Budget(None, every - 1))
    assert not exact.try_all(short, 10_000) and short.simulations == every - 1


def test_which_problems_are_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(exact._placements(many(6)) or ()) == 2**6
    assert exact._placements(many(7)) is None
    assert exact._placements(many(2, devices=3)) is None
    graph = GraphBuilder("groups")
    for name, group in (("a", "x"), ("b", "x"), ("c", None), ("d", "y"), ("e", "y")):
        graph.op(name, "any", [], [], time_ns=1, colocate=group)
    places = exact._placements(price(graph.build(), pair()))
    assert places is not None and len(places) == 8
    assert all(place[0] == place[1] and place[3] == place[4] for place in places)
    alone = GraphBuilder("alone")
    for name in "ab":
        alone.op(name, "any", [], [], time_ns=[1, None])
    assert exact._placements(price(alone.build(), pair())) == [(0, 0)]
    assert not exact.try_all(Search(many(7), Budget(None, 50)), 50)


@pytest.mark.parametrize(("left", "runs"), [(0.2, False), (0.21, True)])
def test_it_runs_beside_a_search_that_has_time(left: float, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    search = started(many(4), Budget(60.0))
    monkeypatch.setattr(Search, "seconds_left", property(lambda self: left))
    assert (exact._Beside.of(search) is not None) == runs


def test_it_runs_beside_a_search_of_a_small_problem_that_has_a_plan() -> None:
    # 2 devices: 2 x (ops + tensors) = 4 for each op.
    for ops, runs in ((1, False), (2, True), (exact.MOST_BESIDE // 4, True), (exact.MOST_BESIDE // 4 + 1, False)):
        assert (exact._Beside.of(started(many(ops), Budget(60.0))) is not None) == runs, ops
    of = exact._Beside.of
    assert of(started(many(4), Budget(None, 50_000))) is None, "simulations are counted"
    assert of(Search(many(4), Budget(60.0))) is None, "no plan"
    fused = started(many(4), Budget(60.0))
    assert fused.best is not None
    fused.best = Plan.of(fused.problem, fused.best.device, None, ints([0, 0, 2, 3]))
    assert of(fused) is None
    full = started(many(4), Budget(60.0))
    full.best_score = Score(1, 10)
    assert of(full) is None, "a plan that does not fit"


def test_the_bound_of_large_problems_of_memory_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    monkeypatch.setattr(exact, "lower_bound", lambda problem, **_: asked.append(problem.num_ops) or 0)
    monkeypatch.setattr(exact, "QUICK_OPS", 5)
    for ops, objective in ((5, "peak-memory"), (6, "peak-memory"), (6, "step-time")):
        problem = replace(many(ops)).with_objective(objective)  # type: ignore[arg-type]
        with exact.closing(started(problem, Budget(None, 5))):
            pass
    assert asked == [5, 6], "of six ops for the step alone"
