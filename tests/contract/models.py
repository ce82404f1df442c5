"""The small net that most cases change in one place, and its batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 6


class Net(nn.Module):
    """Two layers, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


class Dropping(nn.Module):
    """With dropout."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(WIDTH, 8), nn.Dropout(p), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.relu(self.first(x)))).square().mean()


def batches(*shape: int) -> list[tuple[Tensor]]:
    """Three of them."""
    return [(torch.randn(*(shape or (4, WIDTH))),) for _ in range(3)]


def words(steps: int = 5) -> list[tuple[Tensor]]:
    return [(torch.randint(0, 20, (2, steps)),) for _ in range(3)]
