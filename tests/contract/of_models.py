"""Kinds of layers and ways of writing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints

from tests.contract.cases import Script, case
from tests.contract.models import WIDTH, Dropping, Net, batches, words


class Sequence(nn.Module):
    """A recurrent layer and a loss."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0]).square().mean()


RECURRENT: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "LSTM": (lambda: nn.LSTM(WIDTH, 5), 5),
    "LSTM, 2 layers, dropout": (lambda: nn.LSTM(WIDTH, 5, 2, dropout=0.3), 5),
    "LSTM, bidirectional, batch first": (lambda: nn.LSTM(WIDTH, 5, bidirectional=True, batch_first=True), 10),
    "LSTM, projected": (lambda: nn.LSTM(WIDTH, 5, proj_size=3), 3),
    "LSTM, projected, 2 layers": (lambda: nn.LSTM(WIDTH, 5, 2, proj_size=3), 3),
    "LSTM, projected, bidirectional, dropout": (
        lambda: nn.LSTM(WIDTH, 5, 2, proj_size=3, bidirectional=True, dropout=0.2),
        6,
    ),
    "LSTM without bias": (lambda: nn.LSTM(WIDTH, 5, bias=False), 5),
    "GRU": (lambda: nn.GRU(WIDTH, 5), 5),
    "GRU, bidirectional, dropout": (lambda: nn.GRU(WIDTH, 5, 2, dropout=0.3, bidirectional=True), 10),
    "GRU, 3 layers, dropout": (lambda: nn.GRU(WIDTH, 5, 3, dropout=0.3), 5),
    "RNN, tanh": (lambda: nn.RNN(WIDTH, 5), 5),
    "RNN, relu, 2 layers, dropout": (lambda: nn.RNN(WIDTH, 5, 2, nonlinearity="relu", dropout=0.3), 5),
}
for title, (layer, width) in RECURRENT.items():

    def recurrent(layer: Any = layer, width: int = width) -> Script:
        return Script(Sequence(layer(), width), batches(4, 3, WIDTH))

    fast = title in ("GRU, bidirectional, dropout", "LSTM, projected")
    case("models", title, fast=fast)(recurrent)


