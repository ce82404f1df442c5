"""HDP 2018: how ops become groups, what the placer reads of them, and that both learn."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.environment import Simulated  # noqa: E402
from loadmaster.learn.hdp2018.optimizer import Hdp  # noqa: E402
from loadmaster.learn.hdp2018.policy import MATES, NOISY, UNIT_WIDTH, WAVES, HdpPolicy, units_of  # noqa: E402
from loadmaster.learn.recurrent.inputs import KINDS, SHAPES, kinds_of  # noqa: E402
from loadmaster.learn.recurrent.reinforce import Learner, LearningRule, Standing, learn  # noqa: E402
from loadmaster.passes.groups import group_ops  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search, solve  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.graphs.tiny import chain, pair  # noqa: E402
from tests.unit.learn.mirhoseini2017.test_optimizer import brute_force, lanes  # noqa: E402
from tests.unit.learn.stand_in import shaken  # noqa: E402


def layered(ops: int = 60, cluster: str = "2xp100-pcie") -> Problem:
    (graph,) = generate("layered", 1, 3, (ops, ops))
    return price(graph, cluster)


def policy_of(problem: Problem, groups: int = 6) -> HdpPolicy:
    return shaken(HdpPolicy(units_of(problem, ints(range(problem.num_ops))), groups, 16))  # type: ignore[no-any-return]


def test_as_many_groups_as_published() -> None:
    assert [Hdp().groups_on(devices) for devices in (2, 4, 8, 16)] == [40, 80, 160, 256]
    assert Hdp(groups=9).groups_on(4) == 9


def test_group_vectors_are_sums_over_their_units() -> None:
    problem = layered()
    policy = policy_of(problem)
    group = torch.from_numpy(np.random.default_rng(0).integers(0, 6, (3, problem.num_ops)))
    vectors = policy.scene(group).vectors.numpy()
    start, before = problem.graph.dependencies
    kinds = kinds_of(problem)
    for sample in range(3):
        of = group[sample].tolist()
        counts, beside = np.zeros((6, KINDS)), np.zeros((6, 6))
        for op in range(problem.num_ops):
            counts[of[op], kinds[op]] += 1
            for other in before[start[op] : start[op + 1]]:
                beside[of[other], of[op]] = 1
        np.testing.assert_allclose(np.expm1(vectors[sample, :, :KINDS]), counts, atol=1e-4)
        np.testing.assert_array_equal(vectors[sample, :, KINDS + SHAPES :], beside)


def test_units_know_their_neighbours() -> None:
    problem = layered()
    units = units_of(problem, ints(range(problem.num_ops)))
    assert units.vectors.shape == (problem.num_ops, UNIT_WIDTH)
    mates = units.vectors[:, -2 * WAVES - MATES : -2 * WAVES].numpy()
    start, before = problem.graph.dependencies
    for op in (0, 17, problem.num_ops - 1):
        near = set(before[start[op] : start[op + 1]].tolist())
        near |= {other for other in range(problem.num_ops) if op in before[start[other] : start[other + 1]]}
        found = {round(float(place) * problem.num_ops) for place in mates[op] if place >= 0}
        assert found == near or (len(near) > MATES and found < near)


def test_likelihood_is_that_of_groups_and_devices() -> None:
    problem = layered()
    policy = policy_of(problem)
    drawn = policy.draw(4, np.random.default_rng(0), NOISY)
    group, picks, so_far, noise = drawn.choices
    assert not noise.any()
    np.testing.assert_array_equal(drawn.placement, np.take_along_axis(picks.numpy(), group.numpy(), axis=1))
    with torch.no_grad():
        said = policy.likelihood(drawn).chance.numpy()
        chances = policy.grouper(policy.units.vectors).log_softmax(dim=1).numpy()
        placing = policy.placer.logits(policy.scene(group), picks, so_far).numpy()
    for sample in range(4):
        total = sum(chances[unit, g] for unit, g in enumerate(group[sample].tolist()))
        total += sum(placing[sample, g, device] for g, device in enumerate(picks[sample].tolist()))
        np.testing.assert_allclose(said[sample], total, rtol=1e-4)


def test_groups_are_drawn_as_often_as_they_are_likely() -> None:
    problem = layered(20)
    policy = policy_of(problem, 3)
    group = policy.draw(4_000, np.random.default_rng(0), 0.5).choices[0].numpy()
    with torch.no_grad():
        chances = policy.grouper(policy.units.vectors).softmax(dim=1).numpy()
    for unit in range(problem.num_ops):
        np.testing.assert_allclose(np.bincount(group[:, unit], minlength=3) / 4_000, chances[unit], atol=0.04)


def test_noise_early_and_no_drawing_of_groups_late() -> None:
    problem = layered()
    policy = policy_of(problem)
    rng = np.random.default_rng(0)
    assert policy.draw(2, rng, 0.0).choices[3].std() > 0.9
    assert 0.4 < policy.draw(2, rng, NOISY / 2).choices[3].std() < 0.6
    late = policy.draw(8, rng, 0.95)
    with torch.no_grad():
        likeliest = policy.grouper(policy.units.vectors).argmax(dim=1)
    assert (late.choices[0] == likeliest).all()
    assert len({tuple(row) for row in late.choices[1].tolist()}) > 1


@pytest.mark.parametrize("warm", ["edges", "window"])
def test_the_grouper_starts_at_a_grouping(warm: str) -> None:
    problem = layered(200)
    settings = Hdp(warm=warm, groups=12)  # type: ignore[arg-type]
    label = settings.label_of(problem)
    policy = settings.policy_of(problem, label, 0)
    with torch.no_grad():
        started = policy.grouper(policy.units.vectors).argmax(dim=1).numpy()[label]
    assert (started == group_ops(problem, 12, warm)).mean() > 0.95  # type: ignore[arg-type]


def test_large_graphs_are_coarsened_first() -> None:
    problem = layered(300)
    assert int(Hdp(units=300).label_of(problem).max()) + 1 == 300
    label = Hdp(units=64).label_of(problem)
    assert 2 < int(label.max()) + 1 <= 64


@pytest.mark.parametrize("warm", ["window", "none"])
def test_finds_the_optimum_of_a_few_lanes(warm: str) -> None:
    problem = lanes()
    result = solve(problem, Hdp(warm=warm, groups=8, hidden=16, rate=1e-2), Budget(None, 800))  # type: ignore[arg-type]
    assert result.simulations == 800
    assert result.value <= 1.03 * brute_force(problem)


def test_both_networks_learn() -> None:
    """Two long lanes: the mean of what is drawn gets better, and no less for the grouper's part."""
    problem = lanes(3)
    search = Search(problem, Budget(None, 100_000))
    environment = Simulated(search, ints(range(problem.num_ops)))
    policy = Hdp(groups=4, hidden=16).policy_of(problem, environment.label, 0)
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    learner = Learner(policy, LearningRule(samples=8, rate=1e-2))
    rewards = [learner.step(environment, np.random.default_rng(step), step / 150).reward for step in range(150)]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.02
    for part in ("grouper", "placer"):
        assert any((parameter != before[name]).any() for name, parameter in policy.named_parameters() if part in name)


