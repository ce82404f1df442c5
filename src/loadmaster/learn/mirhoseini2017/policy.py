"""The policy of Mirhoseini 2017: the placer over groups that are given.

`RnnPolicy` is what `recurrent.reinforce` asks of a policy: draws, their likelihoods and how fast its parameters learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.graph.columns import ints
from loadmaster.learn.recurrent.reinforce import Drawn, Likelihood
from loadmaster.learn.recurrent.seq2seq import Placer, PlacerShape, Scene, gumbel, moved


class RnnPolicy(nn.Module):
    """Draws a device for each group of one scene."""

    def __init__(self, scene: Scene, hidden: int = 128) -> None:
        super().__init__()
        self.scene = scene
        self.placer = Placer(shape_of(scene, hidden))

    def move(self, device: torch.device) -> None:
        self.scene = moved(self.scene, device)
        self.to(device)

    @property
    def num_choices(self) -> int:
        return self.scene.num_groups

    def rates(self, rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters()), "lr": rate}]

    def draw(self, samples: int, rng: np.random.Generator, share: float, greedy: bool = False) -> Drawn:
        shape = (samples, self.scene.num_groups, self.scene.num_devices)
        noise = torch.zeros(shape) if greedy else gumbel(rng, *shape)
        picks, so_far = self.placer.draw(self.scene, noise.to(self.scene.vectors.device))
        return Drawn(ints(picks.cpu().numpy()), (picks, so_far))

    def likelihood(self, drawn: Drawn) -> Likelihood:
        picks, so_far = drawn.choices
        chances = self.placer.logits(self.scene, picks, so_far)
        return Likelihood(chance_of(chances, picks), entropy_of(chances), picks.shape[1] * np.log(chances.shape[2]))


def chance_of(chances: Tensor, picks: Tensor) -> Tensor:
    """[samples] log-probability of all picks together."""
    return chances.gather(2, picks[:, :, None])[:, :, 0].sum(dim=1)


def entropy_of(chances: Tensor) -> Tensor:
    """Of all choices together, mean over samples."""
    return -(chances.exp() * chances).sum(dim=(1, 2)).mean()


def shape_of(scene: Scene, hidden: int, both_ways: bool = False) -> PlacerShape:
    full = scene.full
    widths = (full.devices.shape[1], full.pairs.shape[2]) if full else (0, 0)
    return PlacerShape(scene.vectors.shape[2], scene.num_devices, hidden, both_ways, *widths)
