"""The optimizer's updates, each of one weight and an op of a captured step; neighbours of a plan are called together.

Where torch has one kernel for it, that is called straight away. Anything else that a torch optimizer can be told to do
is done by an optimizer of the same class over those weights, which shares settings and state with the user's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from loadmaster.errors import CannotRun, InvalidSetting
from loadmaster.importers.torch.step import Cut

_CLASSES: Mapping[str, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
_PLAIN_SGD = ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "fused")
_DECIDING = (*_PLAIN_SGD, "amsgrad", "decoupled_weight_decay")  # settings that another kernel may be needed for
UpdateCall = Callable[[list[Tensor], list[Tensor]], None]  # weights, their gradients
STATE = ("exp_avg", "exp_avg_sq")  # of Adam, as graphs have it


def default_optimizer(kind: str, weights: list[nn.Parameter]) -> Optimizer | None:
    """With torch's own defaults, by its kernel for many weights."""
    if kind == "none" or not weights:
        return None
    made: Any = _CLASSES[kind]
    fused = kind != "sgd" and not any(weight.is_complex() for weight in weights)
    return made(weights, fused=True) if fused else made(weights)  # type: ignore[no-any-return]


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
    """Update calls over the settings and the state of one torch optimizer.

    The user's optimizer stays the owner of settings and state. `call` gives what updates some weights in one go,
    `follow_weights` brings state to where its weight is, `lodging` names a part of it that lives on another device.
    """

    def __init__(
        self,
        optimizer: Optimizer | None,
        weights: Mapping[str, nn.Parameter],
        copies: Mapping[str, str] = MappingProxyType({}),
        cuts: Mapping[str, Cut] = MappingProxyType({}),
    ) -> None:
        """`copies`: weights that have the settings of another, and begin with its state, or with a part of it."""
        self.optimizer, self.weights, self.copies, self.cuts = optimizer, weights, copies, cuts
        self.copying = None if optimizer is None or not copies else self._copying(optimizer)
        self.gradients: dict[str, Tensor] | None = None  # where to keep them, for whoever wants to look
        self.made: list[_Watched] = []
        self.lodges = False  # part of the state lives elsewhere than its weight
        self._note_optimizer()

    def _note_optimizer(self) -> None:
        groups = self.optimizer.param_groups if self.optimizer else ()
        self.group_of = {id(weight): group for group in groups for weight in group["params"]}
        self.seen = self._look()

    def _look(self) -> Any:
        """What update calls hold on to: which dicts the state and the groups are, and which kernel settings ask for."""
        if self.optimizer is None:
            return None
        state, groups = self.optimizer.state, self.optimizer.param_groups
        return (
            id(state),
            list(map(id, state.values())),
            [(id(group), len(group["params"]), *(bool(group.get(key)) for key in _DECIDING)) for group in groups],
        )

    def follow_optimizer(self) -> bool:
        """Takes over what was loaded into the optimizer, reset or regrouped since the last step; whether it was."""
        if self.optimizer is None or self._look() == self.seen:
            return False
        self.follow_weights()
        self._note_optimizer()
        for one in self.made:
            if len({id(self._group(name)) for name in one.names}) > 1:
                what = f"weights that were updated together are in groups of their own now: {', '.join(one.names[:3])}"
                raise CannotRun(what, "optimizer.param_groups", "plan and apply again")
        if (self.lodges or self.copying is not None) and self.made:
            what = "the optimizer's state was replaced, and this plan keeps parts of it on other devices"
            raise CannotRun(what, "optimizer.load_state_dict", "load it before apply")
        for one in self.made:
            one.update = self._update(one.names, one.device)
        self.seen = self._look()
        return True

    def note(self) -> None:
        """The state is as the step, or whoever took it back, left it."""
        self.seen = self._look()

    def stepped(self) -> None:
        """A step was taken: schedulers ask for that."""
        if self.optimizer is not None:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]
            self.note()

    def _copying(self, optimizer: Optimizer) -> Optimizer:
        """One of the same class for the copies: the user's knows nothing of them."""
        one = type(optimizer)([self.weights[name] for name in self.copies], lr=1e-3)  # type: ignore[call-arg]
        for name, of in self.copies.items():
            if self.weights[of] in optimizer.state:
                state = copy.deepcopy(optimizer.state[self.weights[of]])
                cut = self.cuts.get(name)
                if cut is not None:
                    state = {key: cut.of(v) if isinstance(v, Tensor) and v.dim() else v for key, v in state.items()}
                one.state[self.weights[name]] = state
        return one

    def give_back(self, cuts: Mapping[str, Cut]) -> None:
        """The state of parts to that of the whole weight, as far as it is here."""
        for name, cut in cuts.items():
            there = self.copying is not None and name in self.copies and self.weights[name] in self.copying.state
            if self.copying is None or self.optimizer is None or not there:
                continue
            weight = self.weights[self.copies[name]]
            whole = self.optimizer.state[weight]
            for key, value in self.copying.state[self.weights[name]].items():
                if isinstance(value, Tensor) and value.dim():
                    whole.setdefault(key, torch.zeros_like(weight, memory_format=torch.preserve_format))
                    cut.put(value.to(weight.device), whole[key])
                else:
                    whole[key] = copy.deepcopy(value)

    def call(self, names: Sequence[str], device: torch.device, here: Sequence[bool] = ()) -> UpdateCall:
        """What updates those weights, which must be of one `family`, in one go, on a device; `here`: which of their
        state is there. The rest comes with each call."""
        weights = [self.weights[name] for name in names]
        optimizer = self._optimizer(names[0])
        if not all(here):
            for name in names:
                entry = self._with_state(name)
                for key, there in zip(STATE, here, strict=True):
                    entry[key] = entry[key].to(device) if there else entry[key]
        states = [optimizer.state[weight] for weight in weights] if not all(here) else []
        self.made.append(_Watched(self, names, device, self._update(names, device), states))
        return self.made[-1]

    def _update(self, names: Sequence[str], device: torch.device) -> UpdateCall:
        weights = [self.weights[name] for name in names]
        return _update_of(self._optimizer(names[0]), self._group(names[0]), weights, device)

    def _optimizer(self, name: str) -> Optimizer:
        optimizer = self.copying if name in self.copies else self.optimizer
        assert optimizer is not None
        return optimizer

    def _with_state(self, name: str) -> dict[str, Any]:
        """The state of a weight, made where there is none yet, as Adam makes it."""
        weight = self.weights[name]
        entry: dict[str, Any] = self._optimizer(name).state[weight]
        if not entry:
            fused = self._group(name).get("fused") or self._group(name).get("capturable")
            entry["step"] = torch.zeros((), dtype=torch.float32, device=weight.device if fused else None)
            entry.update({key: torch.zeros_like(weight, memory_format=torch.preserve_format) for key in STATE})
        return entry

    def lodging(self, name: str, part: int) -> Tensor:
        """That part of the state of a weight, which may live elsewhere than the weight."""
        self.lodges = True
        value: Tensor = self._with_state(name)[STATE[part]]
        return value

    def family(self, name: str) -> Any:
        """Weights of one family may be updated together."""
        return id(self._group(name)), self.weights[name].device, self.weights[name].dtype, name in self.copies

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The user's, and that of copies."""
        return tuple(one for one in (self.optimizer, self.copying) if one is not None)

    def state_of(self, name: str) -> list[Any]:
        """Of one weight."""
        found = [one.state[self.weights[name]] for one in self.optimizers if self.weights[name] in one.state]
        return [value for entry in found for value in entry.values()]

    def _group(self, name: str) -> dict[str, Any]:
        group = self.group_of.get(id(self.weights[self.copies.get(name, name)]))
        if group is None:
            what = f"the optimizer does not have the weight '{name}'"
            raise InvalidSetting(what, "optimizer", "make it over all weights that need a gradient")
        return group

    def settings(self) -> list[tuple[Any, ...]]:
        """What a recorded update has baked in."""
        groups = self.optimizer.param_groups if self.optimizer is not None else ()
        return [tuple((key, value) for key, value in group.items() if key != "params") for group in groups]

    def state(self) -> list[Tensor]:
        """Every tensor of it."""
        entries = [entry for one in self.optimizers for entry in one.state.values()]
        return [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]

    def follow_weights(self) -> None:
        """Moves state to where its weight is."""
        for weight, entry in [pair for one in self.optimizers for pair in one.state.items()]:
            for key, value in entry.items():
                if isinstance(value, Tensor) and value.dim():
                    entry[key] = value.to(weight.device)


