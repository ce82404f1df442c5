"""Loops that run without numba where they were compiled before: their machine code is brought into the process by
llvmlite alone, which is imported in a fifth of the time.

Such a loop is compiled with `_nrt=False`: it allocates nothing. It takes one struct, a named tuple of arrays, whole
numbers, booleans and such tuples, as one address (laid out as in `structs`), and returns a whole number.

An entry of the cache cannot be stale. Its name is a digest of the layout of the struct, the processor and the versions
of all that makes code; in it are the digests of the source files that the code came from, the module of the loop and
all of this package that it imports, directly or not. Where one of them has changed it is compiled anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
from array import array
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.compiled.clock import CLOCK
from loadmaster.compiled.entries import cache_folder, read_entry, write_entry

PACKAGE = __name__.partition(".")[0]
OUTSIDE = frozenset(("memcpy", "memmove", "memset"))  # what code may call that is not in it


class Loop:
    """A compiled function of a module, which is imported only where it has to be compiled, or must not be."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._lock, self._called = threading.Lock(), dict[str, Any]()

    def __call__(self, struct: Any) -> int:
        if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
            return int(getattr(import_module(self.module), self.name)(struct))
        layout = repr(layout_of(struct))
        with self._lock:
            if layout not in self._called:
                self._called[layout] = _bring(*self._code(struct, layout))
        words, _kept = words_of(struct)
        answer, failure = ctypes.c_int64(), ctypes.c_void_p()
        if self._called[layout](ctypes.byref(answer), ctypes.byref(failure), words.buffer_info()[0]):
            raise RuntimeError(f"{self.module}.{self.name} failed")
        return answer.value

    def _code(self, struct: Any, layout: str) -> tuple[str, bytes]:
        """(symbol, machine code), from the cache where it is there."""
        name = (layout, _file_digest(_file_of(self.module)), _circumstances())
        folder, digest = cache_folder(), hashlib.sha256(repr(name).encode()).hexdigest()[:32]
        path = None
        if folder is not None:
            path = folder / f"{self.module.removeprefix(f'{PACKAGE}.')}.{self.name}-{digest}.code"
        kept = None if path is None else read_entry(path)
        if kept is not None:
            head, _, code = kept.partition(b"\n")
            told = json.loads(head)
            if all(_file_digest(_file_of(module)) == digest for module, digest in told["from"].items()):
                return told["symbol"], code
        symbol, code = self._compiled(struct)
        if path is not None:
            made_from = {module: _file_digest(_file_of(module)) for module in sources_of(self.module)}
            head = json.dumps({"symbol": symbol, "from": made_from}).encode()
            write_entry(path, head + b"\n" + code)
        return symbol, code

    def _compiled(self, struct: Any) -> tuple[str, bytes]:
        from numba.core.caching import NullCache

        from loadmaster.compiled import structs

        for listener in tuple(CLOCK.listeners):
            listener()
        dispatcher: Any = getattr(import_module(self.module), self.name)
        dispatcher._cache = NullCache()  # what numba loads it does not give away
        kinds = (structs._written(struct)[0],)
        dispatcher.compile(kinds)
        result = dispatcher.overloads[kinds]
        calls = {f.name for f in result.library._final_module.functions if f.is_declaration}
        if missing := {name for name in calls if not name.startswith("llvm.")} - OUTSIDE:
            raise LookupError(f"{self.module}.{self.name} calls {sorted(missing)[0]}, which is not in it")
        return result.fndesc.llvm_func_name, result.library._get_compiled_object()


# From Python to compiled code


def layout_of(struct: Any) -> Any:
    """What decides where each field lies and what it is."""
    return (
        type(struct).__qualname__,
        [
            (name, (value.dtype.str, value.ndim) if isinstance(value, np.ndarray) else _plain_layout(value))
            for name, value in zip(struct._fields, struct, strict=True)
        ],
    )


def _plain_layout(value: Any) -> Any:
    return layout_of(value) if hasattr(value, "_fields") else type(value).__name__


def words_of(struct: Any) -> tuple[array[int], list[Any]]:
    """(words, what they point to): for an array where it lies and its shape, for a struct the address of its words."""
    words, kept = array("q"), list[Any]()
    for value in struct:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise TypeError("an array of a struct must lie in memory row by row")
            words.extend((value.ctypes.data, *value.shape))
        elif hasattr(value, "_fields"):
            inner = words_of(value)
            kept.append(inner)
            words.append(inner[0].buffer_info()[0])
        elif isinstance(value, int):
            words.append(value)
        else:
            raise TypeError(f"a field of a struct cannot be {type(value).__name__}")
    return words, kept


_ENGINES: list[Any] = []  # code lives as long as what brought it


def _bring(symbol: str, code: bytes) -> Any:
    """The function of that name; ctypes lets other threads run while it does."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return kind(engine.get_function_address(symbol))


# What code is made from


def _circumstances() -> tuple[Any, ...]:
    """What decides which code is made of the same source: versions, the processor, switches, and how we make code."""
    import llvmlite
    from llvmlite import binding

    own = [_file_digest(path) for path in sorted(Path(__file__).parent.glob("*.py"))]
    numba = Path(_file_of("numba")).with_name("_version.py")
    switches = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    processor = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    return sys.version, np.__version__, llvmlite.__version__, _file_digest(numba), own, switches, processor


def sources_of(module: str) -> list[str]:
    """The module and all of its package that it imports, directly or not; how code is made is told apart."""
    package, found, waiting = module.partition(".")[0], list[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] != package or f"{name}.".startswith(f"{PACKAGE}.compiled."):
            continue
        if file := _file_of(name):
            found.append(name)
            waiting += _imports(Path(file).read_bytes())
    return sorted(found)


def _imports(source: bytes) -> Iterator[str]:
    """Modules, and names that may be modules."""
    import ast

    for step in ast.walk(ast.parse(source)):
        if isinstance(step, ast.ImportFrom) and step.module:
            yield from (step.module, *(f"{step.module}.{each.name}" for each in step.names))
        elif isinstance(step, ast.Import):
            yield from (each.name for each in step.names)


def _file_of(module: str) -> str:
    """Where its source is; nothing where there is no such module."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # in something that is no package
        return ""
    return found.origin or "" if found is not None else ""


def _file_digest(path: str | Path) -> str:
    """Nothing where the package has no files of its own: then it does not change either."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
