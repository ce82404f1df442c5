"""The Python state of a module as a table, path by path: numbers, words, containers, random streams, tensors by name.

Two tables of one module differ where something was assigned, appended, drawn or replaced in between. What is written
into parameters and buffers in place is none of it: steps do that, too.
"""

from __future__ import annotations

import array
import ctypes
import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
STREAMS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_HELD_BY_CODE = ("__defaults__", "__kwdefaults__", "args", "keywords")
_OPAQUE = (type, FunctionType, MethodType, ModuleType, nn.Module)
_DEEPEST = 12
HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
COLLECTS = "_output_capturing_hooks_installed"  # transformers': whether they are in place
_COLLECTORS = "transformers.utils.output_capturing"
State = dict[str, Any]


def state_of(root: nn.Module | Mapping[str, Any]) -> State:
    """Path -> what is there, in a form that compares."""
    table: State = {}
    seen: set[int] = set()
    if isinstance(root, nn.Module):
        for name, part in root.named_modules():
            _of_module(table, name, part, seen)
    else:
        for name, value in root.items():
            _walk(table, f"'{name}'", value, seen, 0)
    return table


def _of_module(table: State, name: str, part: nn.Module, seen: set[int]) -> None:
    prefix = f"{name}." if name else ""
    for key, tensor in part._parameters.items():
        table[f"weight '{prefix}{key}'"] = _place(tensor)
    for key, buffer in part._buffers.items():
        table[f"buffer '{prefix}{key}'"] = _place(buffer)
    table[f"the layers of '{name or type(part).__name__}'"] = [(key, id(one)) for key, one in part._modules.items()]
    for key, value in vars(part).items():
        if key in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", COLLECTS) or derived(
            part, key
        ):
            continue
        if key in HOOKS:
            table[f"attribute '{prefix}{key}'"] = [(number, id(hook)) for number, hook in acting(value).items()]
            continue
        _walk(table, f"attribute '{prefix}{key}'", value, seen, 0)


def acting(hooks: Mapping[int, Any]) -> dict[int, Any]:
    """Hooks of a module, without those that transformers' first call puts in place: they compute nothing."""
    return {key: hook for key, hook in hooks.items() if getattr(hook, "__module__", "") != _COLLECTORS}


def derived(part: nn.Module, key: str) -> bool:
    """Whether torch's own hooks (pruning, weight and spectral norm) make that attribute from a weight in each call."""
    return isinstance(vars(part)[key], Tensor) and (f"{key}_orig" in part._parameters or f"{key}_g" in part._parameters)


def _place(tensor: Tensor | None) -> Any:
    """Which tensor it is, and over which memory."""
    return None if tensor is None else (id(tensor), tensor.untyped_storage()._cdata)


def _walk(table: State, path: str, value: Any, seen: set[int], depth: int) -> None:
    if isinstance(value, PLAIN):
        table[path] = repr(value) if isinstance(value, float) else (type(value), value)
    elif isinstance(value, Tensor):
        table[path] = (*_place(value), value._version)
    elif isinstance(value, np.ndarray):
        table[path] = (value.shape, hash(value.tobytes()) if value.dtype != object else id(value))
    elif isinstance(value, STREAMS):
        table[path] = _stream(value)
    elif (memory := memory_of(value)) is not None:
        table[path] = memory
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        table[path] = id(value)
        _walk_inside(table, path, value, seen, depth)
        table[path] = (id(value), value.__code__)
    elif isinstance(value, _OPAQUE):
        table[path] = id(value) if not isinstance(value, MethodType) else (id(value.__self__), value.__func__)
    elif isinstance(value, Iterator):
        table[path] = _left(value)
    elif id(value) in seen or depth > _DEEPEST:
        table[path] = ("seen", type(value))
    else:
        seen.add(id(value))
        _walk_inside(table, path, value, seen, depth)


def _walk_inside(table: State, path: str, value: Any, seen: set[int], depth: int) -> None:
    table[path] = (type(value), len(value) if isinstance(value, (list, tuple, dict, set, frozenset, deque)) else 0)
    for name, part in parts_of(value):
        _walk(table, f"{path}{name}", part, seen, depth + 1)


def memory_of(value: Any) -> bytes | None:
    """Of what is memory that Python writes: arrays, numbers of C, values that processes share."""
    if type(value).__module__ == "multiprocessing.sharedctypes":
        value = value.get_obj()
    known = (bytearray, array.array, ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
    return bytes(value) if isinstance(value, known) else None


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container or an object holds, each with how it is written."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{part!r}}}", part) for part in value if isinstance(part, PLAIN))
    elif hasattr(value, "__dict__"):
        yield from ((f".{key}", part) for key, part in list(vars(value).items()))
    if isinstance(value, (FunctionType, partial)):
        yield from ((f".{name}", getattr(value, name)) for name in _HELD_BY_CODE if hasattr(value, name))
    yield from ((f".{slot}", getattr(value, slot)) for slot in slots_of(value) if hasattr(value, slot))


def slots_of(value: Any) -> list[str]:
    """Names of the attributes that an object has without a dict."""
    found: list[str] = []
    for kind in type(value).__mro__[:-1]:
        slots = vars(kind).get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return [slot for slot in found if slot not in ("__dict__", "__weakref__")]


def _left(value: Any) -> str:
    """How far an iterator is."""
    try:
        return repr(value.__reduce__())
    except TypeError:
        return str(id(value))


def _stream(value: Any) -> Any:
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    return str(value.get_state() if isinstance(value, np.random.RandomState) else value.get_state().tolist())


def roots_of(holder: Any, name: str) -> dict[str, Any]:
    """A variable by its name; of a class, its plain attributes."""
    value = holder[name] if isinstance(holder, dict) else holder.cell_contents
    if isinstance(value, nn.Module):
        return {name: value, f"{name}.training": [part.training for part in value.modules()]}
    if isinstance(value, type):
        inside = (*PLAIN, list, dict, set, Tensor, FunctionType)
        return {f"{name}.{key}": one for key, one in vars(value).items() if isinstance(one, inside) and key[:2] != "__"}
    return {name: value}


def tensors_within(root: Any) -> list[Tensor]:
    """All tensors that a module or another value reaches, in attributes and containers as well."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    todo: list[Any] = [part for _, part in root.named_modules()] if isinstance(root, nn.Module) else [root]
    while todo:
        value = todo.pop()
        if isinstance(value, Tensor):
            found.setdefault(id(value), value)
            if isinstance(value.grad if value.is_leaf else None, Tensor):
                found.setdefault(id(value.grad), value.grad)  # type: ignore[arg-type]
        elif isinstance(value, nn.Module):
            if id(value) not in seen:
                seen.add(id(value))
                todo += vars(value).values()
        elif not isinstance(value, (*PLAIN, *_OPAQUE, np.ndarray)) and id(value) not in seen:
            seen.add(id(value))
            todo += [part for _, part in parts_of(value)]
    return list(found.values())
