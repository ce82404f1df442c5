"""What to call for a traced op: torch's own function for it, and on a GPU the kernel that torch would take there.

A step is traced on the CPU, where attention is one op of its own. On a GPU the memory-efficient kernel of torch takes
its place; the sums it keeps for its backward are padded to 32 rows there, which is taken off and put on again, so that
forward and backward may even run on different devices. Batch norm is cuDNN's where torch would take that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
_PADDING = 32  # rows of the sums that the GPU kernel keeps


def substitute(target: Any, device: torch.device) -> Callable[..., Any]:
    """What to call for an op on that device."""
    name = str(target)
    if device.type == "cuda" and name in _ON_GPU:
        return _ON_GPU[name]
    plain: Callable[..., Any] = _bound(name) or getattr(target, "_op", target)
    return partial(_alone, plain) if name in _IN_A_BUFFER else plain


# torch computes these into a tensor as large as their input and then lets the sum stand in the memory of that tensor.
_IN_A_BUFFER = ("aten.mse_loss.default", "aten.smooth_l1_loss.default")


def _alone(call: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The result in memory of its own size."""
    made = call(*args, **kwargs)
    return made if made.dim() else made.clone()


# Ops that torch binds to Python one by one: such a function takes half the time of a call through the table of ops.
_BOUND = frozenset([
    "add.Tensor", "addmm.default", "as_strided.default", "baddbmm.default", "bmm.default", "cat.default",
    "clone.default", "cos.default", "cumsum.default", "div.Tensor", "embedding.default", "eq.Scalar", "eq.Tensor",
    "erf.default", "exp.default", "expand.default", "flip.default", "full_like.default", "gather.default",
    "gt.Scalar", "index_select.default", "le.Scalar", "le.Tensor", "log.default", "lt.Scalar", "masked_fill.Scalar",
    "maximum.default", "mean.dim", "minimum.default", "mm.default", "mul.Scalar", "mul.Tensor",
    "native_layer_norm.default", "ne.Scalar", "neg.default", "permute.default", "pow.Tensor_Scalar",
    "reciprocal.default", "relu.default", "rsqrt.default", "select.int", "sigmoid.default", "sin.default",
    "sqrt.default", "squeeze.dim", "sub.Tensor", "sum.dim_IntList", "t.default", "tanh.default", "transpose.int",
    "unsqueeze.default", "view.default", "where.self",
])  # fmt: skip


def _bound(name: str) -> Callable[..., Any] | None:
    short = name.removeprefix("aten.")
    if short not in _BOUND:
        return None
    plain = short.partition(".")[0]
    found: Any = getattr(torch._C._VariableFunctions, plain, None) or getattr(torch._C.TensorBase, plain, None)
    return found  # type: ignore[no-any-return]


def _bias_for(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    # The kernel wants rows that start at a multiple of 16 bytes.
    rows = F.pad(mask, (0, -mask.shape[-1] % 16))[..., : mask.shape[-1]]
    return rows.expand(*query.shape[:2], query.shape[2], key.shape[2])


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    made, sums, *_ = aten._scaled_dot_product_efficient_attention(
        query, key, value, _bias_for(query, key, attn_mask), True, dropout, causal, scale=scale
    )
    return made, sums[:, :, : query.shape[2]].clone()


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    made: Tensor,
    sums: Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    padded = F.pad(sums.to(torch.float32), (0, -sums.shape[2] % _PADDING), value=float("inf"))
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    bias = _bias_for(query, key, attn_mask)
    found = aten._scaled_dot_product_efficient_attention_backward(
        gradient, query, key, value, bias, made, padded, seed, seed, dropout, [True, True, True, False], causal,
        scale=scale,
    )  # fmt: skip
    return found[0], found[1], found[2]


def lands_itself(target: Any, lands: Iterable[int | None], device: torch.device) -> Callable[..., Any] | None:
    """What writes those results into the tensors they are meant for by itself, where there is such an op."""
    if str(target) == "aten._native_batch_norm_legit_functional.default" and set(lands) == {3, 4}:
        return _cudnn_batch_norm if device.type == "cuda" else _batch_norm
    return None


def _batch_norm(*args: Any) -> tuple[Any, ...]:
    return (*aten._native_batch_norm_legit.default(*args), None, None)


def _takes_cudnn(x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, eps: float) -> bool:
    """As torch itself decides. Other layouts than the plain one have a reserve, which no plan knows of."""
    if not (x.is_contiguous() and training):
        return False
    of_torch: Any = torch._C
    chosen = of_torch._select_batch_norm_backend(x, weight, bias, mean, variance, training, eps)
    return bool(chosen == of_torch._BatchNormBackend.Cudnn)


def _cudnn_batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    if not _takes_cudnn(x, weight, bias, mean, variance, training, eps):
        return _batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    made = aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    return (*made[:3], None, None)


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Any,
    mean: Any,
    variance: Any,
    kept_mean: Any,
    kept_scale: Any,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> tuple[Any, ...]:
    if not (all(wanted) and _takes_cudnn(x, weight, weight, mean, variance, training, eps)):
        return aten.native_batch_norm_backward.default(  # type: ignore[no-any-return]
            gradient, x, weight, mean, variance, kept_mean, kept_scale, training, eps, wanted
        )
    reserve = torch.empty(0, dtype=torch.uint8, device=x.device)
    gradient = gradient.contiguous()
    return aten.cudnn_batch_norm_backward(  # type: ignore[no-any-return]
        x, gradient, weight, mean, variance, kept_mean, kept_scale, eps, reserve
    )


_ON_GPU: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
}
