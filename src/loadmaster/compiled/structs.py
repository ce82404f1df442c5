"""Structs: many arrays and numbers that compiled functions are handed as one address.

numba hands over a named tuple by value: seven words for each of its arrays, at each call, and a symbol whose name
spells all of their types. With a hundred arrays that is most of what there is to compile. A struct is an address; a
field is loaded where it is used.
"""
# mypy: disable-error-code="no-untyped-call,untyped-decorator,override"

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from ctypes import c_size_t
from functools import reduce
from typing import Any, ClassVar, Self, dataclass_transform

import llvmlite.ir as llvm
import numpy as np
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, register_model, typeof_impl, unbox
from numba.np import numpy_support

_WORD: Any = llvm.IntType(64)


@dataclass_transform(frozen_default=True)
class Struct:
    """Fields by name, as in a named tuple; compiled functions read them by name too, and may write to the arrays.

    Fields are arrays that lie in memory row by row, whole numbers, floats, booleans, other structs, named tuples of
    these, or None. Arrays may be written to, also those that Python may not: one type for both means that loops are
    compiled once."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)
        cls._defaults = {name: vars(cls)[name] for name in cls._fields if name in vars(cls)}

    def __init__(self, *values: Any, **named: Any) -> None:
        by_place = dict(zip(self._fields, values, strict=False))
        given = self._defaults | by_place | named
        if given.keys() != set(self._fields) or len(values) > len(by_place) or by_place.keys() & named.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._fields)}")
        self.__dict__.update(given)

    @classmethod
    def _make(cls, values: Any) -> Self:
        return cls(*values)

    def _replace(self, **named: Any) -> Self:
        return type(self)(**(dict(zip(self._fields, self, strict=True)) | named))

    def __iter__(self) -> Iterator[Any]:
        return (self.__dict__[name] for name in self._fields)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __len__(self) -> int:
        return len(self._fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self)


class StructType(types.Type):
    """What numba knows of a struct: the names and types of its fields. Its own name is short."""

    def __init__(self, home: str, fields: tuple[str, ...], kinds: tuple[Any, ...]) -> None:
        self.home, self.fields, self.types = home, fields, kinds
        self.starts = tuple(int(at) for at in np.cumsum([0, *map(_words, kinds)]))
        digest = hashlib.sha256(repr((home, fields, kinds)).encode()).hexdigest()
        super().__init__(f"{home.rpartition('.')[2]}_{digest[:16]}")


# From Python


def _words(kind: Any) -> int:
    """How many words a field takes."""
    return 1 + kind.ndim if isinstance(kind, types.Array) else 0 if kind is types.none else 1


def _packed(struct: Any) -> StructType:
    """The type of a struct; its fields are written down where compiled functions find them.

    Threads may come with a new struct at once. What the first wrote is kept, for one may already run on it; the type is
    told last, so that whoever finds it finds the address too."""
    told = struct.__dict__
    if "_type" not in told:
        kind, words, _ = told.setdefault("_written", _written(struct))
        told["_address"] = words.buffer_info()[0]
        told["_type"] = kind
    return told["_type"]  # type: ignore[no-any-return]


def _written(values: Any) -> tuple[StructType, array[int], list[Any]]:
    """(type, words, what the words point to) of a struct or of a named tuple."""
    words, keys, inner = list[int](), list[Any](), list[Any]()
    for value in values:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise TypeError("an array of a struct must lie in memory row by row")
            words += (_data_of(value), *value.shape)
            keys.append(value.dtype if value.ndim == 1 else (value.dtype, value.ndim))
        else:
            keys.append(_write(value, words, inner))
    key = (type(values), tuple(keys))
    if key not in _TYPES:
        home = f"{type(values).__module__}.{type(values).__qualname__}"
        _TYPES[key] = StructType(home, values._fields, tuple(map(_kind_of, keys)))
    return _TYPES[key], array("q", words or [0]), inner


_TYPES: dict[Any, StructType] = {}
_KINDS: dict[int, Any] = {id(kind): kind for kind in (types.none, types.boolean, types.int64, types.float64)}


def _write(value: Any, words: list[int], inner: list[Any]) -> int:
    """Writes a field that is no array; the id of its type, which takes long to hash."""
    kind: Any = types.none
    if isinstance(value, bool | np.bool_ | int | np.integer):
        kind = types.boolean if isinstance(value, bool | np.bool_) else types.int64
        words.append(int(value))
    elif isinstance(value, float):
        kind = types.float64
        words.append(int(np.float64(value).view(np.int64)))
    elif isinstance(value, Struct):
        kind = _packed(value)
        words.append(value.__dict__["_address"])
    elif hasattr(value, "_fields"):
        kind, own, below = _written(value)
        inner += (own, below)
        words.append(own.buffer_info()[0])
    elif value is not None:
        raise TypeError(f"a field of a struct cannot be {type(value).__name__}")
    return id(_KINDS.setdefault(id(kind), kind))


def _kind_of(key: Any) -> Any:
    """The type that a key stands for."""
    if isinstance(key, int):
        return _KINDS[key]
    dtype, axes = key if isinstance(key, tuple) else (key, 1)
    return types.Array(numpy_support.from_dtype(dtype), axes, "C")


def _data_of(values: np.ndarray[Any, Any]) -> int:
    """Where an array lies: the first word of its object, which numpy's own ways take twenty times as long to tell."""
    return c_size_t.from_address(id(values) + _HEAD).value


