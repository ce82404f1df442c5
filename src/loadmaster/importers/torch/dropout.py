"""Dropout as torch runs it where it drops nothing: in inference, or with a share of 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class IdleDropout(TorchFunctionMode):
    """While it is entered, dropout that drops nothing gives back its input. By the Python dispatcher, through which
    steps are traced, it would make a copy, which no real step makes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.dropout:
            return _dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.nn.functional.dropout(input, p, training, inplace) if training and p else input
