"""The optimizer's update of one weight, which is one op of a captured step.

Where torch has one kernel for it, that is called straight away. Anything else that a torch optimizer can be told to do
is done by an optimizer of the same class over that one weight, which shares settings and state with the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from loadmaster.errors import InvalidSetting

_CLASSES: Mapping[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
_PLAIN_SGD = ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "fused")
UpdateCall = Callable[[Tensor, Tensor], None]


def default_optimizer(kind: str, weights: list[nn.Parameter]) -> Optimizer | None:
    """With torch's own defaults, in one kernel a weight, as the captured graph has it."""
    if kind == "none" or not weights:
        return None
    made: Any = _CLASSES[kind]
    return made(weights) if kind == "sgd" else made(weights, fused=True)  # type: ignore[no-any-return]


def check_kind(optimizer: Optimizer, kind: str) -> None:
    """Refuses an optimizer other than the captured one: it would need other state and other work."""
    wanted = _CLASSES.get(kind)
    is_other_adam = kind == "adam" and isinstance(optimizer, torch.optim.AdamW)
    if wanted is None or not isinstance(optimizer, wanted) or is_other_adam:
        given = type(optimizer).__name__.lower()
        what = f"the step was captured with the optimizer '{kind}', but a {type(optimizer).__name__} was given"
        fix = f"plan with optimizer='{given}'" if given in _CLASSES else f"use one of {', '.join(_CLASSES)}"
        raise InvalidSetting(what, "optimizer", fix)


class Updates:
    """Update calls over the settings and the state of one torch optimizer."""

    def __init__(self, optimizer: Optimizer | None, weights: Mapping[str, nn.Parameter]) -> None:
        self.optimizer, self.weights = optimizer, weights
        self.gradients: dict[str, Tensor] | None = None  # where to keep them, for whoever wants to look
        self.group_of = {
            id(weight): group for group in (optimizer.param_groups if optimizer else ()) for weight in group["params"]
        }

    def call(self, name: str) -> UpdateCall:
        weight = self.weights[name]
        if id(weight) not in self.group_of:
            what = f"the optimizer does not have the weight '{name}'"
            raise InvalidSetting(what, "optimizer", "make it over all weights that need a gradient")
        assert self.optimizer is not None
        update = _update_of(self.optimizer, self.group_of[id(weight)], weight)

        return _Watched(self, name, update)

    def settings(self) -> list[tuple[Any, ...]]:
        """What a recorded update has baked in."""
        groups = self.optimizer.param_groups if self.optimizer is not None else ()
        return [tuple((key, value) for key, value in group.items() if key != "params") for group in groups]

    def state(self) -> list[Tensor]:
        """Every tensor of it."""
        if self.optimizer is None:
            return []
        return [v for entry in self.optimizer.state.values() for v in entry.values() if isinstance(v, Tensor)]

    def follow_weights(self) -> None:
        """Moves state to where its weight is."""
        if self.optimizer is None:
            return
        for weight, entry in self.optimizer.state.items():
            for key, value in entry.items():
                if isinstance(value, Tensor) and value.dim():
                    entry[key] = value.to(weight.device)


class _Watched:
    """An update whose gradient somebody may want to see."""

    def __init__(self, updates: Updates, name: str, update: UpdateCall) -> None:
        self.updates, self.name, self.update = updates, name, update
        self.recordable = not isinstance(update, _Alone)

    def __call__(self, parameter: Tensor, gradient: Tensor) -> None:
        if self.updates.gradients is not None:
            self.updates.gradients[self.name] = gradient.clone()
        self.update(parameter, gradient)


def _update_of(optimizer: Optimizer, group: dict[str, Any], weight: nn.Parameter) -> UpdateCall:
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) and group.get("fused") and not group["amsgrad"]:
        kernel = torch._fused_adamw_ if isinstance(optimizer, torch.optim.AdamW) else torch._fused_adam_
        return _FusedAdam(kernel, group, optimizer.state[weight], weight)
    if isinstance(optimizer, torch.optim.SGD) and not any(group.get(key) for key in _PLAIN_SGD):
        return lambda parameter, gradient: _plain_sgd(group, parameter, gradient)
    return _Alone(optimizer, group, weight)


def _plain_sgd(group: Mapping[str, Any], parameter: Tensor, gradient: Tensor) -> None:
    parameter.add_(gradient, alpha=-group["lr"])


class _FusedAdam:
    """torch's fused Adam or AdamW over one weight."""

    def __init__(self, kernel: Any, group: dict[str, Any], state: dict[str, Any], weight: nn.Parameter) -> None:
        self.kernel, self.group, self.state = kernel, group, state
        if not state:  # as Adam makes it when it first sees a gradient
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        state["step"] = state["step"].to(weight.device)

    def __call__(self, parameter: Tensor, gradient: Tensor) -> None:
        group, state = self.group, self.state
        beta1, beta2 = group["betas"]
        state["step"].add_(1)
        self.kernel(
            [parameter], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]],
            lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"],
            amsgrad=False, maximize=group["maximize"],
        )  # fmt: skip


class _Alone:
    """An optimizer of the same class over one weight, with the settings and the state of the whole one."""

    def __init__(self, optimizer: Optimizer, group: dict[str, Any], weight: nn.Parameter) -> None:
        self.group, self.weight = group, weight
        self.one = type(optimizer)([weight], lr=group["lr"])  # type: ignore[call-arg]
        self.one.state = optimizer.state

    def __call__(self, parameter: Tensor, gradient: Tensor) -> None:
        mine = self.one.param_groups[0]
        mine.update({key: value for key, value in self.group.items() if key != "params"})
        if mine.get("foreach") is None:
            mine["foreach"] = False  # one weight is no list
        self.weight.grad = gradient
        self.one.step()
        self.weight.grad = None
