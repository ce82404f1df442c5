"""Mirhoseini 2017: every part of its network counts, its gradient is the one of the paper, and it learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import InvalidSetting  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.papers import mirhoseini2017 as paper  # noqa: E402
from loadmaster.papers.adam import Adam  # noqa: E402
from loadmaster.papers.controls import picked  # noqa: E402
from loadmaster.papers.environment import Measurements, Simulated  # noqa: E402
from loadmaster.papers.methods import Rnn  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search, solve  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.unit.papers.lanes import brute_force, lanes  # noqa: E402

SMALL = Rnn(by="op", groups=16, hidden=16, rate=1e-2)


def loud(problem: Problem, label: np.ndarray, rnn: Rnn = SMALL) -> paper.RnnPolicy:
    """A policy whose weights are anything but small, so that everything it reads shows."""
    policy = paper.policy_of(problem, ints(label), rnn, 0)
    assert isinstance(policy, paper.RnnPolicy)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return policy


def chances(policy: paper.RnnPolicy, device: list[int]) -> torch.Tensor:
    """[groups, devices] along one placement."""
    return policy.placer.log_chances(policy.vectors, policy.able, torch.tensor([device]))[0].detach()


def test_probabilities_of_all_placements_add_up_to_one() -> None:
    problem = lanes(2)
    policy = loud(problem, np.arange(5))
    every = torch.tensor(list(product(range(2), repeat=5)))
    assert float(picked(policy.log_chances(every), every).detach().exp().sum()) == pytest.approx(1.0, abs=1e-4)


def test_placements_are_drawn_as_often_as_their_probability_says() -> None:
    problem = lanes(2)
    policy = loud(problem, np.array([0, 0, 1, 1, 1]))
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(20_000, 2, 2)).astype(np.float32))
    drawn = policy.draw(noise)
    every = torch.tensor(list(product(range(2), repeat=2)))
    often = (drawn[:, None] == every).all(dim=2).float().mean(dim=0)
    np.testing.assert_allclose(often, picked(policy.log_chances(every), every).exp().detach(), atol=0.015)


@pytest.mark.parametrize("part", ["attention", "feed", "aligned"])
def test_every_part_of_the_network_counts(part: str) -> None:
    """With the part taken out, the same weights say something else."""
    problem, device = lanes(3), [0, 1, 0, 1, 1, 0, 1]
    whole = loud(problem, np.arange(7))
    without = loud(problem, np.arange(7), replace(SMALL, **{part: False}))
    assert (chances(whole, device) - chances(without, device)).abs().max() > 0.05


def test_the_device_before_matters_and_later_ones_do_not() -> None:
    problem = lanes(3)
    policy = loud(problem, np.arange(7))
    one, two = chances(policy, [0, 0, 0, 0, 0, 0, 0]), chances(policy, [0, 0, 1, 0, 0, 0, 0])
    assert torch.allclose(one[:3], two[:3]) and not torch.allclose(one[3], two[3], atol=1e-3)
    deaf = loud(problem, np.arange(7), replace(SMALL, feed=False))
    assert torch.allclose(chances(deaf, [0] * 7), chances(deaf, [1] * 7))


def test_attention_lets_an_early_group_see_a_late_one() -> None:
    """The encoder reads forward alone, so nothing else could."""
    problem = lanes(3)
    for attention, seen in ((True, True), (False, False)):
        policy = loud(problem, np.arange(7), replace(SMALL, attention=attention))
        before = chances(policy, [0] * 7)[0]
        policy.vectors[0, -1] += 1
        assert (not torch.allclose(chances(policy, [0] * 7)[0], before, atol=1e-4)) == seen


@pytest.mark.parametrize("column", ["kinds", "shapes", "adjacency"])
def test_features_are_those_of_the_paper(column: str) -> None:
    """Two problems that differ in one thing differ in its columns alone."""
    problem = lanes(2)
    graph = problem.graph
    changed = {
        "kinds": replace(graph, kind=("other", *graph.kind[1:])),
        "shapes": replace(graph, nbytes=ints(graph.nbytes * 3)),
        "adjacency": lanes(3).graph,
    }[column]
    label = np.arange(5) if column != "adjacency" else np.array([0, 0, 1, 1, 2, 3, 4])
    one = paper.features_of(problem, ints(np.arange(5)), False)
    two = paper.features_of(replace(problem, graph=changed) if column != "adjacency" else lanes(3), ints(label), False)
    places = {"kinds": slice(0, 32), "shapes": slice(32, 57), "adjacency": slice(57, None)}
    differ = {name: not torch.equal(one[:, part], two[:, part]) for name, part in places.items()}
    assert differ[column]
    if column != "adjacency":
        assert sum(differ.values()) == 1
    costs = paper.features_of(problem, ints(np.arange(5)), True)
    assert torch.equal(costs[:, : one.shape[1]], one) and costs.shape[1] == one.shape[1] + 2 * 2 + 2


def test_the_gradient_is_the_one_of_the_paper() -> None:
    """Equation 2 by hand: the slope of the expected reward, over all placements of two groups."""
    problem = lanes(2)
    policy = loud(problem, np.array([0, 0, 1, 1, 1]))
    every = torch.tensor(list(product(range(2), repeat=2)))
    gain = np.array([3.0, -1.0, 0.5, 2.0])
    expected = (picked(policy.log_chances(every), every).exp() * torch.from_numpy(gain.astype(np.float32))).sum()
    wanted = torch.autograd.grad(expected, policy.placer.head.weight)[0]
    weight = picked(policy.log_chances(every), every).exp().detach().numpy() * 4  # as if each came by its chance
    adam = Adam(policy.parameters(), 1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "CLIP", 1e9)
        paper.follow(
            adam, weight * (gain - 0.7), picked(policy.log_chances(every), every)
        )  # a baseline changes no expected gradient
    found = -policy.placer.head.weight.grad
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "learns"),
    [({}, True), ({"rate": 0.0}, False), ({"control": "constant"}, False), ({"control": "random"}, False)],
)
def test_learning_beats_the_same_network_untrained_and_the_controls(
    change: dict[str, Any], learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by luck: at the end the policy draws the two lanes apart, which takes half as long; controls cannot."""
    drawn: list[np.ndarray] = []
    plain = Simulated.measure

    def watched(self: Simulated, device: np.ndarray) -> Measurements:
        drawn.append(device)
        return plain(self, device)

    monkeypatch.setattr(paper, "colocation_groups", lambda *_: ints([0, 0, 1, 1, 1]))
    monkeypatch.setattr(Simulated, "measure", watched)
    replace(SMALL, **change).optimize(Search(lanes(2), Budget(None, 900)))
    last = np.concatenate(drawn[-12:])
    apart = (last[:, 0] != last[:, 1]).mean()
    assert apart > 0.9 if learns else apart < 0.8