def test_noise_and_failures_leave_a_true_plan() -> None:
    problem = lanes()
    search = Search(problem, Budget(None, 150))
    plan = Hdp(noise=0.4, failures=0.3, groups=6, hidden=16).optimize(search)
    assert search.simulations == 150 and search.best_score.value == simulate(problem, plan).step_ns


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = layered()
    plans = [solve(problem, Hdp(hidden=16), Budget(None, 40), seed=1).plan for _ in range(2)]
    np.testing.assert_array_equal(plans[0].device, plans[1].device)
    np.testing.assert_array_equal(plans[0].rank, plans[1].rank)


def test_a_clock_that_runs_out_between_two_looks_ends_the_run() -> None:
    problem, settings = lanes(), Hdp(hidden=8)
    label = settings.label_of(problem)
    search = Search(problem, Budget(None, 1))
    search.count(1)
    environment = Simulated(search, label)
    assert environment.measurements_left == 0
    policy = settings.policy_of(problem, label, 0)
    outcome = learn(policy, environment, settings.rule, Standing(), np.random.default_rng(0), 1.0)
    assert outcome.valid == 0 and search.simulations == 1


@pytest.mark.parametrize(("units", "label"), [(2, [0, 0, 0]), (3, [0, 1, 2]), (4, [0, 1, 2])])
def test_every_op_is_a_unit_where_there_are_as_many(units: int, label: list[int]) -> None:
    """By their single readers, the ops of a chain are one."""
    assert Hdp(units=units).label_of(price(chain(), pair())).tolist() == label
