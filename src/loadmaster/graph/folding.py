"""Folding: views and reshapes vanish into the tensor whose memory they show (rule 13 of the simulator).

In comes a graph as imported, in which a reshape is an op that makes an alias; out goes one whose ops all take time, and
whose tensors all own memory or are written in place. `price` calls it first, and keeps the way back
(`Problem.source_ops`). Two things must not be lost on the way: the bytes that an op really reads, which may be a slice
of what it names, and the order around writes in place, since whoever read a view waited for all that the view waited
for (`_Barrier`). Ops that overwrite one weight, state or input get one colocation group: rule 7 gives it one home.
What was folded is kept as long as the graph is: it is priced again for every cluster, batch or limit that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from loadmaster.graph import ACTIVATION, INPUT, OUTPUT, Graph
from loadmaster.graph.columns import Ints, ints, ragged, taken

Folded = tuple[Graph, Ints, Ints]

_known: WeakKeyDictionary[Graph, Folded] = WeakKeyDictionary()


def fold(graph: Graph) -> Folded:
    """(folded graph, its ops' indices in the given one, bytes read per read of the folded one).

    What remains: ops that cost something, tensors that own memory, and outputs written in place, whose
    `alias_of` is the tensor they overwrite. A tensor written in place has the bytes of its owner: that is what a send
    costs.
    """
    if not graph.is_alias.any():  # no views, nothing written in place
        return graph, ints(np.arange(graph.num_ops)), ints(graph.nbytes[graph.reads])
    if graph not in _known:
        _known[graph] = _folded(graph)
    return _known[graph]


def _folded(graph: Graph) -> Folded:
    base = bases(graph)
    keep_tensor = base == np.arange(graph.num_tensors)
    barrier = _barriers(graph, base)
    tensor_index = np.where(keep_tensor, np.cumsum(keep_tensor) - 1, -1)
    op_index = np.where(graph.is_view, -1, np.cumsum(~graph.is_view) - 1)
    ops = np.flatnonzero(~graph.is_view)
    reads, read_bytes = _reads(graph, base, ops)
    read_start, read_tensors = ragged(reads)
    afters = [_after_of(graph, int(op), base, barrier, op_index) for op in ops]
    after_start, after = ragged(afters)
    make_start, makes = ragged([tensor_index[t] for t in graph.makes_of(int(op)) if keep_tensor[t]] for op in ops)
    kept = np.flatnonzero(keep_tensor)
    alias = np.where(graph.is_alias[kept], base[graph.alias_of[kept]], -1)
    folded = replace(
        graph,
        op_name=taken(graph.op_name, ops),
        kind=taken(graph.kind, ops),
        dtype=taken(graph.dtype, ops),
        scope=taken(graph.scope, ops),
        source=taken(graph.source, ops),
        flops=ints(graph.flops[ops]),
        bytes_moved=ints(graph.bytes_moved[ops]),
        workspace_bytes=ints(graph.workspace_bytes[ops]),
        colocate=_merge_updaters(graph, ops),
        time_ns=ints(graph.time_ns[ops]),
        after_start=after_start,
        after=after,
        make_start=make_start,
        makes=makes,
        read_start=read_start,
        reads=ints(tensor_index[read_tensors]),
        tensor_name=taken(graph.tensor_name, kept),
        producer=ints(np.where(graph.is_made[kept], op_index[graph.producer[kept]], -1)),
        nbytes=ints(graph.nbytes[graph.owner[kept]]),
        role=_roles(graph, base)[kept],
        alias_of=ints(np.where(alias >= 0, tensor_index[alias], -1)),
        shape=taken(graph.shape, kept),
        tensor_dtype=taken(graph.tensor_dtype, kept),
    )
    return folded, ints(ops), ints([size for sizes in read_bytes for size in sizes])


def bases(graph: Graph) -> Ints:
    """[tensors] the nearest tensor down its chain of aliases that a view did not make."""
    made_by_view = ~graph.is_made | graph.is_view[graph.producer]
    made_with_base = graph.is_made & (graph.producer[graph.alias_of] == graph.producer)
    shown = graph.is_alias & (made_by_view | made_with_base)
    step = np.where(shown, graph.alias_of, np.arange(graph.num_tensors))
    while not np.array_equal(further := step[step], step):
        step = further
    return ints(step)


@dataclass
class _Barrier:
    """What must have ended before the result of a view may be read, its base's producer aside: real ops, and what other
    views wait for. Kept as a chain, since sets of all that long rows of views wait for would fill the memory."""

    ops: set[int]
    views: set[int]

    def wait_for(self, graph: Graph, op: int, base: Ints) -> None:
        """Adds an op, or a view and the makers of what it shows."""
        if not graph.is_view[op]:
            self.ops.add(op)
            return
        self.views.add(op)
        makers = graph.producer[base[graph.makes_of(op)]]
        self.ops.update(makers[makers >= 0].tolist())


def _barriers(graph: Graph, base: Ints) -> dict[int, _Barrier]:
    barriers: dict[int, _Barrier] = {}
    for view in np.flatnonzero(graph.is_view).tolist():
        barrier = barriers[view] = _Barrier(set(), set())
        shown = {int(base[t]) for t in graph.makes_of(view)}
        for tensor in graph.reads_of(view).tolist():
            maker = int(graph.producer[tensor])
            if maker >= 0 and graph.is_view[maker]:
                barrier.views.add(maker)
            real = int(graph.producer[base[tensor]])
            if int(base[tensor]) not in shown and real >= 0:
                barrier.ops.add(real)
        for earlier in graph.after_of(view).tolist():
            barrier.wait_for(graph, earlier, base)
        if len(barrier.views) == 1 and not barrier.ops:  # nothing of its own: the chain gets no longer
            barriers[view] = barriers[next(iter(barrier.views))]
    return barriers


def _after_of(graph: Graph, op: int, base: Ints, barriers: dict[int, _Barrier], op_index: Ints) -> list[int]:
    own = _Barrier(set(), set())
    for earlier in graph.after_of(op).tolist():
        own.wait_for(graph, earlier, base)
    for tensor in graph.reads_of(op).tolist():
        maker = int(graph.producer[tensor])
        if maker >= 0 and graph.is_view[maker]:
            own.views.add(maker)
    waits, seen, waiting = own.ops, set(own.views), list(own.views)
    while waiting:
        barrier = barriers[waiting.pop()]
        waits |= barrier.ops
        further = barrier.views - seen
        seen |= further
        waiting.extend(further)
    return sorted(int(op_index[earlier]) for earlier in waits)


def _reads(graph: Graph, base: Ints, ops: Ints) -> tuple[list[list[int]], list[list[int]]]:
    """Per op the bases it reads, each once, and the bytes it reads of them through whatever views."""
    size = np.minimum(graph.nbytes, graph.nbytes[graph.owner])
    reads, sizes = [], []
    for op in ops.tolist():
        of: dict[int, int] = {}
        for tensor in graph.reads_of(op).tolist():
            of[int(base[tensor])] = of.get(int(base[tensor]), 0) + int(size[tensor])
        for tensor in graph.makes_of(op).tolist():
            under = int(base[graph.alias_of[tensor]]) if graph.is_alias[tensor] else -1
            if under >= 0 and graph.producer[under] not in (-1, op):
                of.setdefault(under, 0)  # what is overwritten must be there
        reads.append(list(of))
        sizes.append(list(of.values()))
    return reads, sizes


def _roles(graph: Graph, base: Ints) -> Ints:
    """A base lives to the end if any view of it does, as an output or as the new value of a weight or state."""
    role = graph.role.copy()
    lasting = (graph.role != ACTIVATION) & (graph.role != INPUT)
    shown = base[lasting]
    role[shown[role[shown] == ACTIVATION]] = OUTPUT
    return ints(role)


def _merge_updaters(graph: Graph, ops: Ints) -> Ints:
    """[ops] colocation groups, where all ops that overwrite one weight, state or input are in one group."""
    group = graph.colocate[ops].copy()
    fresh = int(group.max(initial=-1)) + 1
    index = {int(op): i for i, op in enumerate(ops)}
    first: dict[int, int] = {}
    for tensor in np.flatnonzero(graph.is_alias).tolist():
        root, op = int(graph.owner[tensor]), index.get(int(graph.producer[tensor]), -1)
        if op < 0 or graph.is_made[root]:
            continue
        other = first.setdefault(root, op)
        if other == op:
            continue
        for member in (other, op):
            if group[member] < 0:
                group[member], fresh = fresh, fresh + 1
        group[group == group[op]] = group[other]
    return ints(group)
