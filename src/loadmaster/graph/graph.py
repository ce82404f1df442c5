"""Graph: a computation as flat columns, and GraphBuilder, which makes one op by op.

A graph of a real step has up to some hundred thousand ops, and a search looks at all of them thousands of times. So
there is no object per op: a column per property, whole numbers in int64, names beside them in tuples. What one op reads
or makes is a stretch of a longer column (a ragged column, as in compressed sparse rows).

Upper limits (`MOST_BYTES` and the others) are far above any real model, and low enough that sums over a graph stay
inside int64; the builder and `price` refuse what passes them, so that no loop below has to look for overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loadmaster.errors import InvalidGraph
from loadmaster.graph.columns import Bools, Ints, digest, flags, from_pairs, ints, inverse, rows_of

ROLES = ("activation", "weight", "input", "output", "state")
ACTIVATION, WEIGHT, INPUT, OUTPUT, STATE = range(5)

UNGIVEN, NOWHERE = -1, -2  # in time_ns
PIPELINE = "pipeline"  # in `captured`, and in the files of plans: how the step of a microbatch became a pipeline
SPLIT = ("splits", "sharding")  # in `captured`: ops in parts, or every op on every device

# Far above any real model, and low enough that sums over a graph stay inside int64.
MOST_BYTES = 2**50
MOST_FLOPS = 2**60
MOST_NS = 2**50  # 13 days: sums of 2**13 such times stay below 2**63
MOST_TOTAL = 2**62
MOST_DEVICES = 1024  # every pair of them has a link


@dataclass(frozen=True, eq=False)
class Graph:
    """A computation: ops in topological order, joined by the tensors they make and read.

    Columns in place of objects: op i is row i of every [ops] column, tensor t row t of every [tensors] one; what an op
    reads, makes or waits for lies in ragged columns (`reads_of(i)` is reads[read_start[i]:read_start[i + 1]]). All are
    read-only. `GraphBuilder` makes a graph, or another one from it.

    What always holds: no op waits for a later one, so that the rows are a program; a tensor has one maker or none; one
    with `alias_of` has no memory of its own, being a view of another tensor or that one written in place. Tensors that
    nobody makes are resident: weights, states and inputs are there before the step. Sizes are bytes, times whole ns.

    >>> from loadmaster import GraphBuilder
    >>> g = GraphBuilder("tiny")
    >>> x, w, y = g.tensor(400, "input"), g.tensor(80, "weight"), g.tensor(200, "output")
    >>> number = g.op("mm", "aten.mm.default", [x, w], [y], flops=4_000)
    >>> graph = g.build()
    >>> graph.num_ops, graph.reads_of(0).tolist(), graph.producer.tolist()
    (1, [0, 1], [-1, -1, 0])

    Attributes:
        name: what reports call it.
        op_name: [ops] unique; the importer's own name for it.
        kind: [ops] what it computes, such as "aten.mm.default" or "Conv"; `graph.kinds` reads these names.
        dtype: [ops] decides the arithmetic rate (`Device.rate`).
        scope: [ops] module path such as "layers.3.mlp", "" when unknown.
        source: [ops] file:line of the model's code, "" when unknown.
        flops: [ops] floating-point operations, a multiplication and an addition counted as two.
        bytes_moved: [ops] read and written.
        workspace_bytes: [ops] alive while the op runs (rule 8 of the simulator).
        colocate: [ops] number of the group that must share a device, or -1.
        time_ns: [ops, 0 or 1 or devices] given time; UNGIVEN: the cost model decides; NOWHERE: it cannot run there.
        after_start, after: [ops + 1], [afters] op i starts once after[after_start[i]:after_start[i + 1]] have ended,
            though it reads nothing of theirs.
        make_start, makes: [ops + 1], [makes] tensors that op i makes.
        read_start, reads: [ops + 1], [reads] tensors that op i reads, each once.
        tensor_name: [tensors]
        producer: [tensors] op that makes it, or -1: an input, a weight or a state.
        nbytes: [tensors]
        role: [tensors] index into ROLES; decides how long it lives (rules 7 and 8).
        alias_of: [tensors] tensor whose memory it shares, or -1.
        shape: [tensors] None when unknown.
        tensor_dtype: [tensors] "" when unknown.
        signature: by op name, where known: the call as text (name, shapes, strides, dtypes, attributes). Measured times
            go by it (`cost.Measured`).
        assumed: by op name, of ops of which the importer does not know all: "sizes" or "arithmetic".
        captured: how a torch model was captured: mode, optimizer, inputs, versions. Plan files carry it on, so that
            they can run.

    Raises:
        InvalidGraph: an op stands before one it waits for. Only code that fills the columns by hand can meet it.
    """

    name: str
    op_name: tuple[str, ...]  # [ops]
    kind: tuple[str, ...]  # [ops]
    dtype: tuple[str, ...]  # [ops]
    scope: tuple[str, ...]  # [ops]
    source: tuple[str, ...]  # [ops]
    flops: Ints  # [ops]
    bytes_moved: Ints  # [ops]
    workspace_bytes: Ints  # [ops]
    colocate: Ints  # [ops]
    time_ns: Ints  # [ops, 0 or 1 or devices]
    after_start: Ints  # [ops + 1]
    after: Ints  # [afters]
    make_start: Ints  # [ops + 1]
    makes: Ints  # [makes]
    read_start: Ints  # [ops + 1]
    reads: Ints  # [reads]
    tensor_name: tuple[str, ...]  # [tensors]
    producer: Ints  # [tensors]
    nbytes: Ints  # [tensors]
    role: Ints  # [tensors]
    alias_of: Ints  # [tensors]
    shape: tuple[tuple[int, ...] | None, ...]  # [tensors]
    tensor_dtype: tuple[str, ...]  # [tensors]
    signature: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    captured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_split(self) -> bool:
        """Its ops are parts of a model's, which could be split in other ways: their bound is none of the model's."""
        return any(key in self.captured for key in SPLIT)

    @property
    def is_pipeline(self) -> bool:
        """Its ops are stages of a pipeline at one microbatch each."""
        return PIPELINE in self.captured

    @property
    def num_ops(self) -> int:
        """Views included; `Problem.num_ops` is without them."""
        return len(self.op_name)

    @property
    def num_tensors(self) -> int:
        """Views and what is written in place included."""
        return len(self.nbytes)

    def reads_of(self, op: int) -> Ints:
        """Tensors that the op reads, each once."""
        return self.reads[self.read_start[op] : self.read_start[op + 1]]

    def makes_of(self, op: int) -> Ints:
        """Tensors that the op makes."""
        return self.makes[self.make_start[op] : self.make_start[op + 1]]

    def after_of(self, op: int) -> Ints:
        """Ops that must end before this one starts without giving it a tensor."""
        return self.after[self.after_start[op] : self.after_start[op + 1]]

    def readers_of(self, tensor: int) -> Ints:
        """Ops that read the tensor, in program order."""
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
    def is_made(self) -> Bools:
        """[tensors] an op makes it; the others are there before the step."""
        return flags(self.producer >= 0)

    @cached_property
    def is_alias(self) -> Bools:
        """[tensors] lies in the memory of another tensor."""
        return flags(self.alias_of >= 0)

    @cached_property
    def is_fresh(self) -> Bools:
        """[tensors] an op makes it, in memory of its own."""
        return flags(self.is_made & ~self.is_alias)

    @cached_property
    def is_in_place(self) -> Bools:
        """[tensors] an op makes it in the memory of another: without views, one that is written in place."""
        return flags(self.is_made & self.is_alias)

    @cached_property
    def is_base(self) -> Bools:
        """[tensors] another lies in its memory: without views, it is written over."""
        base = np.zeros(self.num_tensors, bool)
        base[self.alias_of[self.is_alias]] = True
        return flags(base)

    @cached_property
    def own_bytes(self) -> Ints:
        """[tensors] of memory that it adds: none where it is an alias."""
        return ints(np.where(self.is_alias, 0, self.nbytes))

    @cached_property
    def is_colocated(self) -> Bools:
        """[ops] is in a group that must share a device."""
        return flags(self.colocate >= 0)

    @cached_property
    def is_view(self) -> Bools:
        """[ops] makes aliases only, with no flops and no time of its own: rule 13 of the simulator folds it away."""
        alias = np.zeros(self.num_ops, np.int64)
        np.add.at(alias, rows_of(self.make_start), self.is_alias[self.makes])
        made = np.diff(self.make_start)
        timed = (self.time_ns != UNGIVEN).any(axis=1) if self.time_ns.shape[1] else np.zeros(self.num_ops, bool)
        view: Bools = (made > 0) & (alias == made) & (self.flops == 0) & ~timed
        return view

    @cached_property
    def dependencies(self) -> tuple[Ints, Ints]:
        """(start, ops): op i waits for ops[start[i]:start[i + 1]], by data or by `after`; each once."""
        maker, made = self.producer[self.reads], self.is_made[self.reads]
        rows = np.concatenate([rows_of(self.read_start)[made], rows_of(self.after_start)])
        return from_pairs(rows, np.concatenate([maker[made], self.after]), self.num_ops)

    @cached_property
    def digest(self) -> str:
        """Of all that matters to a plan: names, scopes and source lines are left out, so that the same model captured
        from another folder has the same digest. `Plan.graph_digest` holds it, and `check` compares."""
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


def owners(alias_of: Ints) -> Ints:
    """[tensors] the end of each chain of aliases."""
    owner = np.where(alias_of >= 0, alias_of, np.arange(len(alias_of)))
    while not np.array_equal(further := owner[owner], owner):
        owner = further
    return ints(owner)
