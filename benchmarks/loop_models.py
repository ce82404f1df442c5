"""Models for `loop_gpu`, written as users write them: a module that returns its loss, a batch and a precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
PLACE = "cuda" if GPU else "cpu"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int = 0) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups or heads, width // heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.both = nn.Linear(width, 2 * self.groups * self.size)

    def forward(self, x: Tensor, other: Tensor | None = None, causal: bool = False, turn: Any = None) -> Tensor:
        other = x if other is None else other
        query = self.query(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        key, value = self.both(other).unflatten(-1, (2, self.groups, self.size)).permute(2, 0, 3, 1, 4)
        if turn is not None:
            query, key = turn(query), turn(key)
        if self.groups != self.heads:
            key, value = (part.repeat_interleave(self.heads // self.groups, 1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Perceptron(nn.Sequential):
    def __init__(self, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(width, inner), nn.GELU(), nn.Dropout(dropout), nn.Linear(inner, width))


class ViT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, 196, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mixes = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.inner = nn.ModuleList(Perceptron(width, 4 * width, 0.1) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.cut(image).flatten(2).transpose(1, 2) + self.places
        for number, (mix, inner) in enumerate(zip(self.mixes, self.inner, strict=True)):
            x = x + mix(self.norms[2 * number](x))
            x = x + inner(self.norms[2 * number + 1](x))
        return F.cross_entropy(self.head(x.mean(1)).float(), label)


class Swirl:
    """Rotary positions."""

    def __init__(self, length: int, size: int) -> None:
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        self.cos, self.sin = angle.cos().to(PLACE), angle.sin().to(PLACE)

    def __call__(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, a * self.sin + b * self.cos), -1).to(x.dtype)


class Grouped(nn.Module):
    """A decoder with grouped queries, rotary positions and gated layers."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.mixes = nn.ModuleList(Attention(width, heads, heads // 4) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, 6 * width, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(3 * width, width, bias=False) for _ in range(layers))
        self.turn = Swirl(length, width // heads)

    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        x = self.words(words)
        for number, mix in enumerate(self.mixes):
            x = x + mix(self.norms[2 * number](x), causal=True, turn=self.turn)
            gate, up = self.gates[number](self.norms[2 * number + 1](x)).chunk(2, -1)
            x = x + self.downs[number](F.silu(gate) * up)
        return F.cross_entropy(self.head(self.norms[-1](x)).flatten(0, 1).float(), wanted.flatten())


class Scan(nn.Module):
    """A gated linear recurrence over time as in state-space models, by a cumulative sum in log space."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width) for _ in self.norms)
        self.back = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        x = self.words(words)
        for norm, wide, local, back in zip(self.norms, self.wide, self.local, self.back, strict=True):
            value, step, gate = wide(norm(x)).chunk(3, -1)
            value = F.silu(local(value.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            decay = F.softplus(step.float()).clamp(max=2.0) / 32
            total = decay.cumsum(1)
            state = (value * decay * (total - total[:, -1:]).exp()).cumsum(1) * (total[:, -1:] - total).exp()
            x = x + back(state.to(value.dtype) * F.silu(gate))
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), wanted.flatten())


class Translator(nn.Module):
    """An encoder and a decoder with cross attention."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width), nn.Dropout(0.1)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(5 * layers))
        self.mixes = nn.ModuleList(Attention(width, heads) for _ in range(3 * layers))
        self.inner = nn.ModuleList(Perceptron(width, 4 * width, 0.1) for _ in range(2 * layers))
        self.layers = layers

    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        norm, mix, inner = iter(self.norms), iter(self.mixes), iter(self.inner)
        x = self.drop(self.words(words))
        for _ in range(self.layers):
            x = x + self.drop(next(mix)(next(norm)(x)))
            x = x + self.drop(next(inner)(next(norm)(x)))
        y = self.drop(self.words(wanted[:, :-1]))
        for _ in range(self.layers):
            y = y + self.drop(next(mix)(next(norm)(y), causal=True))
            y = y + self.drop(next(mix)(next(norm)(y), x))
            y = y + self.drop(next(inner)(next(norm)(y)))
        return F.cross_entropy(F.linear(y, self.words.weight).flatten(0, 1).float(), wanted[:, 1:].flatten())


class Turned(nn.Module):
    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, ins), nn.SiLU(), nn.Conv2d(ins, outs, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, outs), nn.SiLU(), nn.Conv2d(outs, outs, 3, padding=1))
        self.short = nn.Conv2d(ins, outs, 1) if ins != outs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.second(self.first(x))


