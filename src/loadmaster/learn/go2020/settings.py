"""How GO is trained, and where a run stands.

Settings are what `loadmaster train go` takes; the state is what a checkpoint keeps beside the weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from loadmaster.errors import InvalidSetting
from loadmaster.learn.go2020.network import TASKS, NetworkShape
from loadmaster.papers import training

ONE_OF = {"pooling": ("max", "sum"), "choice": ("body", "sage")}


@dataclass(frozen=True)
class GoSettings(training.TrainingSettings):
    """How to train. Steps and examples are counts; shares are of the minutes, if any are given.

    Attributes:
        warm: examples with elites; 0: no warm start, PPO from random weights.
        cold: examples without elites, where there is no warm start.
        elite_simulations: of each search that improves a candidate.
        valid_simulations: of the long classical run that validation is measured against.
        graphs: per step.
        samples: plans per graph and step.
        imitate: weight of imitation while reinforcing.
    """

    policy: str = "go"
    tasks: str = "placement,schedule"
    warm: int = 20_000
    cold: int = 800
    elite_simulations: int = 700
    valid_simulations: int = 1_500
    gather_share: float = 0.25
    fit_share: float = 0.85
    fit_steps: int = 12_000
    steps: int = 100_000
    graphs: int = 16
    samples: int = 12
    groups: int = 1024
    hidden: int = 96
    layers: int = 2
    attention: bool = True
    modulation: bool = True
    pooling: str = "max"
    choice: str = "body"
    valid_graphs: int = 64
    valid_every: int = 60
    fit_valid_every: int = 400
    fit_rate: float = 1e-3
    rate: float = 2e-4
    epochs: int = 2
    clip: float = 0.2
    entropy: float = 0.003
    imitate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.wanted or any(task not in TASKS for task in self.wanted):
            raise InvalidSetting(f"tasks '{self.tasks}'", "", f"give some of {', '.join(TASKS)}")
        for name, known in ONE_OF.items():
            if getattr(self, name) not in known:
                raise InvalidSetting(f"{name} '{getattr(self, name)}'", "", f"give {' or '.join(known)}")
        if self.samples < 2:
            raise InvalidSetting("fewer than 2 samples per graph", "", "rewards are compared within a graph")

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(task.strip() for task in self.tasks.split(",") if task.strip())

    @property
    def processes(self) -> int:
        return max(1, self.workers or os.cpu_count() or 1)

    @property
    def shape(self) -> NetworkShape:
        return NetworkShape(
            hidden=self.hidden,
            layers=self.layers,
            tasks=self.wanted,
            attention=self.attention,
            modulation=self.modulation,
            pooling=self.pooling,
            choice=self.choice,
        )


@dataclass
class GoState:
    """Where training stands, besides the weights.

    Attributes:
        elites: how many examples were looked at.
        at: where the exported weights come from.
    """

    phase: str = "fit"
    step: int = 0
    elites: int = 0
    best: float = -1e9
    results: dict[str, float] = field(default_factory=dict)
    at: str = ""
