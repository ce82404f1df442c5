"""REGAL: Beta formulas, standard BRKGA as a special case, any number of devices, determinism."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from scipy import stats  # noqa: E402

from loadmaster.baselines.cuts import device_order  # noqa: E402
from loadmaster.baselines.genetic.brkga import Brkga, prior_of  # noqa: E402
from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import UnreadableFile  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.regal2020 import actions, method  # noqa: E402
from loadmaster.learn.regal2020.actions import CHOICES, LEVELS, MEANS, STANDARD, VARIANCES  # noqa: E402
from loadmaster.learn.regal2020.method import Regal  # noqa: E402
from loadmaster.learn.regal2020.networks import PolicyNetwork, batch_of  # noqa: E402
from loadmaster.papers.features import features_of  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search, solve  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.graphs.tiny import diamond, pair  # noqa: E402

BUDGET = Budget(seconds=None, simulations=300)


def problem_on(cluster: str, ops: int = 60, objective: str = "peak-memory") -> Problem:
    return price(next(generate("layered", 1, 3, (ops, ops))), cluster, objective=objective)  # type: ignore[arg-type]


def network(kind: str = "graph") -> PolicyNetwork:
    torch.manual_seed(4)
    made = PolicyNetwork(CHOICES, kind)  # type: ignore[arg-type]
    with torch.no_grad():
        for head in (made.choose, made.shift):
            head[-1].weight.normal_(0, 0.3)
    return made.eval()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    path = tmp_path / "policy.safetensors"
    tensors = {f"network.{name}": tensor for name, tensor in network().state_dict().items()}
    policy = {"network": "graph", "choices": list(CHOICES), "constant": list(STANDARD)}
    save_file(tensors, str(path), {"policy": json.dumps(policy)})
    return str(path)


def test_beta_parameters_have_the_mean_and_variance_of_their_levels() -> None:
    alpha, beta = method.beta_parameters()
    for mean in range(LEVELS):
        for variance in range(LEVELS):
            got = stats.beta(alpha[mean, variance], beta[mean, variance]).stats("mv")
            share = VARIANCES[variance] * MEANS[mean] * (1 - MEANS[mean])
            np.testing.assert_allclose(got, [MEANS[mean], share], rtol=1e-9)


def test_rows_of_the_table_are_the_inverse_distribution_functions() -> None:
    shapes = np.array([8 * LEVELS + 11, 3 * LEVELS + 5, 15 * LEVELS + 2], np.uint8)
    table = method.beta_table(shapes)
    alpha, beta = method.beta_parameters()
    for shape in shapes.tolist():
        inverse = stats.beta(alpha.flat[shape], beta.flat[shape]).ppf(np.arange(256) / 256)
        np.testing.assert_allclose(table[shape], inverse, atol=1e-5)


@pytest.mark.parametrize("cluster", ["regal", "placeto-4"])
def test_the_standard_action_is_standard_brkga(cluster: str) -> None:
    problem = problem_on(cluster)
    features = features_of(problem)
    action = actions.constant_action(features, STANDARD)
    _, prior, plain = method.prior_of_action(problem, features, action)
    standard = prior_of(problem, Brkga())
    assert plain == Brkga()
    np.testing.assert_allclose(prior.center, standard.center)
    np.testing.assert_allclose(prior.width, standard.width)
    np.testing.assert_array_equal(prior.bias, standard.bias)
    for shape in np.unique(prior.shape):
        np.testing.assert_allclose(prior.table[shape], standard.table[0], atol=1e-6)
    ours, theirs = (Search(problem, BUDGET, 5) for _ in range(2))
    method.run_action(ours, features, action, Regal(proposals=0), 300)
    Brkga(evaluations=300).optimize(theirs)
    assert ours.best_score == theirs.best_score


@pytest.mark.parametrize("kind", ["graph", "sequence", "both"])
def test_one_set_of_weights_serves_any_number_of_unlike_devices(kind: str) -> None:
    policy = network(kind)
    for cluster in ("1xp100-pcie", "regal", "2xp100-pcie+1xcpu", "4xp100-pcie+2xk80+1xcpu"):
        problem = problem_on(cluster, objective="step-time")
        features = features_of(problem)
        action = actions.best_action(features, policy)
        chance = np.exp(action.chance).reshape(problem.num_ops, problem.num_devices)
        np.testing.assert_allclose(chance.sum(axis=1), 1, atol=1e-5)
        search = Search(problem, Budget(None, 120), 0)
        method.run_action(search, features, action, Regal(), 120)
        assert search.simulations <= 120 and search.best is not None


def test_a_problem_gets_the_same_answer_alone_and_beside_others() -> None:
    policy = network()
    many = [features_of(problem_on(cluster, ops)) for cluster, ops in (("regal", 40), ("placeto-4", 70))]
    with torch.no_grad():
        together, alone = policy(batch_of(many)), policy(batch_of(many[1:]))
    np.testing.assert_allclose(together.chance[80:].numpy(), alone.chance.numpy(), atol=1e-5)
    np.testing.assert_allclose(together.choices[1].numpy(), alone.choices[0].numpy(), atol=1e-5)


def test_devices_change_places_with_their_columns() -> None:
    """The head scores devices one by one: swapping two devices' columns swaps their chances and nothing else."""
    features = features_of(problem_on("placeto-4"))
    swap = np.array([0, 2, 1, 3])
    pairs = features.pairs.reshape(features.num_ops, 4, -1)[:, swap].reshape(len(features.pairs), -1)
    swapped = method.replace(features, devices=features.devices[swap].copy(), pairs=np.ascontiguousarray(pairs))
    policy = network()
    with torch.no_grad():
        before, after = policy(batch_of([features])), policy(batch_of([swapped]))
    np.testing.assert_allclose(
        before.chance.reshape(-1, 4)[:, swap].numpy(), after.chance.reshape(-1, 4).numpy(), atol=1e-5
    )
    np.testing.assert_allclose(before.choices.numpy(), after.choices.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{}, {"policy": "random"}, {"policy": "constant"}, {"direct": True}, {"by": "mirror"}]
)
def test_same_seed_same_plan_within_the_budget(checkpoint: str, settings: dict[str, object]) -> None:
    problem = problem_on("regal")
    method = Regal(checkpoint=checkpoint, **settings)  # type: ignore[arg-type]
    one, two = (solve(problem, method, BUDGET, seed=9) for _ in range(2))
    np.testing.assert_array_equal(one.plan.device, two.plan.device)
    np.testing.assert_array_equal(one.plan.rank, two.plan.rank)
    assert one.simulations == two.simulations <= 300


