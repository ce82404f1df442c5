"""The decorator `compiled`: numba's, with our pipelines (`parts`) and our cache (`cache`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

import numba
from numba.core.types import unliteral

from loadmaster.compiled.cache import Cache
from loadmaster.compiled.clock import CLOCK
from loadmaster.compiled.parts import ForCallers, Plain, remember_operators

F = TypeVar("F", bound=Callable[..., Any])
_NJIT: Any = numba.njit
_UNLITERAL: Any = unliteral
remember_operators()


@overload
def compiled(function: F) -> F: ...
@overload
def compiled(**options: Any) -> Callable[[F], F]: ...


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
        _keep(dispatcher, Cache(function, options, apart=apart))
        inner: Any = dispatcher
        if not apart:
            inner = _NJIT(pipeline_class=ForCallers, no_cpython_wrapper=True, **options)(function)
            _keep(inner, Cache(function, options, part=True))
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


def _keep(dispatcher: Any, cache: Cache) -> None:
    dispatcher._cache, dispatcher.apart = cache, cache.apart
    dispatcher.compile = _timed(dispatcher.compile)


def _timed(compile_: Callable[..., Any]) -> Callable[..., Any]:
    def compile_on_the_clock(signature: Any) -> Any:
        with CLOCK:
            return compile_(signature)

    return compile_on_the_clock


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