class UNet(nn.Module):
    """Predicts the noise in an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        a, b, c = width, 2 * width, 4 * width
        self.enter, self.leave = nn.Conv2d(3, a, 3, padding=1), nn.Conv2d(a, 3, 3, padding=1)
        self.down = nn.ModuleList([Turned(a, a), Turned(a, b), Turned(b, c)])
        self.middle, self.mix = Turned(c, c), Attention(c, 4)
        self.up = nn.ModuleList([Turned(2 * c, b), Turned(2 * b, a), Turned(2 * a, a)])

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        x, kept = self.enter(image + noise), []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        x = x + self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])
        for layer in self.up:
            x = layer(torch.cat((F.interpolate(x, scale_factor=2.0), kept.pop()), 1))
        return F.mse_loss(self.leave(x).float(), noise)


class Residual(nn.Module):
    """Bottlenecks with batch norm."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = (1, 2, 4)
        self.stem = nn.Conv2d(3, 4 * width, 7, 4, 3)
        self.parts = nn.ModuleList()
        for number, size in enumerate(sizes):
            before = 4 * width * (sizes[number - 1] if number else 1)
            self.parts.append(nn.Conv2d(before, 4 * width * size, 1, 1 + (number > 0)))
            self.parts.extend(self._bottleneck(width * size) for _ in range(depth))
        self.head = nn.Linear(16 * width, 1000)

    @staticmethod
    def _bottleneck(width: int) -> nn.Sequential:
        def normed(*size: Any) -> tuple[nn.Module, ...]:
            return nn.Conv2d(*size, bias=False), nn.BatchNorm2d(size[1])

        first, second = normed(4 * width, width, 1), normed(width, width, 3, 1, 1)
        return nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *normed(width, 4 * width, 1))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.stem(image)
        for part in self.parts:
            x = F.relu(x + part(x)) if isinstance(part, nn.Sequential) else part(x)
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), label)


