"""Mirhoseini 2017: what the placer sees and draws, that it finds a known optimum, and what failures and noise do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.learn.environment import Simulated
from loadmaster.learn.mirhoseini2017.optimizer import Rnn
from loadmaster.learn.mirhoseini2017.policy import RnnPolicy
from loadmaster.learn.recurrent.inputs import scene_of
from loadmaster.learn.recurrent.reinforce import Learner, LearningRule
from loadmaster.learn.recurrent.weights import seeded
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from loadmaster.simulator import simulate, simulate_many
from loadmaster.zoo.synthetic import generate
from tests.graphs.tiny import pair


def layered(cluster: str = "2xp100-pcie") -> Problem:
    (graph,) = generate("layered", 1, 3, (60, 60))
    return price(graph, cluster)


def lanes(count: int = 5, memory_bytes: int = 2**30) -> Problem:
    """Lanes of two ops with unequal times and cheap sends, joined at the end: which lanes go together decides.

    By single readers all of it would be one group."""
    graph = GraphBuilder("lanes")
    ends = []
    for lane, time_ns in zip(range(count), (500, 900, 400, 700, 600), strict=False):
        middle, end = graph.tensor(80), graph.tensor(10)
        graph.op(f"begin {lane}", "any", [], [middle], time_ns=time_ns)
        graph.op(f"end {lane}", "any", [middle], [end], time_ns=100)
        ends.append(end)
    graph.op("join", "any", ends, [graph.tensor(8, "output")], time_ns=10)
    return price(graph.build(), pair(memory_bytes))


def brute_force(problem: Problem) -> int:
    every = np.array(list(product(range(2), repeat=problem.num_ops)))
    from loadmaster.learn.decoding import critical_ranks

    return int(simulate_many(problem, every, critical_ranks(problem, ints(every))).step_ns.min())


def test_two_groups_with_a_known_optimum_are_learned() -> None:
    """Two long lanes and a join: apart they take half as long. The policy itself ends up there, not only its luck."""
    problem = lanes(2)
    label = ints([0, 0, 1, 1, 1])
    search = Search(problem, Budget(None, 100_000))
    environment = Simulated(search, label)
    with seeded(0):
        policy = RnnPolicy(scene_of(problem, label, 2, True), 16)
    learner = Learner(policy, LearningRule(samples=8, rate=1e-2))
    for step in range(150):
        learner.step(environment, np.random.default_rng(step), step / 150)
    drawn = policy.draw(50, np.random.default_rng(0), 1.0).placement
    assert (drawn[:, 0] != drawn[:, 1]).mean() > 0.9
    assert search.best_score.value == brute_force(problem)


@pytest.mark.parametrize("features", ["full", "published"])
def test_finds_the_optimum_of_a_few_lanes(features: str) -> None:
    problem = lanes()
    result = solve(problem, Rnn(features=features, by="op", groups=16, hidden=16, rate=1e-2), Budget(None, 600))  # type: ignore[arg-type]
    assert result.simulations == 600
    assert result.value == brute_force(problem)


def test_failing_and_unfit_placements_cost_a_penalty_and_the_run_goes_on() -> None:
    problem = lanes(4, memory_bytes=250)  # four lanes of 80 bytes each do not fit on one device
    together = np.zeros((1, problem.num_ops), np.int64)
    assert Simulated(Search(problem, Budget(None, 1)), ints(range(problem.num_ops))).measure(together).over_bytes[0] > 0
    result = solve(problem, Rnn(failures=0.3, by="op", groups=16, hidden=16, rate=1e-2), Budget(None, 400))
    assert result.simulations == 400 and result.fits
    assert set(result.plan.device.tolist()) == {0, 1}
    hopeless = solve(lanes(4, memory_bytes=1), Rnn(by="op", groups=16, hidden=16), Budget(None, 60))
    assert hopeless.simulations == 60 and not hopeless.fits


def test_a_plan_found_under_noise_is_judged_without() -> None:
    problem = lanes()
    search = Search(problem, Budget(None, 200))
    plan = Rnn(noise=0.5, by="op", groups=16, hidden=16).optimize(search)
    assert search.best_score.value == simulate(problem, plan).step_ns


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    problem = layered()
    plans = [solve(problem, Rnn(groups=30, hidden=16), Budget(None, 48), seed=seed).plan for seed in (1, 1, 2)]
    np.testing.assert_array_equal(plans[0].device, plans[1].device)
    np.testing.assert_array_equal(plans[0].rank, plans[1].rank)
    assert (plans[0].device != plans[2].device).any()


def test_several_controllers_keep_the_budget_and_find_the_optimum() -> None:
    problem = lanes()
    result = solve(problem, Rnn(controllers=2, by="op", groups=16, hidden=16, rate=1e-2), Budget(None, 500))
    assert result.simulations == 500
    assert result.value == brute_force(problem)


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"groups": 0}, {"samples": 0}, {"controllers": 0}):
        with pytest.raises(InvalidSetting):
            Rnn(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="groups"):
        (graph,) = generate("layered", 1, 0, (2_100, 2_100))
        solve(price(graph, "2xp100-pcie"), Rnn(by="op"), Budget(None, 10))