@pytest.mark.parametrize("method", ["regal:checkpoint=none", "gas:checkpoint=none"])
def test_random_weights_come_from_the_seed(method: str) -> None:
    problem = problem_on("regal")
    first, second = (actions.untrained_policy("graph", seed)[0] for seed in (1, 2))
    features = features_of(problem)
    assert (actions.best_action(features, first).chance != actions.best_action(features, second).chance).any()
    one, two = (solve(problem, method, BUDGET, seed=9) for _ in range(2))
    np.testing.assert_array_equal(one.plan.device, two.plan.device)


def test_annealing_has_the_second_half_and_none_where_only_plans_are_asked_for(checkpoint: str) -> None:
    problem, spent = problem_on("regal"), []

    class Watched:
        def optimize(self, search: Search) -> Plan:
            spent.append((search.simulations, search.simulations_left))
            return Plan.of(problem, np.zeros(problem.num_ops, np.int64))

    found = solve(problem, Regal(checkpoint=checkpoint, finish=Watched()), BUDGET, seed=9)
    assert spent == [(150, 150)] and found.plan.device.any(), "what was best before stands"
    only = solve(problem, Regal(checkpoint=checkpoint, finish=Watched(), plans_only=True), BUDGET, seed=9)
    assert only.simulations <= 33 and len(spent) == 1


def test_missing_weights_say_what_to_do() -> None:
    with pytest.raises(UnreadableFile, match=r"no trained weights.*\n(.*\n)?.*train regal"):
        solve(problem_on("regal"), Regal(checkpoint="nowhere.safetensors"), BUDGET)


