"""How far modelled steps and peaks are from what an H200 did, recomputed from the kept measurements."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
fidelity = pytest.importorskip("fidelity")

SOME = ("bert-16x128-train", "vit-32x224-train", "resnet-32x224-train", "mistral-4x512-train", "llama-1x512-infer")


@pytest.fixture(scope="module")
def errors() -> dict[str, list[float]]:
    """Of held-out models only."""
    ops, real = fidelity.op_rows(), fidelity.steps()
    calibrated = fidelity.Calibrated.shipped()
    found: dict[str, list[float]] = {"graphs": [], "sheet": [], "peak": []}
    for graph in fidelity.cases():
        if not graph.name.startswith(SOME) or not fidelity.held_out(graph.name):
            continue
        row = real[graph.name]
        cost = fidelity.Measured({fidelity.KIND: fidelity.times_of(graph, ops)}, {fidelity.KIND: calibrated})
        busy = float(row["busy_ms"])
        found["graphs"].append(abs(fidelity.step_ms(graph, "graphs", cost) / busy - 1))
        found["sheet"].append(abs(fidelity.step_ms(graph, "graphs", calibrated) / busy - 1))
        modelled, measured = fidelity.peak_mib(graph, cost, row)
        found["peak"].append(abs(modelled / measured - 1))
    return found


def test_measured_ops_add_up_to_the_step(errors: dict[str, list[float]]) -> None:
    assert len(errors["graphs"]) == 10
    assert statistics.median(errors["graphs"]) < 0.10
    assert max(errors["graphs"]) < 0.25


def test_calibrated_data_sheets_are_within_a_third(errors: dict[str, list[float]]) -> None:
    assert statistics.median(errors["sheet"]) < 0.35


def test_peaks_are_within_two_percent(errors: dict[str, list[float]]) -> None:
    assert statistics.median(errors["peak"]) < 0.02
