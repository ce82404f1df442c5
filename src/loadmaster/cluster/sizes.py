"""Sizes of memory as people write them: 16GiB, 512 MiB, 2GB, 1048576B."""

from __future__ import annotations

import re

from loadmaster.errors import InvalidSetting

_WRITTEN = {"b": 1} | {f"{letter}ib": 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)}
_WRITTEN |= {f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)}


def parse_size(text: str, where: str) -> int:
    """Bytes of 16GiB, 512 MiB, 2GB or 1048576B; InvalidSetting for a number without a unit, and for any other text.

    >>> parse_size("1.5GiB", "memory_limit"), parse_size("2GB", "memory_limit")
    (1610612736, 2000000000)
    """
    match = None if len(text) > 40 else re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match and not match[2]:
        raise InvalidSetting(
            f"'{text}' has no unit", where, f"write {match[1]}GiB, {match[1]}MiB or {match[1]}B (bytes)"
        )
    scale = _WRITTEN.get(match[2].lower()) if match else None
    if match is None or scale is None:
        fix = "write a number and a unit: 16GiB, 512MiB, 2GB or 1048576B (bytes)"
        raise InvalidSetting(f"'{text[:40]}' is not a size", where, fix)
    nbytes = float(match[1]) * scale if "." in match[1] else int(match[1]) * scale
    if not 1 <= nbytes < 2**50:
        raise InvalidSetting(f"'{text}' is not a size a device can have", where, "give 1 byte to 1023TiB")
    return int(nbytes)
