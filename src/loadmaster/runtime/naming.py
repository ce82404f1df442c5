"""What the tensors of a program are called: a name for each of the graph's on each device of the plan.

A name is made when it is first asked for: a resident's is an argument of the program, a view's is made from its base
just before the line that reads it, and what is sent is waited for there. Lines are written here, too, since names come
with them; neighbouring updates wait until something else is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import CannotRun
from loadmaster.graph.columns import Ints
from loadmaster.graph.folding import bases
from loadmaster.importers.torch.graph import Call, CapturedStep
from loadmaster.plans import Plan
from loadmaster.plans.additions import homes, statistics
from loadmaster.problem import Problem
from loadmaster.runtime.devices import CopyStreams, CudaSend, Replay
from loadmaster.runtime.listing import Line
from loadmaster.runtime.processes import Outgoing, Post
from loadmaster.runtime.regions import RegionKernels
from loadmaster.runtime.schedule import Send
from loadmaster.runtime.updates import Updates

Place = tuple[int, int]  # tensor of the captured graph, device of the plan
Copy = tuple[int, int, int]  # and its version: 0, or the tensor of the expanded problem


@dataclass
class Backend:
    """What a program calls that is not an op of torch.

    Attributes:
        devices: a torch device for each device of the plan.
        updates: of the optimizer.
        post: of a run of several processes: only what is on its device is done here.
        streams: for sends from and to GPUs.
        together: neighbouring updates are one call.
        compiled: devices on which kernels of several ops are compiled.
    """

    devices: Sequence[torch.device]
    updates: Updates
    post: Post | None = None
    streams: CopyStreams = field(default_factory=CopyStreams)
    together: bool = True
    compiled: frozenset[int] = frozenset()


class WaitingUpdate(NamedTuple):
    """An update that has not been written yet."""

    name: str
    weight: str
    gradient: str
    state: tuple[str, ...]  # what came from where it lives, "None" for what is here
    op: int
    family: tuple[int, Any, tuple[bool, ...]]


class ProgramNames:
    """Names, constants and lines of a program that is being written."""

    def __init__(self, captured: CapturedStep, problem: Problem, plan: Plan, backend: Backend) -> None:
        self.captured, self.problem, self.plan, self.backend = captured, problem, plan, backend
        graph = captured.graph
        self.base: Ints = bases(graph)
        self.kept = np.flatnonzero(self.base == np.arange(graph.num_tensors))  # tensors of the problem
        self.statistics = statistics(graph)
        self.addition = np.full(problem.num_ops, -1)  # number of what the plan added
        if problem.expansion is not None:
            self.kept, self.addition = self.kept[problem.expansion.tensor], problem.expansion.addition
        self.versions: dict[int, int] = {}  # of what is read or made now, where it is not the original
        self.home = homes_of(captured, problem, plan)
        self.names: dict[Copy, str] = {}
        self.residents: dict[Place, str] = {}
        self.constants: dict[str, Any] = {}
        self.known: dict[Any, str] = {}  # what is a constant already
        self.pending: dict[Copy, str] = {}  # sends on their way, by where they arrive
        self.out: dict[int, list[CudaSend | Outgoing]] = {}  # sends that may still be reading a resident, by tensor
        self.landings: frozenset[Send] = frozenset()  # sends that land where the tensor lives
        self.written: set[int] = set()
        self.lines: list[Line] = []
        self.fresh = count()
        self.op, self.device = -1, 0
        self.kernel, self.kernels = -1, RegionKernels()
        self.last_random: int | None = None  # device that drew last
        self.replays: dict[int, Replay] = {}  # by op of the graph
        self.events = 0
        self.waiting: list[WaitingUpdate] = []  # updates that the next may join

    def value(self, tensor: int, device: int) -> str:
        """The name of a tensor on a device, made there from its base where it is a view."""
        place = self._copy(tensor, device)
        if place in self.pending:
            self._line(f"{self.pending.pop(place)}()", (), alone=True)
        if place not in self.names:
            self._make(tensor, device)
        return self.names[place]

    def _copy(self, tensor: int, device: int) -> Copy:
        return tensor, device, self.versions.get(int(self.base[tensor]), 0)

    def _turn_to(self, tensors: Ints) -> None:
        """From here on, these tensors of the problem are meant."""
        first = self.problem.graph.num_tensors if self.problem.expansion is None else self._originals
        self.versions = {int(self.kept[t]): int(t) for t in tensors if t >= first}

    @property
    def _originals(self) -> int:
        assert self.problem.expansion is not None
        return self.problem.expansion.base.graph.num_tensors

    def _make(self, tensor: int, device: int) -> None:
        graph, base = self.captured.graph, int(self.base[tensor])
        if tensor == base:
            self.names[self._copy(tensor, device)] = self._resident(tensor, device)
            return
        maker = int(graph.producer[tensor])
        if maker >= 0 and graph.is_view[maker]:
            call = self.captured.calls[maker]
            assert isinstance(call, Call)
            self._call(call, device)
        else:  # a second result in the memory of the first
            self._alias(tensor, base, device)

    def _call(self, call: Call, device: int, makes: Ints | None = None) -> None:
        """Writes a call, which gives what it makes its names; of a view, `makes` is none."""
        raise NotImplementedError

    def _alias(self, tensor: int, base: int, device: int) -> None:
        shown = self._traced(tensor)
        form = self._constant((shown.shape, shown.stride(), shown.storage_offset()))
        name, source = self._fresh("v"), self.value(base, device)
        self._view(f"{name} = {source}.as_strided(*{form})", [source], [name])
        self.names[self._copy(tensor, device)] = name

    def _traced(self, tensor: int) -> Tensor:
        call = self.captured.calls[int(self.captured.graph.producer[tensor])]
        assert isinstance(call, Call)
        values: dict[int, Tensor] = dict(paired(call.makes, call.node.meta["val"]))
        return values[tensor]

    def _resident(self, tensor: int, device: int) -> str:
        graph, root = self.captured.graph, int(self.captured.graph.owner[tensor])
        home = self.home.get(root, device)
        if graph.is_made[root] or home != device:
            name = graph.tensor_name[tensor]
            where = self.problem.cluster.device_names[device]
            raise CannotRun(f"'{name}' is needed on '{where}' but nothing brings it there", "", "plan again")
        return self.residents.setdefault((root, device), f"g{root}_{device}")

    def _fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self.fresh)}"

    def _constant(self, value: Any, prefix: str = "k") -> str:
        key: Any = (type(value), value)
        try:
            hash(key)
        except TypeError:
            key = (None, id(value))
        if key not in self.known:
            self.known[key] = self._fresh(prefix)
            self.constants[self.known[key]] = value
        return self.known[key]

    def _line(self, text: str, uses: Sequence[str], makes: Sequence[str] = (), alone: bool = False) -> None:
        self._update_now()
        self.lines.append(Line(text, uses, makes, self.op, self.device, alone, -1 if alone else self.kernel))

    def _view(self, text: str, uses: Sequence[str], makes: Sequence[str]) -> None:
        """Reads no values, so that updates need not be done before."""
        self.lines.append(Line(text, uses, makes, self.op, self.device, kernel=self.kernel))

    def _update_now(self) -> None:
        """Neighbouring updates in one call: torch has kernels for many weights, and gradients that wait for it were
        all there before the first."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        device, _, here = waiting[0].family
        call = self.backend.updates.call([one.name for one in waiting], self.backend.devices[device], here)
        weights, gradients = [one.weight for one in waiting], [one.gradient for one in waiting]
        state = [name for one in waiting for name in one.state if name != "None"]
        given = f"[{', '.join(weights)}], [{', '.join(gradients)}]"
        if state:
            given += f", [{', '.join('(' + ''.join(f'{name}, ' for name in one.state) + ')' for one in waiting)}]"
        alone = not getattr(call, "recordable", False) or bool(state)
        uses = [*weights, *gradients, *state]
        self.lines.append(Line(f"{self._constant(call)}({given})", uses, (), waiting[0].op, device, alone))


