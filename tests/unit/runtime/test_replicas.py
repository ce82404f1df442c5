"""Pipelines whose stages are there several times over: they run, and equal the ordinary step on the whole batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.errors import CannotRun  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.pipelines.judging import StageCut  # noqa: E402
from loadmaster.pipelines.microbatched import _Planner, plan_pipeline  # noqa: E402
from loadmaster.runtime.apply import apply  # noqa: E402
from loadmaster.runtime.microbatches import whole_batch  # noqa: E402
from loadmaster.runtime.proving import verify_of  # noqa: E402
from loadmaster.runtime.running import run_plan  # noqa: E402
from loadmaster.search import Budget, Result  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from tests.unit.importers.torch.models import IMAGES, ConvNet  # noqa: E402
from tests.unit.runtime.test_pipelines import MODEL, tower  # noqa: E402
from tests.unit.runtime.test_processes import verified_in_processes  # noqa: E402

COUNT = 6
WAYS = {  # [stages] the devices of each
    "data parallel": ((0, 1, 2),),
    "first stage twice": ((0, 1), (2,)),
    "last stage twice": ((0,), (1, 2)),
    "both ways at once": ((0, 1), (1, 0)),
}


def judged(module: nn.Module, inputs: Any, places: tuple[tuple[int, ...], ...], optimizer: str = "adam") -> Result:
    devices = max(max(row) for row in places) + 1
    graph = capture_step(module, inputs, training=True, optimizer=optimizer).graph
    planner = _Planner(lm.price(graph, f"{devices}xp100-pcie"), COUNT, Budget(None, 100), 0)
    slot = planner.layouts[0]
    edges = tuple((int(slot.max()) + 1) * stage // len(places) for stage in range(1, len(places)))
    cut = StageCut(slot, edges, places, "replicated")
    found = planner.judge.remembering(planner.judge("eager", cut, (2,) * len(places)))
    return Result(found.problem, found.plan, simulate(found.problem, found.plan), "eager", 0, (), 0, 1, 0.0)


def whole_step(module: nn.Module, batch: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> Tensor:
    loss = module(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("way", WAYS)
def test_replicas_take_the_ordinary_steps(way: str) -> None:
    module, inputs = tower()
    batch, twin = whole_batch(inputs, COUNT), copy.deepcopy(module)
    result = judged(module, inputs, WAYS[way])
    step = apply(module, batch, result, devices=["cpu"] * result.problem.num_devices)
    found = verify_of(step, batch)
    assert found.ok and found.equals_capture and "whole batch" in str(found), str(found)
    ordinary = torch.optim.Adam(twin.parameters())
    for _ in range(3):
        assert torch.allclose(step(*batch), whole_step(twin, batch, ordinary), rtol=1e-5)
    copies = step.binding.copies
    assert copies.weights and all(torch.equal(copies.weights[name], copies.own[name]) for name in copies.weights)
    for one, other in zip(step.detach().parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_replicas_keep_to_the_optimizer_given_and_to_weights_loaded_later() -> None:
    """An optimizer with momentum that has taken steps before; weights that are put back between steps."""
    module, inputs = tower()
    batch = whole_batch(inputs, COUNT)
    given = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    whole_step(module, batch, given)
    twin = copy.deepcopy(module)
    ordinary = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    ordinary.load_state_dict(copy.deepcopy(given.state_dict()))
    result = judged(module, inputs, WAYS["data parallel"], "sgd")
    step = apply(module, batch, result, devices=["cpu"] * 3, optimizer=given)
    kept = copy.deepcopy(twin.state_dict())
    for _ in range(2):
        assert torch.allclose(step(*batch), whole_step(twin, batch, ordinary), rtol=1e-5)
    module.load_state_dict(kept)
    twin.load_state_dict(kept)
    for _ in range(2):
        assert torch.allclose(step(*batch), whole_step(twin, batch, ordinary), rtol=1e-5)
    assert set(given.state) == set(module.parameters())
    for one, other in zip(step.detach().parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


class Wide(nn.Module):
    """One product with much work and few weights, so that no cut is better than a copy on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean()


def test_the_search_finds_replicas_that_run() -> None:
    torch.manual_seed(0)
    module, inputs = Wide(), (torch.randn(40_000, 32),)
    problem = lm.price(capture_step(module, inputs, training=True).graph, "3xp100-pcie")
    result = plan_pipeline(problem, COUNT, Budget(None, 60), replicate=True).result
    batch = whole_batch(inputs, COUNT)
    assert result.problem.source.captured["pipeline"]["replicated"]
    assert verify_of(apply(module, batch, result, devices=["cpu"] * 3), batch).ok


def test_statistics_of_batches_are_one_module_s() -> None:
    torch.manual_seed(0)
    module, microbatch = ConvNet().train(), (torch.randn(4, *IMAGES.shape[1:]),)
    result = judged(module, microbatch, ((0, 1),))
    with pytest.raises(CannotRun, match="writes to a buffer"):
        apply(module, whole_batch(microbatch, COUNT), result)


def test_replicas_in_three_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "towers.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    module, inputs = tower()
    paths = [tmp_path / f"{way.replace(' ', '_')}.json" for way in ("data parallel", "first stage twice")]
    for way, path in zip(("data parallel", "first stage twice"), paths, strict=True):
        judged(module, inputs, WAYS[way]).save(path)
    ran = run_plan("towers:tower", paths[1], verify=True, steps=1, devices=["cpu"] * 3)
    assert ran is not None and ran.measured_peak_bytes and all(ran.measured_peak_bytes)
    assert verified_in_processes("towers:tower", tmp_path, paths, 3) == 2
