"""Optimizers: every class of torch, their settings, schedulers, and what is done to them between steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.contract.cases import Script, case
from tests.contract.models import WIDTH, Net, batches

Weights = Any

SETTINGS: dict[str, Callable[[Weights], torch.optim.Optimizer]] = {
    "SGD": lambda w: torch.optim.SGD(w, lr=0.1),
    "SGD, momentum": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9),
    "SGD, nesterov, weight decay": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, dampening": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, dampening=0.5),
    "SGD, maximize": lambda w: torch.optim.SGD(w, lr=0.1, maximize=True),
    "SGD, foreach": lambda w: torch.optim.SGD(w, lr=0.1, foreach=True),
    "SGD, not foreach": lambda w: torch.optim.SGD(w, lr=0.1, foreach=False),
    "SGD, fused": lambda w: torch.optim.SGD(w, lr=0.1, fused=True),
    "SGD, lr a tensor": lambda w: torch.optim.SGD(w, lr=torch.tensor(0.1)),
    "SGD, momentum, lr a tensor": lambda w: torch.optim.SGD(w, lr=torch.tensor(0.1), momentum=0.9),
    "Adam": lambda w: torch.optim.Adam(w, lr=0.01),
    "Adam, amsgrad": lambda w: torch.optim.Adam(w, lr=0.01, amsgrad=True),
    "Adam, weight decay": lambda w: torch.optim.Adam(w, lr=0.01, weight_decay=0.1),
    "Adam, decoupled weight decay": lambda w: torch.optim.Adam(
        w, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "Adam, maximize": lambda w: torch.optim.Adam(w, lr=0.01, maximize=True),
    "Adam, foreach": lambda w: torch.optim.Adam(w, lr=0.01, foreach=True),
    "Adam, not foreach": lambda w: torch.optim.Adam(w, lr=0.01, foreach=False),
    "Adam, fused": lambda w: torch.optim.Adam(w, lr=0.01, fused=True),
    "Adam, fused, amsgrad": lambda w: torch.optim.Adam(w, lr=0.01, fused=True, amsgrad=True),
    "Adam, fused, decoupled": lambda w: torch.optim.Adam(
        w, lr=0.01, fused=True, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "Adam, fused, lr a tensor": lambda w: torch.optim.Adam(w, lr=torch.tensor(0.01), fused=True),
    "Adam, lr a tensor": lambda w: torch.optim.Adam(w, lr=torch.tensor(0.01), foreach=False),
    "Adam, betas tensors": lambda w: torch.optim.Adam(
        w, lr=0.01, betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False
    ),
    "AdamW": lambda w: torch.optim.AdamW(w, lr=0.01),
    "AdamW, fused": lambda w: torch.optim.AdamW(w, lr=0.01, fused=True),
    "AdamW, fused, maximize": lambda w: torch.optim.AdamW(w, lr=0.01, fused=True, maximize=True),
    "AdamW, amsgrad, not foreach": lambda w: torch.optim.AdamW(w, lr=0.01, amsgrad=True, foreach=False),
    "AdamW, betas and eps": lambda w: torch.optim.AdamW(w, lr=0.01, betas=(0.8, 0.95), eps=1e-4),
}
for title, build in SETTINGS.items():

    def trained(build: Any = build) -> Script:
        net = Net()
        return Script(net, batches(), build(net.parameters()))

    case("optimizers", title, fast=title in ("SGD, momentum", "Adam, lr a tensor", "AdamW, fused"))(trained)


class Turned(nn.Module):
    """The gradient of its weight has another memory order than the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,oi->bo", x, self.weight).square().mean()


for title in ("Adam, fused", "Adam, fused, amsgrad", "AdamW, fused", "SGD, fused"):

    def turned(build: Any = SETTINGS[title]) -> Script:
        net = Turned()
        return Script(net, batches(), build(net.parameters()))

    case("optimizers", f"{title}, gradients in another memory order", fast=title == "Adam, fused")(turned)


OTHERS = (
    "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Adafactor", "LBFGS", "SparseAdam",
    "Muon",
)  # fmt: skip
for other in OTHERS:
    if not hasattr(torch.optim, other):
        continue

    def others(other: str = other) -> Script:
        net = nn.Linear(6, 6, bias=False)
        optimizer = getattr(torch.optim, other)(net.parameters(), lr=0.01)
        if other == "LBFGS":  # it calls for the loss itself, so a script gives it one
            optimizer.step = partial(optimizer.step, lambda: 0.0)
        if other == "SparseAdam":
            optimizer.step = lambda: None
        return Script(net, batches(), optimizer)

    case("optimizers", f"torch.optim.{other}", "refused", fast=other == "RMSprop")(others)


