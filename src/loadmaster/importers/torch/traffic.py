"""Bytes that an ATen op reads and writes in memory.

Most ops read all of what they are given and write all of what they make. The exceptions are here: gathers touch the
rows they fetch and not the whole table, creators read nothing, and allocators touch nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from loadmaster.importers.torch.flops import plain_name

_ALLOCATES = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}

# They take a tensor for its shape alone.
_CREATES = {
    "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "rand_like", "randn_like",
    "randint_like", "bernoulli.p", "bernoulli.float", "zero", "fill", "uniform", "normal", "exponential",
}  # fmt: skip

# Position of the tensor that they take for its shape, or to overwrite all of it.
_UNREAD = {
    "copy": 0, "nll_loss_backward": 1, "nll_loss2d_backward": 1, "avg_pool2d_backward": 1,
    "max_pool2d_with_indices_backward": 1,
}  # fmt: skip

# Their first tensor is a table of which they read what they fetch.
_FETCHES = {
    "embedding", "gather", "index", "index_select", "_unsafe_index", "take", "_embedding_bag",
    "_embedding_bag_forward_only", "nll_loss_forward", "nll_loss2d_forward",
}  # fmt: skip


def visible_bytes(tensor: Tensor) -> int:
    """Of the elements it shows, each once: an axis of stride 0 repeats the same ones."""
    distinct = math.prod(n if step else min(n, 1) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(distinct * tensor.element_size())


def bytes_of(op: OpOverload, read: Sequence[Tensor], written: Sequence[Tensor]) -> int:
    """Of one call that is not a view; `read` are its tensor arguments in order, each once."""
    name = plain_name(op)
    if name in _ALLOCATES:
        return 0
    out = sum(map(visible_bytes, written))
    if name in _CREATES or f"{name}.{op._overloadname}" in _CREATES:
        return out
    sizes = [visible_bytes(tensor) for tensor in read]
    if _UNREAD.get(name, len(sizes)) < len(sizes):
        sizes[_UNREAD[name]] = 0
    if name in _FETCHES:
        sizes[0] = min(sizes[0], _fetched(name, read, written))
    return sum(sizes) + out


def unneeded(op: OpOverload, args: Sequence[Any]) -> set[int]:
    """Positions of the tensors whose values this call does not depend on, so that nobody need keep or send them.

    By its mask, the backward op of a convolution needs the input's values for the weight's gradient alone, and the
    weight's for the input's alone.
    """
    if plain_name(op) != "convolution_backward":
        return set()
    of_input, of_weight = args[-1][:2]
    return {position for position, needed in ((1, of_weight), (2, of_input)) if not needed}


def _fetched(name: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> int:
    table, index = read[0], read[1]
    if name.startswith("nll_loss"):
        return index.numel() * table.element_size()
    if name.startswith("_embedding_bag"):
        return index.numel() * table.shape[-1] * table.element_size()
    return visible_bytes(written[0])
