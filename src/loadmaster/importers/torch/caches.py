"""What a model's code keeps outside of its module, in which a trace must not leave fake tensors.

Results that `functools.lru_cache` remembers, dicts beside a function or in a class, a global with the last hidden
state. What lay there before is a constant to the trace; what the trace puts there is taken out again, for the next real
call must not get it.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

_CACHED = type(functools.lru_cache(int))
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "scipy", "sympy", "numba", "llvmlite", "loadmaster"}
_DEEPEST, _MOST, _PLACES = 4, 10_000, 2_000  # containers in one another, entries of one, and containers looked into


class Surroundings:
    """While it is entered, a step is traced. Afterwards those caches are empty that the trace filled, or read tensors
    from, and variables, classes, functions and containers hold what they held, where the trace left fake tensors.

    Attributes:
        read: whether the trace got tensors of earlier calls, and would be another one now.
        given: asked of each fake tensor left in an `lru_cache`: whether it comes of more than constants.
        stale: functions with such results, which eager torch would give again whatever the weights are by then.
    """

    def __init__(self, module: nn.Module, given: Callable[[Tensor], bool] = lambda fake: False) -> None:
        self.read = False
        self.module, self.given, self.stale = module, given, list[str]()
        self._hits: list[tuple[Any, int]] = []

    def __enter__(self) -> Surroundings:
        self._around = _Around()
        self._around.look(self.module)
        self._caches = {id(cache): cache for cache in (*_caches(), *self._around.caches)}
        self._hits = [(cache, cache.cache_info().hits) for cache in self._caches.values() if _held(cache, Tensor)]
        return self

    def __exit__(self, *_: object) -> None:
        for cache, hits in self._hits:
            if cache.cache_info().hits > hits:
                self.read = True
                cache.cache_clear()
        for cache in self._caches.values():
            if fakes := _held(cache, FakeTensor):
                if any(map(self.given, fakes)):
                    self.stale.append(str(getattr(cache, "__qualname__", cache)))
                cache.cache_clear()
        self._around.put_back()


class _Around:
    """The names, attributes and containers that the code of a module's classes, and that of the user's files, reaches:
    what they hold now, and how to put that back."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self._kept: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        self._next: deque[tuple[Any, int, str]] = deque()
        self._most = 0

    def look(self, module: nn.Module) -> None:
        kinds = {kind for part in module.modules() for kind in type(part).__mro__}
        kinds = {kind for kind in kinds if kind.__module__.partition(".")[0] not in _LIBRARIES}
        files = {kind.__module__ for kind in kinds} | {
            name for name, one in list(sys.modules.items()) if _is_users(one)
        }
        own = {kind.__module__ for kind in kinds}
        self._next.extend((kind, 1, kind.__module__) for kind in kinds)
        self._follow(own & sys.modules.keys())
        self._follow(files & sys.modules.keys() - own)

    def _follow(self, files: set[str]) -> None:
        """What is near first: objects of libraries may lead to any number of others."""
        for file in sorted(files):
            names = vars(sys.modules[file])
            self._next.appendleft((names, 0, str(names.get("__name__", file))))
        self._most = len(self._kept) + _PLACES
        while self._next:
            self._keep(*self._next.popleft())

    def _keep(self, value: Any, depth: int, file: str) -> None:
        if (
            depth > _DEEPEST
            or id(value) in self._seen
            or isinstance(value, (Tensor, types.ModuleType, str, int, float))
        ):
            return
        if isinstance(value, (type, types.FunctionType)) and value.__module__ != file:
            return  # met again in its own file
        self._seen.add(id(value))
        if type(value) is _CACHED:
            self.caches.append(value)
            self._next.append((value.__wrapped__, depth, file))
        elif isinstance(value, (type, types.FunctionType)):
            self._keep_code(value, depth, file)
        elif isinstance(value, (dict, list, deque)):
            self._keep_all(value, value, depth, file)
        elif isinstance(value, types.CellType):
            self._keep_all(_Cell(value), value, depth, file)
        elif type(getattr(value, "__dict__", None)) is dict and not isinstance(value, nn.Module):
            self._keep_all(vars(value), value, depth, file)

    def _keep_code(self, value: Any, depth: int, file: str) -> None:
        self._keep_all(_Class(value) if isinstance(value, type) else vars(value), value, depth, file)
        if isinstance(value, types.FunctionType):
            for part in (*(value.__defaults__ or ()), value.__kwdefaults__, *(value.__closure__ or ())):
                self._next.append((part, depth, file))

    def _keep_all(self, place: Any, owner: Any, depth: int, file: str) -> None:
        """`owner` keeps a number from being given to another object."""
        if len(place) > _MOST or len(self._kept) > self._most:
            return
        self._kept.append((place, _entries(place)))
        self._seen.add(id(owner))
        self._next.extend((part, depth + (place is owner), file) for part in _entries(place).values())

    def put_back(self) -> None:
        for place, before in self._kept:
            now = _entries(place)
            left = [key for key, value in now.items() if value is not before.get(key) and _has_fake(value)]
            if left and isinstance(place, (list, deque)):
                place.clear()
                place.extend(before.values())
                continue
            for key in left:
                if key in before:
                    place[key] = before[key]
                else:
                    del place[key]


class _Class(MutableMapping[str, Any]):
    """The attributes of a class, to be written to."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self.kind)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.kind, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.kind, name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(vars(self.kind)))

    def __len__(self) -> int:
        return len(vars(self.kind))


class _Cell(MutableMapping[str, Any]):
    """A variable of an enclosing function, to be written to."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __getitem__(self, name: str) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, name: str, value: Any) -> None:
        self.cell.cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self.cell.cell_contents

    def __iter__(self) -> Iterator[str]:
        return iter(() if self.cell == types.CellType() else ("cell",))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _entries(place: Any) -> dict[Any, Any]:
    return dict(enumerate(place)) if isinstance(place, (list, deque)) else dict(place)


def _has_fake(value: Any) -> bool:
    if type(value) in (tuple, list, dict):
        return any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(value))
    return isinstance(value, FakeTensor)


def _is_users(module: Any) -> bool:
    """Whether a module of Python is a file of the user's, or what an interpreter or a notebook runs."""
    file = str(getattr(module, "__file__", None) or "")
    name = str(getattr(module, "__name__", ""))
    if not file:
        return name == "__main__"
    return name.partition(".")[0] not in _LIBRARIES and not any(
        part in file for part in ("site-packages", "/lib/python")
    )


def _caches() -> Iterator[Any]:
    """Of the functions of every module of Python that is loaded, but for those that hold no model."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _LIBRARIES:
            for value in list(getattr(module, "__dict__", {}).values()):
                yield from _caches_of(value)


def _caches_of(value: Any) -> list[Any]:
    if type(value) is _CACHED:
        return [value]
    if not isinstance(value, types.FunctionType) or not hasattr(value, "__wrapped__"):
        return []
    held = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    return [part for part in held if type(part) is _CACHED]


def _held(cache: Any, kind: type) -> list[Any]:
    if not cache.cache_info().currsize:
        return []
    return [leaf for leaf in pytree.tree_leaves(gc.get_referents(cache)) if isinstance(leaf, kind)]