_HEAD, _PROBE = object.__basicsize__, np.zeros(1)
if _data_of(_PROBE) != _PROBE.ctypes.data:  # not as in CPython

    def _data_of(values: np.ndarray[Any, Any]) -> int:
        return int(values.ctypes.data)


@typeof_impl.register(Struct)
def _typeof_struct(struct: Any, _context: Any) -> StructType:
    return _packed(struct)


# In compiled functions


@register_model(StructType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _WORD.as_pointer())


@unbox(StructType)
def _unbox_struct(kind: Any, given: Any, c: Any) -> Any:
    number = c.pyapi.object_getattr_string(given, "_address")
    address = c.pyapi.long_as_longlong(number)
    c.pyapi.decref(number)
    return NativeValue(c.builder.inttoptr(address, _WORD.as_pointer()))


@infer_getattr
class _Attributes(AttributeTemplate):
    key = StructType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        return kind.types[kind.fields.index(name)] if name in kind.fields else None


@lower_getattr_generic(StructType)
def _load_field(context: Any, builder: Any, kind: Any, struct: Any, name: str) -> Any:
    index = kind.fields.index(name)
    field, start = kind.types[index], kind.starts[index]

    def word(at: int) -> Any:
        loaded = builder.load(cgutils.gep(builder, struct, start + at))
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))  # nobody writes to a struct meanwhile
        return loaded

    if isinstance(field, types.Array):
        value = _array(context, builder, field, word)
    elif field is types.none:
        value = context.get_dummy_value()
    elif field is types.boolean:
        value = builder.icmp_unsigned("!=", word(0), _WORD(0))
    elif field is types.int64:
        value = word(0)
    elif field is types.float64:
        value = builder.bitcast(word(0), llvm.DoubleType())
    else:
        value = builder.inttoptr(word(0), _WORD.as_pointer())
    return impl_ret_borrowed(context, builder, field, value)


def _array(context: Any, builder: Any, kind: Any, word: Any) -> Any:
    """An array that owns nothing, as numba has it: (owner, parent, items, bytes of an item, data, shape, strides)."""
    item = context.get_data_type(kind.dtype)
    size = _WORD(context.get_abi_sizeof(item))
    shape = [word(1 + axis) for axis in range(kind.ndim)]
    strides = [size]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    items = reduce(builder.mul, shape)
    made = llvm.Constant(context.get_value_type(kind), None)
    for place, part in ((2, items), (3, size), (4, builder.inttoptr(word(0), item.as_pointer()))):
        made = builder.insert_value(made, part, place)
    for axis in range(kind.ndim):
        made = builder.insert_value(made, shape[axis], [5, axis])
        made = builder.insert_value(made, strides[axis], [6, axis])
    return made
