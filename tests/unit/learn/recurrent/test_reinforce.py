"""What placements are worth to a recurrent placer, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.environment import Measurements  # noqa: E402
from loadmaster.learn.recurrent import reinforce  # noqa: E402
from loadmaster.learn.recurrent.reinforce import LearningRule, Standing, StepSummary, advantages  # noqa: E402


def measured(over: list[int], failed: list[bool]) -> Measurements:
    return Measurements(np.ones(len(over)), np.array(over), np.array(failed))


def test_where_nothing_fits_what_is_over_by_less_is_better() -> None:
    found = advantages(measured([1, 3, 0], [False, False, True]), np.zeros(3), Standing(), (0.0, 1.0))
    assert found.tolist() == [1 / 2, -1 / 2, 0.0]  # a byte from the mean, in deviations of one and one more
    many = advantages(measured([*[10**6] * 40, 9 * 10**6], [False] * 41), np.zeros(41), Standing(), (0.0, 1.0))
    assert many.min() == -3.0
    assert advantages(measured([5], [True]), np.zeros(1), Standing(), (0.0, 1.0)).tolist() == [0.0]


@pytest.mark.parametrize(("known", "wanted"), [(False, [-1.0, 3.0, -6.0, 1.0]), (True, [-9.0, -5.0, -12.0, -7.0])])
def test_what_fits_is_against_the_moving_average_and_the_rest_far_below(known: bool, wanted: list[float]) -> None:
    """Of this step the mean is -4 and the spread 2, of those before 4 and 4: three spreads below is far."""
    standing = Standing(known=known, mean=4.0, spread=4.0)
    gained = np.array([-5.0, -1.0, 0.0, -3.0])
    found = advantages(measured([0, 0, 7, 0], [False] * 4), gained, standing, (-4.0, 2.0))
    assert found.tolist() == wanted


def test_advantages_are_against_valid_placements_alone() -> None:
    gained = np.array([-1.0, -0.8, -10.0, -10.0])
    measured = Measurements(
        np.array([1.0, 1.0, 1.0, np.nan]), ints([0, 0, 5, 0]), np.array([False, False, False, True])
    )
    first = advantages(measured, gained, Standing(), (-0.9, 0.1))
    np.testing.assert_allclose(first, [-0.1, 0.1, -0.3, -0.3])
    later = advantages(measured, gained, Standing(known=True, mean=-1.2, spread=0.2), (-0.9, 0.1))
    np.testing.assert_allclose(later, [0.2, 0.4, -0.6, -0.6])
    nothing = Measurements(np.ones(3), ints([30, 10, 20]), np.array([False, False, False]))
    order = advantages(nothing, np.full(3, -10.0), Standing(), (0.0, 0.0))
    assert order[1] > order[2] > order[0] and abs(order.sum()) < 1e-9
    broken = Measurements(np.full(2, np.nan), ints([0, 0]), np.array([True, True]))
    assert advantages(broken, np.full(2, -10.0), Standing(), (0.0, 0.0)).tolist() == [0, 0]


def test_temperature_follows_the_entropy_that_is_wanted() -> None:
    standing = Standing(temperature=1.0)
    standing.steer(even=0.2, wanted=0.9, least=0.0)
    hot = standing.temperature
    standing.steer(even=0.9, wanted=0.2, least=0.0)
    assert hot > 1.0 and standing.temperature == pytest.approx(1.0)
    standing.steer(even=1.0, wanted=0.0, least=0.99)
    assert standing.temperature == 0.99


def test_averages_follow_what_was_valid_from_the_first_on() -> None:
    standing = Standing()
    standing.follow(-2.0, 0.5, decay=0.75)
    assert (standing.mean, standing.spread, standing.known) == (-2.0, 0.5, True)
    standing.follow(2.0, 1.5, decay=0.75)
    assert (standing.mean, standing.spread) == (-1.0, 0.75)


@pytest.mark.parametrize(("spread", "choices", "hot"), [(0.5, 4, 1.0), (3.0, 16, 3.0), (0.0, 4, 1.0)])
def test_the_first_temperature_is_four_times_what_a_choice_adds(spread: float, choices: int, hot: float) -> None:
    assert reinforce.first_temperature(spread, choices) == hot


def test_temperature_changes_by_a_fifth_in_a_step_at_most() -> None:
    for even, wanted, factor in ((0.5, 1.0, 0.1), (0.0, 9.0, 0.2), (9.0, 0.0, -0.2)):
        standing = Standing(temperature=2.0)
        standing.steer(even, wanted, 0.0)
        assert standing.temperature == pytest.approx(2 * np.exp(factor))


@pytest.mark.parametrize(
    ("share", "valid", "temperature"),
    [
        (0.0, 3, 2 * np.exp(0.2 * (0.8 - 0.3))),
        (0.475, 3, 2 * np.exp(0.2 * (0.4 - 0.3))),
        (0.99, 3, 2 * np.exp(0.2 * (0.0 - 0.3))),
        (0.99, 0, 2.0),  # nothing known yet: not cooled
    ],
)
def test_a_step_is_noted_and_steers_to_an_entropy_that_falls(share: float, valid: int, temperature: float) -> None:
    standing, rule = Standing(step=4), LearningRule(entropy=0.8)
    reinforce.note(standing, StepSummary(0.0, -1.0, 0.3, valid, -1.5, 1.0), rule, 4, share)
    assert standing.temperature == pytest.approx(temperature) and standing.step == 5
    assert (standing.known, standing.mean) == (valid > 0, -1.5 if valid else 0.0)


def test_a_cold_policy_is_kept_within_sight_of_the_rewards() -> None:
    standing = Standing(known=True, spread=1.0, temperature=1e-6)
    reinforce.note(standing, StepSummary(0.0, -1.0, 0.3, 0, 0.0, 0.0), LearningRule(), 4, 0.5)
    assert standing.temperature == pytest.approx(0.05 * 2.0)  # a twentieth of the first one at that spread


class Placing:
    """A policy of four choices that draws what it is told."""

    num_choices = 4

    def __init__(self, even: float = 0.5) -> None:
        self.chance, self.entropy = torch.zeros(3, requires_grad=True), torch.zeros((), requires_grad=True)
        self.even, self.asked = even, list[Any]()

    def draw(self, samples: int, rng: Any, share: float, greedy: bool = False) -> Any:
        self.asked.append((samples, share, greedy))
        return SimpleNamespace(placement="placement")

    def likelihood(self, drawn: Any) -> Any:
        return SimpleNamespace(chance=self.chance, entropy=self.entropy, even=self.even)


@pytest.mark.parametrize(("share", "refused"), [(0.5, 3.0), (0.51, 0.0)])
def test_a_step_makes_what_was_better_likelier_and_what_does_not_fit_less_so_until_it_is_settled(
    share: float, refused: float
) -> None:
    """Rewards of -2 and -4, a mean of -3 and a spread of 1; four choices: the first temperature is 2."""
    policy: Any = Placing()
    steps, over = np.array([4.0, 16.0, 1.0]), ints([0, 0, 5])
    environment: Any = SimpleNamespace(
        unit_ns=1.0, measure=lambda placement: Measurements(steps, over, np.zeros(3, bool))
    )
    rule = LearningRule(samples=3, settled=0.5)
    seen = reinforce.learn(policy, environment, rule, Standing(), None, share)  # type: ignore[arg-type]
    assert policy.asked == [(3, share, False)] and float(policy.entropy.grad) == -1, "more of it is better"
    assert policy.chance.grad.tolist() == pytest.approx([-1 / 6, 1 / 6, refused / 6])
    assert (seen.reward, seen.valid, seen.mean, seen.spread) == (pytest.approx(-16 / 3), 2, -3.0, 1.0)
    policy.chance.grad = None
    reinforce.learn(policy, environment, rule, Standing(temperature=0.5), None, share)  # type: ignore[arg-type]
    assert policy.chance.grad.tolist() == pytest.approx([-2 / 3, 2 / 3, refused * 2 / 3])


@pytest.mark.parametrize(("even", "entropy"), [(0.3, 0.3), (0.95, 0.9)])
def test_a_trained_policy_is_not_warmed_up(even: float, entropy: float) -> None:
    learner: Any = reinforce.Learner.__new__(reinforce.Learner)
    learner.policy, learner.rule = Placing(even), LearningRule(entropy=0.9)
    looked = list[Any]()
    environment: Any = SimpleNamespace(measurements_left=1, measure=looked.append)
    learner.begin_from(environment, None)
    assert learner.rule.entropy == entropy and looked == ["placement"]
    assert learner.policy.asked == [(1, 1.0, True), (4, 1.0, False)]
    learner.look(SimpleNamespace(measurements_left=0, measure=looked.append), None)
    assert len(looked) == 1


def test_the_likeliest_placement_is_looked_at_every_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    learner: Any = reinforce.Learner.__new__(reinforce.Learner)
    learner.policy, learner.rule, learner.standing = Placing(), LearningRule(look=3), Standing()
    learner.adam = SimpleNamespace(zero_grad=lambda: None)
    monkeypatch.setattr(reinforce, "learn", lambda *given: "outcome")
    looked = list[int]()

    def follow(outcome: str, share: float) -> None:
        learner.standing.step += 1

    learner.follow, learner.look = follow, lambda environment, rng: looked.append(learner.standing.step)
    assert [learner.step(None, None, 0.5) for _ in range(7)] == ["outcome"] * 7 and looked == [3, 6]
