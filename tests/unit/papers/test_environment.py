"""The environment that policies act in: times by hand, budgets and penalties."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.papers.environment import Measurements, Simulated, reward
from loadmaster.plans import Plan
from loadmaster.search import Budget, Search
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate
from tests.graphs.tiny import diamond, pair

LABEL = ints([0, 1, 2, 0])  # a and d of the diamond together, b and c alone
PLACES = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 1]])


def environment(simulations: int = 100, memory_bytes: int = 2**30) -> Simulated:
    problem = price(diamond(), pair(memory_bytes))
    return Simulated(Search(problem, Budget(None, simulations)), LABEL)


def test_times_of_the_diamond_by_hand() -> None:
    # All on d0: 10 + 20 + 30 + 10. b apart: a is sent 10 to 25, b runs to 45, is sent to 55, d ends at 65.
    # c apart: a is sent 10 to 25, c runs to 55, is sent to 64, d ends at 74.
    surroundings = environment()
    measured = surroundings.measure(PLACES)
    assert measured.step_ns.tolist() == [70, 65, 74]
    assert measured.valid.all()
    search = surroundings.search
    assert search.simulations == 3 and search.best_score == (0, 65)
    assert search.best is not None and search.best.device.tolist() == [0, 1, 0, 0]
    assert (surroundings.num_groups, surroundings.unit_ns) == (3, 70)


def test_times_are_those_of_single_plans() -> None:
    (graph,) = generate("layered", 1, 3, (60, 60))
    problem = price(graph, "2xp100-pcie")
    label = ints(np.arange(problem.num_ops) // 4)
    places = np.random.default_rng(0).integers(0, 2, (5, label.max() + 1))
    search = Search(problem, Budget(None, 100))
    measured = Simulated(search, label).measure(places)
    devices = [ints(row[label]) for row in places]
    lines = [simulate(problem, Plan.of(problem, each, critical_rank(problem, each))) for each in devices]
    assert measured.step_ns.tolist() == [line.step_ns for line in lines]
    assert search.best is not None and simulate(problem, search.best).step_ns == measured.step_ns.min()


def test_what_the_budget_does_not_reach_is_failed_and_not_counted() -> None:
    surroundings = environment(simulations=2)
    measured = surroundings.measure(PLACES)
    assert np.isnan(measured.step_ns).tolist() == [False, False, True]
    assert surroundings.search.simulations == 2 and surroundings.measurements_left == 0
    assert not surroundings.measure(PLACES).valid.any() and surroundings.search.simulations == 2


def test_placements_that_do_not_fit_cost_the_penalty() -> None:
    # On one device a, b and c are alive together: 190 bytes. With b apart each device holds less.
    measured = environment(memory_bytes=180).measure(PLACES)
    assert measured.over_bytes[0] == 10 and measured.valid.tolist() == [False, True, True]
    gained = reward(measured, 70)
    np.testing.assert_allclose(gained, [-10, -((65 / 70) ** 0.5), -((74 / 70) ** 0.5)])


def test_no_time_costs_more_than_the_penalty() -> None:
    slow = Measurements(np.array([1e12, np.nan]), ints([0, 0]))
    assert reward(slow, 1.0).tolist() == [-10, -10]


def test_memory_is_what_is_measured_where_it_is_the_objective() -> None:
    problem = price(diamond(), pair(), objective="peak-memory")
    measured = Simulated(Search(problem, Budget(None, 9)), LABEL).measure(PLACES)
    assert measured.step_ns[0] == simulate(problem, Plan.of(problem, [0] * 4)).peak_bytes.max()


@pytest.mark.parametrize(("time_ns", "unit"), [(0, 1), (1, 1), (2, 2)])
def test_a_step_of_no_time_counts_as_one(time_ns: int, unit: int) -> None:
    graph = GraphBuilder("short")
    graph.op("a", "any", [], [graph.tensor(7)], time_ns=time_ns)
    search = Search(price(graph.build(), pair()), Budget(None, 9))
    assert Simulated(search, ints([0])).unit_ns == unit
    memory = Search(price(graph.build(), pair(), objective="peak-memory"), Budget(None, 9))
    assert Simulated(memory, ints([0])).unit_ns == 7
