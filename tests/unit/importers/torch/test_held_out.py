"""A small part of benchmarks/held_out.py: models that do what captures get wrong."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
SOME = ["in-place-strided", "plain-gradient", "global-random", "buffer-reassigned", "shared-three", "hook-state"]
MORE = [
    "in-place-column", "plain-reassigned", "counter-iterator", "cached", "weights-list", "lambda", "spectral",
    "no-copies", "switches", "complex",
]  # fmt: skip


@pytest.fixture(scope="module")
def held_out() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield runpy.run_path(str(BENCHMARKS / "held_out.py"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
def test_a_model_is_as_it_was_and_captured_alike(held_out: Any, name: str) -> None:
    row = held_out["checked"](held_out["OWN"][name], loads=1)
    assert "eager" not in row and all(row["digests"].values())
    assert (row["harm"], row["failed"]) == ([], [])
    assert all(len(found) == 1 for found in row["digests"].values())
