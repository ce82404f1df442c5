"""What forward keeps, reads and draws outside of its tensors: buffers, Python state, clocks, global settings."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.contract.cases import Script, case
from tests.contract.models import Dropping, Net, batches


class Stateful(Net):
    """A net whose forward does one more thing, `extra`, to its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(8), persistent=False)
        self.count, self.scale = 0, 1.0
        self.history: list[Any] = []
        self.settings = {"scale": 1.0}
        self.config = SimpleNamespace(scale=1.0, inner=SimpleNamespace(p=0.5))
        self.table = torch.ones(8)
        self.plain: Any = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.extra(torch.relu(self.first(x)))
        return self.second(hidden).square().mean()

    def extra(self, hidden: Tensor) -> Tensor:
        return hidden


def stateful(
    name: str,
    expected: str = "equal",
    fast: bool = False,
    needs_verify: bool = False,
    looks: Any = None,
    **settings: Any,
) -> Any:
    """A case of a net with that `extra`; `looks`: what its script looks at afterwards."""

    def add(extra: Any) -> Any:
        kind = type("User" + extra.__name__.title(), (Stateful,), {"extra": extra})

        def make() -> Script:
            net = kind()
            return Script(net, batches(), extra=(lambda: looks(net)) if looks else (lambda: None), **settings)

        case("state", name, expected, fast, needs_verify)(make)
        return extra

    return add


@stateful("a buffer reassigned: self.ema = 0.9 * self.ema + …", "refused", fast=True)
def reassigned(self: Any, h: Tensor) -> Tensor:
    self.ema = 0.9 * self.ema + 0.1 * h.detach().mean(0)
    return h - self.ema