class Cells(nn.Module):
    """A cell called step by step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for part in x.unbind(0):
            state = self.cell(part, state)
        out = state[0] if isinstance(state, tuple) else state
        return self.head(out).square().mean()


for cell in ("LSTMCell", "GRUCell", "RNNCell"):

    def cells(cell: str = cell) -> Script:
        return Script(Cells(getattr(nn, cell)(WIDTH, 5)), batches(4, 3, WIDTH))

    case("models", cell, fast=cell == "LSTMCell")(cells)


class Layered(nn.Module):
    """One layer between two, and a loss."""

    def __init__(self, layer: nn.Module, before: Any = lambda h: h) -> None:
        super().__init__()
        self.first, self.layer, self.before = nn.Linear(WIDTH, 8), layer, before

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(self.before(self.first(x))).tanh() + 0.1).square().mean()


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(8),
    "BatchNorm1d, momentum None": lambda: nn.BatchNorm1d(8, momentum=None),
    "BatchNorm1d without statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "BatchNorm1d, not affine": lambda: nn.BatchNorm1d(8, affine=False),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "GroupNorm": lambda: nn.GroupNorm(2, 8),
    "PReLU": lambda: nn.PReLU(),
    "RReLU (random)": lambda: nn.RReLU(),
    "AlphaDropout": lambda: nn.AlphaDropout(0.3),
    "FeatureAlphaDropout": lambda: nn.FeatureAlphaDropout(0.3),
    "Dropout in place": lambda: nn.Dropout(0.3, inplace=True),
    "ReLU in place": lambda: nn.ReLU(inplace=True),
    "spectral_norm, parametrized": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    "weight_norm, parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "orthogonal, parametrized": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)),
    "Bilinear": lambda: Twice(nn.Bilinear(8, 8, 4)),
    "MultiheadAttention, dropout": lambda: Attention(),
    "TransformerEncoderLayer": lambda: Attention(nn.TransformerEncoderLayer(8, 2, 16)),
    "nn.Sequential twice the same layer": lambda: nn.Sequential(*[nn.Linear(8, 8)] * 2),
}


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x)


class Attention(nn.Module):
    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.plain = layer or nn.MultiheadAttention(8, 2, dropout=0.2), layer is None

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        return self.layer(x, x, x)[0] if self.plain else self.layer(x)


for title, layer in LAYERS.items():

    def layered(layer: Any = layer) -> Script:
        return Script(Layered(layer()), batches())

    refused = "refused" if title.startswith("orthogonal") or "momentum None" in title else "equal"  # a cost is assumed
    case("models", title, refused, fast=title in ("BatchNorm1d", "spectral_norm, parametrized"))(layered)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.up = nn.Dropout2d(0.3), nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.max_pool2d(self.drop(F.relu(self.norm(self.conv(x)))), 2)).square().mean()


@case("models", "convolutions, batch norm, dropout of channels")
def images() -> Script:
    return Script(Images(), batches(2, 3, 8, 8))


@case("models", "convolutions of channels last")
def channels_last() -> Script:
    module = Images().to(memory_format=torch.channels_last)
    return Script(module, [(x.to(memory_format=torch.channels_last),) for (x,) in batches(2, 3, 8, 8)])


class Embedded(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding, self.head = embedding, nn.Linear(6, 20)

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embedding(x)).flatten(0, -2), x.flatten()[: x.shape[0] * x.shape[1]])


EMBEDDINGS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "Embedding": (lambda: nn.Embedding(20, 6), "equal"),
    "Embedding, padding": (lambda: nn.Embedding(20, 6, padding_idx=0), "equal"),
    "Embedding, max_norm": (lambda: nn.Embedding(20, 6, max_norm=1.0), "equal"),
    "Embedding, scale by frequency": (lambda: nn.Embedding(20, 6, scale_grad_by_freq=True), "equal"),
    "Embedding, sparse gradients": (lambda: nn.Embedding(20, 6, sparse=True), "refused"),
}
for title, (embedding, expected) in EMBEDDINGS.items():

    def embedded(embedding: Any = embedding) -> Script:
        return Script(Embedded(embedding()), words())

    case("models", title, expected)(embedded)


@case("models", "EmbeddingBag")
def bag() -> Script:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(20, 6, mode="mean")

        def forward(self, x: Tensor) -> Tensor:
            return self.bag(x).square().mean()

    return Script(Bag(), words())


@case("models", "tied weights of an embedding and a head")
def tied() -> Script:
    class Tied(Embedded):
        def __init__(self) -> None:
            super().__init__(nn.Embedding(20, 6))
            self.head.weight = self.embedding.weight

    net = Tied()
    return Script(net, words(), torch.optim.AdamW(net.parameters(), lr=0.01))


@case("models", "two weights that share memory", "refused", fast=True)
def sharing() -> Script:
    class Sharing(Net):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.randn(6, 8)
            self.one, self.other = nn.Parameter(memory), nn.Parameter(memory[:, :4])

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.one).square().mean() + (x @ self.other).abs().mean()

    return Script(Sharing(), batches())


@case("models", "a buffer that is a view of a weight", "refused")
def view_buffer() -> Script:
    class Viewing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("row", self.first.weight.detach()[0])

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (x * self.row).mean()

    return Script(Viewing(), batches())


class Checkpointed(Dropping):
    def __init__(self, p: float, reentrant: bool) -> None:
        super().__init__(p)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoints.checkpoint(self._part, x, use_reentrant=self.reentrant)
        return self.second(hidden).square().mean()

    def _part(self, x: Tensor) -> Tensor:
        return self.drop(torch.relu(self.first(x)))


@case("models", "checkpoint around dropout", "refused", fast=True)
def checkpoint_dropout() -> Script:
    return Script(Checkpointed(0.5, False), batches())


@case("models", "checkpoint without random numbers", fast=True)
def checkpoint() -> Script:
    return Script(Checkpointed(0.0, False), batches())


@case("models", "checkpoint, reentrant", "refused")
def checkpoint_reentrant() -> Script:
    return Script(Checkpointed(0.5, True), [(x.requires_grad_(),) for (x,) in batches()])


@case("models", "checkpoint_sequential with dropout", "refused")
def checkpoint_sequential() -> Script:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoints.checkpoint_sequential(self.stack, 2, x, use_reentrant=False).square().mean()

    return Script(Stack(), batches())


@case("models", "checkpoint that keeps no random state around dropout")
def checkpoint_without_state() -> Script:
    class Careless(Checkpointed):
        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoints.checkpoint(self._part, x, use_reentrant=False, preserve_rng_state=False)
            return self.second(hidden).square().mean()

    return Script(Careless(0.5, False), batches())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.sign()


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + 0.01 * torch.randn_like(gradient)


CALLS = {"backward": 0}


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        CALLS["backward"] += 1
        return gradient * CALLS["backward"]


FUNCTIONS = {
    "a Function with its own gradient": (Doubled, "equal"),
    "a Function that draws in backward": (Noisy, "equal"),
    "a Function that counts in backward": (Counted, "refused"),
}
for title, (function, expected) in FUNCTIONS.items():

    def functional(function: Any = function) -> Script:
        return Script(Layered(nn.Identity(), function.apply), batches())

    case("models", title, expected, fast="counts" in title)(functional)


@case("models", "a straight-through estimator")
def straight_through() -> Script:
    return Script(Layered(nn.Identity(), lambda h: h + (h.round() - h).detach()), batches())


@case("models", "a gradient penalty: autograd.grad in forward")
def penalty() -> Script:
    class Penalized(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            loss = torch.tanh(self.second(torch.tanh(hidden))).square().mean()
            (slope,) = torch.autograd.grad(loss, hidden, create_graph=True)
            return loss + slope.square().sum()

    return Script(Penalized(), batches())


@case("models", "a part under no_grad")
def no_grad_part() -> Script:
    class Teacher(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.second(torch.relu(self.first(x + 0.1)))
            return (self.second(torch.relu(self.first(x))) - target).square().mean()

    return Script(Teacher(), batches())


@case("models", "a momentum teacher, updated in forward under no_grad")
def teacher() -> Script:
    class Momentum(Net):
        def __init__(self) -> None:
            super().__init__()
            self.slow = nn.Linear(WIDTH, 8)
            self.slow.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.first.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
                target = self.slow(x)
            return (self.first(x) - target).square().mean() + super().forward(x)

    return Script(Momentum(), batches())


@case("models", "weights clamped in forward through .data")
def clamped() -> Script:
    class Clamped(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.first.weight.data.clamp_(-0.1, 0.1)
            return super().forward(x)

    return Script(Clamped(), batches())


@case("models", "weights clamped in forward under no_grad")
def clamped_properly() -> Script:
    class Clamped(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.first.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    return Script(Clamped(), batches())


@case("models", "in-place slices of an activation")
def slices() -> Script:
    def sliced(h: Tensor) -> Tensor:
        h = h.clone()
        h[:, 0] = 0
        h[:, ::2].mul_(2)
        return h

    return Script(Layered(nn.Identity(), sliced), batches())


@case("models", "einsum, cumsum, sort, topk")
def varied() -> Script:
    def mixed(h: Tensor) -> Tensor:
        return torch.einsum("bi,bj->bij", h, h.sort(1).values).cumsum(2).topk(3, 2).values

    return Script(Layered(nn.Identity(), mixed), batches())


@case("models", "fft and complex activations")
def fft() -> Script:
    return Script(Layered(nn.Identity(), lambda h: torch.fft.rfft(h).abs()), batches())


@case("models", "float64 weights")
def double() -> Script:
    return Script(Net().double(), [(x.double(),) for (x,) in batches()])


@case("models", "bfloat16 weights")
def half() -> Script:
    return Script(Net().bfloat16(), [(x.bfloat16(),) for (x,) in batches()])


@dataclass
class Answer:
    loss: Tensor
    logits: Tensor


@case("models", "an answer that is a dataclass with a loss")
def dataclass_answer() -> Script:
    class Answering(Net):
        def forward(self, x: Tensor) -> Any:
            logits = self.second(torch.relu(self.first(x)))
            return Answer(logits.square().mean(), logits)

    return Script(Answering(), batches())


@case("models", "an answer that is a dict with a loss")
def dict_answer() -> Script:
    class Answering(Net):
        def forward(self, x: Tensor) -> Any:
            logits = self.second(torch.relu(self.first(x)))
            return {"loss": logits.square().mean(), "logits": logits}

    return Script(Answering(), batches())


class Loud(Tensor):
    """A tensor that scales its own gradient."""

    def backward(self, *args: Any, **settings: Any) -> None:
        (self.as_subclass(Tensor) * 0.1).backward()


@case("models", "a loss with its own backward()", "refused", fast=True)
def own_backward() -> Script:
    class Answering(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).as_subclass(Loud)

    return Script(Answering(), batches())


class Doubling(Tensor):
    """A weight that counts twice in products."""

    def detach(self) -> Any:
        return self.as_subclass(Tensor).detach().as_subclass(Doubling)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2 if func is F.linear else result


@case("models", "a weight of a tensor subclass", "refused", fast=True)
def subclass_weight() -> Script:
    net = Net()
    net.first.weight = nn.Parameter(torch.randn(8, WIDTH).as_subclass(Doubling))
    return Script(net, batches())


@case("models", "forward replaced on an instance", "refused", fast=True)
def forward_replaced() -> Script:
    net = Net()
    plain = net.first.forward
    net.first.forward = lambda x: plain(x) * 0.5  # type: ignore[method-assign]
    return Script(net, batches())


@case("models", "inference of a net with dropout")
def inference() -> Script:
    return Script(Dropping().eval(), batches(), training=False)


@case("models", "inference that writes a buffer")
def inference_writes() -> Script:
    return Script(nn.BatchNorm1d(WIDTH).eval(), batches(), training=False)


@case("models", "frozen batch norm inside a training")
def frozen_norm() -> Script:
    net = Images()
    net.norm.eval()
    return Script(net, batches(2, 3, 8, 8))


@case("models", "a MoE that routes by topk and scatter")
def routed() -> Script:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(WIDTH, 4), nn.Parameter(torch.randn(4, WIDTH, 3))

        def forward(self, x: Tensor) -> Tensor:
            share, which = self.router(x).softmax(-1).topk(2)
            out = torch.einsum("bi,bkio->bko", x, self.experts[which])
            return (out * share.unsqueeze(-1)).square().mean()

    return Script(Routed(), batches())


@case("models", "a loop over experts that looks at which are used", "refused")
def looped() -> Script:
    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            which = self.router(x).argmax(-1)
            out = x.new_zeros(x.shape[0], 3)
            for number, expert in enumerate(self.experts):
                rows = (which == number).nonzero()[:, 0]
                if len(rows):
                    out = out.index_add(0, rows, expert(x[rows]))
            return out.square().mean() + self.router(x).square().mean()

    return Script(Looped(), batches())


def _gumbel() -> Script:
    return Script(Layered(nn.Identity(), lambda h: F.gumbel_softmax(h, hard=True)), batches())


case("models", "gumbel softmax")(_gumbel)
case("models", "torch.distributions, which looks at its arguments")(
    lambda: Script(Layered(nn.Identity(), lambda h: torch.distributions.Normal(h, 1.0).rsample()), batches())
)
case("models", "torch.bernoulli and randperm")(
    lambda: Script(Layered(nn.Identity(), lambda h: torch.bernoulli(h.sigmoid()) + h[:, torch.randperm(8)]), batches())
)
case("models", "stochastic depth by torch.rand and a mask")(
    lambda: Script(Layered(nn.Identity(), lambda h: h * (torch.rand(h.shape[0], 1) < 0.8)), batches())
)