@case("optimizers", "groups with and without weight decay")
def decay_groups() -> Script:
    net = Net()
    biases = [p for p in net.parameters() if p.dim() == 1]
    matrices = [p for p in net.parameters() if p.dim() > 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0, "lr": 0.02}]
    return Script(net, batches(), torch.optim.AdamW(groups, lr=0.01))


@case("optimizers", "a group of SGD with momentum beside one without")
def momentum_groups() -> Script:
    net = Net()
    groups = [{"params": net.first.parameters(), "momentum": 0.9}, {"params": net.second.parameters()}]
    return Script(net, batches(), torch.optim.SGD(groups, lr=0.05))


@case("optimizers", "state from before")
def warm_state() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for (x,) in batches():
        optimizer.zero_grad()
        net(x).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Script(net, batches(), optimizer)


@case("optimizers", "load_state_dict after apply", fast=True)
def loaded_later() -> Script:
    return _loaded(lambda w: torch.optim.Adam(w, lr=0.01))


@case("optimizers", "load_state_dict after apply, fused", fast=True)
def loaded_later_fused() -> Script:
    return _loaded(lambda w: torch.optim.Adam(w, lr=0.01, fused=True))


@case("optimizers", "load_state_dict after apply, SGD with momentum")
def loaded_later_sgd() -> Script:
    return _loaded(lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9))


def _loaded(build: Any) -> Script:
    net = Net()
    twin = copy.deepcopy(net)
    other = build(twin.parameters())
    for (x,) in batches():
        other.zero_grad()
        twin(x).backward()
        other.step()
    other.param_groups[0]["lr"] = 0.003
    saved = copy.deepcopy(other.state_dict())
    optimizer = build(net.parameters())
    return Script(
        net, batches(), optimizer, before=lambda n: n in (0, 2) and optimizer.load_state_dict(copy.deepcopy(saved))
    )


@case("optimizers", "rate and decay changed between steps", fast=True)
def rate() -> Script:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def change(number: int) -> None:
        optimizer.param_groups[0].update(lr=0.01 / (number + 1), weight_decay=0.1 * number)

    return Script(net, batches(), optimizer, before=change)


@case("optimizers", "momentum switched on between steps", fast=True)
def momentum_later() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Script(net, batches(), optimizer, before=lambda n: n == 1 and optimizer.param_groups[0].update(momentum=0.9))


@case("optimizers", "maximize switched on between steps")
def maximize_later() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Script(
        net, batches(), optimizer, before=lambda n: n == 1 and optimizer.param_groups[0].update(maximize=True)
    )


@case("optimizers", "weight decay switched on between steps, fused Adam")
def decay_later() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
    return Script(
        net, batches(), optimizer, before=lambda n: n == 1 and optimizer.param_groups[0].update(weight_decay=0.1)
    )


@case("optimizers", "state reset between steps")
def reset() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
    return Script(net, batches(), optimizer, before=lambda n: n == 2 and optimizer.state.clear())


@case("optimizers", "momentum damped in place between steps")
def damped() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def damp(number: int) -> None:
        for entry in optimizer.state.values():
            entry["exp_avg"].mul_(0.5)

    return Script(net, batches(), optimizer, before=damp)


@case("optimizers", "a weight moved to a new group between steps")
def regrouped() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def move(number: int) -> None:
        if number == 1:
            weight = optimizer.param_groups[0]["params"].pop()
            optimizer.add_param_group({"params": [weight], "lr": 0.5})

    return Script(net, batches(), optimizer, before=move)


@case("optimizers", "a weight taken out of its group between steps", "refused")
def taken_out() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Script(net, batches(), optimizer, before=lambda n: n == 1 and optimizer.param_groups[0]["params"].pop(0))


@case("optimizers", "over some of the weights", "refused")
def some() -> Script:
    net = Net()
    return Script(net, batches(), torch.optim.SGD(net.second.parameters(), lr=0.1))


@case("optimizers", "over a weight that the module does not have", "refused", fast=True)
def foreign() -> Script:
    net, scale = Net(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1, weight_decay=0.1)
    return Script(net, batches(), optimizer, extra=lambda: scale.detach().clone())


