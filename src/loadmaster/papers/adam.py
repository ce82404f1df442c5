"""Adam for short learning on one problem."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Adam:
    """Kingma and Ba 2015, arXiv 1412.6980. Torch's own loads its compiler at first use, which takes seconds of a budget
    that has but few."""

    def __init__(self, parameters: Iterable[Tensor], rate: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.parameters, self.rate, self.betas, self.steps = list(parameters), rate, betas, 0
        self.means = [torch.zeros_like(each) for each in self.parameters]
        self.squares = [torch.zeros_like(each) for each in self.parameters]

    def descend(self, loss: Tensor, clip: float) -> None:
        """A step along the gradient of the loss, whose norm is clipped."""
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, clip)
        self.steps += 1
        first, second = self.betas
        scale, root = 1 - first**self.steps, (1 - second**self.steps) ** 0.5
        with torch.no_grad():
            for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
                if parameter.grad is not None:
                    mean.lerp_(parameter.grad, 1 - first)
                    square.mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                    parameter.addcdiv_(mean, (square.sqrt() / root).add_(1e-8), value=-self.rate / scale)
