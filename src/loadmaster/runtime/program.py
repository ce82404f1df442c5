"""Writes a captured step in plan order as straight-line Python: one call a line, each tensor dropped at its last use.

A name is a tensor of the graph on a device of the plan. Views are no ops of a plan: they are made on each device just
before the first call that reads them there. A tensor written in place keeps its name. What an op makes when it runs
again, or what comes back from a stay, is another version of its tensor: each op reads the one that the plan names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from loadmaster.errors import CannotRun
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.folding import bases
from loadmaster.importers.torch.graph import Call, CapturedStep, Update, draws_random
from loadmaster.plans import Plan
from loadmaster.plans.additions import homes, statistics
from loadmaster.plans.expansion import STAY
from loadmaster.problem import Problem
from loadmaster.runtime.devices import CopyStreams, CudaSend, Replay, copied
from loadmaster.runtime.listing import Line, Listing, compiled_text
from loadmaster.runtime.processes import Incoming, MessageShape, Outgoing, Post, RandomPass
from loadmaster.runtime.regions import RegionKernels, with_regions
from loadmaster.runtime.schedule import Event, Launch, Send, landings
from loadmaster.runtime.substitutes import lands_itself, leaving_statistics, substitute
from loadmaster.runtime.updates import Updates

Place = tuple[int, int]  # tensor of the captured graph, device of the plan
Copy = tuple[int, int, int]  # and its version: 0, or the tensor of the expanded problem


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


class _Waiting(NamedTuple):
    """An update that has not been written yet."""

    name: str
    weight: str
    gradient: str
    state: tuple[str, ...]  # what came from where it lives, "None" for what is here
    op: int
    family: tuple[int, Any, tuple[bool, ...]]


class _ProgramWriter:
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
        self.waiting: list[_Waiting] = []  # updates that the next may join

    # Names

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

    def _alias(self, tensor: int, base: int, device: int) -> None:
        shown = self._traced(tensor)
        form = self._constant((shown.shape, shown.stride(), shown.storage_offset()))
        name, source = self._fresh("v"), self.value(base, device)
        self._view(f"{name} = {source}.as_strided(*{form})", [source], [name])
        self.names[self._copy(tensor, device)] = name

    def _traced(self, tensor: int) -> Tensor:
        call = self.captured.calls[int(self.captured.graph.producer[tensor])]
        assert isinstance(call, Call)
        values: dict[int, Tensor] = dict(_paired(call.makes, call.node.meta["val"]))
        return values[tensor]

    def _resident(self, tensor: int, device: int) -> str:
        graph, root = self.captured.graph, int(self.captured.graph.owner[tensor])
        home = self.home.get(root, device)
        if graph.producer[root] >= 0 or home != device:
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

    # Events

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
        if graph.producer[root] >= 0:
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
        if graph.producer[root] < 0 and tensor != root:
            place = self._resident(root, device)
            self._before_write(root)
            self.written.add(root)
            if name != place:
                self._line(f"{place}.copy_({name})", [place, name], alone=True)
            return
        self._turn_to(tensors)
        self.names[self._copy(tensor, device)] = name

    def _came(self, tensors: Iterable[int], device: int) -> dict[int, str]:
        """Of what the op that is written now reads and overwrites: what lives elsewhere, and came, with its name."""
        return {tensor: self.value(tensor, device) for tensor in tensors if tensor in self.versions}

    def _overwrote_here(self, came: Mapping[int, str], made: Iterable[int], device: int) -> None:
        """What was written over what came lies there until it is brought home."""
        for tensor in made:
            root = int(self.captured.graph.owner[tensor])
            if root in came:
                self.names[tensor, device, 0] = came[root]

    def _replays(self, call: Call, device: int) -> Replay | None:
        """Of a random op of which copies run, or of a copy of one: its random state."""
        if not draws_random(call.node) or self.op < 0 or self.problem.expansion is None:
            return None
        expansion, again = self.problem.expansion, self.addition[self.op] >= 0
        node = int(expansion.node[self.op])
        op = int(expansion.added.op[node - expansion.base.num_ops]) if again else node
        if not again and op not in expansion.added.op:
            return None
        replay = self.replays.setdefault(op, Replay(self.backend.devices[device]))
        if replay.device != self.backend.devices[device]:
            name = self.problem.graph.op_name[self.op]
            what = f"op '{name}' draws random numbers, and runs again on another device"
            raise CannotRun(what, str(call.node.target), "let it run again where it ran first")
        return replay

    def _update(self, update: Update, device: int) -> None:
        weight, gradient, *state = update.reads
        came = self._came((weight, *state), device)
        names = self.value(weight, device), self.value(gradient, device)
        if weight not in came:
            self._before_write(weight)
        there = tuple(came.get(tensor, "None") for tensor in state)
        family = (device, self.backend.updates.family(update.weight), tuple(name == "None" for name in there))
        if self.waiting and (self.waiting[-1].family != family or not self.backend.together):
            self._update_now()
        self.waiting.append(_Waiting(update.weight, *names, there, self.op, family))
        if weight not in came:
            self._overwrote(weight, device)
        self._overwrote_here(came, (int(self.kept[t]) for t in self.problem.graph.makes_of(self.op)), device)

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

    def _call(self, call: Call, device: int, makes: Ints | None = None) -> None:
        """`makes`: tensors of the problem, unless it is a view."""
        graph, again = self.captured.graph, self.op >= 0 and self.addition[self.op] >= 0
        results = [tensor for tensor, _ in _paired(call.makes, call.node.meta.get("val"))]
        written = [t for t in results if t is not None and graph.producer[graph.owner[t]] < 0 and not self._is_view(t)]
        left = self._left_alone() if again else set[int]()
        args, uses = self._arguments(call, device, left)
        roots = [int(graph.owner[tensor]) for tensor in written]
        own = [] if again or makes is None else self.kept[makes].tolist()
        came = self._came([int(graph.owner[tensor]) for tensor in own], device)
        for root in () if again else roots:
            if root not in came:
                self._before_write(root)
        replay = self._replays(call, device)
        if draws_random(call.node) and not again:
            self._draw(device)
        if replay is not None:
            self._line(f"{self._constant(replay.begin if again else replay.keep)}()", (), alone=True)
        direct = lands_itself(call.node.target, call.lands, self.backend.devices[device])
        function = self._function(call, device, bool(left))
        made: list[str] = []
        if makes is not None:
            self._turn_to(makes)
        target = self._targets(call.makes, call.node.meta.get("val"), device, frozenset(written), made)
        landing = [] if direct or again else self._landing_names(call, device, made, came)
        text = f"{target} = {function}({args})" if made else f"{function}({args})"
        if makes is None:
            self._view(text, uses, made)
        else:
            self._line(text, uses, made, alone=bool(came))
        if replay is not None and again:
            self._line(f"{self._constant(replay.end)}()", (), alone=True)
        for name, place in landing:
            self._line(f"{place}.copy_({name})", [place, name], alone=bool(came))
        for tensor, root in () if again else zip(written, roots, strict=True):
            if root not in came:
                self._overwrote(tensor, device)
        self._overwrote_here(came, own, device)

    def _function(self, call: Call, device: int, leaves: bool) -> str:
        """What to call; `leaves`: it runs again, and leaves alone what it overwrote the first time."""
        where = self.backend.devices[device]
        found = lands_itself(call.node.target, call.lands, where) or substitute(call.node.target, where)
        return self._constant(leaving_statistics(found) if leaves else found, "f")

    def _left_alone(self) -> set[int]:
        """The running statistics of the op that runs again."""
        graph = self.captured.graph
        made = graph.makes_of(int(self.problem.source_ops[self.op]))
        return {int(graph.owner[t]) for t in made[self.statistics[made]]}

    def _is_view(self, tensor: int) -> bool:
        maker = int(self.captured.graph.producer[tensor])
        return bool(self.captured.graph.is_view[maker])

    def _landing_names(
        self, call: Call, device: int, made: Sequence[str], came: Mapping[int, str]
    ) -> list[tuple[str, str]]:
        """(result, the resident it is copied into, or what came of it): the graph has the op write there itself."""
        lands = call.lands.items()
        return [(made[which or 0], came.get(tensor) or self.value(tensor, device)) for which, tensor in lands]

    def _targets(self, makes: Any, value: Any, device: int, written: frozenset[int], made: list[str]) -> str:
        """The left side of an assignment, names for each result added to `made`."""
        if isinstance(value, (list, tuple)):
            inner = [self._targets(part, of, device, written, made) for part, of in zip(makes, value, strict=True)]
            return f"[{', '.join(inner)}]"
        name = self._fresh("v")
        made.append(name)
        if makes is not None and makes not in written:
            self.names[self._copy(makes, device)] = name
        return name

    def _before_write(self, tensor: int) -> None:
        for send in self.out.pop(int(self.captured.graph.owner[tensor]), ()):
            self._line(f"{self._constant(send.left)}()", (), alone=True)

    def _overwrote(self, tensor: int, device: int) -> None:
        """Versions of a resident made on its home are that resident."""
        graph = self.captured.graph
        root = int(graph.owner[tensor])
        self.written.add(root)
        self.names[self._copy(tensor, device)] = self._resident(root, device)

    def _draw(self, device: int) -> None:
        """Random numbers come from one stream: it moves on with the draws from device to device."""
        before, self.last_random = self.last_random, device
        post = self.backend.post
        if post is not None:
            moves = before is not None and before != device and post.devices[before].type == post.devices[device].type
            if moves and post.rank in (before, device):
                assert before is not None
                hand = RandomPass(post, before, device, self.events)
                self._line(f"{self._constant(hand)}()", (), alone=True)
            return
        here, there = (self.backend.devices[device if d is None else d] for d in (device, before))
        if there != here:
            self._line(f"{self._constant(partial(_pass_random, there, here))}()", (), alone=True)

    # Arguments

    def _arguments(self, call: Call, device: int, left: Container[int] = ()) -> tuple[str, list[str]]:
        """As text, with the names in it; `left`: residents whose values it does not need, as it runs again."""
        uses: list[str] = []

        def text(value: Any) -> str:
            if isinstance(value, fx.Node):
                if value not in call.reads or int(self.captured.graph.owner[call.reads[value]]) in left:
                    return self._stand_in(value, device)
                uses.append(self.value(call.reads[value], device))
                return uses[-1]
            if isinstance(value, (list, tuple)) and any(isinstance(part, fx.Node) for part in _flat(value)):
                return f"[{', '.join(map(text, value))}]"
            if isinstance(value, torch.device):
                return self._constant(self.backend.devices[device])
            if value is None or type(value) in (bool, int):
                return repr(value)
            return self._constant(list(value) if isinstance(value, (list, tuple)) else value)

        parts = [text(value) for value in call.node.args]
        parts += [f"{key}={text(value)}" for key, value in call.node.kwargs.items()]
        return ", ".join(parts), uses

    def _stand_in(self, node: fx.Node, device: int) -> str:
        """For an operand whose values the call does not need: its form, over the memory of one element. (No memory at
        all would do for most kernels; some convolutions of small images copy it all the same.)"""
        shown = node.meta["val"]
        where = self.backend.devices[device]
        key = ("stand-in", tuple(shown.shape), shown.dtype, where)
        if key not in self.known:
            form = torch.zeros((), dtype=shown.dtype, device=where).expand(shown.shape)
            self.known[key] = self._fresh("k")
            self.constants[self.known[key]] = form
        return self.known[key]

    # The end

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


def homes_of(captured: CapturedStep, problem: Problem, plan: Plan) -> dict[int, int]:
    """For each tensor that is there before the step and overwritten in it, or stays somewhere: the device of the op
    that does, or of the stay."""
    kept = np.flatnonzero(bases(captured.graph) == np.arange(captured.graph.num_tensors))
    if problem.expansion is not None:
        kept = kept[problem.expansion.tensor]
    updated = np.flatnonzero(problem.updater >= 0)
    return {int(kept[t]): int(plan.device[problem.updater[t]]) for t in updated.tolist()}


def lodged_of(captured: CapturedStep, problem: Problem) -> frozenset[int]:
    """Tensors that are there before the step and live where a stay is."""
    if problem.expansion is None:
        return frozenset()
    kept = np.flatnonzero(bases(captured.graph) == np.arange(captured.graph.num_tensors))
    home = homes(problem.expansion.base.graph, problem.expansion.added)
    return frozenset(kept[home[home >= 0]].tolist())


def _paired(makes: Any, value: Any) -> Iterable[tuple[Any, Any]]:
    """(tensor of the graph, traced value) of each result, in order."""
    if isinstance(value, (list, tuple)):
        for part, of in zip(makes, value, strict=True):
            yield from _paired(part, of)
    elif value is not None:
        yield makes, value


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _pass_random(src: torch.device, dst: torch.device) -> None:
    if src.type == dst.type == "cuda":
        torch.cuda.set_rng_state(torch.cuda.get_rng_state(src), dst)
