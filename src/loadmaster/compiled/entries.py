"""Files of the cache: where they lie, how they are read and written, which are removed, and which are waited for.

A file is written beside and renamed, and begins with a checksum; whatever is torn, foreign or of another version counts
as absent. None of this needs numba.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from loadmaster.errors import UnwritableFile

KEPT_DAYS = 60  # entries that nobody used for so long are removed
MAGIC = b"loadmaster compiled 3\n"


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


def read_entry(path: Path) -> bytes | None:
    """What was written, or None where there is nothing, or something torn."""
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
    return data[head:]


def write_entry(path: Path, payload: bytes) -> None:
    """Where it cannot be written, a warning says so once."""
    from loadmaster.files.writing import unwritable, write_bytes  # above this room, so only when called

    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        _remove_old(path.parent)
        write_bytes(path, MAGIC + hashlib.sha256(payload).digest() + payload, durable=False)
    except UnwritableFile as error:
        _tell_once(error)


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


# Loops that another process makes


_MADE_BESIDE: dict[str, subprocess.Popen[bytes]] = {}  # by the name of the loop


def make_beside(module: str, loops: tuple[str, ...]) -> None:
    """Runs a module in a process of its own, which calls these loops, where none of them is in the cache. Whoever needs
    one here before that process has written it waits for it (`made_beside`). It ends with this process."""
    folder = cache_folder()
    if folder is None or _MADE_BESIDE or any(found for name in loops for found in folder.glob(f"{name}-*")):
        return
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        process = subprocess.Popen([sys.executable, "-P", "-m", module], stdin=quiet, stdout=quiet, stderr=quiet)
        atexit.register(process.kill)
        _MADE_BESIDE.update(dict.fromkeys(loops, process))


def made_beside(name: str, path: Path | None) -> bool:
    """Whether the entry of a loop has come from the process that makes it; waits while that runs."""
    process = _MADE_BESIDE.get(name)
    if process is None or path is None:
        return False
    while process.poll() is None and not path.exists():
        time.sleep(0.01)
    return path.exists()