def homes_of(captured: CapturedStep, problem: Problem, plan: Plan) -> dict[int, int]:
    """For each tensor that is there before the step and overwritten in it, or stays somewhere: the device of the op
    that does, or of the stay."""
    kept = np.flatnonzero(bases(captured.graph) == np.arange(captured.graph.num_tensors))
    if problem.expansion is not None:
        kept = kept[problem.expansion.tensor]
    updated = np.flatnonzero(problem.is_updated)
    return {int(kept[t]): int(plan.device[problem.updater[t]]) for t in updated.tolist()}


def lodged_of(captured: CapturedStep, problem: Problem) -> frozenset[int]:
    """Tensors that are there before the step and live where a stay is."""
    if problem.expansion is None:
        return frozenset()
    kept = np.flatnonzero(bases(captured.graph) == np.arange(captured.graph.num_tensors))
    home = homes(problem.expansion.base.graph, problem.expansion.added)
    return frozenset(kept[home[home >= 0]].tolist())


def paired(makes: Any, value: Any) -> Iterable[tuple[Any, Any]]:
    """(tensor of the graph, traced value) of each result, in order."""
    if isinstance(value, (list, tuple)):
        for part, of in zip(makes, value, strict=True):
            yield from paired(part, of)
    elif value is not None:
        yield makes, value
