"""What stands around a module: globals, functions, classes, files of settings, and what hangs on tensors."""

from __future__ import annotations

import array
import ctypes
import functools
import os
from collections import ChainMap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.contract import models
from tests.contract.cases import Script, case
from tests.contract.models import WIDTH, Net, batches

OURS: dict[int, Tensor] = {}
scale = 2.0
outside = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).requires_grad_(False)
learning = nn.Linear(8, 8)


class Around(Net):
    """A net whose forward does one more thing to its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.leaf = 1.5, torch.ones(8, requires_grad=True)
        self.options, self.act = Slotted(1.0), functools.partial(torch.mul, other=2.0)
        self.register_buffer("ones", torch.ones(1).expand(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.extra(torch.relu(self.first(x)))).square().mean()

    def extra(self, hidden: Tensor) -> Tensor:
        return hidden


@dataclass(slots=True)
class Slotted:
    scale: float


class Helper:
    def scaled(self, h: Tensor) -> Tensor:
        return h * 1.5


def _one_more(h: Tensor, by: dict[str, float] = {"by": 1.0}) -> Tensor:  # noqa: B006
    return h * by["by"] * getattr(_one_more, "factor", 1.0)


HELPER = Helper()


def around(
    name: str, expected: str = "refused", before: Callable[[Any, int], Any] = lambda net, number: None, **settings: Any
) -> Callable[[Any], Any]:
    def add(extra: Any) -> Any:
        def script() -> Script:
            OURS.clear()
            net: Any = type("Extra", (Around,), {"extra": extra})()
            with_net = functools.partial(before, net)
            return Script(net, batches(), before=with_net, around=_restored, extra=lambda: len(OURS))

        case("surroundings", name, expected, **settings)(script)
        return extra

    return add


@contextmanager
def _restored() -> Iterator[None]:
    """A script changes what all others read."""
    try:
        yield
    finally:
        outside.train()
        models.SHARE, Helper.scaled = 1.0, _scaled  # type: ignore[attr-defined, method-assign]
        vars(_one_more).clear()
        os.environ.pop("EXTRA_FACTOR", None)


_scaled = Helper.scaled
models.SHARE = 1.0  # type: ignore[attr-defined]


@around("a dict beside a function that forward fills", fast=True)
def filled(self: Any, h: Tensor) -> Tensor:
    if 8 not in OURS:
        OURS[8] = torch.arange(8.0)
    return h + OURS[8]


def _set_share(net: Any, number: int) -> None:
    models.SHARE = 1.0 + number  # type: ignore[attr-defined]


@around("a variable of another file that the script changes", before=_set_share, fast=True)
def settings_file(self: Any, h: Tensor) -> Tensor:
    return h * models.SHARE  # type: ignore[attr-defined]


@around("os.environ", before=lambda net, number: os.environ.update(EXTRA_FACTOR=str(1 + number)))
def environment(self: Any, h: Tensor) -> Tensor:
    return h * float(os.environ.get("EXTRA_FACTOR", 1.0))


@around("settings in slots", before=lambda net, number: setattr(net.options, "scale", 1.0 + number), fast=True)
def slots(self: Any, h: Tensor) -> Tensor:
    return h * self.options.scale


@around("arguments inside a functools.partial", before=lambda net, number: net.act.keywords.update(other=2.0 + number))
def partial(self: Any, h: Tensor) -> Tensor:
    return self.act(h)


@around("an attribute of a function", before=lambda net, number: setattr(_one_more, "factor", 1.0 + number))
@around("a function's attribute, read alone", "equal")
def of_function(self: Any, h: Tensor) -> Tensor:
    return _one_more(h)


def _replace(net: Any, number: int) -> None:
    if number == 1:
        Helper.scaled = lambda self, h: h * 3  # type: ignore[method-assign, assignment]


@around("a method of a helper's class replaced", before=_replace)
def method(self: Any, h: Tensor) -> Tensor:
    return HELPER.scaled(h)


@around("a method of the model replaced", before=lambda net, n: n == 1 and setattr(type(net), "extra", lambda s, h: h))
def own_method(self: Any, h: Tensor) -> Tensor:
    return h * 2


@around("a layer held globally, set to eval()", before=lambda net, number: outside.train(number != 1), fast=True)
@around("a frozen layer held globally", "equal")
def global_layer(self: Any, h: Tensor) -> Tensor:
    return outside(h)


@around("a layer held globally that learns", fast=True)
def global_learning(self: Any, h: Tensor) -> Tensor:
    return learning(h)


@around("a plain tensor that needs a gradient")
def leaf(self: Any, h: Tensor) -> Tensor:
    return h * self.leaf


def _set_scale(net: Any, number: int) -> None:
    global scale
    scale += 1


@around("a global of an attribute's name that the script changes", "equal", before=_set_scale, fast=True)
def same_name(self: Any, h: Tensor) -> Tensor:
    return h * self.scale


@around("an expanded buffer", "equal", fast=True)
def expanded(self: Any, h: Tensor) -> Tensor:
    return h * self.ones


@around("dropout of everything", "equal")
def drops_all(self: Any, h: Tensor) -> Tensor:
    return h + torch.nn.functional.dropout(h, 1.0)


@around("torch._assert_async")
def asserted(self: Any, h: Tensor) -> Tensor:
    torch._assert_async(torch.isfinite(h).all())
    return h


@case("surroundings", "a table that lru_cache keeps", "equal", fast=True)
def table() -> Script:
    @functools.lru_cache
    def places(count: int) -> Tensor:
        return torch.arange(float(count))

    net: Any = type("Extra", (Around,), {"extra": lambda self, h: h + places(8)})()
    return Script(net, batches())


@case("surroundings", "weights that lru_cache keeps", "refused")
def old_weights() -> Script:
    @functools.lru_cache
    def kept(net: Any) -> Tensor:
        return net.first.bias.detach().clone()

    net: Any = type("Extra", (Around,), {"extra": lambda self, h: h + kept(self)})()
    return Script(net, batches())


class Asking(Net):
    """Its forward asks more of a tensor than its values."""

    def forward(self, x: Tensor) -> Tensor:
        factor = getattr(x, "tag", 1) * (1 if x.is_contiguous() else 3) * (2 if x.is_conj() else 1)
        return super().forward(x.real.float()) * factor


@case("surroundings", "is_contiguous(), of other strides later", "refused")
def strided() -> Script:
    return Script(Asking(), [(torch.randn(4, WIDTH),), (torch.randn(WIDTH, 4).t(),)])


@case("surroundings", "is_conj()", "refused")
def conjugate() -> Script:
    return Script(Asking(), [(torch.randn(4, WIDTH, dtype=torch.cfloat).conj(),)] * 3)


@case("surroundings", "an attribute of an input", "refused")
def tagged() -> Script:
    made = batches()
    made[1][0].tag = 5  # type: ignore[attr-defined]
    return Script(Asking(), made)


@case("surroundings", "an attribute of a weight that the script changes", "refused")
def tagged_weight() -> Script:
    net: Any = type("Extra", (Around,), {"extra": lambda self, h: h * self.first.weight.tag})()
    net.first.weight.tag = 1.0
    return Script(net, batches(), before=lambda number: setattr(net.first.weight, "tag", 1.0 + number))


@case("surroundings", "an object that holds a tensor as an input", "refused")
def held() -> Script:
    class Held(Net):
        def forward(self, given: Any) -> Tensor:
            return super().forward(given.x)

    return Script(Held(), [(_holding(),) for _ in range(3)])


def _holding() -> Any:
    given: Any = Helper()
    given.x = torch.randn(4, WIDTH)
    return given


class Penalized(Net):
    def forward(self, x: Tensor) -> Tensor:
        loss = super().forward(x.requires_grad_())
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().mean()


@case("surroundings", "requires_grad_() of an input in forward", "refused")
def penalized() -> Script:
    return Script(Penalized(), batches())


@case("surroundings", "a layer of torch.jit.script", "refused")
def scripted() -> Script:
    return Script(nn.Sequential(torch.jit.script(nn.Linear(WIDTH, 3)), nn.ReLU()), batches())


@case("surroundings", "no_grad around a step that trains", "refused", fast=True)
def without_gradients() -> Script:
    return Script(Net(), batches(), around=torch.no_grad)


@case("surroundings", "a differentiable optimizer", "refused")
def differentiable() -> Script:
    net = Net()
    return Script(net, batches(), torch.optim.SGD(net.parameters(), lr=0.1, differentiable=True))


class Cast(Net):
    """Reads its weights twice under autocast, which casts them once."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.second(torch.relu(self.first(x))) + self.second(torch.tanh(self.first(x)))
        return h.float().square().mean()


