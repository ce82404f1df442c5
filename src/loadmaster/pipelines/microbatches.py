"""Microbatches: a step in stages, repeated for every microbatch of a batch, with one update at the end.

Weights are shared, gradients are added up where the first microbatch makes them, and every stage, or every replica of
it, stays on one device; replicas add their gradients up in a ring before the update. The order in which a device takes
its actions is part of the graph: each comes after the one before it, so that the one simulator judges a schedule of a
pipeline like any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadmaster.cluster import Link
from loadmaster.cost.pricing import send_time_ns
from loadmaster.graph import ACTIVATION, INPUT, ROLES, Graph, GraphBuilder
from loadmaster.graph.columns import rows_of
from loadmaster.pipelines.stages import LETTERS, REDUCE, UPDATE, Staged
from loadmaster.problem import CANNOT


class Action(NamedTuple):
    """What a device does next: a phase of a stage for a microbatch.

    >>> parse_action(action_name(0, 3, 1))
    Action(phase=0, stage=3, microbatch=1)

    Attributes:
        phase: as in `stages`: FORWARD, BACKWARD, WEIGHT, UPDATE or REDUCE.
        stage: of the line.
        microbatch: of the batch; of an update or a reduction, the replica.
    """

    phase: int
    stage: int
    microbatch: int

    @property
    def name(self) -> str:
        return action_name(self.phase, self.stage, self.microbatch)


def action_name(phase: int, stage: int, microbatch: int) -> str:
    """F3.0: forward pass of stage 3 for the first microbatch; U3: its update; U3.1: that of its second replica."""
    letter = LETTERS[phase]
    return f"{letter}{stage}" if phase == UPDATE and microbatch <= 0 else f"{letter}{stage}.{microbatch}"


def parse_action(name: str) -> Action:
    """The action that an op of a pipeline's graph stands for, from its name."""
    stage, _, microbatch = name[1:].partition(".")
    return Action(LETTERS.index(name[0]), int(stage), int(microbatch or 0))


