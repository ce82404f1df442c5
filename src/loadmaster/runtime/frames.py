"""What an eager inference holds from op to op: beside what is still to be read, what Python's variables name.

A layer's input stays while the layer runs, since the caller's variable names it; a plan drops it at its last use. In
training the backward pass needs nearly all of that anyway. Found by running the module on fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from loadmaster.importers.torch.arguments import as_arguments, seen_inside, split
from loadmaster.importers.torch.caches import Surroundings
from loadmaster.importers.torch.interrupts import waiting_interrupts
from loadmaster.importers.torch.signature import signature_of
from loadmaster.importers.torch.step import Target, as_run
from loadmaster.importers.torch.twin import Fakes, Twins, switch
from loadmaster.importers.torch.values import ValueMode, fixed_draws
from loadmaster.runtime.storages import LiveStorages

SMALL = 2**14  # elements; a call with a larger tensor is forgotten, so that the tensor can be freed


@dataclass(frozen=True)
class LiveBytes:
    """Bytes of live storages while an op runs, its results among them."""

    signature: str
    live_bytes: int


def held_by_frames(module: nn.Module, inputs: Any, target: Target | None = None) -> list[LiveBytes]:
    """Op by op, for one inference of the module in Python; weights, buffers and inputs are there from the start."""
    mode = _Forgetful()
    given = as_arguments(inputs, type(module).__name__)
    with waiting_interrupts(), fixed_draws(), seen_inside(given), Surroundings(module):
        fakes = Fakes(mode)
        twins = Twins(fakes)
        twin = twins(module)
        switch(twin, False)
        args, kwargs = split(pytree.tree_map(twins, given))
        there = [
            fakes(value)
            for value in (*module.parameters(), *module.buffers(), *pytree.tree_leaves(given))
            if isinstance(value, Tensor)
        ]
        watch = _Watch(there)
        with mode, enable_python_dispatcher(), as_run(mode, target or Target()), torch.no_grad(), watch:
            twin(*args, **kwargs)
    return watch.rows


def peak_of(rows: Sequence[LiveBytes], workspace_bytes: Mapping[str, int]) -> int:
    """The most that is held, with what libraries allocate for each op, by signature."""
    return max((row.live_bytes + workspace_bytes.get(row.signature, 0) for row in rows), default=0)


class _Forgetful(ValueMode):  # type: ignore[no-untyped-call]
    """Knows the values of small tensors alone, and lets go of the others."""

    def _keep_last(self) -> None:
        if self._last is not None:
            _, args, kwargs, made = self._last
            tensors = [ref() for ref in made] + pytree.tree_leaves((args, kwargs))
            if any(isinstance(value, Tensor) and value.numel() > SMALL for value in tensors):
                self._last = None
        super()._keep_last()


class _Watch(LiveStorages):  # type: ignore[no-untyped-call]
    """Writes down what is alive during each op that does something."""

    def __init__(self, there: Sequence[Tensor]) -> None:
        super().__init__()
        self.rows: list[LiveBytes] = []
        for tensor in there:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.peak_bytes = 0
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(func, OpOverload) and func.namespace != "prim" and not func.is_view:
            self.rows.append(LiveBytes(signature_of(func, args, kwargs or {}), self.peak_bytes))
        return result
