"""Weights of a class of their own, such as quantized ones: counted as the tensors that they hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import loadmaster as lm
from loadmaster.errors import CannotRun
from loadmaster.graph import WEIGHT


class Int8(Tensor):
    """A float32 matrix to others; inside whole numbers and a scale for each row."""

    def __new__(cls, numbers: Tensor, scale: Tensor) -> Int8:
        made: Int8 = Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Int8:
        return Int8(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Int8(args[0].numbers, args[0].scale)
        plain = tree_map_only(Int8, lambda weight: weight.numbers.to(weight.scale.dtype) * weight.scale, args)
        return func(*plain, **(kwargs or {}))


def quantized() -> nn.Linear:
    layer = nn.Linear(64, 32)
    whole = Int8(torch.ones(32, 64, dtype=torch.int8), torch.ones(32, 1))
    layer.weight = nn.Parameter(whole, requires_grad=False)
    return layer


def test_a_quantized_weight_has_its_true_size() -> None:
    graph = lm.load(quantized(), inputs=(torch.ones(4, 64),), training=False)
    weights = {graph.tensor_name[t]: int(graph.nbytes[t]) for t in range(graph.num_tensors) if graph.role[t] == WEIGHT}
    assert weights == {"weight.numbers": 32 * 64, "weight.scale": 32 * 4, "bias": 32 * 4}
    assert 2 * 4 * 64 * 32 in graph.flops.tolist()


def test_a_plan_of_it_is_not_run_and_says_why() -> None:
    module, inputs = quantized(), (torch.ones(4, 64),)
    result = lm.solve(lm.price(lm.load(module, inputs=inputs, training=False), "2xcpu"), method="heft")
    with pytest.raises(CannotRun, match="'weight'"):
        lm.apply(module, inputs, result, training=False)
