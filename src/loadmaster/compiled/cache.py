"""The cache of compiled code on disk, which several processes share.

An entry is a file named by the function and by a digest of all that its code is made from (`digests`), so it can be
absent but not stale. It is written beside and renamed, begins with a checksum, and whatever is torn, foreign or of
another version counts as absent and is compiled again. Who is compiling what is told by locks (`claims`). Entries that
nobody used for 60 days are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

from loadmaster.compiled.claims import claim, give_up
from loadmaster.compiled.clock import CLOCK
from loadmaster.compiled.digests import digest_of
from loadmaster.compiled.parts import rebuild_part, set_apart
from loadmaster.errors import UnwritableFile

KEPT_DAYS = 60  # entries that nobody used for so long are removed
MAGIC = b"loadmaster compiled 3\n"
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
        made = (codegen.magic_tuple(), MAGIC, self._part, self.apart)
        digest = digest_of(self._function, signature, self._options, *made)
        if folder is None or digest is None:
            return None
        name = f"{self._function.__module__.removeprefix('loadmaster.')}.{self._function.__qualname__}"
        return folder / f"{name}-{digest}.nbc"


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


# Claims


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
def giving_up() -> Iterator[None]:
    """Gives up what is claimed within the block: by then it is written, or was not to be had."""
    before = len(_CLAIMS.held)
    try:
        yield
    finally:
        while len(_CLAIMS.held) > before:
            give_up(*_CLAIMS.held.pop())