class Signed(torch.optim.SGD):
    """SGD by the sign of the gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-group["lr"])


@case("optimizers", "an SGD subclass with its own step()", "refused", fast=True)
def subclass() -> Script:
    net = Net()
    return Script(net, batches(), Signed(net.parameters(), lr=0.01))


class Quiet(torch.optim.Adam):
    """Adam with another default."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=0.003)


@case("optimizers", "an Adam subclass with other defaults", "refused")
def subclass_of_defaults() -> Script:
    net = Net()
    return Script(net, batches(), Quiet(net.parameters()))


@case("optimizers", "step replaced on the instance", "refused")
def replaced() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plain = optimizer.step

    def clipped() -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        plain()

    optimizer.step = clipped  # type: ignore[method-assign, assignment]
    return Script(net, batches(), optimizer)


@case("optimizers", "step replaced between steps", "refused")
def replaced_later() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def replace(number: int) -> None:
        if number == 1:
            optimizer.step = lambda: None  # type: ignore[method-assign, assignment, return-value]

    return Script(net, batches(), optimizer, before=replace)


@case("optimizers", "zero_grad replaced: gradients add up", "refused")
def adding_up() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    return Script(net, batches(), optimizer)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
    "OneCycleLR (rate and momentum)": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=4),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "CyclicLR (rate and momentum)": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.1), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)],
        milestones=[1],
    ),
}
for title, schedule in SCHEDULERS.items():

    def scheduled(schedule: Any = schedule) -> Script:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler = schedule(optimizer)
        return Script(net, batches(), optimizer, after=lambda n: scheduler.step(), extra=scheduler.get_last_lr)

    case("optimizers", title, fast=title == "StepLR")(scheduled)


@case("optimizers", "a scheduler on a rate that is a tensor, fused Adam")
def scheduled_tensor() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01), fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return Script(net, batches(), optimizer, after=lambda n: scheduler.step())


@case("optimizers", "ReduceLROnPlateau")
def plateau() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return Script(net, batches(), optimizer, after=lambda n: scheduler.step(1.0))


@case("optimizers", "weights averaged by AveragedModel")
def averaged() -> Script:
    net = Net()
    mean = torch.optim.swa_utils.AveragedModel(net)
    return Script(net, batches(), after=lambda n: mean.update_parameters(net), extra=lambda: mean.state_dict())


@case("optimizers", "gradients added up over steps, no optimizer")
def accumulated() -> Script:
    return Script(Net(), batches(), updates=False)


@case("optimizers", "gradients of no optimizer, zeroed between steps")
def zeroed() -> Script:
    net = Net()
    return Script(net, batches(), updates=False, before=lambda n: net.zero_grad())


class Sums(nn.Module):
    """Weights whose gradients are one tensor, straight and turned, and one that is a number, spread."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4, 6))
        self.turned, self.level = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.one + self.other + self.turned.t()).square().sum() + self.level.sum()


@case("optimizers", "gradients of no optimizer that are one tensor, one of them scaled", fast=True)
def of_one_tensor() -> Script:
    net = Sums()

    def scale(number: int) -> None:
        for weight in (net.other, net.turned, net.level):
            weight.grad.mul_(0.5)

    return Script(net, batches(), updates=False, after=scale)


@case("optimizers", "weights without a gradient beside trained ones")
def frozen() -> Script:
    net = Net()
    net.first.requires_grad_(False)
    return Script(net, batches(), torch.optim.Adam(net.parameters(), lr=0.01))


class Spare(Net):
    """A layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)


@case("optimizers", "a layer that is not used, with weight decay")
def unused() -> Script:
    net = Spare()
    return Script(net, batches(), torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1))


@case("optimizers", "a learned input, which the optimizer has", "refused")
def learned_input() -> Script:
    net, prompt = Net(), torch.randn(4, 6, requires_grad=True)
    return Script(net, [(prompt,)] * 3, torch.optim.SGD([*net.parameters(), prompt], lr=0.1), extra=lambda: prompt)


@case("optimizers", "an input whose gradient is wanted", "refused")
def wanted_input() -> Script:
    x = torch.randn(4, 6, requires_grad=True)
    return Script(Net(), [(x,)] * 3, extra=lambda: x.grad)


def _complex_net(kind: Any) -> Script:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.weight).abs().square().mean()

    net = Complex()
    return Script(net, batches(), kind(net.parameters()))


@case("optimizers", "complex weights, SGD")
def complex_sgd() -> Script:
    return _complex_net(lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9))


@case("optimizers", "complex weights, Adam")
def complex_adam() -> Script:
    return _complex_net(lambda w: torch.optim.Adam(w, lr=0.01))