class _Watched:
    """An update whose gradients somebody may want to see, and whose state may have come from elsewhere."""

    def __init__(
        self,
        updates: Updates,
        names: Sequence[str],
        device: torch.device,
        update: UpdateCall,
        states: Sequence[dict[str, Any]],
    ) -> None:
        self.updates, self.names, self.device, self.update, self.states = updates, names, device, update, states

    @property
    def recordable(self) -> bool:
        """In a CUDA graph."""
        return not isinstance(self.update, _Alone)

    def __call__(
        self, parameters: list[Tensor], gradients: list[Tensor], came: Sequence[Sequence[Tensor | None]] = ()
    ) -> None:
        if self.updates.gradients is not None:
            for name, gradient in zip(self.names, gradients, strict=True):
                self.updates.gradients[name] = gradient.clone()
        kept = [dict(entry) for entry in self.states]
        for entry, state in zip(self.states, came, strict=True):
            entry.update({key: value for key, value in zip(STATE, state, strict=True) if value is not None})
        try:
            self.update(parameters, gradients)
        finally:
            for entry, own in zip(self.states, kept, strict=True):
                entry.update({key: own[key] for key in STATE})


def _update_of(
    optimizer: Optimizer, group: dict[str, Any], weights: Sequence[nn.Parameter], device: torch.device
) -> UpdateCall:
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) and group.get("fused") and not group["amsgrad"]:
        decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")
        kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        return _FusedAdam(kernel, group, [optimizer.state[weight] for weight in weights], weights, device)
    if isinstance(optimizer, torch.optim.SGD) and not any(group.get(key) for key in _PLAIN_SGD):
        return lambda parameters, gradients: _plain_sgd(group, parameters, gradients)
    return _Alone(optimizer, group, weights)


