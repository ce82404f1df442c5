"""torch.distributed.pipelining runs the stages and the order that are written for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.pipelines.microbatched import plan_pipeline  # noqa: E402
from loadmaster.report.pipeline import schedule_csv, stage_split  # noqa: E402
from loadmaster.search import Budget  # noqa: E402
from tests.unit.runtime.test_processes import processes  # noqa: E402

COUNT = 4


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(6, 6), nn.Tanh())))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(self.body(x), wanted)


def batch() -> tuple[Learned, Tensor, Tensor]:
    torch.manual_seed(0)
    return Learned(), torch.randn(2 * COUNT, 6), torch.randn(2 * COUNT, 6)


# Each rank has the layers of its stages, and torch's own runtime takes the order from the file.
RANKS = """
import json, os, sys, torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.nn import functional as F
from tests.unit.report.test_torch_pipelining import COUNT, batch
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, (module, x, wanted) = dist.get_rank(), batch()
split = json.load(open(sys.argv[2]))
cuts = [0, *(int(name.removeprefix("body.")) for name in split["split_spec"]), len(module.body)]
mine = [entry["stage"] for entry in split["stages"] if entry["rank"] == rank]
stages = [
    PipelineStage(module.body[cuts[s] : cuts[s + 1]], s, len(cuts) - 1, torch.device("cpu")) for s in mine
]
runtime = _PipelineScheduleRuntime(stages, COUNT, loss_fn=F.mse_loss)
runtime._load_csv(sys.argv[1])
losses = []
runtime.step(*([x] if 0 in mine else []), target=wanted if len(cuts) - 2 in mine else None, losses=losses)
found = {name: w.grad for name, w in module.named_parameters() if w.grad is not None}
twin, x, wanted = batch()
twin(x, wanted).backward()
expected = dict(twin.named_parameters())
own = [name for s in mine for name, _ in module.body[cuts[s] : cuts[s + 1]].named_parameters()]
assert own and len(found) == len(own), (sorted(found), own)
for name, gradient in found.items():
    torch.testing.assert_close(gradient, expected[name].grad)
dist.barrier()
print("the ordinary gradients", flush=True)
dist.destroy_process_group()
"""


def test_torch_runs_what_is_written_for_it(tmp_path: Path) -> None:
    module, x, wanted = batch()
    problem = lm.price(capture_step(module, (x[:2], wanted[:2]), training=True).graph, "2xp100-pcie")
    found = plan_pipeline(problem, COUNT, Budget(None, 30))
    split = stage_split(found)
    assert split["split_spec"] and all(name.startswith("body.") for name in split["split_spec"])
    (tmp_path / "order.csv").write_text(schedule_csv(found))
    (tmp_path / "stages.json").write_text(json.dumps(split))
    for ended in processes(RANKS, 2, str(tmp_path / "order.csv"), str(tmp_path / "stages.json")):
        assert ended.returncode == 0 and "the ordinary gradients" in ended.stdout, ended.stderr
