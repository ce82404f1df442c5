"""The lines of one op: its call, with arguments as text, or its update, and what is overwritten or drawn on the way."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from loadmaster.errors import CannotRun
from loadmaster.graph.columns import Ints
from loadmaster.importers.torch.graph import Call, Update, draws_random
from loadmaster.runtime.devices import Replay
from loadmaster.runtime.naming import ProgramNames, WaitingUpdate, paired
from loadmaster.runtime.processes import RandomPass
from loadmaster.runtime.substitutes import lands_itself, leaving_statistics, substitute


class ProgramCalls(ProgramNames):
    """Writes ops of the captured step, one by one, on the device that it is told."""

    def _call(self, call: Call, device: int, makes: Ints | None = None) -> None:
        """`makes`: tensors of the problem, unless it is a view."""
        graph, again = self.captured.graph, self.op >= 0 and self.addition[self.op] >= 0
        results = [tensor for tensor, _ in paired(call.makes, call.node.meta.get("val"))]
        written = [t for t in results if t is not None and not graph.is_made[graph.owner[t]] and not self._is_view(t)]
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
        self.waiting.append(WaitingUpdate(update.weight, *names, there, self.op, family))
        if weight not in came:
            self._overwrote(weight, device)
        self._overwrote_here(came, (int(self.kept[t]) for t in self.problem.graph.makes_of(self.op)), device)

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


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _pass_random(src: torch.device, dst: torch.device) -> None:
    if src.type == dst.type == "cuda":
        torch.cuda.set_rng_state(torch.cuda.get_rng_state(src), dst)
