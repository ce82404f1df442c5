"""How far modelled steps and peaks are from what an H200 did, recomputed from the kept measurements without a GPU.

Bounds are those that docs/fidelity.md says were reached, on models from which no constant was fitted.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
fidelity = pytest.importorskip("fidelity")


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, str], list[float]]:
    """(what, what it rests on) -> errors of held-out models."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in fidelity.table():
        if row.held_out:
            found.setdefault((row.what, row.basis), []).append(abs(row.error))
    return found


@pytest.mark.parametrize(
    ("what", "basis", "cases", "median", "worst"),
    [
        ("graphs", "measured", 29, 0.026, 0.205),
        ("eager", "measured", 30, 0.038, 0.245),
        ("compiled", "measured", 11, 0.075, 0.225),
        ("peak", "measured", 30, 0.0015, 0.01),
        ("graphs", "calibrated", 29, 0.115, 1.06),
        ("eager", "calibrated", 30, 0.09, 0.51),
    ],
)
def test_held_out_errors(
    errors: dict[tuple[str, str], list[float]], what: str, basis: str, cases: int, median: float, worst: float
) -> None:
    some = errors[what, basis]
    assert len(some) >= cases
    assert statistics.median(some) < median and max(some) < worst


def test_the_larger_half_is_held_out() -> None:
    names = [graph.name for graph in fidelity.cases()]
    assert len(names) == 52 and sum(map(fidelity.held_out, names)) == 30
    training = [name for name in names if "-train-" in name]
    assert len(training) >= 16 and len(names) - len(training) >= 8
