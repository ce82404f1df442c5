"""GivenGraph: what a builder collected, checked as a whole, and the order in which its ops become rows.

Each number was checked as it came; here is what needs all of them: makers, aliases, names, totals, cycles. A graph that
was written by a program is in order already, which is seen at once; any other is sorted, of several ops that are ready
the one that was given first.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from loadmaster.errors import InvalidGraph
from loadmaster.graph.columns import ragged, rows_of
from loadmaster.graph.graph import ACTIVATION, INPUT, MOST_TOTAL


@dataclass(slots=True)
class GivenOp:
    """An op as `GraphBuilder.op` was given it; its fields are those arguments, checked one by one already."""

    name: str
    kind: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    flops: int
    scope: str
    source: str
    dtype: str
    bytes_moved: int | None
    workspace_bytes: int
    colocate: str | None
    after: Sequence[str]
    time_ns: int | Sequence[int | None] | None
    signature: str
    assumed: str = ""


@dataclass
class GivenGraph:
    """Ops and tensors by number, as a builder has them; its checks raise InvalidGraph with the first thing that is
    wrong, in the names that were given.

    Attributes:
        name: of the graph.
        ops: in the order in which they were added.
        names, nbytes, role, alias: of the tensors; -1 for what is no alias.
    """

    name: str
    ops: list[GivenOp]
    names: list[str]
    nbytes: list[int]
    role: list[int]
    alias: list[int]
    _real: dict[int, int] = field(default_factory=dict)  # the op to wait for, of aliases met so far

    def checked(self) -> tuple[list[int], list[list[int]], list[int]]:
        """(op that makes each tensor, ops that each comes after, the ops in topological order)."""
        if not self.ops:
            raise InvalidGraph("the graph has no ops", self.name, "give at least one op")
        number = self._number_ops()
        producer = self._find_producers()
        self._check_tensors(producer)
        after = [self._resolve_after(op, number) for op in self.ops]
        self._check_totals()
        return producer, after, self._sort(producer, after)

    def _number_ops(self) -> dict[str, int]:
        number: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            if op.name in number:
                where = f"{self.name}: ops {number[op.name]} and {index}"
                raise InvalidGraph(f"two ops are called '{op.name}'", where, "give every op its own name")
            number[op.name] = index
        return number

    def _find_producers(self) -> list[int]:
        count = len(self.nbytes)
        producer = [-1] * count
        for index, op in enumerate(self.ops):
            for tensor in (*op.inputs, *op.outputs):
                if not 0 <= tensor < count:
                    raise InvalidGraph(
                        f"op '{op.name}' names tensor {tensor}, which does not exist", self.name, "declare it first"
                    )
            for tensor in op.outputs:
                if producer[tensor] >= 0:
                    both = f"'{self.ops[producer[tensor]].name}' and '{op.name}'"
                    raise InvalidGraph(
                        f"tensor '{self.names[tensor]}' is made twice, by {both}",
                        self.name,
                        "give each its own output",
                    )
                producer[tensor] = index
        return producer

    def _check_tensors(self, producer: list[int]) -> None:
        total = sum(self.nbytes)
        if total > MOST_TOTAL:
            raise InvalidGraph(f"the tensors add up to {total} bytes", self.name, "check the units of their sizes")
        seen = bytearray(len(self.alias))  # 1: its chain ends in an owner
        for tensor, role in enumerate(self.role):
            self._check_alias(tensor, seen)
            if producer[tensor] < 0 and role == ACTIVATION and self.alias[tensor] < 0:
                what = f"tensor '{self.names[tensor]}' is an activation that no op makes"
                raise InvalidGraph(
                    what, self.name, "give it the role input, weight or state, or list it in an op's outputs"
                )
            if producer[tensor] >= 0 and role == INPUT:
                what = f"tensor '{self.names[tensor]}' is an input, but op '{self.ops[producer[tensor]].name}' makes it"
                raise InvalidGraph(what, self.name, "give it the role activation or output")

    def _check_totals(self) -> None:
        """Sums over the graph must stay whole numbers that fit."""
        for what in ("flops", "workspace_bytes", "bytes_moved"):
            total = sum(map(int, filter(None, map(attrgetter(what), self.ops))))
            if total > MOST_TOTAL:
                raise InvalidGraph(f"the {what} of all ops add up to {total}", self.name, "check their units")

    def _check_alias(self, tensor: int, seen: bytearray) -> None:
        chain: list[int] = []
        here = tensor
        while here >= 0:
            if here >= len(self.alias):
                what = f"tensor '{self.names[chain[-1]]}' is an alias of {here}, which does not exist"
                raise InvalidGraph(what, self.name, "declare it")
            if seen[here]:
                break
            if here in chain[-64:] or len(chain) > len(self.alias):
                names = " -> ".join(self.names[link] for link in (*chain[-4:], here))
                raise InvalidGraph(f"aliases run in a circle: {names}", self.name, "one of them must own its memory")
            chain.append(here)
            here = self.alias[here]
        for link in chain:
            seen[link] = 1

    def _resolve_after(self, op: GivenOp, number: Mapping[str, int]) -> list[int]:
        resolved: list[int] = []
        for name in dict.fromkeys(op.after) if op.after else ():
            if name not in number:
                raise InvalidGraph(
                    f"op '{op.name}' comes after '{name}', which does not exist", self.name, "name an op of this graph"
                )
            resolved.append(number[name])
        return resolved

    def _sort(self, producer: list[int], after: list[list[int]]) -> list[int]:
        if not any(after) and self._in_order(producer):
            return list(range(len(self.ops)))
        waits = [
            {self._real_producer(t, producer) for t in op.inputs}
            | ({self._real_producer(self.alias[t], producer) for t in op.outputs if self.alias[t] >= 0} - {index})
            | set(late)
            for index, (op, late) in enumerate(zip(self.ops, after, strict=True))
        ]
        for before in waits:
            before.discard(-1)
        if all(max(before, default=-1) < index for index, before in enumerate(waits)):
            return list(range(len(self.ops)))
        followers: list[list[int]] = [[] for _ in waits]
        for index, before in enumerate(waits):
            for earlier in before:
                followers[earlier].append(index)
        left = [len(before) for before in waits]
        ready = [index for index, count in enumerate(left) if not count]
        order = []
        while ready:
            op = heapq.heappop(ready)
            order.append(op)
            for follower in followers[op]:
                left[follower] -= 1
                if not left[follower]:
                    heapq.heappush(ready, follower)
        if len(order) < len(waits):
            raise InvalidGraph(
                f"ops wait for each other: {self._circle(waits, left)}", self.name, "a graph has no cycles"
            )
        return order

    def _in_order(self, producer: list[int]) -> bool:
        """Whether every op stands after the makers of what it reads, in a graph in which nothing is an alias. So do
        most that were written by a program, and looking at all of them at once is quick."""
        if max(self.alias, default=-1) >= 0:
            return False
        start, reads = ragged(op.inputs for op in self.ops)
        return bool((np.array(producer, np.int64)[reads] < rows_of(start)).all())

    def _real_producer(self, tensor: int, producer: list[int]) -> int:
        """The op to wait for before the tensor may be read or overwritten: an alias that no op makes is its base."""
        chain = []
        while producer[tensor] < 0 and self.alias[tensor] >= 0 and tensor not in self._real:
            chain.append(tensor)
            tensor = self.alias[tensor]
        real = self._real.get(tensor, producer[tensor])
        self._real.update(dict.fromkeys(chain, real))  # so that long chains are walked once
        return real

    def _circle(self, waits: list[set[int]], left: list[int]) -> str:
        here = next(index for index, count in enumerate(left) if count)
        path: dict[int, None] = {}  # in the order walked
        while here not in path:
            path[here] = None
            here = next(before for before in sorted(waits[here]) if left[before])
        circle = list(path)[list(path).index(here) :]
        names = [self.ops[op].name for op in (*circle, here)]
        return " <- ".join(f"'{name}'" for name in (names if len(names) < 8 else [*names[:6], "…", names[-1]]))
