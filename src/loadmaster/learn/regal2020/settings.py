"""How REGAL's policies are trained, as `loadmaster train regal` and `train gas` take it: graphs, steps, rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from loadmaster.errors import InvalidSetting
from loadmaster.learn.regal2020.networks import BODIES, Kind
from loadmaster.papers import training

NETWORKS: dict[str, Kind] = {"regal": "both", "gas": "sequence"}


@dataclass(frozen=True)
class RegalSettings(training.TrainingSettings):
    """How to train. Steps and examples are counts.

    Attributes:
        network: graph, sequence or both; empty: what the policy is.
        folds: keep one of so many parts of the corpus apart, alike graphs together.
        fold: which.
        generated: generated graphs beside those of the corpus.
        warm: examples with elites.
        gather_share: of the minutes, if any are given: when gathering ends.
        fit_share: when imitation ends.
        fit_look: steps between two looks at the fold that is kept apart.
        decay: of the weights, as in AdamW.
        average: of the weights that are kept: how much of them stays in a step; 0: the last ones.
        graphs: per step.
        samples: actions per graph and step.
        evaluations: of a rollout.
        epochs: passes over a step's samples (PPO)
        imitate: weight of imitation while reinforcing.
    """

    policy: str = "regal"
    network: str = ""
    folds: int = 0
    fold: int = 0
    generated: int = 100
    warm: int = 4_000
    elite_simulations: int = 8_000
    gather_share: float = 0.42
    fit_share: float = 0.58
    fit_steps: int = 3_000
    fit_look: int = 250
    dropout: float = 0.1
    decay: float = 0.01
    average: float = 0.995
    steps: int = 1_000
    graphs: int = 16
    samples: int = 8
    evaluations: int = 1_000
    valid_graphs: int = 24
    valid_evaluations: int = 5_000
    valid_every: int = 20
    fit_rate: float = 1e-3
    rate: float = 3e-4
    epochs: int = 3
    clip: float = 0.2
    entropy: float = 0.01
    imitate: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy not in NETWORKS:
            raise InvalidSetting(f"policy '{self.policy}' is unknown", "", f"use one of {', '.join(NETWORKS)}")
        if self.network not in ("", *BODIES):
            raise InvalidSetting(f"network '{self.network}' is unknown", "", f"use one of {', '.join(BODIES)}")
        if self.folds < 0 or self.folds == 1 or not 0 <= self.fold < max(1, self.folds):
            raise InvalidSetting(
                f"fold {self.fold} of {self.folds}", "", "give 2 folds or more, and one of them from 0"
            )
        if self.samples < 2:
            raise InvalidSetting(
                "fewer than 2 samples per graph", "", "rewards are compared within a graph: give 2 or more"
            )

    @property
    def kind(self) -> Kind:
        """Of the network."""
        return cast(Kind, self.network) if self.network else NETWORKS[self.policy]
