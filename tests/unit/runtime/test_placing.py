"""Modules placed by a plan: trained as before, moved where they must be, and refused where the plan splits them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import loadmaster as lm
from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.search import Result

BATCH = (torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(1)),)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        made = self.back(torch.relu(self.wide(self.norm(x))))
        return x + (made if mask is None else made * mask)


class Model(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(8, 20, bias=False)
        self.scale = nn.ParameterList([nn.Parameter(torch.full((8,), 0.5))])
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) * self.scale[0]
        mask = (words > 2).unsqueeze(-1)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def planned(module: nn.Module, first: tuple[str, ...] = ("words", "layers.0")) -> Result:
    """Those modules on the first device, all else on the second."""
    result = lm.plan(module, inputs=BATCH, on="2xp100-pcie", method="one-device", budget=lm.Budget(None, 1))
    place = [int(not scope.startswith(first)) for scope in result.problem.graph.scope]
    return _with(result, place)


def _with(result: Result, place: list[int]) -> Result:
    from dataclasses import replace

    from loadmaster.simulator import simulate

    plan = lm.Plan.of(result.problem, place)
    return replace(result, plan=plan, timeline=simulate(result.problem, plan))


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, half: bool = False) -> list[torch.Tensor]:
    losses = []
    for rows in (3, 2, 3):  # batches of other sizes
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = module(BATCH[0][:rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("half", [False, True])
def test_a_placed_module_trains_as_before(half: bool) -> None:
    torch.manual_seed(0)
    module = Model()
    plain = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(module.parameters())  # made before: parameters stay the same objects
    assert lm.place(module, planned(module), devices=["cpu", "cpu"]) is module
    expected = trained(plain, torch.optim.AdamW(plain.parameters()), half)
    assert all(map(torch.equal, trained(module, optimizer, half), expected))
    assert all(map(torch.equal, module.state_dict().values(), plain.state_dict().values()))


def test_weights_and_forward_are_where_the_plan_has_them(tmp_path: Path) -> None:
    module = Model()
    planned(module, ("words",)).save(tmp_path / "plan.json")
    seen: dict[str, Any] = {}
    for name, part in module.named_modules():
        part.register_forward_hook(lambda part, args, made, name=name: seen.update({name: made.device.type}))
    with torch.no_grad():
        lm.place(module, tmp_path / "plan.json", devices=["cpu", "meta"])
        module(BATCH[0])
    assert {name for name, p in module.named_parameters() if p.is_meta} == {
        name for name, _ in module.named_parameters() if not name.startswith("words")
    }
    assert seen["words"] == "cpu"
    assert seen["layers.0"] == seen["layers.2.back"] == seen["head"] == seen[""] == "meta"


def test_one_copy_of_a_tensor_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.runtime import placing

    copies: list[torch.Size] = []
    plain = placing.moved

    def counted(tensor: torch.Tensor, device: torch.device) -> Any:
        copies.append(tensor.shape)
        return plain(tensor, device)

    monkeypatch.setattr(placing, "moved", counted)
    placed = lm.place(Model(), planned(Model(), ("words",)), devices=["cpu", "meta"])
    with torch.no_grad():
        placed(BATCH[0])
    # What the words became, the mask of three layers, and the targets: each once.
    assert copies == [(3, 5, 8), (3, 5, 1), (15,)]


def test_taken_back(tmp_path: Path) -> None:
    module = Model()
    before = copy.deepcopy(module)
    lm.place(module, planned(module), devices=["cpu", "cpu"])
    module.loadmaster_placement.remove(module)  # type: ignore[operator, union-attr]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert torch.equal(module(*BATCH), before(*BATCH))


def test_modules_that_share_a_weight_stay_together() -> None:
    module = Model(tied=True)
    with pytest.raises(InvalidPlan, match=r"'words\.weight' and 'head\.weight' are one tensor|splits"):
        lm.place(module, planned(module), devices=["cpu", "meta"])
    whole = lm.plan(
        module, inputs=BATCH, on="2xp100-pcie", method="whole-modules:granularity=block,inner=random",
        budget=lm.Budget(None, 3),
    )  # fmt: skip
    lm.place(module, whole, devices=["cpu", "cpu"])
    assert module.head.weight is module.words.weight


def test_a_plan_that_splits_modules_is_refused_by_name() -> None:
    module = Model()
    result = planned(module)
    place = [number % 2 for number in range(result.problem.num_ops)]
    for group in set(result.problem.graph.colocate.tolist()) - {-1}:
        members = (result.problem.graph.colocate == group).nonzero()[0].tolist()
        for member in members:
            place[member] = place[members[0]]
    with pytest.raises(InvalidPlan, match=r"splits \d+ modules: .*layers\.0") as error:
        lm.place(module, _with(result, place), devices=["cpu", "cpu"])
    assert "--granularity" in error.value.fix


def test_what_is_no_plan_of_this_module_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="another model"):
        lm.place(nn.Sequential(nn.Linear(8, 8)), planned(Model()), devices=["cpu", "cpu"])
    with pytest.raises(InvalidSetting, match="alone does not know modules"):
        lm.place(Model(), planned(Model()).plan)