@case("surroundings", "weights read twice under autocast", "equal")
def cast_once() -> Script:
    return Script(Cast(), batches())


class _RunAgain(torch.autograd.Function):
    """A checkpoint written by hand, whose second run leaves gradients itself."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        again = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.run(again).backward(gradient)
        return None, again.grad


class _ByItself(Net):
    """The second layer as `run` calls it."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.second, torch.relu(self.first(x))).square().mean()


@case("surroundings", "backward() in the backward of a Function", "refused", fast=True)
def run_again() -> Script:
    return Script(_ByItself(_RunAgain.apply), batches())


@case("surroundings", "a layer that another thread computes", "refused", fast=True)
def threaded() -> Script:
    def computed(layer: nn.Module, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(layer, x).result()

    return Script(_ByItself(computed), batches())


_HELD = {
    "an array of numbers": array.array("d", [1.0]),
    "a number of C": ctypes.c_double(1.0),
    "a chain of dicts": ChainMap({0: 1.0}),
}


def _held(title: str) -> None:
    held: Any = _HELD[title]

    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (held.value if title == "a number of C" else held[0])

    def write(number: int) -> None:
        if title == "a number of C":
            held.value = 1.0 + number
        else:
            held[0] = 1.0 + number

    def script() -> Script:
        write(0)
        return Script(Scaled(), batches(), before=write)

    case("surroundings", f"{title} that the script changes", "refused", fast=title == "a chain of dicts")(script)


for _title in _HELD:
    _held(_title)
