"""Examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import loadmaster

SOURCE = Path(loadmaster.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(("loadmaster", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of_docstrings(name: str) -> None:
    if name.startswith("loadmaster.runtime"):
        pytest.importorskip("torch")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


def test_the_types_of_the_path_have_examples() -> None:
    rooms = {name.split(".")[1] for name in WITH_EXAMPLES if "." in name}
    assert {"graph", "cluster", "problem", "plans", "simulator", "search", "importers"} <= rooms