def test_every_op_has_the_elite_bias_that_the_action_says() -> None:
    problem = problem_on("2xp100-pcie", 20, "step-time")
    features = features_of(problem)
    action = actions.random_action(features, np.random.default_rng(2))
    action.choices[5] = 0  # affinities op by op
    action.choices[6] = 0  # no genes for sends
    decoder, prior, _ = method.prior_of_action(problem, features, action)
    ops, places = problem.num_ops, problem.num_ops * problem.num_devices
    said = np.round(actions.BIASES[action.bias] * 256).clip(0, 255)
    assert len(set(said.tolist())) > 3
    assert prior.bias[places : places + ops].tolist() == said.tolist()
    of_block = np.empty(ops)
    of_block[decoder.block_of] = said
    assert (
        prior.bias[:places].reshape(ops, -1).tolist() == np.repeat(of_block[:, None], problem.num_devices, 1).tolist()
    )


def test_genes_around_a_plan_favour_its_devices_and_keep_its_order() -> None:
    problem = problem_on("4xp100-pcie", 30, "step-time")
    rng = np.random.default_rng(3)
    plan = Plan.of(problem, rng.integers(0, 4, problem.num_ops), rng.permutation(problem.num_ops))
    _, prior, _ = method.prior_around(problem, plan)
    places = problem.num_ops * 4
    mean = (prior.shape[:places] // LEVELS).reshape(-1, 4)
    assert mean.argmax(axis=1).tolist() == plan.device.tolist()
    assert (np.sort(mean, axis=1)[:, -1] > 2 * np.sort(mean, axis=1)[:, -2]).all()
    assert np.argsort(prior.center[places : places + problem.num_ops]).tolist() == np.argsort(plan.rank).tolist()


def test_plans_read_off_even_chances_are_tilted_to_either_end_of_the_devices() -> None:
    problem = problem_on("4xp100-pcie", 20, "step-time")
    features = features_of(problem)
    tried: list[np.ndarray] = []

    class Watched(Search):
        def score_many(self, device, *rest):  # type: ignore[no-untyped-def]
            tried.append(device)
            return super().score_many(device, *rest)

    search = Watched(problem, BUDGET)
    plan = method.propose(search, features, actions.constant_action(features, STANDARD), 32)
    order = device_order(problem)
    used = {frozenset(row.tolist()) for row in tried[0]}
    assert frozenset([int(order[0])]) in used and frozenset([int(order[-1])]) in used
    assert plan is not None and search.best is not None
    assert simulate(problem, plan).step_ns == search.best_score.value


def test_the_standard_choices_are_those_of_brkga() -> None:
    """Of the order nothing is left, where priorities are drawn from the whole range around it."""
    strength, spread, _, width, bias, blocks, sends = STANDARD
    usual = Brkga()
    assert (actions.STRENGTH[strength], actions.SPREAD[spread]) == (0.0, actions.UNIFORM_VARIANCE)
    assert (actions.BLOCKS[blocks][0], actions.SENDS[sends]) == (usual.by, usual.sends)
    assert actions.WIDTHS[actions.WIDTH[width]] == pytest.approx(1.0)
    assert actions.BIASES[actions.BIAS[bias]] == pytest.approx(usual.rho)
    assert MEANS[actions.HALF] == 0.5 and VARIANCES[actions.UNIFORM_VARIANCE] == pytest.approx(1 / 3)


def test_genes_around_a_plan_of_the_diamond() -> None:
    """Levels 14 and 2 of sixteen, of variance 2; priorities at the middles of four parts of the range, a little less
    apart, each over a twentieth of it."""
    problem = price(diamond(), pair())
    _, prior, _ = method.prior_around(problem, Plan.of(problem, ints([0, 1, 0, 0]), ints([0, 2, 1, 3])))
    here, there = 14 * 16 + 2, 2 * 16 + 2
    assert prior.shape[:8].tolist() == [here, there, there, here, here, there, here, there]
    middles = 0.5 + np.array([-0.375, 0.125, -0.125, 0.375]) * 0.95
    np.testing.assert_allclose(prior.center[8:12], middles)
    np.testing.assert_allclose(prior.width[8:12], 0.05)
