"""WaveNet: stacks of dilated causal convolutions over raw audio (van den Oord et al. 2016, arXiv 1609.03499)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.zoo.pieces import Model, tokens


class CausalConv(nn.Conv1d):
    """A convolution of two taps that sees the present and one past sample (section 2.1)."""

    def __init__(self, inputs: int, outputs: int, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, 2, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.dilation[0], 0)))


class GatedLayer(nn.Module):
    """tanh times sigmoid, then a residual and a skip connection (sections 2.3 and 2.4, figure 4)."""

    def __init__(self, residual: int, gate: int, skip: int, dilation: int, last: bool) -> None:
        super().__init__()
        self.dilated = CausalConv(residual, 2 * gate, dilation)
        self.to_residual = None if last else nn.Conv1d(gate, residual, 1)  # only the skip of the last layer is read
        self.to_skip = nn.Conv1d(gate, skip, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        content, gate = self.dilated(x).chunk(2, dim=1)
        gated = torch.tanh(content) * torch.sigmoid(gate)
        return x if self.to_residual is None else x + self.to_residual(gated), self.to_skip(gated)


class WaveNet(nn.Module):
    """Dilations double from 1 within each stack; the skips of all layers make the output."""

    def __init__(self, stacks: int, layers: int, residual: int, gate: int, skip: int, levels: int) -> None:
        super().__init__()
        self.levels = levels
        self.enter = CausalConv(levels, residual)
        depth = layers // stacks
        last = [i == layers - 1 for i in range(layers)]
        self.layers = nn.ModuleList(GatedLayer(residual, gate, skip, 2 ** (i % depth), last[i]) for i in range(layers))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1))

    def forward(self, samples: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.enter(F.one_hot(samples, self.levels).to(self.enter.weight.dtype).transpose(1, 2))
        total: Tensor | None = None
        for layer in self.layers:
            x, skip = layer(x)
            total = skip if total is None else total + skip
        logits: Tensor = self.head(total)
        return logits if targets is None else F.cross_entropy(logits, targets)


def wavenet(
    training: bool, stacks: int, layers: int, batch: int, steps: int, residual: int = 512, gate: int = 256,
    skip: int = 256, levels: int = 256,
) -> Model:  # fmt: skip
    """Channels are Parallel WaveNet's teacher's (arXiv 1711.10433); samples are 8-bit mu-law (section 2.2)."""
    samples = tokens(batch, steps, levels)
    module = WaveNet(stacks, layers, residual, gate, skip, levels).train(training)
    return module, (samples, samples.clone()) if training else (samples,)
