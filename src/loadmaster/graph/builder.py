"""GraphBuilder: makes a Graph op by op, in any order, and checks it.

Every importer ends here, and so does code that builds a graph by hand. Numbers are checked as they come (`whole`), what
needs the whole graph at `build`: makers, aliases, names, cycles, totals. The ops of the result stand in topological
order; ops that were given in a valid order keep it, so that the order of a program is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from loadmaster.errors import InvalidGraph
from loadmaster.graph.columns import Ints, ints, positions, ragged
from loadmaster.graph.given import GivenGraph, GivenOp
from loadmaster.graph.graph import (
    MOST_BYTES,
    MOST_DEVICES,
    MOST_FLOPS,
    MOST_NS,
    MOST_TOTAL,
    NOWHERE,
    ROLES,
    UNGIVEN,
    Graph,
    owners,
)

_ROLE = {role: number for number, role in enumerate(ROLES)}


class GraphBuilder:
    """Collects ops and tensors in any order, then checks them and makes a Graph.

    A tensor is declared once and gives a number; ops name the numbers they read and make. An op may be added before the
    op that makes what it reads: `build` sorts. A builder can be built more than once, with more added in between.

    >>> g = GraphBuilder("tiny")
    >>> x, y = g.tensor(400, "input"), g.tensor(400, "output")
    >>> g.op("relu", "relu", [x], [y], flops=100)
    0
    >>> g.build().num_ops
    1

    What is wrong is told in the names that were given:

    >>> z = g.tensor(400)
    >>> g.build()
    Traceback (most recent call last):
        ...
    loadmaster.errors.InvalidGraph: tensor '2' is an activation that no op makes
      where: tiny
      fix:   give it the role input, weight or state, or list it in an op's outputs

    Attributes:
        name: of the graph.
        captured: as `Graph.captured`; set by importers that know how the model was captured.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._ops: list[GivenOp] = []
        self._names: list[str] = []
        self._nbytes: list[int] = []
        self._role: list[int] = []
        self._alias: list[int] = []
        self._shape: list[tuple[int, ...] | None] = []
        self._dtype: list[str] = []
        self.captured: Mapping[str, Any] = {}  # as Graph.captured

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
        """Adds a tensor and returns its number.

        Args:
            nbytes: its size, at most 2^50.
            role: "activation", "weight", "input", "output" or "state" (of an optimizer, a cache). Outputs and states
                live to the end of the step, activations until their last reader; weights, inputs and states that no op
                makes are there before the step.
            name: as reports show it; its number by default.
            shape, dtype: where known; they are shown and written to files, and decide no time.
            alias_of: the tensor whose memory it shares, as a view of it or as that one written in place.

        Raises:
            InvalidGraph: an unknown role, a size that is negative, no whole number or beyond reason, an index that is
                none.
        """
        index = len(self._nbytes)
        label = str(index) if name is None else name
        if role not in _ROLE:
            raise InvalidGraph(
                f"tensor '{label}' has unknown role '{role}'", self.name, f"use one of {', '.join(ROLES)}"
            )
        if alias_of is not None and alias_of < 0:
            raise InvalidGraph(f"tensor '{label}' is an alias of {alias_of}", self.name, "give the index of a tensor")
        self._names.append(label)
        self._nbytes.append(whole(nbytes, MOST_BYTES, "bytes of tensor", label, self.name))
        self._role.append(_ROLE[role])
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
        signature: str = "",
        assumed: str = "",
    ) -> int:
        """Adds an op and returns its number.

        What it takes follows from `flops`, `dtype` and `bytes_moved` by a cost model, unless `time_ns` says it.

        Args:
            name: unique in the graph.
            kind: what it computes, as torch or ONNX call it: it decides what may be fused, and which efficiencies hold.
            inputs, outputs: numbers of tensors; what is read twice counts once.
            flops: floating-point operations.
            scope: its module path.
            source: where in the model's code it stands.
            dtype: decides the arithmetic rate.
            bytes_moved: by default all that it reads and writes.
            workspace_bytes: held while it runs, beside what it reads and makes.
            colocate: ops with the same word share a device.
            after: names of ops that must end before it starts, though it reads nothing of theirs.
            time_ns: one time for all devices or one for each, None where it cannot run; launch included.
            signature: its call as text, by which measured times are found.
            assumed: "sizes" or "arithmetic", where these are not known but taken from what is likely.

        Raises:
            InvalidGraph: a number that is negative, not whole, or beyond reason. All else is looked at by `build`.
        """
        whole(flops, MOST_FLOPS, "flops of op", name, self.name)
        whole(workspace_bytes, MOST_BYTES, "workspace_bytes of op", name, self.name)
        if bytes_moved is not None:
            whole(bytes_moved, MOST_BYTES, "bytes_moved of op", name, self.name)
        if time_ns is not None:
            for time in (time_ns,) if type(time_ns) is int or not isinstance(time_ns, Sequence) else time_ns:
                if time is not None:
                    whole(time, MOST_NS, "time_ns of op", name, self.name)
        # Plain copies: a caller may go on changing its lists.
        reads, makes = tuple(dict.fromkeys(inputs)), tuple(outputs)
        self._ops.append(
            GivenOp(
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
                signature,
                assumed,
            )
        )
        return len(self._ops) - 1

    def copy_op(self, graph: Graph, op: int, inputs: Sequence[int], outputs: Sequence[int], **given: Any) -> int:
        """Adds an op of another graph with all that is known of it but what it reads, makes and waits for; what is
        given beside that replaces it."""
        group = int(graph.colocate[op])
        known: dict[str, Any] = {
            "flops": int(graph.flops[op]),
            "scope": graph.scope[op],
            "source": graph.source[op],
            "dtype": graph.dtype[op],
            "bytes_moved": int(graph.bytes_moved[op]),
            "workspace_bytes": int(graph.workspace_bytes[op]),
            "colocate": None if group < 0 else str(group),
            "time_ns": _times_of(graph, op),
            "signature": graph.signature.get(graph.op_name[op], ""),
            "assumed": graph.assumed.get(graph.op_name[op], ""),
        }
        return self.op(graph.op_name[op], graph.kind[op], inputs, outputs, **(known | given))

    def copy_tensor(self, graph: Graph, tensor: int, alias_of: int | None, **given: Any) -> int:
        """Adds a tensor of another graph with all that is known of it but whose memory it shares; what is given beside
        that replaces it."""
        known: dict[str, Any] = {
            "nbytes": int(graph.nbytes[tensor]),
            "role": ROLES[graph.role[tensor]],
            "name": graph.tensor_name[tensor],
            "shape": graph.shape[tensor],
            "dtype": graph.tensor_dtype[tensor],
        }
        return self.tensor(**(known | given), alias_of=alias_of)

    @classmethod
    def of(cls, graph: Graph) -> GraphBuilder:
        """A builder that holds all of a graph, ops and tensors under their numbers, so that more can be added."""
        builder = cls(graph.name)
        builder.captured = graph.captured
        for tensor, alias in enumerate(graph.alias_of.tolist()):
            builder.copy_tensor(graph, tensor, None if alias < 0 else alias)
        for op in range(graph.num_ops):
            after = [graph.op_name[before] for before in graph.after_of(op)]
            builder.copy_op(graph, op, graph.reads_of(op).tolist(), graph.makes_of(op).tolist(), after=after)
        return builder

    def build(self) -> Graph:
        """Checks everything, sorts the ops topologically (stable) and makes the Graph.

        An op waits for the makers of what it reads, for its `after`, and, where it writes in place, for the maker of
        what it overwrites. Linear in what was added, but for a heap of the ops that are ready.

        Raises:
            InvalidGraph: the first thing that is wrong, in the names that were given: no ops at all, a name that two
                ops share, a tensor that does not exist, is made twice or never, an alias of itself, an `after` that
                names no op, a cycle (with the ops on it), lists of times of unlike lengths, totals beyond what 64 bits
                hold.
        """
        given = GivenGraph(self.name, self._ops, self._names, self._nbytes, self._role, self._alias)
        producer, after, order = given.checked()
        return self._assemble(order, producer, after)

    def _bytes_moved(
        self, ops: list[GivenOp], reading: tuple[Ints, Ints], making: tuple[Ints, Ints], owner: Ints
    ) -> Ints:
        """[ops] as given, else of all that an op reads and makes."""
        nbytes = np.array(self._nbytes, np.int64)
        size = np.minimum(nbytes, nbytes[owner])
        moved = [_row_sums(start, size[tensors]) for start, tensors in (reading, making)]
        given = [op.bytes_moved for op in ops]
        return ints(
            [each if own is None else own for own, each in zip(given, (moved[0] + moved[1]).tolist(), strict=True)]
        )

    def _given_times(self, ops: list[GivenOp]) -> Ints:
        lists = (op.time_ns for op in ops if op.time_ns is not None and type(op.time_ns) is not int)
        widths = {len(times) for times in lists if isinstance(times, Sequence)}
        if max(widths, default=0) > MOST_DEVICES:
            what = f"a time_ns list has {max(widths):,} entries"
            raise InvalidGraph(what, self.name, f"give one time per device, {MOST_DEVICES} at most")
        if len(widths) > 1:
            raise InvalidGraph(
                f"time_ns lists have lengths {sorted(widths)}",
                self.name,
                "give one time per device, for the same devices",
            )
        if not any(op.time_ns is not None for op in ops):
            return ints(np.zeros((len(ops), 0)))
        if not widths:
            flat = ints([UNGIVEN if op.time_ns is None else op.time_ns for op in ops])
            return self._checked_times(flat.reshape(-1, 1))
        table = np.full((len(ops), max(widths, default=1)), UNGIVEN, np.int64)
        for row, op in enumerate(ops):
            if op.time_ns is not None:
                times = op.time_ns if isinstance(op.time_ns, Sequence) else [op.time_ns]
                table[row] = [NOWHERE if time is None else time for time in times]
        return self._checked_times(table)

    def _checked_times(self, table: Ints) -> Ints:
        if float(table.sum(dtype=np.float64)) > MOST_TOTAL:
            raise InvalidGraph("the given times add up to more than a century", self.name, "check their units: time_ns")
        return ints(table)

    def _assemble(self, order: list[int], producer: list[int], after: list[list[int]]) -> Graph:
        place = positions(order)
        ops = list(map(self._ops.__getitem__, order))
        made_by = np.array(producer, np.int64)
        alias = np.array(self._alias, np.int64)
        owner = owners(alias)
        groups: dict[str, int] = {}
        after_start, after_ops = ragged(sorted(place[after[index]].tolist()) if after[index] else () for index in order)
        make_start, makes = ragged(op.outputs for op in ops)
        read_start, reads = ragged(op.inputs for op in ops)
        return Graph(
            name=self.name,
            op_name=tuple(map(attrgetter("name"), ops)),
            kind=tuple(map(attrgetter("kind"), ops)),
            dtype=tuple(map(attrgetter("dtype"), ops)),
            scope=tuple(map(attrgetter("scope"), ops)),
            source=tuple(map(attrgetter("source"), ops)),
            flops=ints(list(map(attrgetter("flops"), ops))),
            bytes_moved=self._bytes_moved(ops, (read_start, reads), (make_start, makes), owner),
            workspace_bytes=ints(list(map(attrgetter("workspace_bytes"), ops))),
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
            signature={op.name: op.signature for op in ops if op.signature},
            assumed={op.name: op.assumed for op in ops if op.assumed},
            captured=self.captured,
        )


def _times_of(graph: Graph, op: int) -> list[int | None] | int | None:
    """The given times of an op as `GraphBuilder.op` takes them."""
    row = graph.time_ns[op].tolist()
    if not row or row[0] == UNGIVEN:
        return None
    times = [None if time == NOWHERE else time for time in row]
    return row[0] if len(row) == 1 and times[0] is not None else times


def whole(value: object, most: int, what: str, whose: str, where: str) -> int:
    """The value as an int, or the error that says it is not a sensible whole number."""
    if type(value) is int and 0 <= value <= most:
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    what = f"{what} '{whose}'"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidGraph(f"{what} is {value!r}, not a whole number", where, "give a whole number")
    if value < 0:
        raise InvalidGraph(f"{what} is negative: {value}", where, "give a number of at least 0")
    if value > most:
        raise InvalidGraph(f"{what} is absurdly large: {value}", where, f"the most is {most}")
    return int(value)


def _row_sums(start: Ints, values: Ints) -> Ints:
    """Of each row of a ragged column. Sums of all rows together may pass the largest number and begin anew, which their
    differences do not show: no row passes it."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums[start[1:]] - sums[start[:-1]]
