"""Pipelines of microbatches that run: every schedule against a loop over microbatches and against the whole batch."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.errors import InvalidPlan, InvalidSetting  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.pipelines.microbatched import CHUNKS, _Planner, plan_pipeline  # noqa: E402
from loadmaster.runtime.apply import apply  # noqa: E402
from loadmaster.runtime.microbatches import whole_batch  # noqa: E402
from loadmaster.runtime.proving import verify_of  # noqa: E402
from loadmaster.runtime.running import run_plan  # noqa: E402
from loadmaster.search import Budget, Result  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from tests.unit.importers.torch.models import IMAGES, ConvNet, Transformer  # noqa: E402
from tests.unit.runtime.test_processes import processes  # noqa: E402

COUNT = 4


class Tower(nn.Module):
    """Layers in a row, and a weight that the first and the last stage share."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        x = self.table(words)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return F.cross_entropy((x @ self.table.weight.t()).flatten(0, 1), wanted.flatten())


def tower() -> tuple[Tower, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    words = torch.randint(0, 12, (2, 5))
    return Tower(), (words, words.roll(1, 1))


def judged(schedule: str, module: nn.Module, inputs: Any, devices: int) -> Result:
    """A pipeline of one of the schedules, as a result that remembers how it was made."""
    problem = lm.price(capture_step(module, inputs, training=True).graph, f"{devices}xp100-pcie")
    planner = _Planner(problem, COUNT, Budget(None, 100), 0)
    stages = devices * (CHUNKS if schedule == "interleaved" else 1)
    cut = next(cut for cut in planner.cuts(stages) if cut.name == "balanced")
    most = tuple(min(COUNT, 2 * (cut.stages - stage)) for stage in range(cut.stages)) if schedule == "eager" else ()
    found = planner.judge.remembering(planner.judge(schedule, cut, most))
    line = simulate(found.problem, found.plan)
    return Result(found.problem, found.plan, line, schedule, 0, (), 0, 1, 0.0)


def in_turn(module: nn.Module, batch: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> Tensor:
    """What people write: a loop over microbatches, gradients added up and divided by their number, one update."""
    total = 0.0
    for part in zip(*(tensor.chunk(COUNT) for tensor in batch), strict=True):
        loss = module(*part)
        loss.backward()
        total = total + loss.detach()
    for weight in module.parameters():
        weight.grad.div_(COUNT)
    optimizer.step()
    optimizer.zero_grad()
    return total / COUNT


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "eager"])
def test_every_schedule_equals_the_loop_to_the_bit_and_the_whole_batch_nearly(schedule: str) -> None:
    module, inputs = tower()
    result = judged(schedule, module, inputs, 2)
    batch = whole_batch(inputs, COUNT)
    twin = copy.deepcopy(module)
    by_loop = torch.optim.Adam(twin.parameters(), lr=1e-3, fused=True)
    step = apply(module, batch, result, devices=["cpu", "cpu"])
    found = verify_of(step, batch)
    assert found.ok and found.equals_capture and "whole batch" in str(found), str(found)
    for _ in range(3):
        assert torch.equal(step(*batch), in_turn(twin, batch, by_loop))
    for one, other in zip(step.detach().parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


def test_random_numbers_and_statistics_of_batches() -> None:
    """Dropout draws in the order of the pipeline; batch norm moves its statistics once a microbatch."""
    torch.manual_seed(0)
    for module, microbatch, said in (
        (Transformer(dropout=0.3), (torch.randint(0, 50, (2, 6)),), "random"),
        (ConvNet(), (torch.randn(4, *IMAGES.shape[1:]),), "one microbatch after another"),
    ):
        problem = lm.price(capture_step(module.train(), microbatch, training=True).graph, "2xp100-pcie")
        result = plan_pipeline(problem, COUNT, Budget(None, 12)).result
        batch = whole_batch(microbatch, COUNT)
        step = apply(module, batch, result, devices=["cpu", "cpu"])
        found = verify_of(step, batch)
        assert found.ok and found.equals_module and said in str(found), str(found)
        step(*batch)
        step.detach()
    assert int(module.norm.num_batches_tracked) == COUNT


def test_an_inference_gives_the_rows_of_all_microbatches() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))).eval()
    microbatch = (torch.randn(2, 6),)
    problem = lm.price(capture_step(module, microbatch, training=False).graph, "2xp100-pcie")
    result = plan_pipeline(problem, COUNT, Budget(None, 12)).result
    batch = whole_batch(microbatch, COUNT)
    step = apply(module, batch, result, devices=["cpu", "cpu"], verify=True)
    assert torch.allclose(step(*batch), module(*batch))


MODEL = """
import torch
from tests.unit.runtime.test_pipelines import Tower

def tower():
    words = torch.randint(0, 12, (2, 5))
    return Tower(), (words, words.roll(1, 1))
"""


def saved(folder: Path, monkeypatch: pytest.MonkeyPatch, devices: int = 3) -> Path:
    (folder / "towers.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(folder))
    module, inputs = tower()
    judged("zb-h1", module, inputs, devices).save(folder / "plan.json")
    return folder / "plan.json"


def test_a_file_is_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, monkeypatch)
    ran = run_plan("towers:tower", path, verify=True, steps=1, devices=["cpu"] * 3)
    assert ran is not None and "whole batch" in str(ran.verification)
    assert ran.modelled_ns == json.loads(path.read_text())["result"]["step_ns"]
    assert ran.modelled_peak_bytes and ran.measured_peak_bytes and all(ran.measured_peak_bytes)


def test_what_cannot_be_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, (module, inputs) = saved(tmp_path, monkeypatch), tower()
    with pytest.raises(InvalidSetting, match="one microbatch"):
        apply(module, inputs, path)
    with pytest.raises(InvalidSetting, match="a microbatch has"):
        apply(module, tuple(tensor[:1] for tensor in inputs), path)
    data = json.loads(path.read_text())
    data["captured"]["pipeline"]["stage"] = ["first"]
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    with pytest.raises(InvalidPlan, match="pipeline"):
        apply(module, inputs, tmp_path / "wrong.json")
    with pytest.raises(InvalidPlan, match="another step"):
        apply(Tower3(), whole_batch(inputs, COUNT), path)


class Tower3(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))


IN_PROCESSES = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from loadmaster.runtime.running import run_plan
torch.set_num_threads(1)
ran = run_plan("towers:tower", sys.argv[1], verify=True, steps=1)
print("ran" if ran is None else ran.verification, flush=True)
"""


def test_stages_in_three_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, monkeypatch)
    ended = processes(IN_PROCESSES, 3, str(path), str(tmp_path))
    for one in ended:
        assert one.returncode == 0, one.stderr
    assert "equal to the captured step in every bit" in ended[0].stdout
