"""The memory that a step really holds on each device: the storages alive after every call, by weak references.

It runs the program line by line and asks which storages still live, so that anything kept alive by accident counts.
Workspace inside a call is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loadmaster.importers.torch.arguments import as_arguments
from loadmaster.importers.torch.graph import Update
from loadmaster.runtime.verify import unchanged

if TYPE_CHECKING:
    from loadmaster.runtime.execute import AppliedStep


def _weak(storage: Any) -> Any:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


class _Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Storages that calls made, each on the device whose turn it was."""

    def __init__(self, devices: int, given: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = 0
        self.given = {tensor.untyped_storage()._cdata for tensor in given}
        self.alive: dict[int, tuple[Any, int, int]] = {}
        self.peaks = [0] * devices

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.met(tree_leaves(made))
        return made

    def met(self, values: Iterable[Any]) -> None:
        for tensor in values:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                known = self.alive.get(storage._cdata)
                if storage._cdata not in self.given and (known is None or known[0].expired()):
                    self.alive[storage._cdata] = (_weak(storage), storage.nbytes(), self.device)

    def read(self) -> None:
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        held = [0] * len(self.peaks)
        for _, size, device in self.alive.values():
            held[device] += size
        self.peaks = [max(peak, now) for peak, now in zip(self.peaks, held, strict=True)]


def measured_peaks(step: AppliedStep, inputs: Any) -> list[int]:
    """[devices] most bytes held at once in one step, weights, state and inputs included. Nothing is changed."""
    arguments = as_arguments(inputs, step.captured.graph.name)
    with unchanged(step):
        step.bind(arguments)
        residents = [value for value in step.residents() if isinstance(value, Tensor)]
        meter = _Meter(len(step.devices), [*residents, *step.updates.state()])
        with torch.no_grad(), meter:
            _run_by_line(step, meter)
    resident = _resident_bytes(step)
    return [fixed + moving for fixed, moving in zip(resident, meter.peaks, strict=True)]


def _run_by_line(step: AppliedStep, meter: _Meter) -> None:
    for line, run in step.program.listing.by_line(step.residents()):
        meter.device = line.device
        names = run()
        meter.met([names[name] for name in line.makes])  # compiled regions allocate where no mode looks
        meter.read()


def _resident_bytes(step: AppliedStep) -> list[int]:
    """[devices] of weights, buffers, inputs and the optimizer's state, each once a device."""
    held: list[dict[int, int]] = [{} for _ in step.devices]
    for (_, device), value in zip(step.program.residents, step.residents(), strict=True):
        held[device][value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
    total = [sum(of.values()) for of in held]
    place = dict(zip(step.problem.graph.op_name, step.placement, strict=True))
    for name, call in zip(step.captured.graph.op_name, step.captured.calls, strict=True):
        if isinstance(call, Update):
            total[place[name]] += _state_bytes(step, call)
    return total


def _state_bytes(step: AppliedStep, update: Update) -> int:
    """Of tensors as large as the weight, where they are beside it; a counter is none of what is planned."""
    assert step.optimizer is not None
    state: Sequence[Any] = step.updates.state_of(update.weight)
    elsewhere = {id(step.binding.tensors[tensor]) for tensor in update.reads[2:] if tensor in step.program.lodged}
    here = [value for value in state if isinstance(value, Tensor) and value.dim() and id(value) not in elsewhere]
    return sum(value.untyped_storage().nbytes() for value in here)
