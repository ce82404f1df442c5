"""A small part of benchmarks/held_out.py: models that do what captures get wrong."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
SOME = [
    "in-place-column", "in-place-strided", "plain-reassigned", "plain-gradient", "counter-iterator", "global-random",
    "cached", "buffer-reassigned", "weights-list", "lambda", "shared-three", "hook-state", "spectral", "no-copies",
    "switches", "complex",
]  # fmt: skip


@pytest.fixture(scope="module")
def held_out() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield runpy.run_path(str(BENCHMARKS / "held_out.py"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOME)
def test_a_model_is_as_it_was_and_captured_alike(held_out: Any, name: str) -> None:
    row = held_out["checked"](held_out["OWN"][name], loads=1)
    assert "eager" not in row and all(row["digests"].values())
    assert (row["harm"], row["failed"]) == ([], [])
    assert all(len(found) == 1 for found in row["digests"].values())
