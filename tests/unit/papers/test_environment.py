"""The environment that policies act in: times by hand, budgets, noise and failures."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.papers.environment import Measurements, Order, Simulated, reward
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import first_come, simulate
from loadmaster.zoo.synthetic import generate
from tests.graphs.tiny import diamond, pair

LABEL = ints([0, 1, 2, 0])  # a and d of the diamond together, b and c alone
PLACES = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 1]])


def environment(simulations: int = 100, memory_bytes: int = 2**30, **settings: float) -> Simulated:
    problem = price(diamond(), pair(memory_bytes))
    return Simulated(Search(problem, Budget(None, simulations)), LABEL, **settings)  # type: ignore[arg-type]


def test_times_of_the_diamond_by_hand() -> None:
    # All on d0: 10 + 20 + 30 + 10. b apart: a is sent 10 to 25, b runs to 45, is sent to 55, d ends at 65.
    # c apart: a is sent 10 to 25, c runs to 55, is sent to 64, d ends at 74.
    surroundings = environment()
    measured = surroundings.measure(PLACES)
    assert measured.step_ns.tolist() == [70, 65, 74]
    assert measured.valid.all() and not measured.failed.any()
    search = surroundings.search
    assert search.simulations == 3 and search.best_score == (0, 65)
    assert search.best is not None and search.best.device.tolist() == [0, 1, 0, 0]
    assert (surroundings.num_groups, surroundings.num_devices, surroundings.unit_ns) == (3, 2, 70)


@pytest.mark.parametrize("order", ["critical", "fifo", "program"])
def test_orders_are_those_of_single_plans(order: Order) -> None:
    (graph,) = generate("layered", 1, 3, (60, 60))
    problem = price(graph, "2xp100-pcie")
    label = ints(np.arange(problem.num_ops) // 4)
    places = np.random.default_rng(0).integers(0, 2, (5, label.max() + 1))
    search = Search(problem, Budget(None, 100))
    measured = Simulated(search, label, order).measure(places)
    lines = [simulate(problem, _plan(problem, ints(row[label]), order)) for row in places]
    assert measured.step_ns.tolist() == [line.step_ns for line in lines]
    assert search.best is not None and simulate(problem, search.best).step_ns == measured.step_ns.min()


def _plan(problem: Problem, device: np.ndarray, order: Order) -> Plan:
    if order == "fifo":
        return first_come(problem, ints(device))
    return Plan.of(problem, device, critical_rank(problem, ints(device)) if order == "critical" else None)


def test_what_the_budget_does_not_reach_is_failed_and_not_counted() -> None:
    surroundings = environment(simulations=2)
    measured = surroundings.measure(PLACES)
    assert measured.failed.tolist() == [False, False, True]
    assert surroundings.search.simulations == 2 and surroundings.measurements_left == 0
    assert surroundings.measure(PLACES).failed.all() and surroundings.search.simulations == 2


def test_placements_that_do_not_fit_cost_the_penalty() -> None:
    # On one device a, b and c are alive together: 190 bytes. With b apart each device holds less.
    measured = environment(memory_bytes=180).measure(PLACES)
    assert measured.over_bytes[0] == 10 and measured.valid.tolist() == [False, True, True]
    gained = reward(measured, 70)
    np.testing.assert_allclose(gained, [-10, -((65 / 70) ** 0.5), -((74 / 70) ** 0.5)])
    np.testing.assert_allclose(reward(measured, 70, root=False), [-100, -65 / 70, -74 / 70])


def test_no_time_costs_more_than_the_penalty() -> None:
    slow = Measurements(np.array([1e12, np.nan]), ints([0, 0]), np.array([False, True]))
    assert reward(slow, 1.0).tolist() == [-10, -10]
    assert reward(slow, 1.0, penalty=3.0).tolist() == [-3, -3]


def test_noise_is_for_the_policy_alone() -> None:
    surroundings = environment(simulations=4_000, noise=0.3)
    measured = surroundings.measure(np.tile(PLACES[1], (4_000, 1)))
    error = np.log(measured.step_ns / 65)
    assert abs(error.mean()) < 0.03 and abs(error.std() - 0.3) < 0.02
    assert surroundings.search.best_score == (0, 65)


def test_failures_are_counted_and_their_plans_are_not_kept() -> None:
    surroundings = environment(simulations=2_000, failures=0.25)
    measured = surroundings.measure(np.tile(PLACES[1], (2_000, 1)))
    assert 0.2 < measured.failed.mean() < 0.3 and surroundings.search.simulations == 2_000
    assert np.isnan(measured.step_ns[measured.failed]).all() and (measured.step_ns[~measured.failed] == 65).all()
    broken = environment(simulations=20, failures=0.999999)
    assert broken.measure(np.tile(PLACES[1], (20, 1))).failed.all()
    assert broken.search.best is None and broken.search.simulations == 20


def test_memory_is_what_is_measured_where_it_is_the_objective() -> None:
    problem = price(diamond(), pair(), objective="peak-memory")
    measured = Simulated(Search(problem, Budget(None, 9)), LABEL).measure(PLACES)
    assert measured.step_ns[0] == simulate(problem, Plan.of(problem, [0] * 4)).peak_bytes.max()


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"noise": -0.1}, {"failures": 1.0}, {"failures": -0.1}):
        with pytest.raises(InvalidSetting):
            environment(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("time_ns", "unit"), [(0, 1), (1, 1), (2, 2)])
def test_a_step_of_no_time_counts_as_one(time_ns: int, unit: int) -> None:
    graph = GraphBuilder("short")
    graph.op("a", "any", [], [graph.tensor(7)], time_ns=time_ns)
    search = Search(price(graph.build(), pair()), Budget(None, 9))
    assert Simulated(search, ints([0])).unit_ns == unit
    memory = Search(price(graph.build(), pair(), objective="peak-memory"), Budget(None, 9))
    assert Simulated(memory, ints([0])).unit_ns == 7


def test_noise_is_a_factor_whose_logarithm_is_normal() -> None:
    surroundings = environment(noise=0.3)
    drawn = np.random.default_rng([surroundings.search.seed, 1])
    drawn.random(3)
    wanted = np.array([70, 65, 74]) * np.exp(0.3 * drawn.standard_normal(3))
    np.testing.assert_allclose(surroundings.measure(PLACES).step_ns, wanted)
