"""Claims: of several processes that need the same compiled code, one compiles it and the others wait for what it wrote.

A claim is a lock on one byte of one file, at a place that the name of the entry decides. The system lets go of it when
its process ends, however that ends. Where there are no such locks, or no place for the file, nobody claims anything
and everybody compiles.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LONGEST_S = 120.0  # that a process waits for another, which may have been stopped, before it compiles for itself
LOOK_S = 0.02  # between two looks

_FILES: dict[tuple[Path, int], int] = {}  # of this process: closing one would let go of all claims


def can_claim(folder: Path | None) -> bool:
    """Whether processes can tell each other what they compile into the folder."""
    return folder is not None and _file(folder) is not None


def claim(folder: Path, name: str) -> int | None:
    """Waits until no other process is at the entry; then it is this one's, by the place that is returned, until it is
    given up. None: there is no telling."""
    file, place, until = _file(folder), _place(name), time.monotonic() + LONGEST_S
    while file is not None and time.monotonic() < until:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            return place
        except (BlockingIOError, PermissionError):  # another process has it
            time.sleep(LOOK_S)
        except OSError:
            return None
    return None


def give_up(folder: Path, place: int) -> None:
    """Lets another process compile the entry."""
    file = _file(folder)
    if file is not None:
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


def _place(name: str) -> int:
    """The digest at the end of an entry's name, as a place that a file may have."""
    return int(name.rpartition("-")[2][:15], 16)


def _file(folder: Path) -> int | None:
    known = _FILES.get((folder, os.getpid()))
    if known is None and fcntl is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder.parent / "compiling.lock"
            known = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _FILES[folder, os.getpid()] = known
    return known
