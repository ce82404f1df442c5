"""What forward reads of the values of its inputs: asked again of each batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.contract.cases import Script, case
from tests.contract.models import WIDTH, batches


class Asking(nn.Module):
    """Its forward looks at the values of a mask that it is given."""

    def __init__(self, asks: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.asks, self.layer = asks, nn.Linear(WIDTH, 3)
        self.register_buffer("least", torch.tensor(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.asks(self, self.layer(x), mask).square().mean()


def _asking(asks: Callable[[Any, Tensor, Tensor], Tensor], *masks: list[int]) -> Script:
    given = [
        (batch[0], torch.tensor(mask).repeat(len(batch[0]))[: len(batch[0])])
        for batch, mask in zip(batches(), masks, strict=True)
    ]
    return Script(Asking(asks), given)


def _unless_all(self: Any, h: Tensor, mask: Tensor) -> Tensor:
    return h if mask.all() else h * mask[:, None]


def _rows(self: Any, h: Tensor, mask: Tensor) -> Tensor:
    return h[mask.nonzero()[:, 0]]


_ONES, _LEFT, _RIGHT = [1, 1], [1, 0], [0, 1]
for _name, _asks, _masks, _expected in (
    ("an input's mask left out where it is all ones", _unless_all, (_ONES, _ONES, _ONES), "equal"),
    ("masks that hide something, each another part", _unless_all, (_LEFT, _RIGHT, _LEFT), "equal"),
    ("a mask that hides nothing until the second batch", _unless_all, (_ONES, _RIGHT, _ONES), "refused"),
    ("rows that a mask chooses, as many in each batch", _rows, (_LEFT, _RIGHT, _LEFT), "equal"),
    ("rows that a mask chooses, more of them later", _rows, (_LEFT, _LEFT, _ONES), "refused"),
    ("an input's number in Python, the same again", lambda s, h, m: h * int(m.sum()), (_LEFT, _RIGHT, _LEFT), "equal"),
    ("an input's number in Python, another later", lambda s, h, m: h * int(m[0]), (_LEFT, _LEFT, _RIGHT), "refused"),
    ("a mask compared with a buffer in Python", lambda s, h, m: h * bool(m[0] >= s.least), (_ONES,) * 3, "equal"),
    ("a mask and a drawn number in Python", lambda s, h, m: h * float(torch.rand(()) * m[0]), (_ONES,) * 3, "refused"),
    ("a mask that forward writes before it looks",
        lambda s, h, m: h * float(m.clone().mul_(2).sum()), (_LEFT, _RIGHT, _LEFT), "equal"),
):  # fmt: skip
    case("inputs", _name, _expected, fast=_asks is _unless_all)(partial(_asking, _asks, *_masks))
