"""What passes make of problems and graphs stays what was kept."""

from __future__ import annotations

import json

import pytest

from tests.golden.passes import FILE, SCENES

KEPT = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", SCENES)
def test_what_is_made_is_what_was_kept(name: str) -> None:
    found, kept = SCENES[name](), KEPT[name]
    assert found.keys() == kept.keys()
    for part, numbers in found.items():
        assert numbers == pytest.approx(kept[part], rel=1e-9), f"{part}: python -m tests.golden.passes"


def test_nothing_is_kept_for_nothing() -> None:
    assert KEPT.keys() == SCENES.keys()
