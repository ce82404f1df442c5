"""Controls: policies with the same decisions, samples and learning rule as a paper's network, which read no graph.

What a network adds is its result less that of `Constant`; what any learning adds, less that of `Even`. An untrained
network that never learns is the method itself with rate=0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Constant(nn.Module):
    """The same chances for every group: one score for each device, learned; or, as "random", none."""

    def __init__(self, able: Tensor, learns: bool = True) -> None:
        super().__init__()
        self.able = able  # [groups, devices]
        self.scores = nn.Parameter(torch.zeros(able.shape[1]), requires_grad=learns)

    def logits(self) -> Tensor:
        """[groups, devices] log-chances."""
        return masked(self.scores.expand(self.able.shape), self.able)

    @torch.no_grad()
    def draw(self, noise: Tensor) -> Tensor:
        """[samples, groups] devices: the largest log-chance plus noise [samples, groups, devices] wins."""
        return (self.logits() + noise).argmax(dim=2)

    def log_chances(self, device: Tensor) -> Tensor:
        """[samples, groups, devices] of all devices, beside placements that were drawn."""
        return self.logits().expand(len(device), -1, -1)


def masked(scores: Tensor, able: Tensor) -> Tensor:
    """Log-chances of the devices that can run a group."""
    chances: Tensor = scores.masked_fill(~able, -1e9).log_softmax(dim=-1)
    return chances


def picked(chances: Tensor, device: Tensor) -> Tensor:
    """[samples] log-probability of the devices [samples, groups] under log-chances [samples, groups, devices]."""
    return chances.gather(2, device[:, :, None])[:, :, 0].sum(dim=1)
