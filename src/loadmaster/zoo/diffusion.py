"""The U-Net of denoising diffusion (Ho, Jain and Abbeel 2020, arXiv 2006.11239, appendix B)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.zoo.pieces import Model, images

DIFFUSION_STEPS = 1000


def norm(channels: int) -> nn.Module:
    return nn.GroupNorm(32, channels, eps=1e-6)


class Residual(nn.Module):
    """Two convolutions; the time embedding is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Sequential(norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.from_time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        last = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.second = nn.Sequential(norm(outputs), nn.SiLU(), nn.Dropout(dropout), last)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.from_time(time)[:, :, None, None]
        out: Tensor = self.shortcut(x) + self.second(hidden)
        return out


class Attention(nn.Module):
    """One head over all positions of the map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.query = nn.Conv2d(channels, channels, 1)
        self.key = nn.Conv2d(channels, channels, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        query, key, value = (part(h).flatten(2) for part in (self.query, self.key, self.value))
        scores = torch.bmm(query.transpose(1, 2), key) * x.shape[1] ** -0.5
        mixed = torch.bmm(value, torch.softmax(scores, dim=-1).transpose(1, 2))
        out: Tensor = x + self.out(mixed.view_as(x))
        return out


class ResolutionStage(nn.Module):
    """A residual block, with attention after it at one resolution."""

    def __init__(self, inputs: int, outputs: int, time: int, dropout: float, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(inputs, outputs, time, dropout)
        self.attention = Attention(outputs) if attends else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = self.attention(self.residual(x, time))
        return out


class Upsample(nn.Module):
    """Twice as high and wide, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


class Downsample(nn.Conv2d):
    """A strided convolution padded on the right and below only, as the authors' framework does."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


class TimeEmbedding(nn.Module):
    """Sinusoids of the diffusion step, then two dense layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))

    def forward(self, step: Tensor) -> Tensor:
        half = self.width // 2
        scale = -math.log(10_000) / (half - 1)
        angle = step[:, None] * torch.exp(torch.arange(half, device=step.device) * scale)
        out: Tensor = self.dense(torch.cat([angle.sin(), angle.cos()], dim=1))
        return out


class UNet(nn.Module):
    """Residual blocks and attention down to a small image and up again, with what was there on the way down."""

    def __init__(self, size: int, width: int, factors: tuple[int, ...], blocks: int, dropout: float) -> None:
        super().__init__()
        self.time = TimeEmbedding(width)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, channels, time = [width], width, 4 * width
        for level, factor in enumerate(factors):
            for _ in range(blocks):
                self.down.append(ResolutionStage(channels, factor * width, time, dropout, size >> level == 16))
                channels = factor * width
                kept.append(channels)
            if level < len(factors) - 1:
                self.down.append(Downsample(channels))
                kept.append(channels)
        self.middle_in = ResolutionStage(channels, channels, time, dropout, attends=True)
        self.middle_out = ResolutionStage(channels, channels, time, dropout, attends=False)
        for level, factor in reversed(list(enumerate(factors))):
            for _ in range(blocks + 1):
                self.up.append(
                    ResolutionStage(channels + kept.pop(), factor * width, time, dropout, size >> level == 16)
                )
                channels = factor * width
            if level:
                self.up.append(Upsample(channels))
        self.leave = nn.Sequential(norm(channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, noisy: Tensor, step: Tensor, noise: Tensor | None = None) -> Tensor:
        time = self.time(step)
        x = self.enter(noisy)
        kept = [x]
        for module in self.down:
            x = module(x, time) if isinstance(module, ResolutionStage) else module(x)
            kept.append(x)
        x = self.middle_out(self.middle_in(x, time), time)
        for module in self.up:
            x = module(torch.cat([x, kept.pop()], dim=1), time) if isinstance(module, ResolutionStage) else module(x)
        predicted: Tensor = self.leave(x)
        return predicted if noise is None else F.mse_loss(predicted, noise)  # equation 14


def unet(
    training: bool, batch: int, size: int, factors: tuple[int, ...], width: int = 128, blocks: int = 2,
    dropout: float = 0.0,
) -> Model:  # fmt: skip
    module = UNet(size, width, factors, blocks, dropout).train(training)
    noisy, step = images(batch, size), torch.randint(0, DIFFUSION_STEPS, (batch,))
    return module, (noisy, step, torch.randn_like(noisy)) if training else (noisy, step)
