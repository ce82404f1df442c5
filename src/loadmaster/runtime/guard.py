"""Before each step: is everything that forward reads as it was when the step was captured?

Training flags, plain attributes, layers, hooks, frozen weights, settings of torch and variables around the code. All of
it is compared in a few passes over tuples and dicts, which Python does in C: microseconds for a hundred layers. Only
where something differs is it looked up by name: what no code of the model mentions may change, the rest is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.errors import CannotRun
from loadmaster.importers.torch.export import switched
from loadmaster.runtime.contract import (
    GLOBAL_HOOKS,
    MODULE_HOOKS,
    OPTIMIZER_HOOKS,
    refuse_global_hooks,
    refuse_optimizer_hooks,
    refuse_tensor_hooks,
)
from loadmaster.runtime.python_state import (
    COLLECTS,
    PLAIN,
    STREAMS,
    State,
    acting,
    derived,
    memory_of,
    parts_of,
    roots_of,
    slots_of,
    state_of,
)
from loadmaster.runtime.watching import Watched, is_state

_OF_WEIGHT = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_AGAIN = "plan and apply again: lm.apply(module, inputs, plan)"
_HELD = ("_parameters", "_buffers", "_modules")
_OF_MODULE = frozenset(vars(nn.Module()))  # what torch keeps in every module, which is compared by itself


class Guard:
    """What a captured step depends on besides the tensors that it is given."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer | None, training: bool, watched: Watched
    ) -> None:
        self.module, self.optimizer, self.training, self.watched = module, optimizer, training, watched
        self.kept_step = getattr(type(optimizer), "step", None)
        self.names = [name for name, _ in module.named_modules()]
        self.parts = [part for _, part in module.named_modules()]
        with switched(module, training):
            self.captured_flags = [part.training for part in self.parts]
        self.weights = dict(module.named_parameters())
        self.hooks: list[Mapping[int, Any]] = [hooks for _, hooks in GLOBAL_HOOKS]
        self.hooks += [getattr(part, attribute) for part in self.parts for attribute in MODULE_HOOKS]
        if optimizer is not None:
            self.hooks += [getattr(optimizer, attribute) for attribute in OPTIMIZER_HOOKS]
        self.variables = [(where, holder, name) for where, holder, name in watched.variables]
        self._take()
        self.ambient = _ambient()

    def _take(self) -> None:
        """Everything as it is now."""
        self.dicts = [vars(part) for part in self.parts]
        self._take_attributes()
        self.inside = [(path, one) for path, one in self._containers()]
        held: list[Any] = [one for part in self.parts for one in (part._parameters, part._buffers, part._modules)]
        self.held, self.empty = [one for one in held if one], [one for one in held if not one]
        self.kept_inside = [_contents(one) for _, one in self.inside]
        self.kept_held = self._ids()
        self.kept_types: list[Any] = list(map(type, self.parts))
        self.kept_weights = list(map(_OF_WEIGHT, self.weights.values()))
        self._take_hooks()
        self.kinds: list[Any] = list(dict.fromkeys(self.kept_types))
        self.kept_forwards = [kind.forward for kind in self.kinds]
        self.kept_variables: list[State] = [state_of(roots_of(holder, name)) for _, holder, name in self.variables]
        self.kept_quick = [_quick(holder, name) for _, holder, name in self.variables]

    def _take_hooks(self) -> None:
        self.kept_hooks = list(map(len, self.hooks))
        self.kept_acting = [len(acting(hooks)) for hooks in self.hooks]

    def _take_attributes(self) -> None:
        self.sizes = list(map(len, self.dicts))
        self.kept_dicts = list(map(dict, self.dicts))
        self.reads = [(itemgetter(*self._read_keys(own)), own) for own in self.dicts]
        self.kept_reads = [read(own) for read, own in self.reads]

    def _ids(self) -> list[int]:
        """Of every weight, buffer and layer by name."""
        return list(map(id, chain.from_iterable(map(dict.values, self.held))))

    def _containers(self) -> list[tuple[str, Any]]:
        """Lists, dicts and objects that the attributes of layers hold."""
        found: list[tuple[str, Any]] = []
        seen: set[int] = set()
        todo = [
            (f"{name}.{key}" if name else key, value)
            for name, part in zip(self.names, self.parts, strict=True)
            for key, value in vars(part).items()
            if key not in _OF_MODULE and self._may_read(key)
        ]
        todo += [(name, vars(weight)) for name, weight in self.weights.items() if vars(weight)]
        while todo:
            path, value = todo.pop()
            if isinstance(value, (*PLAIN, Tensor, nn.Module, type, MethodType)) or id(value) in seen:
                continue
            if isinstance(value, FunctionType) and not is_state(value):
                continue
            seen.add(id(value))
            plain = isinstance(value, (Mapping, list, set, deque, np.ndarray)) or memory_of(value) is not None
            if plain or hasattr(value, "__dict__") or slots_of(value):
                found.append((path, value))
            todo += [(f"{path}{name}", part) for name, part in parts_of(value)]
        return found

    def _may_read(self, key: str) -> bool:
        return self.watched.any_name or key in self.watched.names

    def check(self) -> None:
        """CannotRun by name for what has changed and would change what the module computes."""
        if self.kept_hooks != list(map(len, self.hooks)):
            self._explain_hooks()
        if self.kept_weights != list(map(_OF_WEIGHT, self.weights.values())):
            self._explain_weights()
        if self.kept_held != self._ids() or any(self.empty):
            self._explain_held()
        if self.kept_types != list(map(type, self.parts)):
            self._explain_types()
        if [kind.forward for kind in self.kinds] != self.kept_forwards:
            raise CannotRun("the forward of a class was replaced since the step was captured", "forward", _AGAIN)
        if self.kept_step is not getattr(type(self.optimizer), "step", None):
            raise CannotRun("the step of the optimizer's class was replaced since apply", "optimizer.step", _AGAIN)
        if self.training and not torch.is_grad_enabled():
            what = "gradients are switched off around a step that trains, as torch.no_grad() does"
            raise CannotRun(what, "torch.is_grad_enabled()", "call the step outside of it")
        if self.sizes != list(map(len, self.dicts)) or self._reads_differ():
            self._explain_attributes()
        if self.inside and not _equal([_contents(one) for _, one in self.inside], self.kept_inside):
            self._explain_inside()
        if self.variables:
            self._check_variables()
        if self.ambient != _ambient():
            self._explain_ambient()
        if self.optimizer is not None:
            self._refuse_gradients()
        if self.optimizer is not None and ("step" in vars(self.optimizer) or "zero_grad" in vars(self.optimizer)):
            refuse_optimizer_hooks(self.optimizer)

    def _refuse_gradients(self) -> None:
        """Those of an earlier backward pass: eager torch would add to them, and a step that updates does not."""
        for name, weight in self.weights.items():
            if weight.grad is not None and bool(weight.grad.any()):
                what = f"the weight '{name}' has a gradient from before, to which a step that updates does not add"
                fix = "call optimizer.zero_grad() before it; to accumulate, plan with the optimizer 'none'"
                raise CannotRun(what, f"'{name}'.grad", fix)

    def _read_keys(self, own: Mapping[str, Any]) -> tuple[str, ...]:
        """Attributes that the model's code mentions; two at least, since one would come without a tuple."""
        return ("training", "training", *(key for key in own if key not in _OF_MODULE and self._may_read(key)))

    def _reads_differ(self) -> bool:
        try:
            return not _equal([read(own) for read, own in self.reads], self.kept_reads)
        except KeyError:
            return True

    def _explain_hooks(self) -> None:
        refuse_global_hooks()
        if self.optimizer is not None:
            refuse_optimizer_hooks(self.optimizer)
        for name, part in zip(self.names, self.parts, strict=True):
            for attribute, registers in MODULE_HOOKS.items():
                hooks = getattr(part, attribute)
                if len(acting(hooks)) != self.kept_acting[self._place(hooks)]:
                    what = f"hooks of module '{name}' were added or removed since the step was captured"
                    raise CannotRun(what, f"'{name}'.{registers}", _AGAIN)
        self._take_hooks()

    def _place(self, hooks: Any) -> int:
        return next(place for place, one in enumerate(self.hooks) if one is hooks)

    def _explain_weights(self) -> None:
        for (name, weight), before in zip(self.weights.items(), self.kept_weights, strict=True):
            refuse_tensor_hooks(name, weight)
            if weight.requires_grad != before[0]:
                said = "has a gradient" if weight.requires_grad else "was frozen"
                what = f"the weight '{name}' {said} now, other than when the step was captured"
                raise CannotRun(what, f"'{name}'.requires_grad", _AGAIN)
        self.kept_weights = list(map(_OF_WEIGHT, self.weights.values()))

    def _explain_held(self) -> None:
        now, place = {}, 0
        for name, part in zip(self.names, self.parts, strict=True):
            for attribute in _HELD:
                for key, value in getattr(part, attribute).items():
                    now[f"{name}.{key}" if name else key] = value
        kept = dict.fromkeys(self.kept_held)
        for path, value in now.items():
            place += 1
            if id(value) not in kept:
                what = f"'{path}' is another {_kind(value)} than when the step was captured"
                fix = f"write into it instead: {path}.copy_(…) under torch.no_grad(), or {_AGAIN}"
                raise CannotRun(what, f"'{path}'", fix if isinstance(value, Tensor) else _AGAIN)
        raise CannotRun("a weight, buffer or layer was taken away or moved", type(self.module).__name__, _AGAIN)

    def _explain_types(self) -> None:
        for name, part, kind in zip(self.names, self.parts, self.kept_types, strict=True):
            if type(part) is not kind:
                what = f"module '{name}' is a {type(part).__name__} now, and was a {kind.__name__} at capture"
                raise CannotRun(what, f"'{name}'", _AGAIN)

    def _explain_attributes(self) -> None:
        for place, (name, part, kept) in enumerate(zip(self.names, self.parts, self.kept_dicts, strict=True)):
            own = vars(part)
            for key in {**kept, **own}:
                old, new = kept.get(key, _NOTHING), own.get(key, _NOTHING)
                if old is new or _same(old, new) or not self._counts(part, key, place, new):
                    continue
                path = f"{name}.{key}" if name else key
                if key == "training":
                    mode, other = ("eval", "train") if old else ("train", "eval")
                    what = (
                        f"module '{name}' ({type(part).__name__}) is in {mode} mode, and was captured in {other} mode"
                    )
                    raise CannotRun(what, f"'{path}'", f"call {other}() before the step, or {_AGAIN}")
                what = f"'{path}' is {_shown(new)} now, and was {_shown(old)} when the step was captured"
                raise CannotRun(what, f"'{path}'", f"set it back, or {_AGAIN}")
        self._take_attributes()

    def _counts(self, part: nn.Module, key: str, place: int, new: Any) -> bool:
        """Whether a change of that attribute changes what is computed."""
        if new is not _NOTHING and derived(part, key):
            return False
        if key == "training":
            return bool(new != self.captured_flags[place])
        return key == "forward" or (key != COLLECTS and self._may_read(key))

    def _explain_inside(self) -> None:
        for (path, one), kept in zip(self.inside, self.kept_inside, strict=True):
            if not _equal(_contents(one), kept):
                what = f"what '{path}' holds has changed since the step was captured"
                raise CannotRun(what, f"'{path}'", f"set it back, or {_AGAIN}")

    def _check_variables(self) -> None:
        now = [_quick(holder, name) for _, holder, name in self.variables]
        if _equal(now, self.kept_quick):
            return
        for (where, holder, name), before in zip(self.variables, self.kept_variables, strict=True):
            if state_of(roots_of(holder, name)) != before:
                what = f"the variable {where} has changed since the step was captured, and forward reads it"
                raise CannotRun(what, where, f"set it back, or {_AGAIN}")
        self.kept_quick = now

    def _explain_ambient(self) -> None:
        for (what, before), (_, now) in zip(self.ambient, _ambient(), strict=True):
            if before != now:
                said = f"{what} was {_shown(before)} when the step was applied and is {_shown(now)} now"
                fix = "set it inside the module's forward, or plan and apply under the same setting"
                raise CannotRun(said, f"{what}, around the step", fix)


