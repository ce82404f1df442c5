"""Ops that were captured for the CPU, and what does the same on a GPU.

A step is traced on the CPU, where attention is one op of its own. On a GPU the memory-efficient kernel of torch takes
its place; the sums it keeps for its backward are padded to 32 rows there, which is taken off and put on again, so that
forward and backward may even run on different devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
_PADDING = 32  # rows of the sums that the GPU kernel keeps


def substitute(target: Any, device: torch.device) -> Callable[..., Any]:
    """What to call for an op on that device."""
    if device.type == "cuda" and str(target) in _ON_GPU:
        return _ON_GPU[str(target)]
    return getattr(target, "_op", target)  # type: ignore[no-any-return]


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


_ON_GPU: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
}


def lands_itself(target: Any, lands: Iterable[int | None]) -> Callable[..., Any] | None:
    """What writes those results into the tensors they are meant for by itself, where there is such an op."""
    if str(target) == "aten._native_batch_norm_legit_functional.default" and set(lands) == {3, 4}:
        return _batch_norm
    return None


def _batch_norm(*args: Any) -> tuple[Any, ...]:
    return (*aten._native_batch_norm_legit.default(*args), None, None)
