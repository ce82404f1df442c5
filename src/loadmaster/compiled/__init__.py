"""The one door to numba: `compiled`, a decorator for loops, with a cache on disk that cannot lie.

numba's own cache looks at the file of a function alone: edit a loop that others inline, and they go on running the old
one. Here the name of an entry is a digest of all that the machine code was made from: the bytecode of the function, of
every compiled function it calls, the constants they freeze, the types of the arguments, the processor, the versions of
Python and numba. What is not found under that name is compiled. An entry that is torn is compiled again.

Entries lie in `$LOADMASTER_CACHE`, or where the platform keeps caches, never beside the package. Without a place that
can be written everything works, slower, and says so once.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, overload

import numba
import numpy as np
from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.types import unliteral

from loadmaster.compiled.claims import claim, give_up
from loadmaster.compiled.parts import ForCallers, Plain, rebuild_part, remember_operators, set_apart
from loadmaster.errors import UnwritableFile

KEPT_DAYS = 60  # entries that nobody used for so long are removed
_NJIT: Any = numba.njit
_REBUILD: Any = CompileResult._rebuild
_DUMPS: Any = serialize.dumps
_UNLITERAL: Any = unliteral
MAGIC = b"loadmaster compiled 3\n"
remember_operators()


@overload
def compiled(function: Callable[..., Any]) -> Any: ...
@overload
def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]: ...


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compiles a function at its first call, or takes it from the cache; it runs without Python's lock.

    With `_nrt=False` it may allocate nothing, references are not counted, and its indices must not be negative:
    `a[-1]` is what lies before the array. With `apart=True` compiled callers call its machine code, which is made once;
    else each of them has a copy of its own, which is quicker to call and takes longer to make. With
    `no_cpython_wrapper=True` only compiled functions may call it: unpacking many arrays takes long to compile, too."""
    if function is None:
        return partial(_compiled, options)
    return _compiled(options, function)


def _compiled(options: dict[str, Any], function: Callable[..., Any]) -> Any:
    options = _OPTIONS | options
    apart = bool(options.pop("apart", False))
    dispatcher: Any = _NJIT(pipeline_class=Plain, **options)(function)
    if hasattr(dispatcher, "py_func"):  # else a plain function, under NUMBA_DISABLE_JIT
        _keep(dispatcher, _Cache(function, options, apart=apart))
        inner: Any = dispatcher
        if not apart:
            inner = _NJIT(pipeline_class=ForCallers, no_cpython_wrapper=True, **options)(function)
            _keep(inner, _Cache(function, options, part=True))
        _give_to_callers(dispatcher, inner)
    return dispatcher


# Options that a caller would hand down are said here: what is in the cache must not depend on who asked first.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "no_cfunc_wrapper": True,
    "_nrt": True,
    "error_model": "python",
    "forceinline": False,
}


def _keep(dispatcher: Any, cache: _Cache) -> None:
    dispatcher._cache, dispatcher.apart = cache, cache.apart
    dispatcher.compile = _timed(dispatcher.compile)


def compile_for(function: Any, *arguments: Any, part: bool = False) -> None:
    """Compiles what calls with such arguments need, or compiled callers, without a call."""
    dispatcher = function.for_callers if part else function
    dispatcher.compile(tuple(function.typeof_pyval(argument) for argument in arguments))


def _give_to_callers(dispatcher: Any, inner: Any) -> None:
    """Compiled callers get what Python has already called, or else `inner`, which is made for callers alone.

    numba would also make a version for every constant that a compiled caller passes: `run(…, True)` and `run(…, False)`
    would be compiled apart, at seconds each."""
    own_template, own_overload, fold = (
        dispatcher.get_call_template,
        dispatcher.get_overload,
        dispatcher._compiler.fold_argument_types,
    )
    other_template, other_overload = inner.get_call_template, inner.get_overload

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        named = {name: _UNLITERAL(kind) for name, kind in keywords.items()}
        plain = tuple(_UNLITERAL(kind) for kind in arguments)
        called = tuple(fold(plain, named)[1]) in dispatcher.overloads
        return (own_template if called else other_template)(plain, named)

    def get_overload(signature: Any) -> Any:
        called = tuple(getattr(signature, "args", signature)) in dispatcher.overloads
        return (own_overload if called else other_overload)(signature)

    dispatcher.get_call_template, dispatcher.get_overload = get_call_template, get_overload
    dispatcher.for_callers = inner


# The clock


