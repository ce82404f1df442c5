"""How far modelled steps and peaks are from what an H200 did, recomputed from the kept measurements without a GPU.

Bounds are those that docs/fidelity.md says were reached, on models from which no constant was fitted.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
fidelity = pytest.importorskip("fidelity")


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    return list(fidelity.table())


@pytest.mark.parametrize(
    ("what", "basis", "cases", "median", "worst"),
    [
        ("graphs", "measured", 29, 0.026, 0.205),
        ("eager", "measured", 30, 0.038, 0.245),
        ("compiled", "measured", 11, 0.075, 0.225),
        ("peak", "measured", 30, 0.0015, 0.01),
    ],
)
def test_held_out_errors(rows: list[Any], what: str, basis: str, cases: int, median: float, worst: float) -> None:
    some = [abs(row.error) for row in rows if (row.what, row.basis, row.held_out) == (what, basis, True)]
    assert len(some) >= cases
    assert statistics.median(some) < median and max(some) < worst


def test_the_larger_half_is_held_out(rows: list[Any]) -> None:
    names = {row.case: row.held_out for row in rows}
    assert len(names) == 52 and sum(names.values()) == 30
    assert sum("-train-" in name for name in names) >= 16 and sum("-infer-" in name for name in names) >= 8


def test_cpu_steps_are_within_fifteen_percent_in_the_median() -> None:
    rows = fidelity.steps("cpu.csv").values()
    errors = [abs(float(row["modelled_ms"]) / float(row["measured_ms"]) - 1) for row in rows]
    assert len(errors) == 24 and statistics.median(errors) < 0.04 and max(errors) < 0.19
