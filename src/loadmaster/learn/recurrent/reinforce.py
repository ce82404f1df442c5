"""REINFORCE on one graph: placements are drawn, measured, and made likelier where better than the moving average.

Williams (1992), with one reward at the end of a placement. What does not fit is left out of the average and counts as
far below it; an entropy bonus is steered so that choices go from even to sure as simulations or time go (`cooling`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.graph.columns import Ints
from loadmaster.learn.cooling import Cooling
from loadmaster.papers.environment import PENALTY, Environment, Measurements, Simulated, reward

HASTE = 0.2  # how fast the temperature changes in a step, at most
LEAST_TEMPERATURE = 0.05  # of the first one at the present spread of rewards
MOST_ADVANTAGE = 3.0  # deviations; an invalid placement is this far below the average
COLD = 0.95  # share of the budget at which no entropy is wanted any more


@dataclass(frozen=True, eq=False)
class Drawn:
    """Placements that a policy drew, and what it needs to say how likely they were."""

    placement: Ints  # [samples, groups of the environment]
    choices: tuple[Tensor, ...]


class Likelihood:
    """How likely placements were, and how undecided the policy is."""

    def __init__(self, chance: Tensor, entropy: Tensor, most: float) -> None:
        self.chance = chance  # [samples] log-probability
        self.entropy = entropy  # of all choices together, mean over samples
        self.even = float(entropy.detach()) / max(most, 1e-9)  # as a share of that of even choices


class PlacingPolicy(Protocol):
    """A network that places the groups of one environment.

    The contract of `Learner`: `draw` gives placements and what is needed to score them again, `likelihood` their
    log-probabilities and the entropy under the weights of now, `num_choices` is what entropy is measured against, and
    `rates` says how fast which parameters learn.
    """

    @property
    def num_choices(self) -> int: ...  # whose entropy is steered

    def draw(self, samples: int, rng: np.random.Generator, share: float, greedy: bool = False) -> Drawn: ...

    def likelihood(self, drawn: Drawn) -> Likelihood: ...

    def rates(self, rate: float) -> list[dict[str, Any]]: ...  # parameters and how fast they learn


@dataclass(frozen=True)
class LearningRule:
    """How to learn.

    Attributes:
        samples: placements per step.
        entropy: wanted at first, as a share of that of even choices; falls to nothing in a straight line.
        decay: of the moving averages.
        root: of the step time.
        settled: how far cooling has come when from then on only valid placements update.
        look: the likeliest placement is measured every so many steps.
    """

    rate: float = 3e-3
    samples: int = 16
    entropy: float = 0.9
    decay: float = 0.9
    root: bool = True
    penalty: float = PENALTY
    settled: float = 0.5
    look: int = 8


@dataclass
class Standing:
    """Where learning stands, besides the weights: plain values.

    Attributes:
        known: whether a valid placement was seen.
        mean: moving average of the rewards of valid placements.
        spread: moving average of how far rewards lie from that mean.
        temperature: what a unit of entropy is worth, in rewards; 0: not set yet.
    """

    step: int = 0
    known: bool = False
    mean: float = 0.0
    spread: float = 0.0
    temperature: float = 0.0

    def follow(self, mean: float, spread: float, decay: float) -> None:
        """Takes in the rewards of a step."""
        keep = decay if self.known else 0.0
        self.mean = keep * self.mean + (1 - keep) * mean
        self.spread = keep * self.spread + (1 - keep) * spread
        self.known = True

    def steer(self, even: float, wanted: float, least: float) -> None:
        """Hotter where the entropy is lower than wanted, cooler where higher; not below `least`."""
        self.temperature = max(least, self.temperature * float(np.exp(np.clip(HASTE * (wanted - even), -HASTE, HASTE))))


@dataclass(frozen=True)
class StepSummary:
    """What a step saw: plain values, so that it can travel.

    Attributes:
        reward: mean over all placements.
        even: entropy as a share of that of even choices.
        mean: of the rewards of valid placements.
    """

    loss: float
    reward: float
    even: float
    valid: int
    mean: float
    spread: float


def learn(
    policy: PlacingPolicy,
    environment: Environment,
    rule: LearningRule,
    standing: Standing,
    rng: np.random.Generator,
    share: float,
) -> StepSummary:
    """One step up to the gradients: they lie in the policy's parameters. `share` of the budget is gone."""
    drawn = policy.draw(rule.samples, rng, share)  # where fewer are left, those beyond come back as failed
    measured = environment.measure(drawn.placement)
    gained = reward(measured, environment.unit_ns, rule.root, rule.penalty)
    valid = measured.valid
    mean, spread = (float(gained[valid].mean()), float(gained[valid].std())) if valid.any() else (0.0, 0.0)
    temperature = standing.temperature or first_temperature(spread, policy.num_choices)
    advantage = advantages(measured, gained, standing, (mean, spread))
    if share > rule.settled:
        advantage = np.where(valid, advantage, 0.0)
    said = policy.likelihood(drawn)
    scaled = torch.from_numpy((advantage / temperature).astype(np.float32)).to(said.chance.device)
    loss = -(scaled * said.chance).mean() - said.entropy
    loss.backward()  # type: ignore[no-untyped-call]
    return StepSummary(float(loss.detach()), float(gained.mean()), said.even, int(valid.sum()), mean, spread)