def _plain_sgd(group: Mapping[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
    torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


class _FusedAdam:
    """torch's fused Adam or AdamW over some weights."""

    def __init__(
        self,
        kernel: Any,
        group: dict[str, Any],
        states: list[dict[str, Any]],
        weights: Sequence[nn.Parameter],
        device: torch.device,
    ) -> None:
        self.kernel, self.group = kernel, group
        for state, weight in zip(states, weights, strict=True):
            if not state:  # as Adam makes it when it first sees a gradient
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                for key in STATE:
                    state[key] = torch.zeros_like(weight, memory_format=torch.preserve_format, device=device)
            state["step"] = state["step"].to(device)
        self.states = states

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        group, states = self.group, self.states
        gradients = _as_accumulated(parameters, gradients)
        beta1, beta2 = group["betas"]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        self.kernel(
            parameters, gradients, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [], steps,
            lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"],
            amsgrad=False, maximize=group["maximize"],
        )  # fmt: skip


def _as_accumulated(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the memory order of their weights, as `backward()` leaves them: fused kernels go by memory."""
    return [
        gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


class _Alone:
    """An optimizer of the same class over some weights, with the settings and the state of the whole one."""

    def __init__(self, optimizer: Optimizer, group: dict[str, Any], weights: Sequence[nn.Parameter]) -> None:
        self.group, self.weights = group, weights
        self.one = type(optimizer)(list(weights), lr=group["lr"])  # type: ignore[call-arg]
        self.one.state = optimizer.state

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        mine = self.one.param_groups[0]
        mine.update({key: value for key, value in self.group.items() if key != "params"})
        if mine.get("foreach") is None and len(parameters) == 1:
            mine["foreach"] = False  # one weight is no list
        if self.group.get("fused"):
            gradients = _as_accumulated(parameters, gradients)
        own = [weight.data for weight in self.weights]
        for weight, parameter, gradient in zip(self.weights, parameters, gradients, strict=True):
            if weight.data_ptr() != parameter.data_ptr():  # it lives elsewhere, and came
                weight.data = parameter
            weight.grad = gradient
        self.one.step()
        for weight, data in zip(self.weights, own, strict=True):
            weight.grad = None
            if weight.data_ptr() != data.data_ptr():
                weight.data = data
