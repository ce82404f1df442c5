"""The cache of compiled code on disk, which several processes share.

An entry is a file (`entries`) named by the function and by a digest of all that its code is made from (`digests`), so
it can be absent but not stale. What is absent is compiled.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

from loadmaster.compiled.clock import CLOCK
from loadmaster.compiled.digests import digest_of
from loadmaster.compiled.entries import MAGIC, cache_folder, read_entry, write_entry
from loadmaster.compiled.parts import rebuild_part, set_apart

_REBUILD: Any = CompileResult._rebuild
_DUMPS: Any = serialize.dumps


class Cache(NullCache):
    """What numba asks for compiled code before it compiles, and gives it to afterwards."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], *, part: bool = False, apart: bool = False
    ) -> None:
        self._function, self._options, self._part, self.apart = function, options, part, apart

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(signature, target_context.codegen())
        if (found := self._load(path, target_context)) is None:
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
        name = f"{self._function.__module__.removeprefix('loadmaster.')}.{self._function.__qualname__}"
        return folder / f"{name}-{digest}.nbc"


def _read(path: Path) -> Any:
    """The entry, or None where there is none, a torn one, or one that names what is no longer there."""
    payload = read_entry(path)
    if payload is None:
        return None
    try:
        return pickle.loads(payload)
    except Exception:  # of another version of the package
        return None
