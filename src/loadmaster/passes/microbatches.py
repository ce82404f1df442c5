"""Microbatches: a step in stages, repeated for every microbatch of a batch, with one update at the end.

Weights are shared, gradients are added up where the first microbatch makes them, and every stage stays on one device.
The order in which a device takes its actions is part of the graph: each comes after the one before it, so that the one
simulator judges a schedule of a pipeline like any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadmaster.columns import rows_of
from loadmaster.graph import ACTIVATION, INPUT, ROLES, Graph, GraphBuilder
from loadmaster.passes.stages import LETTERS, UPDATE, Staged
from loadmaster.problem import CANNOT


class Action(NamedTuple):
    """What a device does next: a phase of a stage for a microbatch."""

    phase: int
    stage: int
    microbatch: int

    @property
    def name(self) -> str:
        return action_name(self.phase, self.stage, self.microbatch)


def action_name(phase: int, stage: int, microbatch: int) -> str:
    """F3.0: forward pass of stage 3 for the first microbatch; U3: its update."""
    letter = LETTERS[phase]
    return f"{letter}{stage}" if phase == UPDATE else f"{letter}{stage}.{microbatch}"


def parse_action(name: str) -> Action:
    stage, _, microbatch = name[1:].partition(".")
    return Action(LETTERS.index(name[0]), int(stage), int(microbatch or -1))


def repeated(staged: Staged, microbatches: int, orders: Sequence[Sequence[Action]] = ()) -> Graph:
    """The graph of the whole batch, an op for each action, in the given order on each device."""
    return _Repeat(staged, microbatches, orders).graph()


@dataclass
class _Bundle:
    """Tensors that one action makes for the same readers, as one; or a single tensor that keeps its role."""

    maker: int
    readers: tuple[int, ...]
    nbytes: int
    role: int
    alias: int = -1  # the tensor it is written over
    sum_bytes: int = 0  # of gradients


class _Repeat:
    def __init__(self, staged: Staged, microbatches: int, orders: Sequence[Sequence[Action]]) -> None:
        self.staged, self.count = staged, microbatches
        self.problem, self.old = staged.problem, staged.problem.graph
        self.build = GraphBuilder(f"{self.problem.source.name} x{microbatches}")
        self.shared: dict[int, int] = {}  # resident tensor -> new one
        self.own: dict[tuple[int, int], int] = {}  # (resident, microbatch) or (bundle, microbatch) -> new tensor
        self.sums: dict[int, int] = {}  # bundle of gradients -> where they are added up
        self.added: dict[int, int] = {}  # the same after the last microbatch
        self.first: dict[int, int] = {}  # tensor with a bundle of its own, or the first of one -> bundle
        self.before = _before(orders)
        self.bundles = self._bundle()
        self.made_by: list[list[int]] = [[] for _ in range(self.old.num_ops)]
        self.read_by: list[list[int]] = [[] for _ in range(self.old.num_ops)]
        for number, bundle in enumerate(self.bundles):
            self.made_by[bundle.maker].append(number)
            for reader in bundle.readers:
                self.read_by[reader].append(number)

    def graph(self) -> Graph:
        self._residents()
        updates = self.staged.phase == UPDATE
        for microbatch in range(self.count):
            for action in np.flatnonzero(~updates).tolist():
                self._act(action, microbatch)
        for action in np.flatnonzero(updates).tolist():
            self._update(action)
        return self.build.build()

    def _bundle(self) -> list[_Bundle]:
        """What actions make, by maker and readers."""
        old, phase = self.old, self.staged.phase
        readers: list[list[int]] = [[] for _ in range(old.num_tensors)]
        for op, tensor in zip(rows_of(old.read_start).tolist(), old.reads.tolist(), strict=True):
            readers[tensor].append(op)
        bundles: dict[tuple[int, ...], _Bundle] = {}
        bases = set(old.alias_of.tolist())
        for tensor in np.flatnonzero(old.producer >= 0).tolist():
            maker, reading = int(old.producer[tensor]), tuple(readers[tensor])
            plain = old.role[tensor] == ACTIVATION and old.alias_of[tensor] < 0 and tensor not in bases
            single = -1 if plain else tensor
            alias = int(old.alias_of[tensor])
            fresh = _Bundle(maker, reading, 0, int(old.role[tensor]), alias)
            bundle = bundles.setdefault((single, maker, *reading), fresh)
            if bundle is fresh:
                self.first[tensor] = len(bundles) - 1
            bundle.nbytes += int(old.nbytes[tensor])
            summed = phase[maker] != UPDATE and any(phase[reader] == UPDATE for reader in reading)
            bundle.sum_bytes += int(old.nbytes[tensor]) if summed else 0
        return list(bundles.values())

    def _residents(self) -> None:
        """Weights and states once; of the inputs one for every microbatch."""
        old = self.old
        for tensor in np.flatnonzero(old.producer < 0).tolist():
            name, size, role = old.tensor_name[tensor], int(old.nbytes[tensor]), int(old.role[tensor])
            if role == INPUT:
                for m in range(self.count):
                    self.own[-1 - tensor, m] = self.build.tensor(size, "input", name=f"{name}.{m}")
            else:
                self.shared[tensor] = self.build.tensor(size, ROLES[role], name=name)

    def _act(self, action: int, microbatch: int) -> None:
        phase, stage = int(self.staged.phase[action]), int(self.staged.stage[action])
        reads = [self._resident(t, microbatch) for t in self.old.reads_of(action).tolist() if self.old.producer[t] < 0]
        reads += [self._made(b, microbatch) for b in self.read_by[action]]
        makes: list[int] = []
        after, extra = self.before.get(Action(phase, stage, microbatch), []), 0
        for number in self.made_by[action]:
            bundle = self.bundles[number]
            if bundle.sum_bytes:
                makes_now, reads_now, after_now = self._accumulate(number, action, microbatch)
                makes, reads, after = makes + makes_now, reads + reads_now, after + after_now
                extra += bundle.sum_bytes if microbatch else 0
            if not bundle.sum_bytes or any(self.staged.phase[r] != UPDATE for r in bundle.readers):
                makes.append(self._made(number, microbatch))
        self._op(action, action_name(phase, stage, microbatch), reads, makes, after, extra)

    def _accumulate(self, number: int, action: int, microbatch: int) -> tuple[list[int], list[int], list[str]]:
        """(makes, reads, after): the first microbatch makes the sum, the last one leaves it to the update."""
        bundle = self.bundles[number]
        name = f"gradients {number}"
        if microbatch == 0:
            self.sums[number] = self.added[number] = self.build.tensor(bundle.sum_bytes, name=name)
            return [self.sums[number]], [], []
        reads = [self.sums[number]]
        if microbatch < self.count - 1:
            return [], reads, []
        self.added[number] = self.build.tensor(bundle.sum_bytes, name=f"{name} added", alias_of=self.sums[number])
        phase, stage = int(self.staged.phase[action]), int(self.staged.stage[action])
        others = [action_name(phase, stage, m) for m in range(1, microbatch)]
        return [self.added[number]], reads, others

    def _update(self, action: int) -> None:
        stage = int(self.staged.stage[action])
        reads = [self._resident(t, 0) for t in self.old.reads_of(action).tolist() if self.old.producer[t] < 0]
        makes, last = [self._made(number, 0) for number in self.made_by[action]], self.count - 1
        for number in self.read_by[action]:
            reads.append(self.added[number] if number in self.added else self._made(number, last))
        after: list[str] = []
        for earlier in self.old.after_of(action).tolist():
            of = int(self.staged.phase[earlier]), int(self.staged.stage[earlier])
            after += [action_name(*of, m) for m in range(1 if of[0] == UPDATE else self.count)]
        self._op(action, action_name(UPDATE, stage, 0), reads, makes, after, 0)

    def _op(self, action: int, name: str, reads: list[int], makes: list[int], after: list[str], extra: int) -> None:
        times = self.problem.op_ns[action]
        adding = [-(-3 * extra * 10**9 // rate) for rate in self.problem.bytes_per_s.tolist()]  # read both, write one
        stage = int(self.staged.stage[action])
        self.build.op(
            name,
            f"stage.{('forward', 'backward', 'weight_gradients', 'update')[int(self.staged.phase[action])]}",
            reads,
            makes,
            flops=int(self.old.flops[action]),
            scope=f"stage {stage}",
            workspace_bytes=int(self.old.workspace_bytes[action]),
            colocate=f"stage {stage}",
            after=after + self._waits(action, name),
            time_ns=[None if t == CANNOT else int(t + a) for t, a in zip(times, adding, strict=True)],
        )

    def _waits(self, action: int, name: str) -> list[str]:
        """What one microbatch of the stage waits for without data; updates see to theirs."""
        if self.staged.phase[action] == UPDATE:
            return []
        microbatch = parse_action(name).microbatch
        earlier = self.old.after_of(action).tolist()
        return [action_name(int(self.staged.phase[e]), int(self.staged.stage[e]), microbatch) for e in earlier]

    def _resident(self, tensor: int, microbatch: int) -> int:
        return self.shared[tensor] if tensor in self.shared else self.own[-1 - tensor, microbatch]

    def _made(self, number: int, microbatch: int) -> int:
        key = (number, microbatch)
        if key not in self.own:
            bundle = self.bundles[number]
            base = None if bundle.alias < 0 else self._base(bundle.alias, microbatch)
            name = f"{self._label(bundle.maker)}:{number}.{microbatch}"
            self.own[key] = self.build.tensor(bundle.nbytes, ROLES[bundle.role], name=name, alias_of=base)
        return self.own[key]

    def _base(self, tensor: int, microbatch: int) -> int:
        if self.old.producer[tensor] < 0:
            return self._resident(tensor, microbatch)
        return self._made(self.first[tensor], microbatch)

    def _label(self, action: int) -> str:
        return f"{LETTERS[int(self.staged.phase[action])]}{int(self.staged.stage[action])}"


def _before(orders: Sequence[Sequence[Action]]) -> dict[Action, list[str]]:
    """The action before each on its device."""
    found: dict[Action, list[str]] = {}
    for order in orders:
        for earlier, later in pairwise(order):
            found[later] = [earlier.name]
    return found
