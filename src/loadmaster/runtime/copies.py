"""Weights that a plan has on several devices, or in parts: the module has its own, a step of the plan the others.

A sharded or replicated plan has more copies of a weight than the module has parameters. They begin as the module's own,
follow what is loaded into it later, and parts are written back when the step is taken off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from loadmaster.importers.torch.step import Cut, Given
from loadmaster.runtime.processes import share


class Copies:
    """Each begins as the module's own and is updated like it; weights loaded into the module later reach it."""

    def __init__(self, given: Sequence[Given], named: Mapping[str, Tensor]) -> None:
        self.of = {one.name: one.copy_of for one in given if one.copy_of}
        self.cut = {one.name: one.cut for one in given if one.cut is not None}
        self.own = {name: named[of] for name, of in self.of.items()}
        with torch.no_grad():
            self.weights = {name: nn.Parameter(part_of(own, self.cut.get(name))) for name, own in self.own.items()}
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
                    self.weights[name].copy_(part_of(own, self.cut.get(name)))
        self.note()

    def give_back(self, home: Mapping[str, int] | None = None) -> None:
        """Writes parts to the module's own; `home`: the process that has each, in a run of several."""
        with torch.no_grad():
            for name, cut in self.cut.items():
                value = self.weights[name].detach()
                value = value if home is None else share(value.cpu(), home[name])
                cut.put(value.to(self.own[name].device), self.own[name])
        self.note()


def part_of(whole: Tensor, cut: Cut | None) -> Tensor:
    """A copy of the weight, or of the part that the cut names."""
    return whole.detach().clone() if cut is None else cut.of(whole.detach())
