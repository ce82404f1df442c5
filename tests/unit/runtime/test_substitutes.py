"""What a program calls for an op: torch's own bindings give the bits of the ops they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from loadmaster.runtime.substitutes import _BOUND, substitute

A, B, C = (torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(seed)) + 0.1 for seed in range(3))
NUMBERS = torch.tensor([[0, 2, 1, 3]] * 4)
ONE: tuple[Any, ...] = (A,)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add.Tensor": (A, 2.5),
    "addmm.default": (A[0], B[0], C[0]),
    "as_strided.default": (A, [4, 3], [4, 1], 2),
    "baddbmm.default": (A, B, C),
    "cat.default": ([A, B], 1),
    "cumsum.default": (A, 1),
    "embedding.default": (A[0], NUMBERS),
    "expand.default": (A[:, :1], [3, 4, 4]),
    "flip.default": (A, [1]),
    "full_like.default": (A, 3),
    "gather.default": (A[0], 1, NUMBERS),
    "index_select.default": (A, 1, NUMBERS[0]),
    "masked_fill.Scalar": (A, A > 0.5, 0.0),
    "mean.dim": (A, [1], True),
    "mm.default": (A[0], B[0]),
    "native_layer_norm.default": (A, [4], B[0, 0], None, 1e-5),
    "permute.default": (A, [2, 0, 1]),
    "select.int": (A, 1, 2),
    "squeeze.dim": (A[:, :1], 1),
    "sum.dim_IntList": (A, [0, 2], True),
    "t.default": (A[0],),
    "transpose.int": (A, 0, 2),
    "unsqueeze.default": (A, 1),
    "where.self": (A > 0.5, A, B),
}
TWO = {"bmm.default", "div.Tensor", "eq.Tensor", "le.Tensor", "maximum.default", "minimum.default", "mul.Tensor"}


def arguments(name: str) -> tuple[Any, ...]:
    if name.endswith((".Scalar", ".Tensor_Scalar")) and name not in ARGUMENTS:
        return A, 2
    return ARGUMENTS.get(name, (A, B) if name in TWO or name == "sub.Tensor" else ONE)


@pytest.mark.parametrize("name", sorted(_BOUND))
def test_a_binding_is_its_op(name: str) -> None:
    op, _, overload = name.partition(".")
    target = getattr(getattr(torch.ops.aten, op), overload)
    called = substitute(target, torch.device("cpu"))
    assert called is not target._op
    given = arguments(name)
    found, wanted = called(*given), target(*given)
    for one, other in zip(
        found if isinstance(found, tuple) else [found], wanted if isinstance(wanted, tuple) else [wanted], strict=True
    ):
        assert one.stride() == other.stride() and one.dtype == other.dtype and torch.equal(one, other)


def test_other_ops_are_called_as_they_are() -> None:
    target = torch.ops.aten.convolution_backward.default
    assert substitute(target, torch.device("cpu")) is target._op


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss"])
def test_a_loss_does_not_hold_the_memory_of_its_terms(name: str) -> None:
    target = getattr(torch.ops.aten, name).default
    called = substitute(target, torch.device("cpu"))
    assert torch.equal(called(A, B), target(A, B)) and called(A, B).untyped_storage().nbytes() == 4
    assert torch.equal(called(A, B, 0), target(A, B, 0))
