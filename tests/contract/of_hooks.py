"""Hooks: on tensors, modules, optimizers, and on everything."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tests.contract.cases import Script, case
from tests.contract.models import Net, batches


def clip(gradient: Tensor) -> Tensor:
    return gradient.clamp(-0.01, 0.01)


def _damp(weight: Tensor) -> None:
    weight.grad.mul_(0.1)


@case("hooks", "weight.register_hook", "refused", fast=True)
def tensor_hook() -> Script:
    net = Net()
    net.first.weight.register_hook(clip)
    return Script(net, batches())


@case("hooks", "weight.register_hook between steps", "refused", fast=True)
def tensor_hook_later() -> Script:
    net = Net()
    return Script(net, batches(), before=lambda n: n == 1 and net.first.weight.register_hook(clip))


@case("hooks", "weight.register_post_accumulate_grad_hook", "refused", fast=True)
def post_accumulate() -> Script:
    net = Net()
    net.second.weight.register_post_accumulate_grad_hook(_damp)
    return Script(net, batches())


@case("hooks", "optimizer in backward: a step per weight in its hook", "refused")
def optimizer_in_backward() -> Script:
    net = Net()
    each = {p: torch.optim.SGD([p], lr=0.05) for p in net.parameters()}
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: each[p].step())
    return Script(net, batches())


@case("hooks", "register_multi_grad_hook", "refused")
def multi_grad() -> Script:
    net = Net()
    seen: list[int] = []
    torch.autograd.graph.register_multi_grad_hook(tuple(net.parameters()), lambda gradients: seen.append(1))
    return Script(net, batches(), extra=lambda: len(seen))


@case("hooks", "a forward hook that changes the output", "refused")
def forward_hook() -> Script:
    net = Net()
    net.first.register_forward_hook(lambda module, args, out: out * 0.5)
    return Script(net, batches())


@case("hooks", "a forward hook that collects activations", "refused", fast=True)
def collecting_hook() -> Script:
    net, seen = Net(), []
    net.first.register_forward_hook(lambda module, args, out: seen.append(out.detach().mean()))
    return Script(net, batches(), extra=lambda: list(seen))


@case("hooks", "a forward hook between steps", "refused")
def forward_hook_later() -> Script:
    net = Net()
    add = net.first.register_forward_hook
    return Script(net, batches(), before=lambda n: n == 2 and add(lambda module, args, out: out * 0.5))


@case("hooks", "a forward pre-hook that adds noise", "refused")
def pre_hook() -> Script:
    net = Net()
    net.first.register_forward_pre_hook(lambda module, args: (args[0] + 0.1 * torch.randn_like(args[0]),))
    return Script(net, batches())


@case("hooks", "a full backward hook", "refused", fast=True)
def full_backward() -> Script:
    net = Net()
    net.first.register_full_backward_hook(lambda module, into, out: tuple(g if g is None else g * 0.1 for g in into))
    return Script(net, [(x.clone(),) for (x,) in batches()])


@case("hooks", "a full backward pre-hook", "refused")
def full_backward_pre() -> Script:
    net = Net()
    net.second.register_full_backward_pre_hook(lambda module, out: tuple(g * 0.1 for g in out))
    return Script(net, batches())


@contextmanager
def globally(handle: Any) -> Any:
    try:
        yield
    finally:
        handle.remove()


def halve(module: nn.Module, args: Any, out: Any) -> Any:
    return out * 0.5 if isinstance(module, nn.Linear) else None


@case("hooks", "a global forward hook around a step", "refused", fast=True)
def global_hook() -> Script:
    around = nn.modules.module.register_module_forward_hook
    return Script(Net(), batches(), around=lambda: globally(around(halve)))


@case("hooks", "a global full backward hook around a step", "refused")
def global_backward_hook() -> Script:
    around = nn.modules.module.register_module_full_backward_hook
    scaled = lambda module, into, out: tuple(g if g is None else g * 0.1 for g in into)  # noqa: E731
    return Script(Net(), batches(), around=lambda: globally(around(scaled)))


@case("hooks", "a global optimizer pre-hook around a step", "refused")
def global_optimizer_hook() -> Script:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def clipped(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 0.01)

    return Script(Net(), batches(), around=lambda: globally(register_optimizer_step_pre_hook(clipped)))


@case("hooks", "an optimizer step pre-hook that clips", "refused", fast=True)
def optimizer_pre() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda o, a, k: nn.utils.clip_grad_norm_(net.parameters(), 0.01) and None)
    return Script(net, batches(), optimizer)


@case("hooks", "an optimizer step post-hook that averages weights", "refused")
def optimizer_post() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    mean = [p.detach().clone() for p in net.parameters()]

    def average(o: Any, a: Any, k: Any) -> None:
        for kept, p in zip(mean, net.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.1)

    optimizer.register_step_post_hook(average)
    return Script(net, batches(), optimizer, extra=lambda: mean)


@case("hooks", "an optimizer pre-hook between steps", "refused")
def optimizer_pre_later() -> Script:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    add = optimizer.register_step_pre_hook
    clipped = lambda o, a, k: nn.utils.clip_grad_norm_(net.parameters(), 0.01) and None  # noqa: E731
    return Script(net, batches(), optimizer, before=lambda n: n == 1 and add(clipped))


class Reversal(Net):
    """A gradient hook on an activation, in forward."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        hidden.register_hook(lambda gradient: -0.5 * gradient)
        return self.second(hidden).square().mean()


@case("hooks", "an activation's hook, registered in forward")
def activation_hook() -> Script:
    return Script(Reversal(), batches())


class Recording(Net):
    """The norm of a gradient, written down by a hook on an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        hidden.register_hook(lambda gradient: self.norms.append(1.0))
        return self.second(hidden).square().mean()


@case("hooks", "an activation's hook that keeps a record", "refused")
def activation_record() -> Script:
    net = Recording()
    return Script(net, batches(), extra=lambda: len(net.norms))


@case("hooks", "saved tensors packed to half precision around a step", "refused")
def saved_tensors() -> Script:
    hooks = torch.autograd.graph.saved_tensors_hooks
    return Script(Net(), batches(), around=lambda: hooks(lambda t: t.bfloat16(), lambda t: t.float()))


@case("hooks", "a hook on the gradient accumulator", "refused", fast=True)
def accumulator() -> Script:
    net = Net()
    node = net.first.weight.expand_as(net.first.weight).grad_fn.next_functions[0][0]
    seen: list[int] = []
    node.register_hook(lambda into, out: seen.append(1))
    net_extra = [node]
    return Script(net, batches(), extra=lambda: (len(seen), len(net_extra)))


@case("hooks", "old spectral_norm")
def old_spectral() -> Script:
    net = Net()
    nn.utils.spectral_norm(net.first)
    return Script(net, batches())


@case("hooks", "old weight_norm")
def old_weight_norm() -> Script:
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(net.first)
    return Script(net, batches())


@case("hooks", "pruned weights")
def pruned() -> Script:
    net = Net()
    from torch.nn.utils import prune

    prune.random_unstructured(net.first, "weight", amount=0.3)
    return Script(net, batches())
