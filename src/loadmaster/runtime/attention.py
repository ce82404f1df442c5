"""Attention captured for one kind of device, run on the other.

A step captured for a CPU has the CPU's kernel: on a GPU the memory-efficient kernel of torch takes its place. The sums
it keeps for its backward are padded to 32 rows there, which is taken off and put on again, so that forward and backward
may even run on different devices. A step captured for a GPU has flash or memory-efficient attention: on a CPU the CPU's
kernel takes their place, or where there is dropout, which it has not, the plain products, which draw the random numbers
that torch itself would draw on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
_PADDING = 32  # rows of the sums that the GPU kernel keeps


# A CPU's attention on a GPU


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
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    bias = _bias_for(query, key, attn_mask)
    found = aten._scaled_dot_product_efficient_attention_backward(
        gradient, query, key, value, bias, made, _padded(sums.to(torch.float32)), seed, seed, dropout,
        [True, True, True, False], causal, scale=scale,
    )  # fmt: skip
    return found[0], found[1], found[2]


def _padded(sums: Tensor) -> Tensor:
    return F.pad(sums, (0, -sums.shape[2] % _PADDING), value=float("inf")).contiguous()  # as it is to be aligned


# A GPU's attention on a CPU


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    keeps: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made, sums, state = _forward(query, key, value, bias, dropout, causal, scale)
    kept = _padded(sums) if keeps else sums[:, :, :0]
    return _rows_first(made), kept.contiguous(), state, torch.zeros((), dtype=torch.int64)


def _efficient_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    made: Tensor,
    sums: Tensor,
    state: Tensor,
    _: Tensor,
    dropout: float,
    wanted: list[bool],
    causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    sums = sums[:, :, : query.shape[2]]
    found = _backward(gradient, query, key, value, bias, made, sums, state, dropout, causal, scale, wanted[3])
    return *(_rows_first(one) for one in found[:3]), found[3]


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    made, sums, state = _forward(query, _ungrouped(key, query), _ungrouped(value, query), None, dropout, causal, scale)
    none = torch.zeros((), dtype=torch.uint64)
    made = _laid_out_as(query, made)
    return made, sums.contiguous(), None, None, query.shape[2], key.shape[2], state, none, made.new_empty(0)


def _flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    made: Tensor,
    sums: Tensor,
    _: Any,
    __: Any,
    most_q: int,
    most_k: int,
    dropout: float,
    causal: bool,
    state: Tensor,
    ___: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    every = _ungrouped(key, query), _ungrouped(value, query)
    found = _backward(gradient, query, *every, None, made, sums, state, dropout, causal, scale, False)
    return tuple(map(_laid_out_as, (query, key, value), map(_grouped, (query, key, value), found[:3])))


def _ungrouped(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each head of their own, where groups of heads share them."""
    times = query.shape[1] // tensor.shape[1]
    return tensor if times == 1 else tensor.repeat_interleave(times, dim=1)


def _grouped(like: Tensor, gradient: Tensor) -> Tensor:
    """Gradients of what groups of heads share: the sum over each group."""
    batch, heads, rows, width = like.shape
    return gradient if gradient.shape == like.shape else gradient.reshape(batch, heads, -1, rows, width).sum(2)


def _laid_out_as(other: Tensor, tensor: Tensor) -> Tensor:
    """In memory as flash attention leaves it: like its operand."""
    like = torch.empty_like(other)
    return tensor if tensor.stride() == like.stride() else like.copy_(tensor)


def _rows_first(tensor: Tensor) -> Tensor:
    """In memory as the memory-efficient kernel leaves it: all heads of a row together."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(result, logarithms of the sums of each row, the random state before it drew: it takes the place of the seed)."""
    if not dropout:
        plain = aten._scaled_dot_product_flash_attention_for_cpu
        made, sums = plain(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
        return made, sums, torch.zeros((), dtype=torch.int64)
    state = torch.get_rng_state()
    scores = _scores(query, key, bias, causal, scale)
    noise = torch.empty_like(scores).bernoulli_(1 - dropout).div_(1 - dropout)
    return (scores.softmax(-1) * noise) @ value, scores.to(torch.float32).logsumexp(-1), state


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    made: Tensor,
    sums: Tensor,
    state: Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    if not dropout and not of_bias:
        plain = aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = plain(gradient, query, key, value, made, sums, 0.0, causal, attn_mask=bias, scale=scale)
        return found[0], found[1], found[2], None
    given = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    with torch.enable_grad():
        scores = _scores(given[0], given[1], bias, causal, scale)
        shares = scores.softmax(-1)
        if dropout:
            shares = shares * _drawn_again(shares, dropout, state)
        result = shares @ given[2]
        found = torch.autograd.grad(result, [*given, scores], gradient)
    return found[0], found[1], found[2], found[3] if of_bias else None


def _drawn_again(like: Tensor, dropout: float, state: Tensor) -> Tensor:
    generator = torch.Generator()
    generator.set_state(state)
    return torch.empty_like(like).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    found = query @ key.transpose(-1, -2) * (scale or 1 / math.sqrt(query.shape[-1]))
    if causal:
        later = torch.ones(found.shape[-2:], dtype=torch.bool).triu(1)
        found = found.masked_fill(later, float("-inf"))
    return found if bias is None else found + bias


ON_GPU: Mapping[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
}
ON_CPU: Mapping[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_efficient_attention.default": _efficient,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten._scaled_dot_product_flash_attention.default": _flash,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
}
