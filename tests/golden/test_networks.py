"""What networks say of small problems stays as it was kept."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from tests.golden.networks import SCENES

KEPT = json.loads(SCENES.file.read_text())


@pytest.mark.parametrize("name", SCENES.made)
def test_the_numbers_are_the_kept_ones(name: str) -> None:
    found, kept = SCENES.made[name](), KEPT[name]
    assert found.keys() == kept.keys()
    for part, numbers in found.items():
        assert numbers == pytest.approx(kept[part], rel=1e-3, abs=1e-4), f"{part}: python -m tests.golden.networks"


def test_nothing_is_kept_for_nothing() -> None:
    assert KEPT.keys() == SCENES.made.keys()
