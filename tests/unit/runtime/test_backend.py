"""torch.compile with our backend: the same numbers in another order, forward and backward, and over devices."""

from __future__ import annotations

import copy
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import loadmaster as lm
from loadmaster.runtime import backend

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Wide(nn.Module):
    """Two large branches of which one could be reduced before the other is made."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.rows = nn.ModuleList(nn.Linear(8, 64) for _ in range(2))
        self.out, self.breaks = nn.Linear(64, 3), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [torch.sigmoid(row(x)) for row in self.rows]
        if self.breaks:
            torch._dynamo.graph_break()
        return sum(self.out(one).tanh().sum() for one in made)  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


Orders = list[tuple[list[str], list[str]]]
PEAKS: list[tuple[int, int]] = []


def peak(module: Any) -> int:
    """Most bytes of storages at once, each from the node that makes it to the last that reads it."""
    nodes, sizes, last = list(module.graph.nodes), dict[int, int](), dict[int, int]()
    first = dict[int, int]()
    for at, node in enumerate(nodes):
        for one in [node, *node.all_input_nodes]:
            for value in torch.utils._pytree.tree_leaves(one.meta.get("val")):
                if isinstance(value, torch.Tensor):
                    key = value.untyped_storage()._cdata
                    sizes[key] = value.untyped_storage().nbytes()
                    first.setdefault(key, at)
                    last[key] = at
    return max(sum(size for key, size in sizes.items() if first[key] <= at <= last[key]) for at in range(len(nodes)))


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    """Names of nodes of each graph before and after, and what they hold."""
    seen: Orders = []
    PEAKS.clear()
    plain = backend.memory_first

    def watched(module: Any) -> Any:
        before, held = [node.name for node in module.graph.nodes], peak(module)
        after = plain(module)
        PEAKS.append((held, peak(after)))
        seen.append((before, [node.name for node in after.graph.nodes]))
        return after

    monkeypatch.setattr(backend, "memory_first", watched)
    return seen


def gradients(module: nn.Module, called: Any, x: torch.Tensor = X) -> list[torch.Tensor]:
    module.zero_grad()
    loss = called(x)
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for weight in module.parameters() if weight.grad is not None)]


def compiled(module: nn.Module, **settings: Any) -> Any:
    return torch.compile(module, backend=backend.loadmaster, **settings)


def test_forward_and_backward_in_another_order_give_the_same_bits(orders: Orders) -> None:
    torch.manual_seed(0)
    module = Wide()
    expected = gradients(module, module)
    assert all(map(torch.equal, gradients(module, compiled(module)), expected))
    assert len(orders) == 2  # forward, backward
    assert all(sorted(before) == sorted(after) for before, after in orders)
    assert any(before != after for before, after in orders)
    assert all(after <= before for before, after in PEAKS)


def test_graph_breaks_and_open_sizes(orders: Orders) -> None:
    torch.manual_seed(0)
    module = Wide(breaks=True)
    assert all(map(torch.equal, gradients(module, compiled(module)), gradients(module, module)))
    assert len(orders) == 4  # forward and backward of each part
    orders.clear()
    torch._dynamo.reset()
    module, called = Wide(), None
    called = compiled(module, dynamic=True)
    for rows in (4, 3, 2):
        assert all(map(torch.equal, gradients(module, called, X[:rows]), gradients(module, module, X[:rows])))
    assert orders and all(before == after for before, after in orders)  # left as they are


def test_inference_holds_less_at_once(orders: Orders) -> None:
    module, many = Wide(), X.repeat(64, 1)
    with torch.no_grad():
        assert torch.equal(compiled(module)(many), module(many))
    ((before, after),) = PEAKS
    assert after < before and orders[0][0] != orders[0][1]


def test_a_function_without_weights() -> None:
    assert torch.equal(torch.compile(lambda x: x.sin() + 1, backend=backend.loadmaster)(X), X.sin() + 1)


def test_a_plan_says_where_each_module_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Wide()
    result = lm.plan(module, inputs=(X,), on="2xp100-pcie", method="one-device", budget=lm.Budget(None, 1))
    place = [int(scope == "rows.1") for scope in result.problem.graph.scope]
    lm.save_plan(lm.Plan.of(result.problem, place), result.problem, tmp_path / "plan.json")
    seen: list[tuple[tuple[int, ...], str]] = []

    def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        seen.append((tuple(tensor.shape), str(device)))
        return tensor  # there is but one device here: it says where it would go

    monkeypatch.setattr(backend, "moved", moved)
    options = {"plan": tmp_path / "plan.json", "devices": ["cpu", "meta"]}
    twin = copy.deepcopy(module)
    assert all(map(torch.equal, gradients(twin, compiled(twin, options=options)), gradients(module, module)))
    there = {shape for shape, device in seen if device == "meta"}
    assert (64, 8) in there and (64,) in there and (4, 8) in there  # the weight, the bias and what they are given
    assert (3, 64) not in there  # the other module's weight


def test_paths_and_the_entry_point() -> None:
    assert backend._plain("L['self']._modules['layers']._modules['0'].wide") == "layers.0.wide"
    assert backend._plain("L['s'].b.0") == "b.0" and backend._plain("L['fn']") == ""
    path = Path(__file__).parents[3] / "pyproject.toml"
    points = tomllib.loads(path.read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    where, _, name = points["loadmaster"].partition(":")
    assert getattr(import_module(where), name) is backend.loadmaster
