"""Attention as another kind of device runs it.

A step is traced on fake CPU tensors, where torch takes its CPU kernels: one that a GPU does not have, or plain products
and a softmax where there is dropout, which keep every score until the backward pass. On a GPU torch takes a fused
kernel in both cases. The choice below follows torch 2.6 to 2.13 (`aten/src/ATen/native/transformers/cuda/
sdp_utils.cpp`): flash attention for half precision without a mask, else memory-efficient attention, else the plain
products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_attention = torch.nn.functional.scaled_dot_product_attention
_HALVES = (torch.float16, torch.bfloat16)


class GpuAttention(TorchFunctionMode):
    """While it is entered, scaled dot product attention is what a CUDA device would run."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is not _attention:
            return func(*args, **kwargs)
        return _on_gpu(*args, **kwargs)


def _on_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    fits = query.dim() == 4 and query.shape[-1] == value.shape[-1] and query.dtype in (torch.float32, *_HALVES)
    grouped = enable_gqa and query.shape[1] != key.shape[1]
    flash = attn_mask is None and query.dtype in _HALVES and query.shape[-1] <= 256
    if fits and flash and query.shape[-1] % 8 == 0:  # heads in groups share their keys inside the kernel
        flashed = torch.ops.aten._scaled_dot_product_flash_attention
        return flashed(query, key, value, dropout_p, is_causal, False, scale=scale)[0]  # type: ignore[no-any-return]
    aligned = query.shape[-1] % (4 if query.dtype == torch.float32 else 8) == 0
    strided = attn_mask is not None and attn_mask.stride(-1) != 1 and attn_mask.shape[-1] > 1
    if not (fits and aligned) or grouped or strided:
        plain = torch.ops.aten._scaled_dot_product_attention_math
        settings = {"scale": scale, "enable_gqa": enable_gqa}
        return plain(query, key, value, attn_mask, dropout_p, is_causal, None, **settings)[0]  # type: ignore[no-any-return]
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    return efficient(query, key, value, bias, keeps, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask as numbers to add, shown once for every head, in rows of a multiple of 16 as the kernel wants them."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    short = -mask.shape[-1] % 16
    if short:
        mask = torch.nn.functional.pad(mask, (0, short))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
