"""What no capture can follow ends in an error of ours that names it, never in torch's own words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import loadmaster as lm
from loadmaster.errors import ImportFailed


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return found


class Ragged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 3, 8])).values()


@pytest.mark.parametrize(("module", "words"), [(Branching(), "cond"), (Ragged(), "jagged")])
def test_what_data_decide_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(ImportFailed, match=words) as refused:
        lm.load(module, inputs=(torch.ones(8, 4),), training=False)
    assert "symbolic_trace" not in str(refused.value) and "torch.compile" not in str(refused.value)


def test_jagged_inputs_are_refused() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)
    with pytest.raises(ImportFailed, match="an input is a nested"):
        lm.load(nn.Linear(4, 4), inputs=(ragged,), training=False)


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_are_refused_by_their_layer() -> None:
    module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), dtype=torch.qint8)
    with pytest.raises(ImportFailed, match="layer '1'"):
        lm.load(module, inputs=(torch.ones(8, 4),), training=False)
