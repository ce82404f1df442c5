"""Reading: the model that a path means, as a table of sizes."""

from __future__ import annotations

from pathlib import Path

from loadmaster.importers.gguf import read_gguf
from loadmaster.serving.language import Language
from loadmaster.serving.of_folder import of_folder
from loadmaster.serving.of_gguf import of_gguf


def language_of(path: str) -> Language:
    """The model of a GGUF file, or of a Hugging Face folder or its config.json."""
    if path.endswith(".gguf"):
        return of_gguf(read_gguf(path), path)
    place = Path(path)
    return of_folder(place.parent if place.is_file() else place)
