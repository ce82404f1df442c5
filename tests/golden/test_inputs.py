"""What policies are shown of problems stays what they were trained on."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from tests.golden.inputs import ALL, FILE, VIEWS, told

KEPT = json.loads(FILE.read_text())


@pytest.mark.parametrize("problem", ALL)
@pytest.mark.parametrize("view", VIEWS)
def test_the_numbers_are_the_kept_ones(view: str, problem: str) -> None:
    found, kept = told(view, problem), KEPT[f"{view} {problem}"]
    assert found.keys() == kept.keys()
    for name, sums in found.items():
        assert sums == pytest.approx(kept[name], rel=1e-4, abs=1e-4), f"{name}: python -m tests.golden.inputs"
