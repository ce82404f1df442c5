"""Dropout as torch runs it where it draws nothing: in inference, or with a share of 0 or 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class IdleDropout(TorchFunctionMode):
    """While it is entered, dropout that drops nothing gives back its input, and one that drops all multiplies by 0. By
    the Python dispatcher, through which steps are traced, it would copy or draw, which no real step does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.dropout:
            return _dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if training and p == 1:
        nothing = torch.zeros((), dtype=input.dtype, device=input.device)
        return input.mul_(nothing) if inplace else input.mul(nothing)
    return torch.nn.functional.dropout(input, p, training, inplace) if training and p else input