_NOTHING = object()


def _quick(holder: Any, name: str) -> Any:
    """A variable in a form that compares fast; what a container or a class holds is in it."""
    value = holder.get(name) if isinstance(holder, dict) else holder.cell_contents
    if isinstance(value, type):
        return dict(vars(value))
    if isinstance(value, nn.Module):
        return id(value), [part.training for part in value.modules()]
    return state_of({name: value}) if isinstance(value, (*STREAMS, Iterator)) else _contents(value)


def _contents(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if (memory := memory_of(value)) is not None:
        return memory
    if isinstance(value, (list, deque)):
        return list(value)
    if isinstance(value, set):
        return set(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= 4096 else id(value)
    if isinstance(value, Tensor):
        return id(value)
    if isinstance(value, (FunctionType, partial)):
        return [value, *(_contents(part) for name, part in parts_of(value))]
    if isinstance(value, type):
        return value
    return (
        dict(vars(value))
        if hasattr(value, "__dict__")
        else [getattr(value, slot, None) for slot in slots_of(value)] or value
    )


def _equal(one: Any, other: Any) -> bool:
    """Python compares by identity first; what then compares element by element (tensors, arrays) is another."""
    try:
        return bool(one == other)
    except Exception:
        return False


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or isinstance(one, (Tensor, np.ndarray)):
        return False
    return _equal(one, other)


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, Tensor) else f"layer ({type(value).__name__})"


def _shown(value: Any) -> str:
    if value is _NOTHING:
        return "not there"
    text = repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def _ambient() -> Sequence[tuple[str, Any]]:
    """Settings of torch that change what the same code computes."""
    return (
        ("autocast on the CPU", torch.is_autocast_enabled("cpu")),
        ("autocast on the GPU", torch.is_autocast_enabled("cuda")),
        ("torch.get_default_dtype()", torch.get_default_dtype()),
        ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled()),
        ("the number of torch function modes", torch._C._len_torch_function_stack()),
        ("hooks on saved tensors", torch._C._autograd._top_saved_tensors_default_hooks(True) is not None),
    )


def refuse_autocast() -> None:
    """A step casts where its capture did, and would cast once more."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        fix = "use autocast inside the module's forward"
        raise CannotRun("a step cannot be applied under autocast", "torch.autocast around apply", fix)
