"""The cache of compiled code on disk, which several processes share.

An entry is a file (`entries`) named by the function and by a digest of all that its code is made from, so it can be
absent but not stale. What is absent is compiled.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import pickle
import platform
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher

from loadmaster.compiled.clock import CLOCK
from loadmaster.compiled.entries import MAGIC, cache_folder, made_beside, read_entry, write_entry
from loadmaster.compiled.parts import rebuild_part, set_apart

_REBUILD: Any = CompileResult._rebuild
_DUMPS: Any = serialize.dumps


class Cache(NullCache):
    """What numba asks for compiled code before it compiles, and gives it to afterwards."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], *, part: bool = False, apart: bool = False
    ) -> None:
        self._function, self._options, self._part, self.apart = function, options, part, apart
        self._name = f"{function.__module__.removeprefix('loadmaster.')}.{function.__qualname__}"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(signature, target_context.codegen())
        found = self._load(path, target_context)
        if found is None and made_beside(self._name, path):
            found = self._load(path, target_context)
        if found is None:
            for listener in tuple(CLOCK.listeners):
                listener()
        return found

    def _load(self, path: Path | None, target_context: Any) -> Any:
        payload = None if path is None else _read(path)
        if payload is None:
            return None
        try:
            result = (rebuild_part if self._part else _REBUILD)(target_context, *payload)
        except Exception:  # written by something else under the same name: as good as absent
            return None
        result.library._reload_init.update(result.reload_init)
        if self.apart:
            set_apart(result, self._function)
        return result

    def save_overload(self, signature: Any, result: Any) -> None:
        self._save(signature, result)
        if self.apart:
            set_apart(result, self._function)

    def _save(self, signature: Any, result: Any) -> None:
        if not self._part:
            for environment in result._find_referenced_environments():  # of its parts, which have no address before
                result.codegen.set_env(environment.env_name, environment)
        path = self._path(signature, result.codegen)
        if path is None or result.library.has_dynamic_globals or any(not part.can_cache for part in result.lifted):
            return
        write_entry(path, _DUMPS(result._reduce()))

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        """The file of this function for these types; None where it freezes something that has no digest."""
        folder = cache_folder()
        made = (codegen.magic_tuple(), MAGIC, self._part, self.apart)
        digest = digest_of(self._function, signature, self._options, *made)
        if folder is None or digest is None:
            return None
        return folder / f"{self._name}-{digest}.nbc"


def _read(path: Path) -> Any:
    """The entry, or None where there is none, a torn one, or one that names what is no longer there."""
    payload = read_entry(path)
    if payload is None:
        return None
    try:
        return pickle.loads(payload)
    except Exception:  # of another version of the package
        return None


# Digests of all that the machine code of a function is made from: what changes it changes the name of its entry.
#
# That is its bytecode, its options and those of every compiled function it calls, the constants they freeze, the types
# of the arguments, the versions of Python, numba and numpy, and how this package makes code (`parts`, `structs`). Line
# numbers and docstrings are no part of it. A function that freezes something without a digest is never cached.


def _own_text() -> str:
    """What decides here how functions become code; nothing where the package has no files of its own."""
    here, own = Path(__file__).parent, hashlib.sha256()
    with contextlib.suppress(OSError):
        for name in ("parts.py", "structs.py"):
            own.update((here / name).read_bytes())
    return own.hexdigest()


_VERSIONS = (sys.version_info[:3], platform.python_implementation(), numba.__version__, np.__version__, _own_text())


def digest_of(function: Callable[..., Any], signature: Any, options: dict[str, Any], *made: Any) -> str | None:
    """Of a function for arguments of such types, made so; None where it freezes something that has no digest."""
    try:
        made_from = hashlib.sha256("\n".join(_parts(function)).encode())
    except _NoDigest:
        return None
    circumstances = (_types_text(signature), _options_text(options), made, _VERSIONS, _switches())
    made_from.update(repr(circumstances).encode())
    return made_from.hexdigest()[:32]


def _types_text(signature: Any) -> str:
    """The types of the arguments; of named tuples the fields and the module too, which numba's own text leaves out."""
    arguments = getattr(signature, "args", signature)
    return repr([_type_text(kind) for kind in arguments])


def _type_text(kind: Any) -> tuple[Any, ...]:
    home = getattr(getattr(kind, "instance_class", None), "__module__", "")
    return str(kind), home, getattr(kind, "fields", ()), _types_text(getattr(kind, "types", ()))


def _switches() -> tuple[Any, ...]:
    """What the environment can change in the code that numba makes."""
    names = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "ENABLE_AVX")
    return tuple(getattr(numba.config, name, None) for name in names)


def _options_text(options: dict[str, Any]) -> str:
    return repr(sorted((name, repr(value)) for name, value in options.items()))


# What it is made from


class _NoDigest(Exception):
    pass


def _parts(function: Callable[..., Any]) -> Iterator[str]:
    """Texts that change when, and only when, the machine code of the function may: its own bytecode and options, those
    of the compiled functions it calls, and the constants that all of them freeze."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        current: Any = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield from _code_parts(current.__code__)
        yield repr((current.__module__, current.__qualname__, current.__defaults__, bool(current.__closure__)))
        if current.__closure__:
            raise _NoDigest
        names = tuple(_names(current.__code__))
        for name in names:
            if name in current.__globals__:
                yield from _value_parts(name, current.__globals__[name], names, waiting)


def _code_parts(code: CodeType) -> Iterator[str]:
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags))
    for index, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        elif index or _loads_first(code):
            yield repr(constant)


@cache
def _loads_first(code: CodeType) -> bool:
    """Whether the function uses its first constant. That is its docstring where it has one, which changes no code
    unless the function itself reads it."""
    steps = code.co_code
    plain = (at for at in range(0, len(steps), 2) if at == 0 or steps[at - 2] != dis.EXTENDED_ARG)
    return any(steps[at] in dis.hasconst and steps[at + 1] == 0 for at in plain)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _value_parts(name: str, value: Any, names: tuple[str, ...], waiting: list[Any]) -> Iterator[str]:
    if isinstance(value, Dispatcher):
        waiting.append(value.py_func)
        yield f"{name} {_options_text(value.targetoptions)} {getattr(value, 'apart', False)}"
    elif isinstance(value, ModuleType):
        yield f"{name} module {value.__name__}"
        if value.__name__.startswith("loadmaster"):
            for inner in names:
                if hasattr(value, inner):
                    yield from _value_parts(f"{name}.{inner}", getattr(value, inner), (), waiting)
    elif isinstance(value, type):
        yield f"{name} {value.__module__}.{value.__qualname__} {getattr(value, '_fields', ())}"
    elif isinstance(value, bool | int | float | str | bytes | type(None) | np.generic):
        yield f"{name} {value!r}"
    elif isinstance(value, np.ndarray):
        yield f"{name} {value.dtype.str} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from _value_parts(f"{name}[{index}]", inner, (), waiting)
    elif callable(value) and getattr(value, "__module__", "").partition(".")[0] in ("builtins", "numpy", "math"):
        yield f"{name} {value.__module__}.{value.__name__}"
    else:
        raise _NoDigest
