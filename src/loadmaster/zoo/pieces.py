"""What the model files share: the type of a built model, example inputs, losses, convolution blocks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Model = tuple[nn.Module, tuple[Tensor, ...]]
Pair = int | tuple[int, int]


def tokens(batch: int, steps: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, steps))


def images(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def classifier(make: Callable[[], nn.Module], training: bool, batch: int, size: int, classes: int) -> Model:
    """An image model with its inputs: it returns the loss when it is given the targets, else the logits."""
    module = make().train(training)
    x = images(batch, size)
    return module, (x, torch.randint(0, classes, (batch,))) if training else (x,)


class ConvNorm(nn.Module):
    """Convolution without bias, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Pair, stride: int = 1, padding: Pair = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Auxiliary(nn.Module):
    """The side classifier of Inception-V3 (arXiv 1512.00567, section 4) and NASNet; its loss weighs 0.4."""

    def __init__(self, inputs: int, size: int, classes: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.reduce = ConvNorm(inputs, 128, 1)
        self.widen = ConvNorm(128, 768, (size - 5) // 3 + 1)
        self.head = nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.widen(self.reduce(self.pool(x))).flatten(1))
        return logits
