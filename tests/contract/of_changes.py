"""What a script does to its module between steps, and the batches that it gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.contract.cases import Script, case
from tests.contract.models import WIDTH, Dropping, Net, batches


def changed(
    name: str, expected: str = "refused", fast: bool = False, make: Callable[[], nn.Module] = Dropping
) -> Callable[[Any], Any]:
    """A case in which something happens to a net before its second step."""

    def add(change: Callable[[Any], None]) -> Any:
        def script() -> Script:
            net = make()
            return Script(net, batches(), before=lambda n: change(net) if n == 1 else None)

        case("between steps", name, expected, fast)(script)
        return change

    return add


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x))).square().mean()


class Tuned(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.stages, self.unread, self.offset = 1.0, [1.0, 2.0], 0, torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x) + self.offset) * self.scale * self.stages[0]).square().mean()


@changed("module.eval()", fast=True)
def evaluated(net: Any) -> None:
    net.eval()


@changed("eval() of one layer", make=Normed)
def part_evaluated(net: Any) -> None:
    net.norm.eval()


@changed("eval() and back to train()", "equal", fast=True)
def there_and_back(net: Any) -> None:
    net.eval()
    with torch.no_grad():
        net(torch.ones(4, WIDTH))
    net.train()


@changed("dropout.p", fast=True)
def dropout_p(net: Any) -> None:
    net.drop.p = 0.1


@changed("a weight frozen", fast=True)
def froze(net: Any) -> None:
    net.first.weight.requires_grad_(False)


def _unfrozen() -> nn.Module:
    net = Net()
    net.first.weight.requires_grad_(False)
    return net


@changed("a weight thawed", make=_unfrozen)
def thawed(net: Any) -> None:
    net.first.weight.requires_grad_(True)


@changed("a Parameter replaced", fast=True)
def replaced(net: Any) -> None:
    net.first.weight = nn.Parameter(net.first.weight.detach() * 0.5)


@changed("a layer replaced")
def layer_replaced(net: Any) -> None:
    net.first = nn.Linear(WIDTH, 8)


@changed("a layer taken off: Identity in its place")
def layer_off(net: Any) -> None:
    net.drop = nn.Identity()


@changed("a layer added to a Sequential", make=lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, 3)))
def layer_added(net: Any) -> None:
    net.append(nn.ReLU())


@changed("a parametrization registered")
def parametrized(net: Any) -> None:
    nn.utils.parametrizations.weight_norm(net.first)


@changed("weights written in place", "equal", fast=True)
def written(net: Any) -> None:
    with torch.no_grad():
        net.first.weight.mul_(0.5)


@changed("weights clamped through .data in place", "equal")
def clamped(net: Any) -> None:
    net.first.weight.data.clamp_(-0.1, 0.1)


@changed("weight.data = another tensor", "equal", fast=True)
def other_data(net: Any) -> None:
    net.first.weight.data = net.first.weight.data * 0.5


@changed("weights swapped by weight.data, and of another type")
def other_type(net: Any) -> None:
    net.double().float().bfloat16().float()
    net.first.double()


@changed("load_state_dict", "equal")
def loaded(net: Any) -> None:
    net.load_state_dict({name: value * 0.5 for name, value in net.state_dict().items()})


@changed("load_state_dict(assign=True)")
def assigned(net: Any) -> None:
    net.load_state_dict({name: value * 0.5 for name, value in net.state_dict().items()}, assign=True)


@changed("a buffer written in place", "equal", make=Normed)
def buffer_written(net: Any) -> None:
    net.norm.running_mean.fill_(3.0)


@changed("a buffer replaced", make=Normed)
def buffer_replaced(net: Any) -> None:
    net.norm.running_mean = torch.full((8,), 3.0)


@changed("reset_running_stats()", "equal", make=Normed)
def reset(net: Any) -> None:
    net.norm.reset_running_stats()


@changed("momentum of batch norm", make=Normed)
def norm_momentum(net: Any) -> None:
    net.norm.momentum = 0.5


@changed("a number that forward reads", fast=True, make=Tuned)
def number(net: Any) -> None:
    net.scale = 3.0


@changed("an item of a list that forward reads", make=Tuned)
def item(net: Any) -> None:
    net.stages[0] = 3.0


@changed("an attribute that nothing reads", "equal", make=Tuned)
def unread(net: Any) -> None:
    net.unread = 7


@changed("a plain tensor written in place", "equal", make=Tuned)
def tensor_written(net: Any) -> None:
    net.offset.add_(1.0)


@changed("a plain tensor replaced", make=Tuned)
def tensor_replaced(net: Any) -> None:
    net.offset = torch.ones(8)


@changed("forward replaced on the module")
def forward_replaced(net: Any) -> None:
    net.forward = lambda x: net.first(x).square().mean()


@changed("forward replaced on the class", make=lambda: type("Own", (Net,), {})())
def class_forward(net: Any) -> None:
    type(net).forward = lambda self, x: self.first(x).square().mean()


@changed("the class of a layer changed")
def class_changed(net: Any) -> None:
    net.drop.__class__ = nn.AlphaDropout


@changed("a training step by torch in between", "equal")
def eager_step(net: Any) -> None:
    torch.optim.SGD(net.parameters(), lr=0.1).zero_grad()
    net(torch.ones(4, WIDTH)).backward()
    with torch.no_grad():
        for weight in net.parameters():
            weight.sub_(weight.grad, alpha=0.1)
    net.zero_grad()


@changed("gradients left over in .grad", "refused")
def leftover(net: Any) -> None:
    for weight in net.parameters():
        weight.grad = torch.ones_like(weight)


@case("between steps", "a copy is made and saved")
def saved() -> Script:
    net = Dropping()
    kept: list[Any] = []
    return Script(net, batches(), after=lambda n: kept.append(copy.deepcopy(net.state_dict())), extra=lambda: kept)


@case("between steps", "a step under inference_mode", "refused")
def inference_mode() -> Script:
    def around() -> Any:
        return torch.autograd.profiler.record_function("step")

    net = Net()
    return Script(net, batches(), before=lambda n: n == 1 and net.first.bias.requires_grad_(False), around=around)


# Batches


def given(
    name: str,
    inputs: Callable[[], list[tuple[Any, ...]]],
    module: Any = Net,
    expected: str = "equal",
    fast: bool = False,
) -> None:
    case("batches", name, expected, fast)(lambda: Script(module(), inputs()))


class Pair(Net):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.first(x) * self.first(y).sigmoid()).square().mean() + super().forward(x)


class Flag(Net):
    def forward(self, x: Tensor, scale: Any = 1, mode: str = "a") -> Tensor:
        return super().forward(x) * scale + (0.0 if mode == "a" else 1.0)


class Whole(Net):
    """Whole numbers in, scaled in Python."""

    def forward(self, x: Tensor, scale: Any) -> Tensor:
        return super().forward((x * scale).to(torch.float32))


class Nested(Net):
    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch["x"][0]) + batch["y"].mean() * self.first.weight.sum()


@dataclass
class Batch:
    x: Tensor
    scale: float


class OfBatch(Net):
    def forward(self, batch: Batch) -> Tensor:
        return super().forward(batch.x) * batch.scale


class Strided(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1).view(4, WIDTH))


class Writing(Net):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        return super().forward(x)


def rows(count: int) -> Tensor:
    return torch.randn(count, WIDTH)


given(
    "another number of rows in the second", lambda: [(rows(4),), (rows(5),), (rows(4),)], expected="refused", fast=True
)
given("another type in the second", lambda: [(rows(4),), (rows(4).double(),), (rows(4),)], lambda: Typed(), "refused")
given("two different inputs", lambda: [(rows(4), rows(4)) for _ in range(3)], Pair)


def _same_then_other() -> list[tuple[Any, ...]]:
    x = rows(4)
    return [(x, x), (rows(4), rows(4)), (x, x)]


given("one tensor twice, later two", _same_then_other, Pair, "refused", fast=True)
given(
    "two tensors, later one twice", lambda: [(rows(4), rows(4)), (torch.ones(4, WIDTH),) * 2, (rows(4), rows(4))], Pair
)
given("a number beside the tensor", lambda: [(rows(4), 2)] * 3, Flag)
given("another number later", lambda: [(rows(4), 2), (rows(4), 3), (rows(4), 2)], Flag, "refused", fast=True)
given("1, later True", lambda: [(rows(4), 1), (rows(4), True), (rows(4), 1)], Flag, "refused")
given("0.0 later -0.0", lambda: [(rows(4), 0.0), (rows(4), -0.0)] * 2, Flag, "refused", fast=True)
given("2 later 2.0, on whole numbers", lambda: [(rows(4).long(), 2), (rows(4).long(), 2.5)] * 2, Whole, "refused")
given("another word later", lambda: [(rows(4), 1, "a"), (rows(4), 1, "b")] * 2, Flag, "refused")
given("an array of numpy as a number", lambda: [(rows(4), torch.tensor(2.0).numpy())] * 3, Flag, "refused")
given("a nest of dicts and lists", lambda: [({"x": [rows(4)], "y": rows(4)},) for _ in range(3)], Nested)
given(
    "keys in another order later",
    lambda: [({"x": [rows(4)], "y": rows(4)},), ({"y": rows(4), "x": [rows(4)]},)] * 2,
    Nested,
    "refused",
)
given("a dataclass", lambda: [(Batch(rows(4), 2.0),) for _ in range(3)], OfBatch)
given(
    "a dataclass with another number later", lambda: [(Batch(rows(4), 2.0 + n),) for n in range(3)], OfBatch, "refused"
)
given("rows that are not contiguous later", lambda: [(rows(4),), (torch.randn(WIDTH, 4).t(),), (rows(4),)])
given("the same, of a forward that takes strides", lambda: [(rows(4),), (rows(8)[::2].contiguous(),)] * 2, Strided)
given("an input that forward writes to", lambda: batches(), Writing)
given("None beside the tensor", lambda: [(rows(4), 1, "a")] * 3, Flag)


class Typed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


@case("batches", "a weight of the module as an input", "refused")
def weight_given() -> Script:
    net = Pair()
    return Script(net, [(net.first.weight[:4], rows(4)), (rows(4), rows(4)), (rows(4), rows(4))])


@case("batches", "memory of a weight as an input", "refused", fast=True)
def weights_memory() -> Script:
    net = Net()
    return Script(net, [(net.first.weight.detach(),)] * 3)


@case("batches", "a Parameter of the module itself, later another tensor", "refused")
def parameter_given() -> Script:
    class Using(Net):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return super().forward(x) + weight.square().mean()

    net = Using()
    return Script(net, [(rows(4), net.first.weight), (rows(4), torch.ones(8, WIDTH)), (rows(4), net.first.weight)])


class Marked(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result * 2 if func is nn.functional.linear else result


@case("batches", "an input of a tensor subclass", "refused")
def subclass_given() -> Script:
    return Script(Net(), [(rows(4).as_subclass(Marked),) for _ in range(3)])
