"""The example inputs of a module in all the forms in which people have them.

A tensor, a tuple, a dict, what a tokenizer returns, or (args, kwargs); dataclasses and mappings of tensors inside. All
become one form, so that a step is traced and called the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from loadmaster.errors import ImportFailed


class Arguments(NamedTuple):
    """Positional and named ones together."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Inputs = tuple[Any, ...] | dict[str, Any] | Arguments


def as_arguments(inputs: Any, label: str) -> Inputs:
    """A tuple of positional inputs, a dict of named ones (or what a tokenizer returns), (args, kwargs), or one."""
    if isinstance(inputs, Arguments):
        return joined(*inputs)
    if isinstance(inputs, Tensor) or _is_dataclass(inputs):
        return (inputs,)
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        return dict(inputs)
    if isinstance(inputs, (tuple, list)):
        pair = _pair(inputs)
        return tuple(inputs) if pair is None else joined(*pair)
    what = f"the inputs are a {type(inputs).__name__}, not a tuple of tensors or a dict of named ones"
    fix = "give inputs=(x, ...), inputs={'name': x, ...} or inputs=((x, ...), {'name': y, ...})"
    raise ImportFailed(what, label, fix)


def joined(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """In the plainest form there is for them."""
    if not kwargs:
        return tuple(args)
    return Arguments(tuple(args), dict(kwargs)) if args else dict(kwargs)


def split(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named ones."""
    if isinstance(inputs, Arguments):
        return inputs.args, inputs.kwargs
    return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def _pair(inputs: tuple[Any, ...] | list[Any]) -> Arguments | None:
    if len(inputs) != 2:
        return None
    args, kwargs = inputs
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        return None
    return Arguments(tuple(args), dict(kwargs)) if all(isinstance(key, str) for key in kwargs) else None


@contextmanager
def seen_inside(*values: Any) -> Iterator[None]:
    """While it lasts, torch finds the tensors inside the dataclasses and mappings among the values."""
    added: list[type] = []
    try:
        for value in values:
            _open(value, added)
        yield
    finally:
        for kind in added:
            pytree._deregister_pytree_node(kind)


def _open(value: Any, added: list[type]) -> None:
    for leaf in pytree.tree_leaves(value):
        kind = type(leaf)
        if _is_dataclass(leaf):
            names = [entry.name for entry in dataclasses.fields(leaf)]
            _register(kind, _fields, _rebuilt(kind, names))
        elif isinstance(leaf, Mapping):
            _register(kind, _items, lambda parts, keys: dict(zip(keys, parts, strict=True)))
        else:
            continue
        added.append(kind)
        _open(leaf, added)


def _register(kind: type, parts: Callable[[Any], list[Any]], build: Callable[..., Any]) -> None:
    def context(value: Any) -> Any:
        return list(dict(value)) if isinstance(value, Mapping) else None

    def keyed(value: Any) -> Any:
        names = context(value) or [entry.name for entry in dataclasses.fields(value)]
        return [(pytree.MappingKey(name), part) for name, part in zip(names, parts(value), strict=True)], context(value)

    pytree._private_register_pytree_node(
        kind,
        lambda value: (parts(value), context(value)),
        build,
        serialized_type_name=f"loadmaster:{kind.__module__}.{kind.__qualname__}",  # without one it cannot be taken out
        flatten_with_keys_fn=keyed,
    )


def _fields(value: Any) -> list[Any]:
    return [getattr(value, entry.name) for entry in dataclasses.fields(value)]


def _items(value: Any) -> list[Any]:
    return list(dict(value).values())


def _rebuilt(kind: type, names: list[str]) -> Callable[..., Any]:
    """A copy without calling its constructor, which may check or change what it is given."""

    def build(parts: Any, _: Any) -> Any:
        made: Any = object.__new__(kind)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made

    return build


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
