"""Writes a captured step in plan order as straight-line Python: one call a line, each tensor dropped at its last use.

A name is a tensor of the graph on a device of the plan. Views are no ops of a plan: they are made on each device just
before the first call that reads them there. A tensor written in place keeps its name. What an op makes when it runs
again, or what comes back from a stay, is another version of its tensor: each op reads the one that the plan names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from loadmaster.graph.columns import ints
from loadmaster.importers.torch.graph import Call, CapturedStep, Update, draws_random
from loadmaster.plans import Plan
from loadmaster.plans.expansion import STAY
from loadmaster.problem import Problem
from loadmaster.runtime.calling import ProgramCalls
from loadmaster.runtime.devices import CudaSend, copied
from loadmaster.runtime.listing import Line, Listing, compiled_text
from loadmaster.runtime.naming import Backend, Place, lodged_of
from loadmaster.runtime.processes import Incoming, MessageShape, Outgoing, Post
from loadmaster.runtime.regions import RegionKernels, with_regions
from loadmaster.runtime.schedule import Event, Launch, Send, landings


@dataclass(frozen=True, eq=False)
class Program:
    """The step as a function of its residents: weights, states and inputs, one entry per place.

    Attributes:
        listing: its lines, for whoever runs or watches it one by one.
        run: the step: residents in, outputs out.
        source: its text.
        residents: what it is called with, in order.
        outputs: those of the captured step, then its gradients where nothing updates.
        written: tensors that the step overwrites.
        last_random: device that draws the last random numbers.
        lines: number in the source.
        kernels: those of several ops, and whether they were compiled.
        homes: device of each resident that is overwritten, or lives where a stay is.
        lodged: residents that live where a stay is, and come for those that read them.
    """

    listing: Listing
    run: Callable[[Sequence[Tensor]], list[Tensor]]
    source: str
    residents: Sequence[Place]
    outputs: Sequence[Place]
    written: frozenset[int]
    last_random: int | None
    lines: Mapping[int, Line]
    kernels: RegionKernels
    homes: Mapping[int, int]
    lodged: frozenset[int] = frozenset()


def write_program(
    captured: CapturedStep, problem: Problem, plan: Plan, events: Iterable[Event], backend: Backend
) -> Program:
    """The captured step in the order of the events, as straight-line Python for these devices."""
    events = tuple(events)
    writer = _ProgramWriter(captured, problem, plan, backend)
    if problem.expansion is not None:
        writer.landings = landings(problem, events)
    for event in events:
        writer.add(event)
    return writer.finish()


class _ProgramWriter(ProgramCalls):
    """Goes through the events of a schedule, each a kernel or a send."""

    def add(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, Send):
            if self.backend.post is None:
                self._send(event)
            else:
                self._message(event, self.backend.post)
        elif self.backend.post is None or event.device == self.backend.post.rank:
            self._launch(event)
        else:
            self._launch_elsewhere(event)

    def _message(self, send: Send, post: Post) -> None:
        """The end of a send that is in this process."""
        if post.rank not in (send.src, send.dst):
            return
        self.op, self.device = -1, send.dst
        tensor = int(self.kept[send.tensor])
        self._turn_to(ints([send.tensor]))
        shape = MessageShape.of(self._form(tensor))
        root = int(self.captured.graph.owner[tensor])
        if send.src == post.rank:
            source, end = self.value(tensor, send.src), Outgoing(post, send.dst, self.events, shape)
            self._line(f"{self._constant(end)}({source})", [source], alone=True)
            self.out.setdefault(root, []).append(end)
        else:
            begin = Incoming(post, send.src, self.events, shape)
            if send in self.landings and post.device.type == "cpu":
                name = self._resident(root, send.dst)
                self._before_write(root)
                self._line(f"{self._constant(begin.land)}({name})", [name], alone=True)
            else:
                name = self._fresh("v")
                self._line(f"{name} = {self._constant(begin)}()", (), [name], alone=True)
            self.pending[self._copy(tensor, send.dst)] = self._constant(begin.arrive)
            self.names[self._copy(tensor, send.dst)] = name

    def _launch_elsewhere(self, launch: Launch) -> None:
        """Another process's kernel: of interest only for the random numbers it draws."""
        for op in launch.ops:
            call = self.captured.calls[int(self.problem.source_ops[op])]
            if self.addition[op] < 0 and isinstance(call, Call) and draws_random(call.node):
                self._draw(launch.device)

    def _form(self, tensor: int) -> Tensor:
        """The traced value of a tensor of the problem."""
        graph = self.captured.graph
        root = int(graph.owner[tensor])
        if graph.is_made[root]:
            return self._traced(tensor)
        if root not in self.captured.given:  # state of the optimizer, which is formed like its weight
            root = self._weight_of[root]
        value: Tensor = self.captured.given[root].meta["val"]
        return value

    @cached_property
    def _weight_of(self) -> dict[int, int]:
        """State -> the weight that it belongs to."""
        updates = [call for call in self.captured.calls if isinstance(call, Update)]
        return {state: update.reads[0] for update in updates for state in update.reads[2:]}

    def _send(self, send: Send) -> None:
        self.op, self.device = -1, send.dst
        tensor = int(self.kept[send.tensor])
        self._turn_to(ints([send.tensor]))
        src, dst = self.backend.devices[send.src], self.backend.devices[send.dst]
        source, root = self.value(tensor, send.src), int(self.captured.graph.owner[tensor])
        mover = None if src.type == dst.type == "cpu" else CudaSend(src, dst, self.backend.streams)
        lands = send in self.landings and dst.type == "cpu"
        if lands:
            name = self._land(source, self._resident(root, send.dst), mover, root)
        else:
            name = self._fresh("v")
            self._line(f"{name} = {self._constant(mover or copied)}({source})", [source], [name], alone=True)
        if mover is not None:
            self.pending[self._copy(tensor, send.dst)] = self._constant(mover.arrive)
        if mover is not None and not lands:
            self.out.setdefault(root, []).append(mover)
        self.names[self._copy(tensor, send.dst)] = name

    def _land(self, source: str, place: str, mover: CudaSend | None, root: int) -> str:
        """Copies straight to where the tensor lives, after what is still sent from there."""
        if mover is None:
            self._before_write(root)
            self._line(f"{place}.copy_({source})", [place, source], alone=True)
        else:
            mover.follows = [send for send in self.out.pop(root, ()) if isinstance(send, CudaSend)]
            self._line(f"{self._constant(mover.land)}({source}, {place})", [source, place], alone=True)
        return place

    def _launch(self, launch: Launch) -> None:
        ops = [int(self.problem.source_ops[op]) for op in launch.ops]
        self.op, self.device = launch.ops[0], launch.device
        calls = [self.captured.calls[op] for op in ops]
        if len(calls) > 1:
            self._begin_kernel(launch, calls)
        for op, call in zip(launch.ops, calls, strict=True):
            self.op = op
            self._turn_to(self.problem.graph.reads_of(op))
            if self.problem.graph.kind[op] == STAY:
                self._stay(op, launch.device)
            elif isinstance(call, Update):
                self._update(call, launch.device)
            else:
                self._call(call, launch.device, self.problem.graph.makes_of(op))

        self.kernel = -1

    def _begin_kernel(self, launch: Launch, calls: Sequence[Call | Update]) -> None:
        """Whatever its ops wait for comes first, so that their lines stand together."""
        self.kernels.total += 1
        plain = all(isinstance(call, Call) and not draws_random(call.node) for call in calls)
        if not (plain and launch.device in self.backend.compiled):
            return
        graph = self.problem.graph
        inside = {tensor for op in launch.ops for tensor in graph.makes_of(op).tolist()}
        for op in launch.ops:
            self._turn_to(graph.reads_of(op))
            for tensor in graph.reads_of(op).tolist():
                if tensor not in inside:
                    self.value(int(self.kept[tensor]), launch.device)
        self._update_now()
        self.kernel = self.kernels.total

    def _stay(self, op: int, device: int) -> None:
        """What was sent here is what will be sent back; what was written over a tensor that lives here is home."""
        tensors = self.problem.graph.makes_of(op)
        tensor, graph = int(self.kept[tensors[0]]), self.captured.graph
        name, root = self.value(tensor, device), int(graph.owner[tensor])
        if not graph.is_made[root] and tensor != root:
            place = self._resident(root, device)
            self._before_write(root)
            self.written.add(root)
            if name != place:
                self._line(f"{place}.copy_({name})", [place, name], alone=True)
            return
        self._turn_to(tensors)
        self.names[self._copy(tensor, device)] = name

    def finish(self) -> Program:
        self._update_now()
        self.op = -1
        self.versions = {}
        wanted = [*self.captured.outputs]
        wanted += self.captured.gradients.values() if self.captured.optimizer == "none" else ()
        outputs = [(tensor, self._lives(tensor)) for tensor in wanted]
        post = self.backend.post
        here = [place for place in outputs if post is None or place[1] == post.rank]
        returned = [self.value(*place) for place in here]
        listing = Listing(self.lines, list(self.residents.values()), returned, self.constants)
        listing = with_regions(listing, self.kernels)
        source, lines = listing.source()
        return Program(
            listing,
            compiled_text(source, listing.constants),
            source,
            tuple(self.residents),
            tuple(outputs),
            frozenset(self.written),
            self.last_random,
            lines,
            self.kernels,
            self.home,
            lodged_of(self.captured, self.problem),
        )

    def _lives(self, tensor: int) -> int:
        """The device where a tensor is made, or kept."""
        graph = self.captured.graph
        root = int(self.base[tensor])
        maker = int(graph.producer[root])
        if maker >= 0:
            expansion = self.problem.expansion
            base = self.problem if expansion is None else expansion.base
            op = int(np.searchsorted(base.source_ops, maker))
            return int(self.plan.device[op if expansion is None else expansion.place[op]])
        readers = [device for (held, device) in self.residents if held == graph.owner[root]]
        return self.home.get(int(graph.owner[root]), min(readers, default=0))
