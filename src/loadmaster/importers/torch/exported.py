"""Programs that torch.export made: in memory, or saved as .pt2.

Unlifted to a module and captured like any other, on the inputs they were exported with unless others are given.
"""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from loadmaster.errors import ImportFailed, UnreadableFile
from loadmaster.files.packing import MOST_RATIO, most_unpacked
from loadmaster.files.text import PathLike, checked_path
from loadmaster.graph import Graph
from loadmaster.importers.torch.arguments import Arguments
from loadmaster.importers.torch.export import capture

_SAFE = "load it with torch.export.load where you trust it, and give the program to loadmaster.load"


def load_pt2(path: PathLike, *, training: bool = True, optimizer: str = "adam", name: str = "") -> Graph:
    """The graph of a program that torch.export.save wrote, on the inputs it was exported with."""
    found = checked_path(path)
    _check(found)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(str(found))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"'{found}' is not a program of torch.export: {reason}"
        raise UnreadableFile(what, "", "save it with torch.export.save, by this or an earlier torch") from None
    label = name or found.name.removesuffix(".pt2")
    return capture_exported(program, training=training, optimizer=optimizer, name=label)


def _check(path: Path) -> None:
    """torch would unpickle, hence run, what an archive holds beside tensors: such an archive is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked, most = sum(info.file_size for info in archive.infolist()), most_unpacked(os.path.getsize(path))
            if unpacked > most:
                what = f"'{path}' unpacks to {unpacked >> 20:,} MiB, {MOST_RATIO} times its size or more"
                raise UnreadableFile(what, "", "is it what its name says? torch.export.save packs nothing as tightly")
            for entry in archive.namelist():
                if "/sample_inputs/" in entry:
                    torch.load(io.BytesIO(archive.read(entry)), weights_only=True)
                elif any(mark in entry for mark in ("custom_obj_", "opaque_obj_")):
                    raise ImportFailed(f"'{path}' holds Python objects of its own", entry, _SAFE)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise UnreadableFile(f"'{path}' is not a whole .pt2 file: {error}", "", "copy it again") from None
    except (ImportFailed, UnreadableFile):
        raise
    except Exception:
        raise ImportFailed(f"'{path}' holds more than tensors as its example inputs", entry, _SAFE) from None


def capture_exported(
    program: ExportedProgram, *, inputs: Any = None, training: bool, optimizer: str = "adam", name: str = ""
) -> Graph:
    """`capture` of an exported program; its own example inputs unless others are given."""
    label = name or "exported program"
    if inputs is None:
        if program.example_inputs is None:
            what = "the exported program has no example inputs"
            raise ImportFailed(what, label, "give some: load(program, inputs=(x, ...))")
        args, kwargs = program.example_inputs
        inputs = Arguments(tuple(args), dict(kwargs))
        if program.range_constraints:
            sizes = ", ".join(sorted(map(str, program.range_constraints)))
            warnings.warn(f"{label}: captured at the sizes of its example inputs; {sizes} may vary", stacklevel=3)
    return capture(program.module(), inputs, training=training, optimizer=optimizer, name=label)
