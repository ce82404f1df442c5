"""Twins of modules: copies of all that a call may write to, around other tensors.

A step is traced, or tried, on a twin, so that the user's module stays as it is, whatever its code does and however it
ends: a buffer or an attribute that is set, a counter that moves on, a list that grows, a hook that remembers. Whatever
the module reaches is copied once, so that what is shared stays shared: modules under two names, tied weights, a parent
that a child knows. What has no state, or cannot be copied (a lock, an open file), is the same in both.

What tensors become is the caller's choice: fake ones, without memory, for a trace (`Fakes`).
"""

from __future__ import annotations

import copyreg
import dis
import functools
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from loadmaster.errors import ImportFailed
from loadmaster.importers.torch.origin import line_of_call
from loadmaster.importers.torch.values import ValueMode

_UNCHANGING = (
    type(None), bool, int, float, complex, str, bytes, range, type, Enum, types.ModuleType, types.BuiltinFunctionType,
    types.CodeType, property, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    torch.jit.ScriptModule, torch.jit.ScriptFunction,
)  # fmt: skip
_CACHED = type(functools.lru_cache(int))  # a function with a cache, which could keep tensors of a trace
_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_slots: Callable[[type], list[str]] = copyreg._slotnames  # type: ignore[attr-defined]


class Twins:
    """Copies of whatever is given, each thing once.

    Attributes:
        originals: of the tensors and generators that the copies hold, by id of the copy.
    """

    def __init__(self, tensor: Callable[[Tensor], Tensor]) -> None:
        """`tensor`: makes what stands for a tensor."""
        self.originals: dict[int, Any] = {}
        self._tensor = tensor
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # what the ids are of: nothing else may get them
        self._empty: list[tuple[nn.Module, nn.Module]] = []  # modules whose attributes are still to be copied

    def __call__(self, value: Any) -> Any:
        twin = self._twin(value)
        while self._empty:
            self._fill(*self._empty.pop())
        return twin

    def _twin(self, value: Any) -> Any:
        if isinstance(value, _UNCHANGING):
            return value
        if id(value) not in self._made:
            self._keep(value, self._copied(value))
        return self._made[id(value)]

    def _keep(self, value: Any, twin: Any) -> Any:
        self._kept += [value, twin]
        return self._made.setdefault(id(value), twin)

    def _copied(self, value: Any) -> Any:
        for kind, copied in self._RULES:
            if isinstance(value, kind):
                return copied(self, value)
        if type(value) in self._CONTAINERS:
            return self._CONTAINERS[type(value)](self, value)
        return self._object(value)

    def _of_tensor(self, value: Tensor) -> Tensor:
        twin = self._tensor(value)
        self.originals[id(twin)] = value
        if type(value) in (Tensor, nn.Parameter) and twin is not value:
            self._keep(value, twin)
            for name, part in vars(value).items():  # what people hang on them
                vars(twin).setdefault(name, self._twin(part))
        return twin

    def _of_random(self, value: torch.Generator) -> torch.Generator:
        twin = value.clone_state()
        self.originals[id(twin)] = value
        return twin

    def _module(self, value: nn.Module) -> nn.Module:
        """By its attributes alone, whatever it says of copies; later, for they may be nested deeply."""
        twin: nn.Module = object.__new__(type(value))
        self._empty.append((value, twin))
        return twin

    def _fill(self, value: nn.Module, twin: nn.Module) -> None:
        vars(twin).update({name: self._twin(part) for name, part in list(vars(value).items())})
        for name in _slots(type(value)):
            if hasattr(value, name):
                object.__setattr__(twin, name, self._twin(getattr(value, name)))

    def _list(self, value: list[Any]) -> list[Any]:
        twin: list[Any] = self._keep(value, [])
        twin += map(self._twin, value)
        return twin

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        twin: dict[Any, Any] = self._keep(value, {})
        twin.update({self._twin(key): self._twin(part) for key, part in list(value.items())})
        return twin

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = tuple(map(self._twin, value))
        return value if all(map(_same, value, parts)) else parts

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        """The function itself, unless it holds on to something that has a twin."""
        cells = value.__closure__ or ()
        new = tuple(
            self._made[id(cell)] if id(cell) in self._made else self._keep(cell, types.CellType()) for cell in cells
        )
        twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, new or None)
        self._made[id(value)] = twin
        for cell, old in zip(new, cells, strict=True):
            with suppress(ValueError):  # a variable that was not set yet
                cell.cell_contents = self._twin(old.cell_contents)
        names = ("__defaults__", "__kwdefaults__", "__dict__")
        held = [(getattr(value, name), self._twin(getattr(value, name))) for name in names[:2]]
        held += [(part, self._twin(part)) for part in vars(value).values()]
        held += [(old.cell_contents, cell.cell_contents) for old, cell in zip(cells, new, strict=True) if _set(old)]
        if not _assigns(value.__code__) and all(part is copied or part is value for part, copied in held):
            self._made[id(value)] = value
            return value
        functools.update_wrapper(twin, value, updated=())
        vars(twin).update({name: self._twin(part) for name, part in vars(value).items()})
        twin.__defaults__, twin.__kwdefaults__ = (self._twin(getattr(value, name)) for name in names[:2])
        return twin

    def _method(self, value: types.MethodType) -> types.MethodType:
        return types.MethodType(self._twin(value.__func__), self._twin(value.__self__))

    def _cached(self, value: Any) -> Any:
        return functools.lru_cache(**value.cache_parameters())(self._twin(value.__wrapped__))

    def _reference(self, value: weakref.ref[Any]) -> Any:
        return value if value() is None or type(value) is not weakref.ref else weakref.ref(self._twin(value()))

    def _generator(self, value: Iterator[Any]) -> Iterator[Any]:
        return _Unread(type(value).__name__)

    def _object(self, value: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python 3.14 will not copy iterators any more
                own = getattr(value, "__deepcopy__", None)
                return self._rebuilt(value) if own is None else own(self._made)
        except RecursionError:
            raise
        except Exception:  # whatever its code says to being copied
            self._made.pop(id(value), None)
            return (
                _Unread(type(value).__name__) if isinstance(value, Iterator) and not hasattr(value, "read") else value
            )

    def _rebuilt(self, value: Any) -> Any:
        """As Python copies objects."""
        made = value.__reduce_ex__(4)
        if isinstance(made, str):
            return value  # the name of a global
        make, arguments, state, parts, items = (*made, None, None, None)[:5]
        new = make is _NEW and len(arguments) == 1
        if new and (state, parts, items) == (None, None, None) and _is_mark(value):
            return value
        twin = self._keep(value, make(*(arguments if new else map(self._twin, arguments))))
        if state is not None:
            self._restore(twin, self._twin(state))
        for part in parts or ():
            twin.append(self._twin(part))
        for key, part in items or ():
            twin[self._twin(key)] = self._twin(part)
        self._kept.append(made)
        return twin

    @staticmethod
    def _restore(twin: Any, state: Any) -> None:
        if hasattr(twin, "__setstate__"):
            twin.__setstate__(state)
            return
        attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        if attributes:
            vars(twin).update(attributes)
        for name, part in (slots or {}).items():
            object.__setattr__(twin, name, part)

    _RULES: ClassVar[tuple[tuple[type, Callable[[Twins, Any], Any]], ...]] = (
        (Tensor, _of_tensor), (nn.Module, _module), (types.FunctionType, _function), (types.MethodType, _method),
        (torch.Generator, _of_random), (_CACHED, _cached), (weakref.ref, _reference),
        (types.GeneratorType, _generator),
    )  # fmt: skip
    _CONTAINERS: ClassVar[dict[type, Callable[[Twins, Any], Any]]] = {list: _list, dict: _dict, tuple: _tuple}


@functools.cache
def _assigns(code: types.CodeType) -> bool:
    """Whether a function, or one inside it, assigns to a variable of the functions around it."""
    names = set(code.co_freevars)
    stores = any(one.opname == "STORE_DEREF" and one.argval in names for one in dis.get_instructions(code))
    return stores or any(_assigns(part) for part in code.co_consts if isinstance(part, types.CodeType))


def _same(one: Any, other: Any) -> bool:
    return one is other


def _set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_mark(value: Any) -> bool:
    """Whether code may compare with this very object: it has no attributes, and can have none or is a global."""
    there = vars(sys.modules.get(type(value).__module__, types))
    return not hasattr(value, "__dict__") or any(value is known for known in there.values())


class _Unread:
    """In the place of a generator, which cannot be copied: to draw from it would move the module's own on."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> _Unread:
        return self

    def __next__(self) -> NoReturn:
        what = f"the module takes the next value of a {self.kind}, which cannot be copied"
        raise ImportFailed(what, line_of_call(), "keep a list and a position in it, or give what it yields as an input")


class Fakes:
    """Fake tensors on the CPU, one for each tensor however often it is given."""

    def __init__(self, mode: ValueMode) -> None:
        self.mode = mode
        self.made: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []

    def __call__(self, real: Tensor, *, learned: bool = False) -> Tensor:
        if id(real) not in self.made:
            self._kept.append(real)
            if is_traceable_wrapper_subclass(real):
                self.made[id(real)] = self._wrapped(real)
            else:
                self.made[id(real)] = self._fake(real, learned) if _can_be_fake(real) else real
        return self.made[id(real)]

    def _wrapped(self, real: Any) -> Tensor:
        """A tensor of a class of its own, such as a quantized weight, around fakes of the tensors that it holds."""
        names, context = real.__tensor_flatten__()
        inner = {name: self(getattr(real, name)) for name in names}
        with self.mode:
            made: Tensor = type(real).__tensor_unflatten__(inner, context, real.shape, real.stride())
        return made

    def _fake(self, real: Tensor, learned: bool) -> Tensor:
        with self.mode:
            fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="cpu")
        self.mode.know(fake, real)
        if isinstance(real, nn.Parameter):
            fake._is_param = True
        return fake.requires_grad_(learned and real.requires_grad)


def held_by(name: str, tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensor by its name, or those inside it where its class wraps others: they are what lies in memory."""
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from held_by(f"{name}.{part}", getattr(tensor, part))


def _can_be_fake(real: Tensor) -> bool:
    """Not a sparse or a quantized one, and not one that has no size yet."""
    if isinstance(real, (UninitializedBuffer, UninitializedParameter)):
        what = "a lazy module has weights without a size until it is called"
        raise ImportFailed(what, type(real).__name__, "call the module once on example inputs, then load it")
    return real.layout == torch.strided and not real.is_quantized and not real.is_nested


def switch(module: nn.Module, training: bool) -> None:
    """The module in training or evaluation mode; one that is in it already may keep parts of itself in the other."""
    if module.training != training:
        with suppress(NotImplementedError):  # what torch.export made has one mode only
            module.train(training)