@dataclass(frozen=True)
class Replicas:
    """How often each stage is there, and the link over which its replicas add up their gradients in a ring.

    Attributes:
        count: [stages] 1: there is but one.
        link: [stages] the slowest of the ring; None: there is but one.
    """

    count: tuple[int, ...]  # [stages]
    link: tuple[Link | None, ...]  # [stages]

    def reduce_ns(self, stage: int, nbytes: int) -> int:
        """A ring passes 2(r - 1) times an r-th on (Patarasuk and Yuan, 2009)."""
        link, replicas = self.link[stage], self.count[stage]
        return 0 if link is None else 2 * (replicas - 1) * send_time_ns(link, -(-nbytes // replicas))


def repeated(
    staged: Staged, microbatches: int, orders: Sequence[Sequence[Action]] = (), replicas: Replicas | None = None
) -> Graph:
    """The graph of the whole batch, an op for each action.

    Args:
        staged: one microbatch as actions.
        microbatches: of the batch.
        orders: [devices] actions in the order in which each device takes them; it becomes part of the graph.
        replicas: of stages: of one that is there r times, replica k takes microbatches k, k + r, …, and there must be
            as many.
    """
    alone = Replicas((1,) * staged.num_stages, (None,) * staged.num_stages)
    return _Repeat(staged, microbatches, orders, replicas or alone).graph()


@dataclass
class _Bundle:
    """Tensors that one action makes for the same readers, as one; or a single tensor that keeps its role."""

    maker: int
    readers: tuple[int, ...]
    nbytes: int
    role: int
    alias: int = -1  # the tensor it is written over
    summed: bool = False  # gradients, which are added up


class _Repeat:
    def __init__(
        self, staged: Staged, microbatches: int, orders: Sequence[Sequence[Action]], replicas: Replicas
    ) -> None:
        self.staged, self.count, self.replicas = staged, microbatches, replicas
        self.problem, self.old = staged.problem, staged.problem.graph
        self.build = GraphBuilder(f"{self.problem.source.name} x{microbatches}")
        self.phase, self.stage = staged.phase.tolist(), staged.stage.tolist()
        self.shared: dict[int, list[int]] = {}  # resident tensor -> new one, for each replica of its stage
        self.own: dict[tuple[int, int], int] = {}  # (resident, microbatch) or (bundle, microbatch) -> new tensor
        self.sums: dict[tuple[int, int], int] = {}  # (bundle of gradients, replica) -> where they are added up
        self.added: dict[tuple[int, int], int] = {}  # the same after the last microbatch
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
            for replica in range(self.replicas.count[self.stage[action]]):
                self._update(action, replica)
        return self.build.build()

    def _bundle(self) -> list[_Bundle]:
        """What actions make, by maker and readers."""
        old, phase = self.old, self.staged.phase
        readers: list[list[int]] = [[] for _ in range(old.num_tensors)]
        for op, tensor in zip(rows_of(old.read_start).tolist(), old.reads.tolist(), strict=True):
            readers[tensor].append(op)
        bundles: dict[tuple[int, ...], _Bundle] = {}
        bases = set(old.alias_of.tolist())
        for tensor in np.flatnonzero(old.is_made).tolist():
            maker, reading = int(old.producer[tensor]), tuple(readers[tensor])
            plain = old.role[tensor] == ACTIVATION and not old.is_alias[tensor] and tensor not in bases
            single = -1 if plain else tensor
            alias = int(old.alias_of[tensor])
            fresh = _Bundle(maker, reading, 0, int(old.role[tensor]), alias)
            bundle = bundles.setdefault((single, maker, *reading), fresh)
            if bundle is fresh:
                self.first[tensor] = len(bundles) - 1
            bundle.nbytes += int(old.nbytes[tensor])
            summed = phase[maker] != UPDATE and any(phase[reader] == UPDATE for reader in reading)
            bundle.summed = bundle.summed or bool(summed)
        return list(bundles.values())

    def _residents(self) -> None:
        """Weights and states once, or for each replica of the stage that updates them; inputs for every microbatch."""
        old, updater = self.old, self.problem.updater
        for tensor in np.flatnonzero(~old.is_made).tolist():
            name, size, role = old.tensor_name[tensor], int(old.nbytes[tensor]), int(old.role[tensor])
            if role == INPUT:
                for m in range(self.count):
                    self.own[-1 - tensor, m] = self.build.tensor(size, "input", name=f"{name}.{m}")
                continue
            copies = self.replicas.count[self.stage[updater[tensor]]] if updater[tensor] >= 0 else 1
            names = [name, *(f"{name} of replica {k}" for k in range(1, copies))]
            self.shared[tensor] = [self.build.tensor(size, ROLES[role], name=label) for label in names]

    def _act(self, action: int, microbatch: int) -> None:
        phase, stage = self.phase[action], self.stage[action]
        reads = self._residents_of(action, microbatch)
        reads += [self._made(b, microbatch) for b in self.read_by[action]]
        makes: list[int] = []
        after, extra = self.before.get(Action(phase, stage, microbatch), []), 0
        for number in self.made_by[action]:
            bundle = self.bundles[number]
            if bundle.summed:
                makes_now, reads_now, after_now = self._accumulate(number, action, microbatch)
                makes, reads, after = makes + makes_now, reads + reads_now, after + after_now
                extra += bundle.nbytes if microbatch >= self.replicas.count[stage] else 0
            if not bundle.summed or any(self.phase[r] != UPDATE for r in bundle.readers):
                makes.append(self._made(number, microbatch))
        waits = [action_name(self.phase[e], self.stage[e], microbatch) for e in self.old.after_of(action).tolist()]
        self._op(action, microbatch, reads, makes, after + waits, extra)

    def _accumulate(self, number: int, action: int, microbatch: int) -> tuple[list[int], list[int], list[str]]:
        """(makes, reads, after): the first microbatch makes the sum, the last one leaves it to the update."""
        bundle, stage = self.bundles[number], self.stage[action]
        replicas = self.replicas.count[stage]
        replica = microbatch % replicas
        key, name = (number, replica), f"gradients {number} of replica {replica}"
        if microbatch == replica:
            self.sums[key] = self.added[key] = self.build.tensor(bundle.nbytes, name=name)
            return [self.sums[key]], [], []
        reads = [self.sums[key]]
        if microbatch + replicas < self.count:
            return [], reads, []
        self.added[key] = self.build.tensor(bundle.nbytes, name=f"{name}, added", alias_of=self.sums[key])
        others = [action_name(self.phase[action], stage, m) for m in range(replica, microbatch, replicas)]
        return [self.added[key]], reads, others

    def _update(self, action: int, replica: int) -> None:
        stage, replicas = self.stage[action], self.replicas.count[self.stage[action]]
        reads = self._residents_of(action, replica)
        makes = [self._made(number, replica) for number in self.made_by[action]]
        sums = [number for number in self.read_by[action] if (number, replica) in self.added]
        reads += [self.added[number, replica] for number in sums]
        reads += [self._made(number, self.count - 1) for number in self.read_by[action] if number not in sums]
        after = self._readers_before(action, replica)
        if replicas > 1:
            after.append(self._reduce(stage, replica, sums))
        self._op(action, replica, reads, makes, after, 0)

    def _readers_before(self, action: int, replica: int) -> list[str]:
        """Who must have read the weights before they are updated."""
        after: list[str] = []
        for earlier in self.old.after_of(action).tolist():
            phase, stage = self.phase[earlier], self.stage[earlier]
            own = stage == self.stage[action]
            every = range(1) if phase == UPDATE else range(self.count)
            if own and phase != UPDATE:
                every = range(replica, self.count, self.replicas.count[stage])
            after += [action_name(phase, stage, m) for m in every]
        return after

    def _reduce(self, stage: int, replica: int, sums: list[int]) -> str:
        """Adds the op that waits for the gradients of all replicas and passes them round; returns its name."""
        name, replicas = action_name(REDUCE, stage, replica), self.replicas.count[stage]
        last = range(max(0, self.count - replicas), self.count)
        makers = {self.bundles[number].maker for number in sums}
        ns = self.replicas.reduce_ns(stage, sum(self.bundles[number].nbytes for number in sums))
        self.build.op(
            name,
            "stage.reduce",
            [self.added[number, replica] for number in sums],
            [],
            scope=f"stage {stage}",
            colocate=self._group(stage, replica),
            after=[action_name(self.phase[maker], stage, m) for maker in sorted(makers) for m in last],
            time_ns=ns,
        )
        return name

    def _group(self, stage: int, microbatch: int) -> str:
        replicas = self.replicas.count[stage]
        return f"stage {stage}" if replicas == 1 else f"stage {stage}, replica {microbatch % replicas}"

    def _op(
        self, action: int, microbatch: int, reads: list[int], makes: list[int], after: list[str], extra: int
    ) -> None:
        phase, stage, times = self.phase[action], self.stage[action], self.problem.op_ns[action]
        adding = [-(-3 * extra * 10**9 // rate) for rate in self.problem.bytes_per_s.tolist()]  # read both, write one
        self.build.op(
            action_name(phase, stage, microbatch),
            f"stage.{('forward', 'backward', 'weight_gradients', 'update')[phase]}",
            reads,
            makes,
            flops=int(self.old.flops[action]),
            scope=f"stage {stage}",
            workspace_bytes=int(self.old.workspace_bytes[action]),
            colocate=self._group(stage, microbatch),
            after=after,
            time_ns=[None if t == CANNOT else int(t + a) for t, a in zip(times, adding, strict=True)],
        )

    def _residents_of(self, action: int, microbatch: int) -> list[int]:
        there = [t for t in self.old.reads_of(action).tolist() if not self.old.is_made[t]]
        return [self._resident(t, self.stage[action], microbatch) for t in there]

    def _resident(self, tensor: int, stage: int, microbatch: int) -> int:
        """The copy of the reader's own replica, or the first one for other stages."""
        if tensor not in self.shared:
            return self.own[-1 - tensor, microbatch]
        copies, updater = self.shared[tensor], self.problem.updater[tensor]
        at_home = len(copies) > 1 and self.stage[updater] == stage
        return copies[microbatch % len(copies)] if at_home else copies[0]

    def _made(self, number: int, microbatch: int) -> int:
        key = (number, microbatch)
        if key not in self.own:
            bundle = self.bundles[number]
            base = None if bundle.alias < 0 else self._base(bundle.alias, self.stage[bundle.maker], microbatch)
            name = f"{self._label(bundle.maker)}:{number}.{microbatch}"
            self.own[key] = self.build.tensor(bundle.nbytes, ROLES[bundle.role], name=name, alias_of=base)
        return self.own[key]

    def _base(self, tensor: int, stage: int, microbatch: int) -> int:
        if not self.old.is_made[tensor]:
            return self._resident(tensor, stage, microbatch)
        return self._made(self.first[tensor], microbatch)

    def _label(self, action: int) -> str:
        return f"{LETTERS[self.phase[action]]}{self.stage[action]}"


def _before(orders: Sequence[Sequence[Action]]) -> dict[Action, list[str]]:
    """The action before each on its device."""
    found: dict[Action, list[str]] = {}
    for order in orders:
        for earlier, later in pairwise(order):
            found[later] = [earlier.name]
    return found
