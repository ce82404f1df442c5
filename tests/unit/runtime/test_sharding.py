"""Steps in which every op runs on every device, on its share: they equal the ordinary step."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.cluster import Cluster  # noqa: E402
from loadmaster.errors import CannotRun  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.passes.splitting import sharded_graph, sharding  # noqa: E402
from loadmaster.passes.splitting.sharding import Share, Way, shard  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.runtime.apply import apply  # noqa: E402
from loadmaster.runtime.proving import verify_of  # noqa: E402
from loadmaster.runtime.running import run_plan  # noqa: E402
from loadmaster.search import Result  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from tests.unit.runtime.test_processes import verified_in_processes  # noqa: E402

WORDS, WIDTH, HEADS = 24, 16, 4


class Layer(nn.Module):
    """Attention with queries, keys and values in one product, as GPT-2 has it, or in three; a feed-forward layer."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.ModuleList(
            [nn.Linear(WIDTH, 3 * WIDTH)] if fused else [nn.Linear(WIDTH, WIDTH) for _ in "qkv"]
        )
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, places, _ = x.shape
        y = self.before(x)
        made = self.attend[0](y).split(WIDTH, 2) if self.fused else [one(y) for one in self.attend]
        q, k, v = (part.view(rows, places, HEADS, -1).transpose(1, 2) for part in made)
        weights = torch.softmax(q @ k.transpose(2, 3) / 2, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(rows, places, WIDTH))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, fused: bool, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(fused) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten(), ignore_index=3)


def model(fused: bool = True, tied: bool = True) -> tuple[Model, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (4, 6))
    return Model(fused, tied), (words, words.roll(1, 1))


def planned(
    module: nn.Module, inputs: tuple[Tensor, ...], way: Way, optimizer: str = "adam", devices: int = 2
) -> Result:
    cluster = Cluster.preset(f"{devices}xp100-pcie")
    made = sharded_graph(capture_step(module, inputs, training=True, optimizer=optimizer).graph, cluster, way)
    assert made is not None
    problem = lm.price(made.graph, cluster)
    plan = Plan.of(problem, [made.device[name] for name in problem.graph.op_name])
    return Result(problem, plan, simulate(problem, plan), "shares", 0, (), 0, 1, 0.0)


@pytest.fixture(autouse=True)
def in_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights, too."""
    monkeypatch.setattr(sharding, "SMALL", 100)


def whole_step(module: nn.Module, batch: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> Tensor:
    loss = module(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("way", ["samples", "features"])
@pytest.mark.parametrize(("fused", "tied"), [(True, True), (False, False)])
def test_shares_take_the_ordinary_steps(way: Way, fused: bool, tied: bool) -> None:
    module, batch = model(fused, tied)
    twin = copy.deepcopy(module)
    result = planned(module, batch, way, optimizer="sgd")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    step = apply(module, batch, result, devices=["cpu"] * 2, optimizer=optimizer)
    found = verify_of(step, batch)
    assert found.ok and found.equals_capture, str(found)
    ordinary = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        assert torch.allclose(step(*batch), whole_step(twin, batch, ordinary), rtol=1e-5)
    assert step.binding.copies.cut
    step.detach()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        mine, others = (o.state[w]["momentum_buffer"] for o, w in ((optimizer, one), (ordinary, other)))
        assert torch.allclose(mine, others, rtol=1e-3, atol=1e-6)


def test_features_are_found_in_the_graph() -> None:
    """Columns of the first products, the inner dimension of the second: two sums for each layer, forward."""
    module, batch = model()
    graph = capture_step(module, batch, training=True).graph
    found = shard(graph, 2, "features")
    name = {graph.tensor_name[t]: t for t in range(graph.num_tensors)}
    for layer in ("layers.0", "layers.1"):  # torch keeps weights of linear layers as [out, in]
        assert found.source(name[f"{layer}.attend.0.weight"]) == Share(0, 3)
        assert found.source(name[f"{layer}.up.weight"]) == Share(0)
        assert found.source(name[f"{layer}.out.weight"]) == found.source(name[f"{layer}.down.weight"]) == Share(1)
    work = [op for op in range(graph.num_ops) if graph.flops[op] > 0 and not graph.kind[op].startswith("optim.")]
    on_shares = [op for op in work if found.on_shares(graph, op)]
    assert sum(graph.flops[op] for op in on_shares) > 0.95 * sum(graph.flops[op] for op in work)


class Dropped(Model):
    def forward(self, words: Tensor, wanted: Tensor) -> Tensor:
        return super().forward(words, wanted) + F.dropout(self.table(words), 0.5).sum()


def test_random_numbers_are_refused() -> None:
    _, batch = model()
    module = Dropped(True, True).train()
    with pytest.raises(CannotRun, match="random"):
        apply(module, batch, planned(module, batch, "samples"))


MODEL = """
import torch
from loadmaster.passes.splitting import sharding
from tests.unit.runtime import test_sharding
sharding.SMALL = 100

def model():
    return test_sharding.model()
"""


def test_shares_in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = [tmp_path / f"{way}.json" for way in ("samples", "features")]
    for way, path in zip(("samples", "features"), paths, strict=True):
        planned(*model(), way).save(path)  # type: ignore[arg-type]
    ran = run_plan("shared:model", paths[1], verify=True, steps=1, devices=["cpu"] * 2)
    assert ran is not None and "captured step in every bit" in str(ran.verification)
    assert verified_in_processes("shared:model", tmp_path, paths, 2) == 2
