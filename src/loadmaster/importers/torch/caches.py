"""Functions that remember what they returned, as `functools.lru_cache` makes them, beside a model's code.

What such a function returned in a trace is fake, and must not be what the next real call gets. What it returned before
is a constant to the trace, where a process that has not called it yet would trace ops.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

_CACHED = type(functools.lru_cache(int))
_OTHERS = sys.stdlib_module_names | {"torch", "numpy", "scipy", "sympy", "numba", "llvmlite", "loadmaster"}


class FunctionCaches:
    """While it is entered, a step is traced. Afterwards those caches are empty that the trace filled, or read tensors
    from.

    Attributes:
        read: whether the trace got tensors of earlier calls, and would be another one now.
    """

    def __init__(self) -> None:
        self.read = False
        self._hits: list[tuple[Any, int]] = []

    def __enter__(self) -> FunctionCaches:
        self._hits = [(cache, cache.cache_info().hits) for cache in _caches() if _holds(cache, Tensor)]
        return self

    def __exit__(self, *_: object) -> None:
        for cache, hits in self._hits:
            if cache.cache_info().hits > hits:
                self.read = True
                cache.cache_clear()
        for cache in _caches():
            if _holds(cache, FakeTensor):
                cache.cache_clear()


def _caches() -> Iterator[Any]:
    """Of the functions of every module of Python that is loaded, but for those that hold no model."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _OTHERS:
            for value in list(getattr(module, "__dict__", {}).values()):
                yield from _caches_of(value)


def _caches_of(value: Any) -> list[Any]:
    if type(value) is _CACHED:
        return [value]
    if not isinstance(value, types.FunctionType) or not hasattr(value, "__wrapped__"):
        return []
    held = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    return [part for part in held if type(part) is _CACHED]


def _holds(cache: Any, kind: type) -> bool:
    if not cache.cache_info().currsize:
        return False
    return any(isinstance(leaf, kind) for leaf in pytree.tree_leaves(gc.get_referents(cache)))
