"""How loadmaster writes files: beside the target, then renamed over it, so that a kill or a full disk loses nothing.

At any moment the target is the old file or the new one, never a part of either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import secrets
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadmaster.errors import InvalidSetting, UnwritableFile

ABANDONED_S = 3600  # a part as old as this was left by a process of another machine that was killed


def write_bytes(path: str | os.PathLike[str], data: bytes, *, durable: bool = True) -> None:
    """Makes the file hold exactly these bytes."""
    with writing(path, durable=durable) as part:
        part.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """The same for text: UTF-8, lines as they are; a lone surrogate, which no encoding has, becomes '?'."""
    write_bytes(path, text.encode("utf-8", "replace"))


def path_of(given: str | os.PathLike[str]) -> Path:
    """The path that a caller gave. Raises InvalidSetting for what is none."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidSetting.instead_of("path", given, "a file", "give the name of a file")
    return Path(given)


@contextmanager
def writing(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[Path]:
    """A path to write to. When the block ends well it becomes `path`; when it does not, `path` is as it was.

    `durable`: the bytes have reached the disk before the old file goes. Links are followed; devices and pipes are
    written to directly.
    """
    try:
        target = Path(os.path.realpath(path_of(path)))
    except ValueError:  # a zero byte in it, or half a character
        raise UnwritableFile(f"{_shortened(repr(path))} is no name of a file", "", "give another name") from None
    try:
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            yield target
            return
        part = _beside(target, mode)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield part
        if durable:
            _sync(part)
        os.replace(part, target)
        if durable:
            _sync(target.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def unwritable(path: str | os.PathLike[str], error: OSError) -> UnwritableFile:
    """The error of ours for what the machine said."""
    reason = error.strerror or type(error).__name__
    fixes = {
        errno.ENOSPC: "make room on that disk, or write elsewhere",
        errno.EDQUOT: "make room within your quota, or write elsewhere",
        errno.ENAMETOOLONG: "give a shorter name",
        errno.ENOENT: "make the folder first, or write elsewhere",
        errno.EISDIR: "give the name of a file",
    }
    fix = fixes.get(error.errno or 0, "check the permissions of its folder, or write elsewhere")
    return UnwritableFile(f"'{_shortened(str(path))}' cannot be written: {reason}", "", fix)


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:100]}…{text[-80:]}"


def _mode(target: Path) -> int | None:
    try:
        return os.stat(target).st_mode
    except FileNotFoundError:
        return None


def _beside(target: Path, mode: int | None) -> Path:
    """A new empty file in the same folder, with the permissions of the target; suffixes are kept, since they name the
    format."""
    _remove_abandoned(target)
    suffix = "".join(target.suffixes)[-40:]
    part = target.parent / f".{target.name[:80]}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.part{suffix}"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if mode is not None:
            os.chmod(part, stat.S_IMODE(mode))
    finally:
        os.close(descriptor)
    return part


def _remove_abandoned(target: Path) -> None:
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        beginning = f".{target.name[:80]}."
        for entry in entries:
            is_part = entry.name.startswith(beginning) and ".part" in entry.name[len(beginning) :]
            if is_part and (_writer_is_gone(entry.name) or entry.stat().st_mtime < time.time() - ABANDONED_S):
                os.unlink(entry.path)


def _host() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _writer_is_gone(name: str) -> bool:
    """Whether a process of this machine began the part and is no more: killed, or the machine was switched off."""
    found = re.search(r"\.([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}\.part", name)
    if found is None or found[1] != _host() or int(found[2]) == os.getpid():
        return False
    try:
        os.kill(int(found[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # of somebody else, and there
        pass
    return False


def _sync(path: Path) -> None:
    """Waits until the disk has it; folders cannot be waited for on every system."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)