class _Clock:
    """Seconds in which some thread compiled or loaded, and who wants to know when compiling begins.

    Meanwhile no garbage is collected: compilers make millions of small objects that live until they are done, and
    looking through them again and again takes a tenth of the time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth, self.since, self.total = 0, 0.0, 0.0
        self.collects = False
        self.listeners: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.since, self.collects = time.perf_counter(), gc.isenabled()
                gc.disable()
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.total += time.perf_counter() - self.since
                if self.collects:
                    gc.enable()

    @property
    def seconds(self) -> float:
        with self.lock:
            return self.total + (time.perf_counter() - self.since if self.depth else 0.0)


_CLOCK = _Clock()


def seconds_compiling() -> float:
    """How long this process has been making or loading compiled code so far."""
    return _CLOCK.seconds


@contextmanager
def telling(listener: Callable[[], None]) -> Iterator[None]:
    """Within the block the listener is called whenever something is not in the cache and has to be compiled."""
    _CLOCK.listeners.append(listener)
    try:
        yield
    finally:
        _CLOCK.listeners.remove(listener)


def _timed(compile_: Callable[..., Any]) -> Callable[..., Any]:
    def compile_on_the_clock(signature: Any) -> Any:
        with _CLOCK, _giving_up():
            return compile_(signature)

    return compile_on_the_clock


class _Claims(threading.local):
    """What this thread is compiling: callers, then what they call."""

    def __init__(self) -> None:
        self.held: list[tuple[Path, int]] = []


_CLAIMS = _Claims()


def _claim(path: Path) -> bool:
    """Whether this process alone compiles the entry from now on."""
    if (place := claim(path.parent, path.name.removesuffix(".nbc"))) is not None:
        _CLAIMS.held.append((path.parent, place))
    return place is not None


@contextmanager
def _giving_up() -> Iterator[None]:
    """Gives up what is claimed within the block: by then it is written, or was not to be had."""
    before = len(_CLAIMS.held)
    try:
        yield
    finally:
        while len(_CLAIMS.held) > before:
            give_up(*_CLAIMS.held.pop())


# The cache


class _Cache(NullCache):
    """What numba asks for compiled code before it compiles, and gives it to afterwards."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], *, part: bool = False, apart: bool = False
    ) -> None:
        self._function, self._options, self._part, self.apart = function, options, part, apart

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(signature, target_context.codegen())
        if (found := self._load(path, target_context)) is None:
            for listener in tuple(_CLOCK.listeners):
                listener()
            if path is not None and _claim(path):  # another process may have written it by now
                found = self._load(path, target_context)
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
        try:
            _write(path, _DUMPS(result._reduce()))
        except UnwritableFile as error:
            _tell_once(error)

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        """The file of this function for these types; None where it freezes something that has no digest."""
        folder = cache_folder()
        try:
            made_from = hashlib.sha256("\n".join(_parts(self._function)).encode())
        except _NoDigest:
            return None
        if folder is None:
            return None
        circumstances = (
            _types_text(signature),
            _options_text(self._options),
            codegen.magic_tuple(),
            _VERSIONS,
            (MAGIC, self._part, self.apart),
            _switches(),
        )
        made_from.update(repr(circumstances).encode())
        name = f"{self._function.__module__.removeprefix('loadmaster.')}.{self._function.__qualname__}"
        return folder / f"{name}-{made_from.hexdigest()[:32]}.nbc"


_VERSIONS = (sys.version_info[:3], platform.python_implementation(), numba.__version__, np.__version__)


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


def cache_folder() -> Path | None:
    """Where compiled code is kept; None where the user has no home."""
    if given := os.environ.get("LOADMASTER_CACHE"):
        return Path(given) / "compiled"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "loadmaster" / "compiled" if base and os.path.isabs(base) else None


def _read(path: Path) -> Any:
    """The entry, or None where there is none, a torn one, or one that names what is no longer there."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > 86400:
            os.utime(path)  # still in use
    head = len(MAGIC) + 32
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
        return None
    try:
        return pickle.loads(data[head:])
    except Exception:  # of another version of the package
        return None


def _write(path: Path, payload: bytes) -> None:
    from loadmaster.files.writing import unwritable, write_bytes  # above this room, so only when called

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path.parent, error) from error
    _remove_old(path.parent)
    write_bytes(path, MAGIC + hashlib.sha256(payload).digest() + payload, durable=False)


_REMOVED: set[Path] = set()


def _remove_old(folder: Path) -> None:
    """Removes what nobody used for a long time, once in a process."""
    if folder in _REMOVED:
        return
    _REMOVED.add(folder)
    oldest = time.time() - KEPT_DAYS * 86400
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


_TOLD: set[str] = set()


def _tell_once(error: UnwritableFile) -> None:
    if not _TOLD:
        _TOLD.add("told")
        warnings.warn(
            f"compiled code cannot be kept, so every start is slower ({error.what}); "
            "set LOADMASTER_CACHE to a folder that can be written",
            stacklevel=2,
        )


# What machine code is made from


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
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(constant)


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