@pytest.mark.parametrize("features", ["published", "costs"])
def test_finds_the_optimum_of_a_few_lanes(features: str) -> None:
    result = solve(lanes(), replace(SMALL, features=features), Budget(None, 300))
    assert result.simulations == 300 and result.value == brute_force(lanes())


def test_unfit_placements_cost_a_penalty_and_the_run_goes_on() -> None:
    problem = lanes(4, memory_bytes=250)  # four lanes of 80 bytes each do not fit on one device
    result = solve(problem, SMALL, Budget(None, 100))
    assert result.simulations == 100 and result.fits
    hopeless = solve(lanes(4, memory_bytes=1), SMALL, Budget(None, 60))
    assert hopeless.simulations == 60 and not hopeless.fits


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    problem = price(next(generate("layered", 1, 3, (60, 60))), "2xp100-pcie")
    plans = [solve(problem, Rnn(groups=30, hidden=16), Budget(None, 48), seed=seed).plan for seed in (1, 1, 2)]
    np.testing.assert_array_equal(plans[0].device, plans[1].device)
    assert (plans[0].device != plans[2].device).any()


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"groups": 0}, {"samples": 0}, {"hidden": 0}):
        with pytest.raises(InvalidSetting):
            Rnn(**wrong)  # type: ignore[arg-type]
    problem = price(next(generate("layered", 1, 0, (2_100, 2_100))), "2xp100-pcie")
    with pytest.raises(InvalidSetting, match="groups"):
        solve(problem, Rnn(by="op"), Budget(None, 10))
