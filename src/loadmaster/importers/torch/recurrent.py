"""Dropout between the layers of a recurrent network, which torch leaves out where it unrolls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions

_one_by_one: Callable[..., Any] = decompositions._rnn_helper


def _layers(
    input: Tensor,
    hidden: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: Callable[..., Any],
) -> tuple[Tensor, list[Any]]:
    """As torch's C++ runs them. (torch 2.13's `_rnn_helper` drops only `if num_layers < i - 1`: never.)"""
    each, finals = 2 if bidirectional else 1, []
    made = input.transpose(0, 1) if batch_first else input
    for layer in range(num_layers):
        own = slice(layer * each, (layer + 1) * each)
        made, final = _one_by_one(
            made, hidden[own], params[own], has_biases, 1, 0.0, train, bidirectional, False, layer_fn
        )
        finals += final
        if dropout and train and layer < num_layers - 1:
            made = torch.dropout(made, dropout, train=True)
    return (made.transpose(0, 1) if batch_first else made), finals


@contextmanager
def dropout_between_layers() -> Iterator[None]:
    """While it is entered, unrolled recurrent layers drop what torch's own kernels drop."""
    decompositions._rnn_helper = _layers
    try:
        yield
    finally:
        decompositions._rnn_helper = _one_by_one