class Mixer(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, width, 16, 16), nn.Linear(width, 1000)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.places = nn.ModuleList(Perceptron(196, 384) for _ in range(layers))
        self.inner = nn.ModuleList(Perceptron(width, 4 * width) for _ in range(layers))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.cut(image).flatten(2).transpose(1, 2)
        for number, (places, inner) in enumerate(zip(self.places, self.inner, strict=True)):
            x = x + places(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + inner(self.norms[2 * number + 1](x))
        return F.cross_entropy(self.head(x.mean(1)), label)


class Conformer(nn.Module):
    """Speech frames: half a perceptron, attention, a gated convolution, half a perceptron; a word for each frame."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(80, width), nn.Linear(width, words)
        self.halves = nn.ModuleList(Perceptron(width, 4 * width, 0.1) for _ in range(2 * layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5 * layers))
        self.mixes = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.time = nn.ModuleList(nn.Conv1d(width, width, 15, padding=7, groups=width) for _ in range(layers))
        self.back = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, frames: Tensor, wanted: Tensor) -> Tensor:
        norm, half, x = iter(self.norms), iter(self.halves), self.enter(frames)
        for mix, wide, time, back in zip(self.mixes, self.wide, self.time, self.back, strict=True):
            x = x + 0.5 * next(half)(next(norm)(x))
            x = x + mix(next(norm)(x))
            inner = F.glu(wide(next(norm)(x)))
            x = x + back(F.silu(time(inner.transpose(1, 2)).transpose(1, 2)))
            x = x + 0.5 * next(half)(next(norm)(x))
            x = next(norm)(x)
        return F.cross_entropy(self.head(x).flatten(0, 1).float(), wanted.flatten())


class Windows(nn.Module):
    """Attention within windows of 7 by 7 patches, shifted every other layer."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 1000)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mixes = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.inner = nn.ModuleList(Perceptron(width, 4 * width) for _ in range(layers))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.cut(image).permute(0, 2, 3, 1)
        rows, side = len(x), x.shape[1] // 7
        for number, (mix, inner) in enumerate(zip(self.mixes, self.inner, strict=True)):
            y = self.norms[2 * number](x)
            y = y.roll((-3, -3), (1, 2)) if number % 2 else y
            y = y.unflatten(1, (side, 7)).unflatten(3, (side, 7)).transpose(2, 3).flatten(0, 2).flatten(1, 2)
            y = mix(y).unflatten(1, (7, 7)).unflatten(0, (rows, side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
            x = x + (y.roll((3, 3), (1, 2)) if number % 2 else y)
            x = x + inner(self.norms[2 * number + 1](x))
        return F.cross_entropy(self.head(x.mean((1, 2))).float(), label)


class SoftExperts(nn.Module):
    """Each expert sees weighted means of all patches."""

    def __init__(self, layers: int, width: int, heads: int, experts: int, slots: int) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, width, 14, 14), nn.Linear(width, 1000)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mixes = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.keys = nn.ParameterList(torch.randn(width, experts, slots) / width**0.5 for _ in range(layers))
        self.up = nn.ParameterList(torch.randn(experts, width, 2 * width) / width**0.5 for _ in range(layers))
        self.down = nn.ParameterList(torch.randn(experts, 2 * width, width) / width**0.5 for _ in range(layers))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.cut(image).flatten(2).transpose(1, 2)
        for number, (mix, keys) in enumerate(zip(self.mixes, self.keys, strict=True)):
            x = x + mix(self.norms[2 * number](x))
            y = self.norms[2 * number + 1](x)
            score = torch.einsum("bnd,des->bnes", y, keys).float()
            given = torch.einsum("bnd,bnes->besd", y, score.softmax(1).to(y.dtype))
            made = torch.einsum("besd,edh->besh", given, self.up[number].to(y.dtype))
            made = torch.einsum("besh,ehd->besd", F.gelu(made), self.down[number].to(y.dtype))
            x = x + torch.einsum("besd,bnes->bnd", made, score.flatten(2).softmax(2).view_as(score).to(made.dtype))
        return F.cross_entropy(self.head(x.mean(1)).float(), label)


class Pairs(nn.Module):
    """A graph network over all pairs of nodes, with gated messages and edges that are updated."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.node, self.edge, self.head = nn.Linear(32, width), nn.Linear(8, width), nn.Linear(width, 1)
        self.sides = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.between = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x, e = self.node(nodes), self.edge(edges)
        for number, (sides, between) in enumerate(zip(self.sides, self.between, strict=True)):
            left, right, message = sides(x).chunk(3, -1)
            e = e + F.relu(self.norms[2 * number](between(e) + left[:, :, None] + right[:, None]))
            gate = e.sigmoid()
            x = x + F.relu(self.norms[2 * number + 1]((gate * message[:, None]).sum(2) / (gate.sum(2) + 1e-3)))
        return F.mse_loss(self.head(x.mean(1)).float()[:, 0], nodes.mean((1, 2)))


def images(count: int, size: int = 224) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(0, 1000, (count,))


def texts(count: int, length: int, words: int = 32000) -> tuple[Tensor, Tensor]:
    return torch.randint(0, words, (count, length)), torch.randint(0, words, (count, length))


def case_of(name: str, toy: bool) -> tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], str]:
    """A model, a batch and the precision; "mixer-fp32" is one in another precision than bf16."""
    t = toy
    noise = torch.randn(2 if t else 96, 3, *((16, 16) if t else (64, 64)))
    cases: dict[str, Any] = {
        "gqa": (lambda: Grouped(*((2, 64, 8, 512, 64) if t else (6, 1024, 16, 16000, 1024))), "bf16"),
        "vit": (lambda: ViT(*((2, 64, 4) if t else (6, 576, 9))), "bf16"),
        "unet": (lambda: UNet(8 if t else 96), "bf16"),
        "cnn": (lambda: Residual(*((4, 1) if t else (64, 3))), "fp32"),
        "translator": (lambda: Translator(*((1, 64, 4, 512) if t else (3, 512, 8, 8000))), "bf16"),
        "scan": (lambda: Scan(*((1, 32, 512) if t else (4, 512, 8000))), "bf16"),
        "mixer": (lambda: Mixer(*((1, 64) if t else (6, 512))), "bf16"),
        "conformer": (lambda: Conformer(*((1, 64, 4, 512) if t else (6, 384, 6, 4000))), "bf16"),
        "windows": (lambda: Windows(*((2, 32, 2) if t else (6, 192, 6))), "bf16"),
        "experts": (lambda: SoftExperts(*((1, 64, 4, 4, 8) if t else (5, 384, 6, 16, 16))), "bf16"),
        "pairs": (lambda: Pairs(*((2, 32) if t else (6, 128))), "bf16"),
    }
    batches: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "gqa": lambda: texts(*((2, 64, 512) if t else (8, 1024, 16000))),
        "vit": lambda: images(2 if t else 128),
        "unet": lambda: (torch.randn_like(noise), noise),
        "cnn": lambda: images(2 if t else 96),
        "translator": lambda: texts(*((2, 32, 512) if t else (48, 384, 8000))),
        "scan": lambda: texts(*((2, 32, 512) if t else (16, 1024, 8000))),
        "mixer": lambda: images(2 if t else 256),
        "conformer": lambda: (
            torch.randn(*((2, 64, 80) if t else (32, 800, 80))),
            texts(*((2, 64, 512) if t else (32, 800, 4000)))[1],
        ),
        "windows": lambda: images(*((2, 56) if t else (48, 224))),
        "experts": lambda: images(*((2, 56) if t else (128, 224))),
        "pairs": lambda: (
            torch.randn(*((2, 16, 32) if t else (32, 96, 32))),
            torch.randn(*((2, 16, 16, 8) if t else (32, 96, 96, 8))),
        ),
    }
    name, _, full = name.partition("-")
    make, precision = cases[name]
    return make, batches[name](), full or precision