def first_temperature(spread: float, choices: int) -> float:
    """Hot enough that an even policy stays so: a few times what one choice adds to the deviation of the reward."""
    return 4 * spread * choices**-0.5 or 1.0


def note(standing: Standing, outcome: StepSummary, rule: LearningRule, choices: int, share: float) -> None:
    """Takes in what a step saw."""
    standing.temperature = standing.temperature or first_temperature(outcome.spread, choices)
    if outcome.valid:
        standing.follow(outcome.mean, outcome.spread, rule.decay)
    # A policy that has not learned yet is not cooled for it: the bonus stays within sight of the rewards.
    least = LEAST_TEMPERATURE * first_temperature(standing.spread, choices) if standing.known else standing.temperature
    standing.steer(outcome.even, rule.entropy * max(0.0, 1 - share / COLD), least)
    standing.step += 1


def advantages(
    measured: Measurements, gained: NDArray[np.float64], standing: Standing, fresh: tuple[float, float]
) -> NDArray[np.float64]:
    """[n] how much better than the moving average of valid placements; at first, than that of this step.

    Invalid ones count as far below, but not in the average: one of them would drown the differences between the
    others. Where nothing is valid, what is over by less counts as better.
    """
    if not measured.valid.any():
        return _by_excess(measured)
    mean, spread = (standing.mean, max(standing.spread, fresh[1])) if standing.known else fresh
    most = MOST_ADVANTAGE * max(spread, 1e-6)
    return np.clip(np.where(measured.valid, gained - mean, -most), -most, most)


def _by_excess(measured: Measurements) -> NDArray[np.float64]:
    ran = ~measured.failed
    scaled = np.zeros(len(ran))
    if ran.any():
        over = measured.over_bytes[ran].astype(np.float64)
        scaled[ran] = np.clip((over.mean() - over) / (over.std() + 1.0), -MOST_ADVANTAGE, MOST_ADVANTAGE)
    return scaled


class Learner:
    """A policy with its optimiser."""

    def __init__(self, policy: nn.Module, rule: LearningRule) -> None:
        self.policy, self.rule, self.standing = policy, rule, Standing()
        self.adam = torch.optim.Adam(self._drawing.rates(rule.rate))

    def step(self, environment: Environment, rng: np.random.Generator, share: float) -> StepSummary:
        self.adam.zero_grad()
        outcome = learn(self._drawing, environment, self.rule, self.standing, rng, share)
        self.follow(outcome, share)
        if self.standing.step % self.rule.look == 0:
            self.look(environment, rng)
        return outcome

    def follow(self, outcome: StepSummary, share: float) -> None:
        """Follows the gradients that lie in the parameters."""
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.adam.step()
        note(self.standing, outcome, self.rule, self._drawing.num_choices, share)

    def look(self, environment: Environment, rng: np.random.Generator) -> None:
        """Measures the likeliest placement; nothing is learned from it."""
        if environment.measurements_left:
            environment.measure(self._drawing.draw(1, rng, 1.0, greedy=True).placement)

    def begin_from(self, environment: Environment, rng: np.random.Generator) -> None:
        """Starts at the entropy that a trained policy has: warming it up would undo what it learned."""
        self.look(environment, rng)
        with torch.no_grad():
            even = self._drawing.likelihood(self._drawing.draw(4, rng, 1.0)).even
        self.rule = replace(self.rule, entropy=min(even, self.rule.entropy))

    @property
    def _drawing(self) -> PlacingPolicy:
        policy: PlacingPolicy = self.policy  # type: ignore[assignment]
        return policy


def reinforce(learner: Learner, environment: Simulated) -> None:
    """Steps until the budget is spent. Every random number comes from the search's seed and the step."""
    search = environment.search
    cooling = Cooling(search)
    while environment.measurements_left:
        rng = np.random.default_rng([search.seed, 2, learner.standing.step])
        search.note = f"step {learner.standing.step}"
        learner.step(environment, rng, cooling.share)
