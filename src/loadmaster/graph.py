"""Graph: a computation as flat columns, and GraphBuilder, which makes one op by op."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.columns import Bools, Ints, digest, from_pairs, ints, inverse, ragged, rows_of
from loadmaster.errors import InvalidGraph

ROLES = ("activation", "weight", "input", "output", "state")
ACTIVATION, WEIGHT, INPUT, OUTPUT, STATE = range(5)

UNGIVEN, NOWHERE = -1, -2  # in time_ns

# Far above any real model, and low enough that sums over a graph stay inside int64.
MOST_BYTES = 2**50
MOST_FLOPS = 2**60
MOST_NS = 2**50
MOST_TOTAL = 2**62


@dataclass(frozen=True, eq=False)
class Graph:
    """A computation: ops in topological order, joined by the tensors they make and read."""

    name: str
    op_name: tuple[str, ...]  # [ops] unique; the importer's own name for it
    kind: tuple[str, ...]  # [ops] such as "aten.mm.default" or "Conv"
    dtype: tuple[str, ...]  # [ops] decides the arithmetic rate
    scope: tuple[str, ...]  # [ops] module path, "" when unknown
    source: tuple[str, ...]  # [ops] file:line, "" when unknown
    flops: Ints  # [ops]
    bytes_moved: Ints  # [ops] read and written
    workspace_bytes: Ints  # [ops] alive while the op runs
    colocate: Ints  # [ops] group that must share a device, or -1
    time_ns: Ints  # [ops, 0 or 1 or devices] given time; UNGIVEN: the cost model decides; NOWHERE: cannot run there
    after_start: Ints  # [ops + 1]
    after: Ints  # [afters] op i starts once after[after_start[i]:after_start[i + 1]] have ended
    make_start: Ints  # [ops + 1]
    makes: Ints  # [makes] tensors that op i makes
    read_start: Ints  # [ops + 1]
    reads: Ints  # [reads] tensors that op i reads, each once
    tensor_name: tuple[str, ...]  # [tensors]
    producer: Ints  # [tensors] op that makes it, or -1: an input or a weight
    nbytes: Ints  # [tensors]
    role: Ints  # [tensors] index into ROLES
    alias_of: Ints  # [tensors] tensor whose memory it shares, or -1
    shape: tuple[tuple[int, ...] | None, ...]  # [tensors]
    tensor_dtype: tuple[str, ...]  # [tensors] "" when unknown

    @property
    def num_ops(self) -> int:
        return len(self.op_name)

    @property
    def num_tensors(self) -> int:
        return len(self.nbytes)

    def reads_of(self, op: int) -> Ints:
        return self.reads[self.read_start[op] : self.read_start[op + 1]]

    def makes_of(self, op: int) -> Ints:
        return self.makes[self.make_start[op] : self.make_start[op + 1]]

    def after_of(self, op: int) -> Ints:
        return self.after[self.after_start[op] : self.after_start[op + 1]]

    def readers_of(self, tensor: int) -> Ints:
        start, ops = self.readers
        return ops[start[tensor] : start[tensor + 1]]

    @cached_property
    def readers(self) -> tuple[Ints, Ints]:
        """(start, ops): tensor t is read by ops[start[t]:start[t + 1]]."""
        return inverse(self.read_start, self.reads, self.num_tensors)

    @cached_property
    def owner(self) -> Ints:
        """[tensors] the tensor whose memory it lies in: itself unless it is an alias."""
        return owners(self.alias_of)

    @cached_property
    def is_view(self) -> Bools:
        """[ops] makes aliases only, with no flops and no time of its own."""
        alias = np.zeros(self.num_ops, np.int64)
        np.add.at(alias, rows_of(self.make_start), self.alias_of[self.makes] >= 0)
        made = np.diff(self.make_start)
        timed = (self.time_ns != UNGIVEN).any(axis=1) if self.time_ns.shape[1] else np.zeros(self.num_ops, bool)
        view: Bools = (made > 0) & (alias == made) & (self.flops == 0) & ~timed
        return view

    @cached_property
    def dependencies(self) -> tuple[Ints, Ints]:
        """(start, ops): op i waits for ops[start[i]:start[i + 1]], by data or by `after`; each once."""
        maker = self.producer[self.reads]
        made = maker >= 0
        rows = np.concatenate([rows_of(self.read_start)[made], rows_of(self.after_start)])
        return from_pairs(rows, np.concatenate([maker[made], self.after]), self.num_ops)

    @cached_property
    def digest(self) -> str:
        """Of all that matters to a plan: names, scopes and source lines are left out."""
        columns = (self.flops, self.bytes_moved, self.workspace_bytes, self.colocate, self.time_ns)
        wiring = (self.after_start, self.after, self.make_start, self.makes, self.read_start, self.reads)
        tensors = (self.producer, self.nbytes, self.role, self.alias_of)
        return digest("graph/1", self.kind, self.dtype, *columns, *wiring, *tensors)

    def __post_init__(self) -> None:
        start, before = self.dependencies
        late = before >= rows_of(start)
        if late.any():
            op = int(rows_of(start)[late.argmax()])
            raise InvalidGraph(
                f"op '{self.op_name[op]}' stands before an op it waits for", self.name, "use GraphBuilder"
            )

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {self.num_ops} ops, {self.num_tensors} tensors, {self.digest})"


@dataclass
class _Op:
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


class GraphBuilder:
    """Collects ops and tensors in any order, then checks them and makes a Graph.

    >>> g = GraphBuilder("tiny")
    >>> x, y = g.tensor(400, "input"), g.tensor(400, "output")
    >>> g.op("relu", "relu", [x], [y], flops=100)
    0
    >>> g.build().num_ops
    1
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._ops: list[_Op] = []
        self._names: list[str] = []
        self._nbytes: list[int] = []
        self._role: list[int] = []
        self._alias: list[int] = []
        self._shape: list[tuple[int, ...] | None] = []
        self._dtype: list[str] = []

    def tensor(
        self,
        nbytes: int,
        role: str = "activation",
        *,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: str = "",
        alias_of: int | None = None,
    ) -> int:
        """Adds a tensor and returns its index."""
        index = len(self._nbytes)
        label = str(index) if name is None else name
        if role not in ROLES:
            raise InvalidGraph(
                f"tensor '{label}' has unknown role '{role}'", self.name, f"use one of {', '.join(ROLES)}"
            )
        if alias_of is not None and alias_of < 0:
            raise InvalidGraph(f"tensor '{label}' is an alias of {alias_of}", self.name, "give the index of a tensor")
        self._names.append(label)
        self._nbytes.append(whole(nbytes, MOST_BYTES, f"bytes of tensor '{label}'", self.name))
        self._role.append(ROLES.index(role))
        self._alias.append(-1 if alias_of is None else alias_of)
        self._shape.append(None if shape is None else tuple(int(n) for n in shape))
        self._dtype.append(dtype)
        return index

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        *,
        flops: int = 0,
        scope: str = "",
        source: str = "",
        dtype: str = "float32",
        bytes_moved: int | None = None,
        workspace_bytes: int = 0,
        colocate: str | None = None,
        after: Sequence[str] = (),
        time_ns: int | Sequence[int | None] | None = None,
    ) -> int:
        """Adds an op and returns its index; `after` names ops that must end before it starts; a time of None in a
        list of times per device: it cannot run there."""
        whole(flops, MOST_FLOPS, f"flops of op '{name}'", self.name)
        whole(workspace_bytes, MOST_BYTES, f"workspace_bytes of op '{name}'", self.name)
        if bytes_moved is not None:
            whole(bytes_moved, MOST_BYTES, f"bytes_moved of op '{name}'", self.name)
        for time in time_ns if isinstance(time_ns, Sequence) else () if time_ns is None else (time_ns,):
            if time is not None:
                whole(time, MOST_NS, f"time_ns of op '{name}'", self.name)
        # Plain copies: a caller may go on changing its lists.
        reads, makes = tuple(dict.fromkeys(inputs)), tuple(outputs)
        self._ops.append(
            _Op(
                name,
                kind,
                reads,
                makes,
                flops,
                scope,
                source,
                dtype,
                bytes_moved,
                workspace_bytes,
                colocate,
                after,
                time_ns,
            )
        )
        return len(self._ops) - 1

    def build(self) -> Graph:
        """Checks everything, sorts the ops topologically (stable) and makes the Graph."""
        if not self._ops:
            raise InvalidGraph("the graph has no ops", self.name, "give at least one op")
        number = self._number_ops()
        producer = self._find_producers()
        self._check_tensors(producer)
        after = [self._resolve_after(op, number) for op in self._ops]
        order = self._sort(producer, after)
        return self._assemble(order, producer, after)

    def _number_ops(self) -> dict[str, int]:
        number: dict[str, int] = {}
        for index, op in enumerate(self._ops):
            if op.name in number:
                where = f"{self.name}: ops {number[op.name]} and {index}"
                raise InvalidGraph(f"two ops are called '{op.name}'", where, "give every op its own name")
            number[op.name] = index
        return number

    def _find_producers(self) -> list[int]:
        count = len(self._nbytes)
        producer = [-1] * count
        for index, op in enumerate(self._ops):
            for tensor in (*op.inputs, *op.outputs):
                if not 0 <= tensor < count:
                    raise InvalidGraph(
                        f"op '{op.name}' names tensor {tensor}, which does not exist", self.name, "declare it first"
                    )
            for tensor in op.outputs:
                if producer[tensor] >= 0:
                    both = f"'{self._ops[producer[tensor]].name}' and '{op.name}'"
                    raise InvalidGraph(
                        f"tensor '{self._names[tensor]}' is made twice, by {both}",
                        self.name,
                        "give each its own output",
                    )
                producer[tensor] = index
        return producer

    def _check_tensors(self, producer: list[int]) -> None:
        total = sum(self._nbytes)
        if total > MOST_TOTAL:
            raise InvalidGraph(f"the tensors add up to {total} bytes", self.name, "check the units of their sizes")
        seen = bytearray(len(self._alias))  # 1: its chain ends in an owner
        for tensor, role in enumerate(self._role):
            self._check_alias(tensor, seen)
            if producer[tensor] < 0 and role == ACTIVATION and self._alias[tensor] < 0:
                what = f"tensor '{self._names[tensor]}' is an activation that no op makes"
                raise InvalidGraph(
                    what, self.name, "give it the role input, weight or state, or list it in an op's outputs"
                )
            if producer[tensor] >= 0 and role == INPUT:
                what = (
                    f"tensor '{self._names[tensor]}' is an input, but op '{self._ops[producer[tensor]].name}' makes it"
                )
                raise InvalidGraph(what, self.name, "give it the role activation or output")

    def _check_alias(self, tensor: int, seen: bytearray) -> None:
        chain: list[int] = []
        here = tensor
        while here >= 0:
            if here >= len(self._alias):
                what = f"tensor '{self._names[chain[-1]]}' is an alias of {here}, which does not exist"
                raise InvalidGraph(what, self.name, "declare it")
            if seen[here]:
                break
            if here in chain[-64:] or len(chain) > len(self._alias):
                names = " -> ".join(self._names[link] for link in (*chain[-4:], here))
                raise InvalidGraph(f"aliases run in a circle: {names}", self.name, "one of them must own its memory")
            chain.append(here)
            here = self._alias[here]
        for link in chain:
            seen[link] = 1

    def _resolve_after(self, op: _Op, number: Mapping[str, int]) -> list[int]:
        resolved = []
        for name in dict.fromkeys(op.after):
            if name not in number:
                raise InvalidGraph(
                    f"op '{op.name}' comes after '{name}', which does not exist", self.name, "name an op of this graph"
                )
            resolved.append(number[name])
        return resolved

    def _sort(self, producer: list[int], after: list[list[int]]) -> list[int]:
        waits = [
            {self._real_producer(t, producer) for t in op.inputs}
            | ({self._real_producer(self._alias[t], producer) for t in op.outputs if self._alias[t] >= 0} - {index})
            | set(late)
            for index, (op, late) in enumerate(zip(self._ops, after, strict=True))
        ]
        for before in waits:
            before.discard(-1)
        if all(max(before, default=-1) < index for index, before in enumerate(waits)):
            return list(range(len(self._ops)))
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

    def _real_producer(self, tensor: int, producer: list[int]) -> int:
        """The op to wait for before the tensor may be read or overwritten: an alias that no op makes is its base."""
        while producer[tensor] < 0 and self._alias[tensor] >= 0:
            tensor = self._alias[tensor]
        return producer[tensor]

    def _circle(self, waits: list[set[int]], left: list[int]) -> str:
        here = next(index for index, count in enumerate(left) if count)
        path: dict[int, None] = {}  # in the order walked
        while here not in path:
            path[here] = None
            here = next(before for before in sorted(waits[here]) if left[before])
        circle = list(path)[list(path).index(here) :]
        names = [self._ops[op].name for op in (*circle, here)]
        return " <- ".join(f"'{name}'" for name in (names if len(names) < 8 else [*names[:6], "…", names[-1]]))

    def _default_bytes(self, op: _Op, owner: Ints) -> int:
        touched = (*op.inputs, *op.outputs)
        return sum(min(self._nbytes[t], self._nbytes[owner[t]]) for t in touched)

    def _given_times(self, ops: list[_Op]) -> Ints:
        widths = {len(op.time_ns) for op in ops if isinstance(op.time_ns, Sequence)}
        if len(widths) > 1:
            raise InvalidGraph(
                f"time_ns lists have lengths {sorted(widths)}",
                self.name,
                "give one time per device, for the same devices",
            )
        if not any(op.time_ns is not None for op in ops):
            return ints(np.zeros((len(ops), 0)))
        table = np.full((len(ops), max(widths, default=1)), UNGIVEN, np.int64)
        for row, op in enumerate(ops):
            if op.time_ns is not None:
                times = op.time_ns if isinstance(op.time_ns, Sequence) else [op.time_ns]
                table[row] = [NOWHERE if time is None else time for time in times]
        if float(table.sum(dtype=np.float64)) > MOST_TOTAL:
            raise InvalidGraph("the given times add up to more than a century", self.name, "check their units: time_ns")
        return ints(table)

    def _assemble(self, order: list[int], producer: list[int], after: list[list[int]]) -> Graph:
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        ops = [self._ops[index] for index in order]
        made_by = np.array(producer, np.int64)
        alias = np.array(self._alias, np.int64)
        owner = owners(alias)
        groups: dict[str, int] = {}
        after_start, after_ops = ragged(sorted(int(place[a]) for a in after[index]) for index in order)
        make_start, makes = ragged(op.outputs for op in ops)
        read_start, reads = ragged(op.inputs for op in ops)
        return Graph(
            name=self.name,
            op_name=tuple(op.name for op in ops),
            kind=tuple(op.kind for op in ops),
            dtype=tuple(op.dtype for op in ops),
            scope=tuple(op.scope for op in ops),
            source=tuple(op.source for op in ops),
            flops=ints([op.flops for op in ops]),
            bytes_moved=ints(
                [self._default_bytes(op, owner) if op.bytes_moved is None else op.bytes_moved for op in ops]
            ),
            workspace_bytes=ints([op.workspace_bytes for op in ops]),
            colocate=ints([-1 if op.colocate is None else groups.setdefault(op.colocate, len(groups)) for op in ops]),
            time_ns=self._given_times(ops),
            after_start=after_start,
            after=after_ops,
            make_start=make_start,
            makes=makes,
            read_start=read_start,
            reads=reads,
            tensor_name=tuple(self._names),
            producer=ints(np.where(made_by >= 0, place[made_by], -1)),
            nbytes=ints(self._nbytes),
            role=ints(self._role),
            alias_of=ints(alias),
            shape=tuple(self._shape),
            tensor_dtype=tuple(self._dtype),
        )


def owners(alias_of: Ints) -> Ints:
    """[tensors] the end of each chain of aliases."""
    owner = np.where(alias_of >= 0, alias_of, np.arange(len(alias_of)))
    while not np.array_equal(further := owner[owner], owner):
        owner = further
    return ints(owner)


def whole(value: object, most: int, what: str, where: str) -> int:
    """The value as an int, or the error that says it is not a sensible whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidGraph(f"{what} is {value!r}, not a whole number", where, "give a whole number")
    if value < 0:
        raise InvalidGraph(f"{what} is negative: {value}", where, "give a number of at least 0")
    if value > most:
        raise InvalidGraph(f"{what} is absurdly large: {value}", where, f"the most is {most}")
    return int(value)
