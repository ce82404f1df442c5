"""Files whose name does not say enough: what they hold decides who reads them.

Each takes the path and the settings that stood behind `#` in what the user wrote, as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmaster.errors import InvalidSetting, UnknownName
from loadmaster.files.text import PathLike
from loadmaster.graph import Graph

Settings = Mapping[str, str]


def load_xla(path: PathLike, settings: Settings) -> Graph:
    """HLO text, StableHLO text or a serialized HLO proto."""
    from loadmaster.importers.hlo.load import load_hlo

    known = checked(settings, ("fusions", "trips"), path)
    return load_hlo(path, fusions=known.get("fusions", "keep"), trips=whole(known, "trips", path))


def load_protobuf(path: PathLike, settings: Settings) -> Graph:
    """A serialized HLO proto."""
    return load_xla(path, settings)


def checked(settings: Settings, known: Sequence[str], path: PathLike) -> Settings:
    for name in settings:
        if name not in known:
            if not known:
                raise InvalidSetting(f"this kind of file has no setting '{name}'", str(path), "leave it out")
            raise UnknownName.among("setting", name, known, str(path))
    return settings


def whole(settings: Settings, name: str, path: PathLike) -> int | None:
    if name not in settings:
        return None
    text = settings[name]
    if not text.isdecimal() or len(text) > 12:
        raise InvalidSetting(f"{name} is '{text}'", str(path), "give a whole number")
    return int(text)
