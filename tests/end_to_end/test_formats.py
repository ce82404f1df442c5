"""`loadmaster plan` on one file of each format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end import warm
from tests.end_to_end.conftest import write_onnx
from tests.unit.importers.samples import SAMPLES, write


@pytest.mark.parametrize("name", [*SAMPLES, "model.onnx", "model.pt2"])
def test_plan(name: str, folder: Path) -> None:
    path = folder / name
    if name.endswith(".onnx"):
        write_onnx(path)
    elif name.endswith(".pt2"):
        torch = pytest.importorskip("torch")
        torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),)), path)
    else:
        write(folder, name)
    done = warm.run("plan", str(path), "--on", "2xa100-nvlink", "--method", "heft", "--simulations", "20", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["graph"]["ops"] > 0


def test_a_tflite_model_is_written_in_the_order_of_a_plan(folder: Path) -> None:
    model, plan, out = write(folder, "model.tflite"), folder / "plan.json", folder / "ordered.tflite"
    planned = warm.run(
        "plan", str(model), "--on", "1xcpu", "--method", "memory-order", "--simulations", "20", "--save", str(plan)
    )
    assert planned.returncode == 0, planned.stderr
    done = warm.run("run", str(model), "--plan", str(plan), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert sorted(out.read_bytes()[:8]) == sorted(model.read_bytes()[:8]) and out.stat().st_size == model.stat().st_size
