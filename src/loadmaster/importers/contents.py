"""Files whose name does not say enough: what they hold decides who reads them.

Each takes the path and the settings that stood behind `#` in what the user wrote, as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from loadmaster.errors import InvalidSetting, UnknownName, UnreadableFile
from loadmaster.files.text import PathLike, read_json
from loadmaster.graph import Graph
from loadmaster.importers.reading import read_bytes, read_text, start_of

Settings = Mapping[str, str]


def load_xla(path: PathLike, settings: Settings) -> Graph:
    """HLO text, StableHLO text or a serialized HLO proto."""
    from loadmaster.importers.hlo.load import load_hlo

    known = checked(settings, ("fusions", "trips"), path)
    return load_hlo(path, fusions=known.get("fusions", "keep"), trips=whole(known, "trips", path))


def load_protobuf(path: PathLike, settings: Settings) -> Graph:
    """A serialized HLO proto or a GraphDef."""
    from loadmaster.importers.hlo.proto import looks_like_hlo
    from loadmaster.importers.tensorflow.load import load_graph_def

    if looks_like_hlo(read_bytes(path), str(path)):
        return load_xla(path, settings)
    return load_graph_def(path, sizes=_sizes(settings, path))


def load_textproto(path: PathLike, settings: Settings) -> Graph:
    """A GraphDef or a CostGraphDef as text."""
    from loadmaster.importers.tensorflow.load import load_textproto

    return load_textproto(path, sizes=_sizes(settings, path))


def load_tflite(path: PathLike, settings: Settings) -> Graph:
    """A model of TensorFlow Lite; its settings are sizes that the file leaves open."""
    from loadmaster.importers.tensorflow.tflite import load_tflite

    return load_tflite(path, sizes=_sizes(settings, path))


def _sizes(settings: Settings, path: PathLike) -> dict[str, int]:
    return {name: whole(settings, name, path) or 0 for name in settings}


def load_tasks(path: PathLike, settings: Settings) -> Graph:
    """A task graph of the Standard Task Graph Set."""
    from loadmaster.importers.benchmarks.tasks import load_stg

    checked(settings, (), path)
    return load_stg(path)


def load_json(path: PathLike) -> Graph:
    """A graph of ours, or a workflow of WfCommons."""
    from loadmaster.files import load_graph
    from loadmaster.importers.benchmarks.tasks import is_workflow, load_workflow

    if b"loadmaster.graph/" in start_of(path) or not is_workflow(read_json(path)):
        return load_graph(path)
    return load_workflow(path)


def load_text(path: PathLike, settings: Settings) -> Graph:
    """HLO or StableHLO, protobuf text, or a graph of DOPPLER."""
    from loadmaster.importers.benchmarks.tasks import is_doppler, load_doppler

    start = read_text(path)[:65536]
    if is_doppler(start):
        checked(settings, (), path)
        return load_doppler(path)
    if "HloModule" in start or "func.func" in start:
        return load_xla(path, settings)
    if re.search(r"^\s*node\s*:?\s*\{", start, re.MULTILINE):
        return load_textproto(path, settings)
    raise UnreadableFile(f"'{path}' is no text that is known", "", "give HLO, StableHLO, a GraphDef or a CostGraphDef")


def checked(settings: Settings, known: Sequence[str], path: PathLike) -> Settings:
    """Refuses settings behind '#' that this kind of file has not."""
    for name in settings:
        if name not in known:
            if not known:
                raise InvalidSetting(f"this kind of file has no setting '{name}'", str(path), "leave it out")
            raise UnknownName.among("setting", name, known, str(path))
    return settings


def whole(settings: Settings, name: str, path: PathLike) -> int | None:
    """A whole number given behind '#', None where it is not there."""
    if name not in settings:
        return None
    text = settings[name]
    if not text.isdecimal() or len(text) > 12:
        raise InvalidSetting(f"{name} is '{text}'", str(path), "give a whole number")
    return int(text)
