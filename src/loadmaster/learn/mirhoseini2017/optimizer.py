"""Mirhoseini 2017: a recurrent network learns, on the graph at hand, to place one group of ops after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.graph.columns import Ints
from loadmaster.learn.environment import Order, Simulated
from loadmaster.optimizers.simple import OneDevice
from loadmaster.passes.groups import Grouper, group_ops
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.learn.hdp2018.optimizer import Hdp
    from loadmaster.learn.mirhoseini2017.policy import RnnPolicy
    from loadmaster.learn.recurrent.reinforce import Rule

MOST_GROUPS = 2_000  # the decoder takes a step for each


@dataclass(frozen=True)
class Rnn:
    """Device placement by reinforcement learning (Mirhoseini et al. 2017, arXiv 1706.04972).

    An LSTM reads the groups in program order; another, with attention, gives each a device and is fed the one before.
    REINFORCE on the root of the step time with a moving-average baseline, one reward at the end of a placement. It
    learns on this graph alone until the budget is spent; the best placement it measured is the answer. Several
    controllers draw, measure and send gradients to shared parameters, each when it is ready: by processes, or over Ray.
    One controller gives the same plan for the same seed and simulations; several do not.

    Differs from the paper: with features=full (published: without) the network also sees time, memory and links, and
    scores unlike devices by what they are; of equal devices the unused one of lowest number comes first. The decoder
    sees the group it places beside what it attends to; attention is by dot product. Placements that do not fit are left
    out of the baseline and count as three deviations below it, from half of the budget on as nothing; where none fits,
    those over by less count as better. An entropy bonus is steered so that choices go from even to sure as the budget
    goes. Step times come from the simulator, ops in critical-path order. Sizes and rates are ours.
    """

    checkpoint: str = ""  # weights to go on from, for as many devices: a .safetensors file of `loadmaster train rnn`
    by: Grouper = "readers"
    groups: int = 280
    features: Literal["full", "published"] = "full"
    order: Order = "critical"
    root: bool = True  # learn by the root of the step time
    noise: float = 0.0  # of the measured times, as deviation of their logarithm
    failures: float = 0.0  # chance that a measurement fails
    samples: int = 16  # placements per step
    hidden: int = 64
    rate: float = 3e-3
    entropy: float = 0.9  # at first, as a share of that of even choices
    controllers: int = 1
    workers: int = 1  # threads that measure for each of several controllers
    over: Literal["processes", "ray"] = "processes"

    def __post_init__(self) -> None:
        check_counts(self, ("groups", "samples", "hidden", "controllers", "workers"))

    def optimize(self, search: Search) -> Plan:
        return learn_on(search, self)

    def as_trained(self) -> Rnn:
        """With the groups and features that the checkpoint was trained with, if there is one."""
        if not self.checkpoint:
            return self
        from loadmaster.learn.recurrent.weights import settings_from

        return settings_from(self, "rnn", ("by", "groups", "features", "hidden"))

    def label_of(self, problem: Problem) -> Ints:
        label = group_ops(problem, self.groups, self.by)
        count = int(label.max()) + 1
        if count > MOST_GROUPS:
            what = f"by={self.by} makes {count} groups of '{problem.graph.name}'"
            raise InvalidSetting(what, "rnn", f"at most {MOST_GROUPS} can be placed one by one: use another grouping")
        return label

    def policy_of(self, problem: Problem, label: Ints, seed: int) -> RnnPolicy:
        """The network, as the seed makes it or with the checkpoint's weights."""
        from loadmaster.learn.mirhoseini2017.policy import RnnPolicy
        from loadmaster.learn.recurrent.inputs import scene_of
        from loadmaster.learn.recurrent.weights import load_into, seeded

        scene = scene_of(problem, label, max(self.groups, int(label.max()) + 1), self.features == "full")
        with seeded(seed):
            policy = RnnPolicy(scene, self.hidden)
        if self.checkpoint:
            load_into(policy, self.checkpoint, "rnn", problem.num_devices)
        return policy


def learn_on(search: Search, settings: Rnn | Hdp) -> Plan:
    """Learns on the graph of the search until its budget is spent. One device's plan is scored first and kept where
    nothing beats it."""
    first = OneDevice().optimize(search)
    if search.problem.num_devices == 1:
        return first
    with_torch()
    from loadmaster.learn.recurrent.controllers import run

    if search.simulations_left:
        search.score(first)
    trained = settings.as_trained()
    label = trained.label_of(search.problem)
    policy = trained.policy_of(search.problem, label, search.seed)
    environment = Simulated(search, label, settings.order, settings.noise, settings.failures)
    run(
        environment,
        policy,
        rule_of(settings),
        bool(settings.checkpoint),
        settings.controllers,
        settings.workers,
        settings.over,
    )
    return search.best or first


def rule_of(settings: Rnn | Hdp) -> Rule:
    from loadmaster.learn.recurrent.reinforce import Rule

    return Rule(rate=settings.rate, samples=settings.samples, entropy=settings.entropy, root=settings.root)


def check_counts(settings: object, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise InvalidSetting(f"{name}={getattr(settings, name)}", type(settings).__name__.lower(), "give 1 or more")


def with_torch() -> None:
    """Tells what to install where there is no torch."""
    try:
        import safetensors
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
    assert safetensors
