"""Weights that a plan has on several devices: the module has the first, a step that runs the plan has the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from loadmaster.importers.torch.step import Given


class Copies:
    """Each begins as the module's own and is updated like it; weights loaded into the module later reach it."""

    def __init__(self, given: Sequence[Given], named: Mapping[str, Tensor]) -> None:
        self.of = {one.name: one.copy_of for one in given if one.copy_of}
        self.own = {name: named[of] for name, of in self.of.items()}
        self.weights = {name: nn.Parameter(own.detach().clone()) for name, own in self.own.items()}
        self.seen: dict[str, int] = {}
        self.note()

    def note(self) -> None:
        """The module's own are as the step, or whoever took it back, left them."""
        self.seen = {name: own._version for name, own in self.own.items()}

    def follow(self) -> None:
        """Takes over what somebody has written to the module since."""
        with torch.no_grad():
            for name, own in self.own.items():
                if own._version != self.seen[name]:
                    self.weights[name].copy_(own)
