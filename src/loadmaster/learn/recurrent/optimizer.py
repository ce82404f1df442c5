"""Recurrent: the settings that both recurrent methods have, and how they learn on one graph.

A method adds what its units and its policy are; drawing, measuring, learning and keeping the best is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.graph.columns import Ints
from loadmaster.optimizers.simple import OneDevice
from loadmaster.papers.environment import Order, Simulated
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.learn.recurrent.reinforce import LearningRule


@dataclass(frozen=True)
class Recurrent:
    """A network that draws placements of one graph, measures them, and learns by policy gradient until the budget is
    spent.

    Attributes:
        POLICY: its name for `loadmaster train`.
        COUNTS: settings of 1 or more.
        TRAINED: settings that a checkpoint decides.
        checkpoint: weights to go on from, for as many devices: a .safetensors file of `loadmaster train`.
        root: learn by the root of the step time.
        noise: of the measured times, as deviation of their logarithm.
        failures: chance that a measurement fails.
        samples: placements per step.
        entropy: at first, as a share of that of even choices.
        workers: threads that measure for each of several controllers.
    """

    POLICY: ClassVar[str] = ""
    COUNTS: ClassVar[tuple[str, ...]] = ("samples", "hidden", "controllers", "workers")
    TRAINED: ClassVar[tuple[str, ...]] = ()

    checkpoint: str = ""
    order: Order = "critical"
    root: bool = True
    noise: float = 0.0
    failures: float = 0.0
    samples: int = 16
    hidden: int = 64
    rate: float = 3e-3
    entropy: float = 0.9
    controllers: int = 1
    workers: int = 1
    over: Literal["processes", "ray"] = "processes"

    def __post_init__(self) -> None:
        for name in self.COUNTS:
            if getattr(self, name) < 1:
                raise InvalidSetting(f"{name}={getattr(self, name)}", self.POLICY, "give 1 or more")

    def label_of(self, problem: Problem) -> Ints:
        """[ops] what is placed together."""
        raise NotImplementedError

    def policy_of(self, problem: Problem, label: Ints, seed: int) -> Any:
        """The network, as the seed makes it or with the checkpoint's weights."""
        raise NotImplementedError

    def optimize(self, search: Search) -> Plan:
        """One device's plan is scored first and kept where nothing beats it."""
        first = OneDevice().optimize(search)
        if search.problem.num_devices == 1:
            return first
        with_torch()
        from loadmaster.learn.recurrent.controllers import run

        if search.simulations_left:
            search.score(first)
        trained = self.as_trained()
        label = trained.label_of(search.problem)
        policy = trained.policy_of(search.problem, label, search.seed)
        environment = Simulated(search, label, self.order, self.noise, self.failures)
        run(environment, policy, self.rule, bool(self.checkpoint), self.controllers, self.workers, self.over)
        return search.best or first

    def as_trained(self) -> Self:
        """With the settings that the checkpoint was trained with, if there is one."""
        if not self.checkpoint:
            return self
        from loadmaster.learn.recurrent.weights import settings_from

        return settings_from(self, self.POLICY, self.TRAINED)

    @property
    def rule(self) -> LearningRule:
        from loadmaster.learn.recurrent.reinforce import LearningRule

        return LearningRule(rate=self.rate, samples=self.samples, entropy=self.entropy, root=self.root)


def with_torch() -> None:
    """Tells what to install where there is no torch."""
    try:
        import safetensors
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
    assert safetensors
