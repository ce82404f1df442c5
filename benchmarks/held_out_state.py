"""What can be seen of a module from outside, to compare before and after."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import types
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from loadmaster.importers.torch.twin import Twins

VERSION = "._version"
_SHOWN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, slice, range)
_WHOLE = (type, types.ModuleType, types.BuiltinFunctionType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def seen_of(*roots: Any) -> dict[str, Any]:
    """Path -> what is there: values of tensors and numbers, and of all else its kind and whether it is the same."""
    found: dict[str, Any] = {}
    first: dict[int, str] = {}
    kept, waiting = [], [(f"[{number}]", root) for number, root in reversed(list(enumerate(roots)))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _SHOWN):
            found[path] = (type(value).__name__, repr(value))
            continue
        if id(value) in first:
            found[path] = f"is {first[id(value)]}"
            continue
        first[id(value)] = path
        kept.append(value)
        found[path] = (type(value), id(value) if isinstance(value, (nn.Module, Tensor)) else None, _shown(value))
        if isinstance(value, Tensor) and not value.is_inference():
            found[f"{path}{VERSION}"] = value._version
        if not isinstance(value, _WHOLE):
            waiting += [(f"{path}.{name}", part) for name, part in reversed(_parts(value))]
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, torch.Generator):
        return hashlib.sha256(value.get_state().numpy().tobytes()).hexdigest()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, (random.Random, itertools.count, itertools.cycle)):
        return repr(value.__reduce__()[1:])
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return repr(value.__reduce__()[1:])
    return sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else None


def _tensor(value: Tensor) -> Any:
    facts = [value.requires_grad, value.is_leaf]
    if isinstance(value, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        return facts
    facts += [value.dtype, value.device, tuple(value.shape), value.layout, value.grad_fn is None]
    if value.layout != torch.strided or isinstance(value, FakeTensor) or value.device.type == "meta":
        return [*facts, isinstance(value, FakeTensor)]
    with torch.no_grad():
        numbers = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        content = numbers.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return [*facts, value.stride(), value.data_ptr(), hashlib.sha256(content).hexdigest()]


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What it holds, by name."""
    if isinstance(value, dict):
        held = [(f"[{key!r:.60}]", part) for key, part in dict.items(value)]
    elif isinstance(value, (list, tuple)):
        held = [(f"[{number}]", part) for number, part in enumerate(value)]
    elif isinstance(value, types.FunctionType):
        held = [(f"cell{number}", _content(cell)) for number, cell in enumerate(value.__closure__ or ())]
        held += [("defaults", value.__defaults__), ("kwdefaults", value.__kwdefaults__)]
    elif isinstance(value, types.MethodType):
        held = [("self", value.__self__), ("func", value.__func__)]
    elif isinstance(value, functools.partial):
        held = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    elif hasattr(value, "cache_info"):
        held = [("cached", tuple(value.cache_info())), ("function", value.__wrapped__)]
    elif isinstance(value, weakref.ref):
        held = [("referent", value())]
    elif isinstance(value, Tensor):
        held = [("grad", value.grad)] if value.is_leaf else []
        held += [("hooks", value._backward_hooks)] if value.is_leaf else []
    else:
        held = []
    attributes = getattr(value, "__dict__", {})
    return held + [(name, part) for name, part in list(attributes.items()) if not isinstance(value, FakeTensor)]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def random_states() -> dict[str, str]:
    """Of Python's, NumPy's and torch's generators."""
    states = {"python": repr(random.getstate()), "numpy": repr(np.random.get_state())}
    return {**states, "torch": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()}


def change(before: dict[str, Any], after: dict[str, Any], versions: bool = True) -> str:
    """The first difference, or "". `versions`: a tensor was not even written the values that it had."""
    for path in dict.fromkeys([*before, *after]):
        if before.get(path) != after.get(path) and (versions or not path.endswith(VERSION)):
            return f"{path}: {before.get(path)!r:.90} -> {after.get(path)!r:.90}"
    return ""


def working_copy(module: nn.Module) -> nn.Module:
    """A twin with values and memory of its own, on which a real step can be run; its gradients are copied too."""
    twin: nn.Module = Twins(_Clones())(module)
    return twin


class _Clones:
    """Tensors of the same values, which share memory where the originals do."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    @torch.no_grad()
    def __call__(self, real: Tensor) -> Tensor:
        twin = self._valued(real)
        if isinstance(real, nn.Parameter):
            twin = nn.Parameter(twin, requires_grad=real.requires_grad)
        elif real.requires_grad:
            twin.requires_grad_()
        if real.is_leaf and real.grad is not None:
            twin.grad = self(real.grad)
        return twin

    def _valued(self, real: Tensor) -> Tensor:
        plain = type(real) in (Tensor, nn.Parameter) and real.layout == torch.strided and not real.is_conj()
        if not plain or real.is_quantized or real.is_neg():
            return real.detach().clone()
        storage = real.untyped_storage()
        own = self._storages.get(storage._cdata)
        if own is None:
            own = self._storages[storage._cdata] = storage.clone()
        empty = torch.empty(0, dtype=real.dtype, device=real.device)
        return empty.set_(own, real.storage_offset(), real.shape, real.stride())
