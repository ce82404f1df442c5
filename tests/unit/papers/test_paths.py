"""How much of the papers' room runs between `optimize` and its plan: what someone has to read who wants to follow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("torch")

import loadmaster.papers
from loadmaster.catalog.specs import make_method
from loadmaster.search import Budget, Search
from tests.unit.papers.lanes import lanes

ROOM = str(Path(loadmaster.papers.__file__).parent)


@pytest.mark.parametrize("spec", ["rnn", "hdp", "placeto", "regal", "gas", "go", "go:finetune=2", "go-one"])
def test_at_most_sixty_functions_in_twelve_files(spec: str) -> None:
    seen: set[tuple[str, str]] = set()

    def look(frame: FrameType, event: str, given: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOM) and not code.co_name.startswith("<"):
            seen.add((code.co_filename, code.co_qualname))

    problem, method = lanes(4), make_method(spec)
    method.optimize(Search(problem, Budget(None, 60)))  # whatever is imported and kept, is now
    sys.setprofile(look)
    try:
        method.optimize(Search(problem, Budget(None, 60)))
    finally:
        sys.setprofile(None)
    assert len(seen) <= 60 and len({file for file, _ in seen}) <= 12, sorted(seen)
