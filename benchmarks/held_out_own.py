"""Small models that do what captures get wrong: each with a weight or two, in a line or two."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

X, WIDE = (5, 4), (2, 3, 8, 8)
Made = tuple[nn.Module, tuple[Any, ...]]


class Cell(nn.Module):
    """A layer, whatever it is given besides, and a function as its forward pass."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **held: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.run = forward
        for name, value in held.items():
            if isinstance(value, Tensor) and name.startswith("buffer"):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _set(owner: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(owner, name, value)
    return owner


def _then(first: Any, second: Any) -> Any:
    return second


def in_place(write: Callable[[Tensor], Any]) -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        made = self.layer(x)
        write(made)
        return made.sum()

    return Cell(run)


def attribute(use: Callable[[Any, Tensor], Tensor], **held: Any) -> nn.Module:
    return Cell(lambda self, x: use(self, self.layer(x)).sum(), **held)


@dataclass
class Stats:
    calls: int = 0
    seen: list[Any] = field(default_factory=list)

    def note(self, value: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(value)
        return value


class Slotted:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = torch.zeros(4)

    def keep(self, value: Tensor) -> Tensor:
        self.last = value.detach()
        return value


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.exp()


class Child(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)
        self.whole = [parent]

    def forward(self, x: Tensor) -> Tensor:
        parent: Any = self.parent()
        parent.calls += 1
        return parent.layer(x) + self.whole[0].layer(x)


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0
        self.child = Child(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x).sum()


class NoCopies(nn.Module):
    """Refuses to be copied, and holds what cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lock = nn.Linear(4, 4), threading.Lock()
        self.count = 0

    def __deepcopy__(self, memo: Any) -> NoCopies:
        raise RuntimeError("not to be copied")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("not to be pickled")

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            self.count += 1
            return self.layer(x).sum()


class ReadOnly(nn.Module):
    """Counts what is set on it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        object.__setattr__(self, "sets", 0)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "sets", getattr(self, "sets", 0) + 1)
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last.sum()


class Switches(nn.Module):
    """Overrides train() and goes on in another way after its first call, as some of transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.modes, self.sparse = nn.Linear(4, 4), nn.BatchNorm1d(4), [True], True

    def train(self, mode: bool = True) -> Switches:
        self.modes.append(mode)
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(self.layer(x))
        if self.sparse:
            self.sparse = False
            self.layer = nn.Identity()  # type: ignore[assignment]
        return made.sum()


class Registers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.add_module("extra", nn.ReLU())
        return (self.extra(self.layer(x)) * self.mask).sum()


class Tree(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(4, 4) if not depth else None
        self.parts = nn.ModuleList(Tree(depth - 1) for _ in range(2 if depth else 0))

    def forward(self, x: Tensor) -> Tensor:
        return self.leaf(x) if self.leaf is not None else sum(part(x) for part in self.parts)  # type: ignore[return-value]


def hooked(kind: str) -> nn.Module:
    module: Any = Cell(lambda self, x: self.layer(x).sum())
    seen: list[Any] = []
    module.seen = seen
    if kind == "forward":
        module.handle = module.layer.register_forward_hook(lambda layer, args, made: seen.append(made))
    elif kind == "pre":
        module.layer.register_forward_pre_hook(lambda layer, args: (args[0] * 2,))
    elif kind == "state":
        module.layer.register_forward_hook(lambda layer, args, made: setattr(layer, "last", made))
    elif kind == "method":
        module.note = types.MethodType(lambda self, layer, args, made: self.seen.append(made), module)
        module.layer.register_forward_hook(module.note)
    elif kind == "partial":
        module.layer.forward = functools.partial(lambda layer, x: F.linear(x, layer.weight) * 3, module.layer)
    return module


def grown() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].weight.grad = torch.ones(4, 4)
    module[1].requires_grad_(False)
    module[1].eval()
    return module


def tied(by: str) -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    if by == "weight":
        second.weight = first.weight
    elif by == "view":
        second.weight = nn.Parameter(first.weight.data.t())
    return nn.Sequential(first, second, *([first] if by == "module" else []))


def grid(module: nn.Module) -> Made:
    return module, (torch.randn(*WIDE),)


def row(module: nn.Module) -> Made:
    return module, (torch.randn(*X),)


@functools.lru_cache(8)
def table(size: int) -> Tensor:
    return torch.arange(size).float()


_WRITES: dict[str, Callable[[Tensor], Any]] = {
    "row": lambda k: k[0].zero_(), "column": lambda k: k.__setitem__((slice(None), 0), 0.0),
    "every-other": lambda k: k[:, ::2].mul_(2), "flat-tail": lambda k: k.view(-1)[3:].add_(1),
    "transposed": lambda k: k.t()[1].copy_(k[:, 0]), "strided": lambda k: k.as_strided((3,), (5,), 1).sub_(1),
    "masked": lambda k: k.masked_fill_(k > 0, 0.5), "indexed": lambda k: k.index_fill_(0, torch.tensor([1, 3]), 2.0),
    "diagonal": lambda k: k.diagonal().zero_(), "narrow": lambda k: k.narrow(1, 2, 2).tanh_(),
    "selected": lambda k: k.select(0, 2).mul_(3), "twice": lambda k: (k[1:].add_(1), k[:, 1:].mul_(2)),
    "scattered": lambda k: k.scatter_(1, torch.zeros(5, 1, dtype=torch.long), 1.0),
    "clamped": lambda k: k.clamp_(min=0).sqrt_(), "swapped": lambda k: k[[0, 1]].add_(1),
    "put": lambda k: k.index_put_((torch.tensor([0, 2]),), torch.ones(4)),
}  # fmt: skip

_HELD: dict[str, Callable[[], nn.Module]] = {
    "plain-tensor": lambda: attribute(lambda s, k: k * s.scale, scale=torch.rand(4)),
    "plain-reassigned": lambda: attribute(lambda s, k: _set(s, last=k).last, last=torch.zeros(4)),
    "plain-list": lambda: attribute(lambda s, k: _then(s.kept.append(k), k), kept=[torch.zeros(1)]),
    "plain-dict": lambda: attribute(
        lambda s, k: s.kept.setdefault("k", k) + s.kept["one"], kept={"one": torch.ones(4)}),
    "plain-ordered": lambda: attribute(lambda s, k: s.kept.setdefault("k", k), kept=OrderedDict(one=torch.ones(4))),
    "plain-default": lambda: attribute(lambda s, k: _then(s.kept["k"].append(k), k), kept=defaultdict(list)),
    "plain-deque": lambda: attribute(lambda s, k: _then(s.kept.append(k), k), kept=deque([torch.ones(1)], maxlen=2)),
    "plain-tuple": lambda: attribute(lambda s, k: k * s.kept[0] + s.kept[1][0], kept=(torch.ones(4), [torch.ones(4)])),
    "plain-named": lambda: attribute(lambda s, k: k * s.kept.a, kept=namedtuple("P", "a b")(torch.ones(4), 2)),
    "plain-set": lambda: attribute(lambda s, k: _then(s.kept.add(k.shape), k), kept={1, 2}),
    "plain-gradient": lambda: attribute(lambda s, k: k * s.kept, kept=torch.ones(4, requires_grad=True)),
    "plain-complex": lambda: attribute(lambda s, k: (k * s.kept).abs(), kept=torch.randn(4, dtype=torch.complex64)),
    "plain-alias": lambda: attribute(
        lambda s, k: k * s.kept[1:] * s.whole.sum(), kept=torch.ones(5), whole=torch.ones(5)),
    "numpy": lambda: attribute(lambda s, k: k * torch.from_numpy(s.kept), kept=np.ones(4, np.float32)),
    "numpy-random": lambda: attribute(lambda s, k: k * float(s.kept.random()), kept=np.random.default_rng(1)),
    "python-random": lambda: attribute(lambda s, k: k * s.kept.random(), kept=random.Random(2)),
    "global-random": lambda: attribute(lambda s, k: k * random.random() * np.random.rand()),
    "torch-seed": lambda: attribute(lambda s, k: _then(torch.manual_seed(3), k)),
    "counter": lambda: attribute(lambda s, k: k * _set(s, n=s.n + 1).n, n=0),
    "counter-tensor": lambda: attribute(lambda s, k: k * s.n.add_(1), n=torch.zeros(())),
    "counter-iterator": lambda: attribute(lambda s, k: k * next(s.n), n=itertools.count(1)),
    "cycle": lambda: attribute(lambda s, k: k * next(s.n), n=itertools.cycle([1.0, 2.0])),
    "object": lambda: attribute(lambda s, k: s.stats.note(k), stats=Stats()),
    "slots": lambda: attribute(lambda s, k: s.stats.keep(k), stats=Slotted()),
    "cached": lambda: attribute(lambda s, k: k * table(4)),
    "cached-own": lambda: attribute(lambda s, k: k * s.made(4), made=functools.lru_cache(4)(lambda n: torch.ones(n))),
    "buffer": lambda: attribute(lambda s, k: k * s.buffer, buffer=torch.rand(4)),
    "buffer-written": lambda: attribute(lambda s, k: k * s.buffer.add_(1), buffer=torch.zeros(4)),
    "buffer-slice": lambda: attribute(lambda s, k: _then(s.buffer[:2].add_(1), k * s.buffer), buffer=torch.zeros(4)),
    "buffer-reassigned": lambda: attribute(
        lambda s, k: k * _set(s, buffer=0.9 * s.buffer + 1).buffer, buffer=torch.zeros(4)),
    "buffer-twice": lambda: attribute(
        lambda s, k: k * s.buffer * s.buffer2, buffer=torch.ones(4), buffer2=torch.ones(4)),
    "weights-list": lambda: attribute(lambda s, k: k @ s.kept[0], kept=[nn.Parameter(torch.ones(4, 4))]),
    "weights-named": lambda: attribute(lambda s, k: k @ s.kept["a"], kept=nn.ParameterDict({"a": torch.ones(4, 4)})),
    "layers-list": lambda: attribute(lambda s, k: s.kept[0](k), kept=[nn.Linear(4, 4)]),
    "layers-listed": lambda: attribute(lambda s, k: s.kept[1](k), kept=nn.ModuleList([nn.Linear(4, 4)] * 2)),
    "lambda": lambda: attribute(lambda s, k: s.act(k), act=(lambda seen: lambda k: _then(seen.append(k), k))([])),
    "enumerated": lambda: attribute(lambda s, k: k * int(s.n.sum()), n=torch.tensor([1, 2])),
    "checkpointed": lambda: Cell(lambda s, x: checkpoint(s.layer, x, use_reentrant=False).sum()),
    "autograd-function": lambda: Cell(lambda s, x: Function.apply(s.layer(x)).sum()),
    "autocast": lambda: Cell(lambda s, x: _cast(s, x).float().sum()),
    "no-grad-part": lambda: Cell(lambda s, x: (s.layer(x) + torch.no_grad()(s.layer)(x)).sum()),
    "data": lambda: Cell(lambda s, x: (s.layer(x) * s.layer.weight.data.sum()).sum()),
    "einsum": lambda: Cell(lambda s, x: torch.einsum("bi,oi->bo", x, s.layer.weight).sum()),
    "fourier": lambda: Cell(lambda s, x: torch.fft.irfft(torch.fft.rfft(s.layer(x)) * 2).sum()),
    "sorted": lambda: Cell(lambda s, x: s.layer(x).sort(-1).values.cumsum(0).topk(2).values.sum()),
}  # fmt: skip


def _cast(module: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return module.layer(x)


def _complex() -> nn.Module:
    weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
    return Cell(lambda s, x: (s.weight @ x.to(torch.complex64).T).abs().sum(), weight=weight)


_ROWS: dict[str, Callable[[], nn.Module]] = {
    "shared-three": lambda: nn.Sequential(*[nn.Linear(4, 4)] * 3),
    "shared-attribute": lambda: _shared(),
    "tied-weight": lambda: tied("weight"), "tied-view": lambda: tied("view"), "tied-module": lambda: tied("module"),
    "hook-forward": lambda: hooked("forward"), "hook-pre": lambda: hooked("pre"), "hook-state": lambda: hooked("state"),
    "hook-method": lambda: hooked("method"), "hook-partial": lambda: hooked("partial"),
    "spectral": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "weight-norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "weight-norm-old": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    "spectral-old": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "parametrized": lambda: _parametrized(), "pruned": lambda: _pruned(),
    "complex": _complex, "parent": Parent, "no-copies": NoCopies, "set-counted": ReadOnly, "switches": Switches,
    "registers": Registers, "tree": lambda: Tree(3), "gradients": grown, "batch-norm": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.2)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(4)), "none-parameter": lambda: nn.Linear(4, 4, bias=False),
    "half": lambda: Cell(lambda s, x: s.layer(x).to(torch.bfloat16).sum()), "prelu": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.PReLU(), nn.RReLU(), nn.GLU()),
}  # fmt: skip

_GRIDS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    "conv-shared": lambda: nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1)] * 3),
    "conv-transposed": lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 4, 2, 2), nn.InstanceNorm2d(4), nn.Upsample(scale_factor=2)),
    "group-norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, groups=1), nn.GroupNorm(2, 4), nn.PixelShuffle(2)),
    "channels-last": lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
    "lazy-conv": lambda: nn.Sequential(nn.LazyConv2d(4, 3)),
    "pooled": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)),
}  # fmt: skip

_LINES: dict[str, Callable[[], Made]] = {
    "lstm": lambda: (nn.LSTM(4, 8, 2, bidirectional=True), (torch.randn(6, 2, 4),)),
    "lstm-projected": lambda: (nn.LSTM(4, 8, proj_size=3), (torch.randn(6, 2, 4),)),
    "gru": lambda: (nn.GRU(4, 8, 2, batch_first=True, dropout=0.1), (torch.randn(2, 6, 4),)),
    "lstm-cell": lambda: (nn.LSTMCell(4, 8), (torch.randn(2, 4),)),
    "encoder": lambda: (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (torch.randn(2, 5, 16),)),
    "decoder": lambda: (nn.TransformerDecoderLayer(16, 2, 32), (torch.randn(5, 2, 16), torch.randn(4, 2, 16))),
    "attention": lambda: (nn.MultiheadAttention(16, 4), (torch.randn(5, 2, 16),) * 3),
    "bag": lambda: (nn.EmbeddingBag(10, 4), (torch.tensor([[1, 2], [3, 4]]),)),
    "embedding": lambda: (nn.Embedding(10, 4, padding_idx=0, max_norm=1.0), (torch.tensor([[1, 2], [3, 0]]),)),
    "bilinear": lambda: (nn.Bilinear(4, 4, 3), (torch.randn(5, 4), torch.randn(5, 4))),
}  # fmt: skip


def _shared() -> nn.Module:
    module: Any = Cell(lambda s, x: s.layer(s.again(x)).sum())
    module.again = module.layer
    return module


def _parametrized() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def _pruned() -> nn.Module:
    from torch.nn.utils import prune

    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", 0.3)
    return layer


OWN: dict[str, Callable[[], Made]] = {
    **{f"in-place-{name}": lambda write=write: row(in_place(write)) for name, write in _WRITES.items()},
    **{name: lambda make=make: row(make()) for name, make in {**_HELD, **_ROWS}.items()},
    **{name: lambda make=make: grid(make()) for name, make in _GRIDS.items()},
    **_LINES,
}