@stateful("a buffer written in place: self.ema.mul_().add_()", fast=True)
def in_place(self: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        self.ema.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
    return h - self.ema


@stateful("a buffer written by copy_")
def copied(self: Any, h: Tensor) -> Tensor:
    self.ema.copy_(0.9 * self.ema + 0.1 * h.detach().mean(0))
    return h - self.ema


@stateful("a part of a buffer written: self.ema[:4] = …")
def part_written(self: Any, h: Tensor) -> Tensor:
    self.ema[:4] = h.detach().mean(0)[:4]
    return h - self.ema


@stateful("a buffer of whole numbers counted up in place")
def counted(self: Any, h: Tensor) -> Tensor:
    self.steps += 1
    return h * (1.0 / self.steps)


@stateful("a buffer that is not saved, written in place")
def not_saved(self: Any, h: Tensor) -> Tensor:
    self.scratch.add_(h.detach().sum(0))
    return h + self.scratch


@stateful("a buffer written through .data", "refused")
def through_data(self: Any, h: Tensor) -> Tensor:
    self.ema.data = 0.9 * self.ema.data + 0.1 * h.detach().mean(0)
    return h - self.ema


@stateful("a plain tensor attribute read")
def table(self: Any, h: Tensor) -> Tensor:
    return h * self.table


@stateful("a plain tensor attribute written in place", "refused", looks=lambda net: net.table.clone())
def table_written(self: Any, h: Tensor) -> Tensor:
    self.table.mul_(0.5)
    return h * self.table


@stateful("a plain tensor attribute reassigned", "refused", looks=lambda net: net.table.clone())
def table_reassigned(self: Any, h: Tensor) -> Tensor:
    self.table = self.table * 0.5
    return h * self.table


@stateful("a Python counter", "refused", fast=True, looks=lambda net: net.count)
def counter(self: Any, h: Tensor) -> Tensor:
    self.count += 1
    return h / self.count


@stateful("a counter that nothing reads", "refused", looks=lambda net: net.count)
def idle_counter(self: Any, h: Tensor) -> Tensor:
    self.count += 1
    return h


@stateful("a warm-up in Python: self.scale grows", "refused")
def warm_up(self: Any, h: Tensor) -> Tensor:
    self.scale = min(2.0, self.scale + 0.25)
    return h * self.scale


@stateful("a list that grows", "refused", looks=lambda net: len(net.history))
def history(self: Any, h: Tensor) -> Tensor:
    self.history.append(1)
    return h * len(self.history)


@stateful("a list of activations", "refused", fast=True, looks=lambda net: len(net.history))
def activations(self: Any, h: Tensor) -> Tensor:
    self.history.append(h.detach())
    return h


@stateful("a dict that is written", "refused", looks=lambda net: net.settings["scale"])
def settings_written(self: Any, h: Tensor) -> Tensor:
    self.settings["scale"] *= 0.5
    return h * self.settings["scale"]


@stateful("a config object that is written", "refused")
def config_written(self: Any, h: Tensor) -> Tensor:
    self.config.inner.p *= 0.5
    return h * self.config.inner.p


@stateful("the last hidden state kept as an attribute", "refused", looks=lambda net: net.plain.mean())
def last_hidden(self: Any, h: Tensor) -> Tensor:
    self.plain = h.detach()
    return h


@stateful("the hidden state of the step before is read", "refused")
def step_before(self: Any, h: Tensor) -> Tensor:
    out = h if self.plain is None else h + 0.1 * self.plain
    self.plain = h.detach()
    return out


@stateful("a cache made at the first call", "refused")
def cache(self: Any, h: Tensor) -> Tensor:
    if "mask" not in self.settings:
        self.settings["mask"] = torch.arange(8.0)
    return h * self.settings["mask"]


@stateful("random.random()", "refused", fast=True)
def python_random(self: Any, h: Tensor) -> Tensor:
    return h * random.random()


@stateful("layers dropped by random.random()", "refused")
def layer_drop(self: Any, h: Tensor) -> Tensor:
    return h * 2 if random.random() < 0.5 else h


@stateful("np.random.rand()", "refused")
def numpy_random(self: Any, h: Tensor) -> Tensor:
    return h * float(np.random.rand())


@stateful("np.random.default_rng() in forward", "refused")
def numpy_generator(self: Any, h: Tensor) -> Tensor:
    return h * float(np.random.default_rng().random())


@stateful("torch.rand(()).item() in Python", "refused")
def torch_item(self: Any, h: Tensor) -> Tensor:
    return h * torch.rand(()).item()


@stateful("torch.rand_like in forward")
def torch_random(self: Any, h: Tensor) -> Tensor:
    return h + 0.1 * torch.rand_like(h)


@stateful("torch.manual_seed() in forward", "refused", fast=True)
def reseeded(self: Any, h: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(h, 0.5)


@stateful("torch.random.fork_rng() in forward", "refused")
def forked(self: Any, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return F.dropout(h, 0.5)


@stateful("time.time()", "refused", fast=True)
def clock(self: Any, h: Tensor) -> Tensor:
    return h * (time.time() % 1.0)


@stateful("time.perf_counter() kept as an attribute", "refused")
def timed(self: Any, h: Tensor) -> Tensor:
    self.plain = time.perf_counter()
    return h


def _tick() -> int:
    _tick.calls = getattr(_tick, "calls", 0) + 1  # type: ignore[attr-defined]
    return _tick.calls  # type: ignore[attr-defined, no-any-return]


@stateful("a counter that a function keeps as its own attribute", "refused", fast=True)
def function_attribute(self: Any, h: Tensor) -> Tensor:
    return h * _tick()


TICKS = itertools.count(1)


@stateful("next() of a global itertools.count()", "refused")
def global_count(self: Any, h: Tensor) -> Tensor:
    return h * next(TICKS)


DICE = np.random.default_rng(3)


@stateful("numpy's generator kept globally", "refused")
def global_generator(self: Any, h: Tensor) -> Tensor:
    return h * float(DICE.random())


OPTIONS = SimpleNamespace(scale=1.0)


def _change_options(number: int) -> None:
    OPTIONS.scale = 1.0 + number


@stateful("an object of settings kept globally, that the script changes", "refused", before=_change_options)
def global_options(self: Any, h: Tensor) -> Tensor:
    return h * OPTIONS.scale


@stateful("a file is read", "refused")
def file_read(self: Any, h: Tensor) -> Tensor:
    with open("/proc/uptime") as file:
        return h * float(file.read().split()[0])


COUNTS = {"calls": 0}
SCALE = 1.0
SEEN: list[Any] = []


@stateful("a global dict that is written", "refused")
def global_dict(self: Any, h: Tensor) -> Tensor:
    COUNTS["calls"] += 1
    return h * COUNTS["calls"]


@stateful("a global that is written", "refused", fast=True)
def global_written(self: Any, h: Tensor) -> Tensor:
    global SCALE
    SCALE = SCALE * 0.5
    return h * SCALE


@stateful("a global list of activations", "refused", looks=lambda net: len(SEEN) > 0)
def global_list(self: Any, h: Tensor) -> Tensor:
    SEEN.append(h.detach())
    return h


FACTOR = 1.0


def _change_factor(number: int) -> None:
    global FACTOR
    FACTOR = 1.0 + number


@stateful("a global that the script changes between steps", "refused", fast=True, before=_change_factor)
def global_changed(self: Any, h: Tensor) -> Tensor:
    return h * FACTOR


class Counting(Stateful):
    """A counter of the class."""

    calls = 0

    def extra(self, hidden: Tensor) -> Tensor:
        type(self).calls += 1
        return hidden * type(self).calls


@case("state", "an attribute of the class that is written", "refused")
def class_counter() -> Script:
    Counting.calls = 0
    return Script(Counting(), batches())


class Rated(Stateful):
    rate = 1.0

    def extra(self, hidden: Tensor) -> Tensor:
        return hidden * self.rate


@case("state", "an attribute of the class that the script changes", "refused")
def class_setting() -> Script:
    Rated.rate = 1.0

    def change(number: int) -> None:
        Rated.rate = 1.0 + number

    return Script(Rated(), batches(), before=change)


@case("state", "a variable of the enclosing function that is written", "refused")
def closure() -> Script:
    calls = 0

    class Closed(Stateful):
        def extra(self, hidden: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return hidden * calls

    return Script(Closed(), batches())


@case("state", "a variable of the enclosing function that the script changes", "refused")
def closure_changed() -> Script:
    factor = 1.0

    class Closed(Stateful):
        def extra(self, hidden: Tensor) -> Tensor:
            return hidden * factor

    def change(number: int) -> None:
        nonlocal factor
        factor = 1.0 + number

    return Script(Closed(), batches(), before=change)


@case("state", "an iterator that moves on", "refused")
def iterator() -> Script:
    class Moving(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.schedule = deque([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])

        def extra(self, hidden: Tensor) -> Tensor:
            return hidden * self.schedule.popleft()

    return Script(Moving(), batches())


@case("state", "a schedule by random.Random of the module", "refused")
def own_random() -> Script:
    class Own(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.dice = random.Random(3)

        def extra(self, hidden: Tensor) -> Tensor:
            return hidden * self.dice.random()

    return Script(Own(), batches())


@case("state", "numpy's generator of the module", "refused")
def own_numpy() -> Script:
    class Own(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.dice = np.random.default_rng(3)

        def extra(self, hidden: Tensor) -> Tensor:
            return hidden * float(self.dice.random())

    return Script(Own(), batches())


@case("state", "torch's generator of the module", "refused")
def own_torch() -> Script:
    class Own(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.dice = torch.Generator().manual_seed(3)

        def extra(self, hidden: Tensor) -> Tensor:
            return hidden + 0.1 * torch.rand(hidden.shape, generator=self.dice)

    return Script(Own(), batches())


@case("state", "a list of layers that are no submodules", "refused", fast=True)
def hidden_layers() -> Script:
    class Hiding(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]

        def extra(self, hidden: Tensor) -> Tensor:
            for layer in self.layers:
                hidden = torch.tanh(layer(hidden))
            return hidden

    net = Hiding()
    hidden = [p for layer in net.layers for p in layer.parameters()]
    return Script(net, batches(), torch.optim.SGD([*net.parameters(), *hidden], lr=0.1), extra=lambda: hidden)


@dataclass
class Knobs:
    scale: float = 1.0


@case("state", "a dataclass of settings that the script changes", "refused")
def knobs() -> Script:
    class Turned(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.knobs = Knobs()

        def extra(self, hidden: Tensor) -> Tensor:
            return hidden * self.knobs.scale

    net = Turned()

    def turn(number: int) -> None:
        net.knobs.scale = 1.0 + number

    return Script(net, batches(), before=turn)


@contextmanager
def default_type() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@stateful("another default dtype around the steps", "refused", around=default_type)
def made_in_forward(self: Any, h: Tensor) -> Tensor:
    return (h * torch.ones(8)).float()


@case("state", "autocast around the steps", "refused", fast=True)
def autocast() -> Script:
    return Script(Net(), batches(), around=lambda: torch.autocast("cpu", dtype=torch.bfloat16))


@stateful("autocast inside forward")
def autocast_inside(self: Any, h: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = self.first(torch.cat([h, h], 1)[:, :6])
    return h.float()


@case("state", "sdpa with dropout")
def sdpa() -> Script:
    class Attending(Stateful):
        def extra(self, hidden: Tensor) -> Tensor:
            q = hidden.view(1, 2, 2, 8)
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).reshape(4, 8)

    return Script(Attending(), batches())


@case("state", "dropout", fast=True)
def dropping() -> Script:
    return Script(Dropping(), batches())


@stateful("print() and logging", looks=None)
def logging_(self: Any, h: Tensor) -> Tensor:
    _ = f"{tuple(h.shape)}"
    return h


@stateful("a value of a tensor decides: if h.sum() > 0", "refused", fast=True)
def branch(self: Any, h: Tensor) -> Tensor:
    return h * 2 if float(h.sum()) > 3.0 else h


@stateful("a loop as long as a tensor says", "refused")
def loop(self: Any, h: Tensor) -> Tensor:
    for _ in range(int(h.abs().mean() * 10) % 3 + 1):
        h = torch.tanh(h)
    return h


@stateful("a branch on a shape")
def branch_on_shape(self: Any, h: Tensor) -> Tensor:
    return h * 2 if h.shape[0] > 2 else h


@stateful("a branch by torch.where")
def where(self: Any, h: Tensor) -> Tensor:
    return torch.where(h.sum() > 3.0, h * 2, h)


@stateful("rows chosen by a mask: h[h > 0]", "refused")
def masked(self: Any, h: Tensor) -> Tensor:
    return h + h[h > 0].mean()


@stateful("torch.nonzero decides a shape", "refused")
def nonzero(self: Any, h: Tensor) -> Tensor:
    return h * float(torch.nonzero(h > 0).shape[0])


@stateful("an attempt that fails is caught: try/except")
def caught(self: Any, h: Tensor) -> Tensor:
    try:
        return h @ h
    except RuntimeError:
        return h * 2


@stateful("float(buffer) in Python", "refused")
def float_of_buffer(self: Any, h: Tensor) -> Tensor:
    self.steps += 1
    return h / float(self.steps)


@stateful("forward calls backward() itself", "refused")
def backward_inside(self: Any, h: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        h.square().mean().backward(retain_graph=True)
    return h


@stateful("a variable of the function around it that forward counts up", "refused")
def following(self: Any, h: Tensor) -> Tensor:
    return h * _next_count()


def _counter() -> Any:
    count = 0

    def following() -> int:
        nonlocal count
        count += 1
        return count

    return following


_next_count = _counter()
