"""Expansion: Problem to Problem, with the ops that a plan adds as ops like any other.

What is recomputed and what is offloaded is then judged by the rules that hold for every op: no rule knows of it. A stay
of what is there before the step counts as writing over it, so that by rule 7 it lives where the stay is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import Ints, from_pairs, ints, positions, rows_of, taken
from loadmaster.plans.additions import (
    Additions,
    check_additions,
    homes,
    overwriters,
    reads_with,
    returns,
    same_additions,
    statistics,
    updated_by,
)
from loadmaster.problem import Problem
from loadmaster.problem.problem import LastFew

if TYPE_CHECKING:
    from loadmaster.plans import Plan
    from loadmaster.problem.bounds import Sharing

STAY = "stay"  # the kind of an op that only keeps a tensor


@dataclass(frozen=True, eq=False)
class Expansion:
    """What an expanded problem was made from. Nodes are the ops of the graph, then the additions.

    Attributes:
        base: the problem without additions.
        added: what was added to it.
        node: [ops] of the expanded problem: the node it is.
        place: [nodes] its op in the expanded problem: `node` read the other way.
        tensor: [tensors] of the expanded problem: the tensor of the graph it is, or is a copy of.
    """

    base: Problem
    added: Additions
    node: Ints  # [ops]
    place: Ints  # [nodes]
    tensor: Ints  # [tensors]

    @property
    def addition(self) -> Ints:
        """[ops] number of the addition, -1 for an op of the graph."""
        return ints(np.maximum(self.node - self.base.num_ops, -1))

    @property
    def op(self) -> Ints:
        """[ops] the op of the graph that it runs, -1 for one that runs none."""
        return ints(np.concatenate([np.arange(self.base.num_ops), self.added.op])[self.node])


_REMEMBERED: LastFew[Problem] = LastFew("expanded", 4)


def whole(problem: Problem, plan: Plan) -> Problem:
    """The problem that the plan's columns are about: expanded by what the plan adds, the problem itself where that adds
    nothing or is what the problem has already. The last few are remembered, so asking again costs nothing."""
    if same_additions(problem.added, plan.added):
        return problem
    base = problem
    if problem.expansion is not None:
        base = replace(problem.expansion.base, objective=problem.objective, memory_bytes=problem.memory_bytes)
    return base if plan.added is None else expand(base, plan.added)


def keeps_to(problem: Problem, plan: Plan, sharing: Sharing) -> bool:
    """Whether the plan's kernels are such as may be shared, those with copies of ops too."""
    expansion = whole(problem, plan).expansion
    if expansion is None:
        return sharing.allows(problem.graph, plan.kernel)
    return sharing.allows_copies(expansion.base.graph, plan.kernel, expansion.op)


def expand(problem: Problem, added: Additions) -> Problem:
    """The problem with what is added; its last few are remembered. Refuses what would change what is computed."""
    if problem.expansion is not None:
        problem = problem.expansion.base
    if not len(added):
        return problem
    return _REMEMBERED.of(problem, added.digest, lambda: _expanded(problem, added))


def _expanded(problem: Problem, added: Additions) -> Problem:
    graph = problem.graph
    check_additions(graph, added)
    copies = _Copies.of(graph, added)
    rows, tensors, sizes = _reads(problem, added, copies)
    waits = _afters(graph, added)
    node = _numbered(graph, added, copies, rows, tensors, waits)
    place = positions(node)
    shape = _Shape(node, place, copies)
    return _priced(problem, added, shape, _graph(graph, added, shape, rows, tensors, waits), sizes)


@dataclass(frozen=True, eq=False)
class _Copies:
    """The tensors that additions make, after those of the graph."""

    maker: Ints  # [copies] addition
    tensor: Ints  # [copies] what it is a copy of
    number: dict[tuple[int, int], int]  # (addition, tensor of the graph) -> tensor

    @staticmethod
    def of(graph: Graph, added: Additions) -> _Copies:
        rows: list[tuple[int, int]] = []
        left = set(np.flatnonzero(statistics(graph)).tolist())
        for i, (op, tensor) in enumerate(zip(added.op.tolist(), added.tensor.tolist(), strict=True)):
            rows += [(i, t) for t in graph.makes_of(op).tolist() if t not in left] if op >= 0 else [(i, tensor)]
        maker, tensor = np.array(rows, np.int64).reshape(-1, 2).T
        number = {row: graph.num_tensors + at for at, row in enumerate(rows)}
        return _Copies(ints(maker), ints(tensor), number)


@dataclass(frozen=True, eq=False)
class _Shape:
    """The numbering of the expanded problem."""

    node: Ints
    place: Ints
    copies: _Copies


def _reads(problem: Problem, added: Additions, copies: _Copies) -> tuple[Ints, Ints, Ints]:
    """(node, tensor, bytes) of every read, copies where they are named."""
    graph = problem.graph
    rows, read, at = reads_with(graph, added)
    sizes = np.where(at >= 0, problem.read_bytes[at], 0)
    keys = rows * graph.num_tensors + read
    order = np.argsort(keys)
    wanted = added.reader * graph.num_tensors + added.read
    where = order[np.searchsorted(keys[order], wanted)]
    tensors = read.copy()
    pairs = zip(added.source.tolist(), added.read.tolist(), strict=True)
    tensors[where] = [copies.number[pair] for pair in pairs]
    return ints(rows), ints(tensors), ints(sizes)


def _afters(graph: Graph, added: Additions) -> tuple[Ints, Ints]:
    """(node, node it follows): an addition follows what its op follows, is followed by what overwrites after its op,
    and follows its own `after`. That random ops follow each other in one order does not bind copies."""
    later, earlier = rows_of(graph.after_start), graph.after
    ops, again = graph.num_ops, np.flatnonzero(added.op >= 0)
    parts = [(later, earlier)]
    writes = overwriters(graph)[later]
    for rows, values, copies_later in ((later, earlier, True), (earlier[writes], later[writes], False)):
        order = np.argsort(rows, kind="stable")
        low, high = (np.searchsorted(rows[order], added.op[again], side) for side in ("left", "right"))
        mates = np.concatenate([values[order[a:b]] for a, b in zip(low, high, strict=True)] or [ints([])])
        copies = ops + np.repeat(again, high - low)
        parts.append((copies, mates) if copies_later else (mates, copies))
    given = np.flatnonzero(added.after >= 0)
    parts.append((ops + given, added.after[given]))
    parts.append(_returns_last(graph, added))
    rows, values = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return ints(rows), ints(values)


def _returns_last(graph: Graph, added: Additions) -> tuple[Ints, Ints]:
    """(return, stay of the same tensor): what is brought home overwrites what the stays read."""
    home, back = homes(graph, added), returns(graph, added)
    later = {int(home[i]): i for i in np.flatnonzero(back)}
    pairs = [(later[int(home[i])], i) for i in np.flatnonzero((home >= 0) & ~back) if int(home[i]) in later]
    rows, values = np.array(pairs, np.int64).reshape(-1, 2).T
    return ints(graph.num_ops + rows), ints(graph.num_ops + values)


def _numbered(
    graph: Graph, added: Additions, copies: _Copies, rows: Ints, tensors: Ints, waits: tuple[Ints, Ints]
) -> Ints:
    """[ops] the nodes in an order in which each follows what it waits for: program order, an addition as late as it
    can be. Refuses additions that would wait for themselves."""
    ops, count = graph.num_ops, graph.num_ops + len(added)
    maker = np.concatenate([graph.producer, ops + copies.maker])[tensors]
    later = np.concatenate([rows[maker >= 0], waits[0]])
    earlier = np.concatenate([maker[maker >= 0], waits[1]])
    start, before = from_pairs(later, earlier, count)
    from loadmaster.graph.order import topological_order  # compiled: listing the zoo needs none of that

    wanted = np.full(count, 2 * ops + 1)
    wanted[:ops] = 2 * np.arange(ops) + 1
    _as_late_as_read(wanted, ops, later, earlier)
    order = topological_order(start, before, ints(wanted * (len(added) + 1) + np.maximum(np.arange(count) - ops, 0)))
    if len(order) < count:
        stuck = int(np.setdiff1d(np.arange(count), order).max())
        name = graph.op_name[stuck] if stuck < ops else f"addition {stuck - ops}"
        raise InvalidPlan(f"{name} would wait for itself", "added", "order each copy before its readers")
    return ints(order)


def _as_late_as_read(wanted: Ints, ops: int, later: Ints, earlier: Ints) -> None:
    """Additions go just before the first that follows them; those of a chain one after the other."""
    own = earlier >= ops
    pairs = sorted(zip(earlier[own].tolist(), later[own].tolist(), strict=True), reverse=True)
    for _ in range(2):  # additions mostly stand before those that read them; the order of the rest is as good
        for addition, follower in pairs:
            key = wanted[follower] - (follower < ops)
            wanted[addition] = min(wanted[addition], key)


def _graph(graph: Graph, added: Additions, shape: _Shape, rows: Ints, tensors: Ints, waits: tuple[Ints, Ints]) -> Graph:
    count, copies = len(shape.node), shape.copies
    of = np.concatenate([np.arange(graph.num_ops), _origin(graph, added)])[shape.node]  # [ops] whose columns it has
    stays = np.concatenate([np.zeros(graph.num_ops, bool), added.tensor >= 0])[shape.node]
    groups = np.where(added.op >= 0, graph.colocate[added.op], _colocated(graph, added))
    colocate = np.concatenate([graph.colocate, groups])
    order = np.argsort(shape.place[rows], kind="stable")
    read_start = _starts(shape.place[rows], count)
    after_start, after = from_pairs(shape.place[waits[0]], shape.place[waits[1]], count)
    made = np.flatnonzero(graph.is_made)
    makers = np.concatenate([graph.producer[made], graph.num_ops + copies.maker])
    makes = np.concatenate([made, graph.num_tensors + np.arange(len(copies.maker))])
    grouped = np.argsort(shape.place[makers], kind="stable")
    own = np.concatenate([np.arange(graph.num_tensors), copies.tensor])
    producer = np.concatenate([graph.producer, graph.num_ops + copies.maker])
    names = _names(graph, added)
    return replace(
        graph,
        op_name=tuple(names[node] for node in shape.node),
        kind=tuple(STAY if stay else graph.kind[op] for op, stay in zip(of.tolist(), stays.tolist(), strict=True)),
        dtype=taken(graph.dtype, of),
        scope=taken(graph.scope, of),
        source=taken(graph.source, of),
        flops=ints(np.where(stays, 1, graph.flops[of])),
        bytes_moved=ints(np.where(stays, 0, graph.bytes_moved[of])),
        workspace_bytes=ints(np.where(stays, 0, graph.workspace_bytes[of])),
        colocate=ints(colocate[shape.node]),
        time_ns=ints(np.zeros((count, 0))),
        after_start=after_start,
        after=after,
        make_start=_starts(shape.place[makers], count),
        makes=ints(makes[grouped]),
        read_start=read_start,
        reads=ints(tensors[order]),
        tensor_name=(*graph.tensor_name, *_copy_names(graph, added, copies, names)),
        producer=ints(np.where(producer >= 0, shape.place[producer], -1)),
        nbytes=ints(graph.nbytes[own]),
        role=_roles(graph, added, copies),
        alias_of=_aliases(graph, added, copies, rows, tensors),
        shape=taken(graph.shape, own),
        tensor_dtype=taken(graph.tensor_dtype, own),
    )


def _origin(graph: Graph, added: Additions) -> Ints:
    """[added] the op that runs again, that made what stays, or that is the first to read what was there before."""
    start, readers = graph.readers
    made = graph.producer[added.tensor]
    first = np.append(readers, 0)[start[added.tensor]]
    return ints(np.where(added.op >= 0, added.op, np.where(made >= 0, made, first)))


def _colocated(graph: Graph, added: Additions) -> Ints:
    """[added] a group for the stays of each tensor that is there before the step: it lives on one device."""
    home = homes(graph, added)
    return ints(np.where(home >= 0, int(graph.colocate.max(initial=-1)) + 1 + home, -1))


def _roles(graph: Graph, added: Additions, copies: _Copies) -> Ints:
    """[tensors and copies] what is brought home lives to the end there, as what was written would have."""
    own, made = graph.role.copy(), np.full(len(copies.maker), ACTIVATION)
    back = np.flatnonzero(returns(graph, added)[copies.maker])
    made[back] = graph.role[copies.tensor[back]]
    own[copies.tensor[back]] = ACTIVATION
    return ints(np.concatenate([own, made]))


def _aliases(graph: Graph, added: Additions, copies: _Copies, rows: Ints, tensors: Ints) -> Ints:
    """[tensors and copies] what each is written over in place: what updates a tensor that lives elsewhere overwrites
    the copy that it read."""
    own, updates = graph.alias_of.copy(), updated_by(graph)
    for root in np.unique(homes(graph, added)).tolist():
        if root >= 0 and updates[root] >= 0:
            read = tensors[rows == graph.producer[updates[root]]]
            stays = [copies.number[i, root] for i in np.flatnonzero(added.tensor == root).tolist()]
            own[updates[root]] = read[np.isin(read, stays)][0]
    return ints(np.concatenate([own, _stayed(graph, added, copies, rows, tensors)]))


def _stayed(graph: Graph, added: Additions, copies: _Copies, rows: Ints, tensors: Ints) -> Ints:
    """[copies] for that of a stay, the tensor it reads: it has no bytes of its own, and keeps those where it is. What
    is brought home lies where it was before."""
    alias = np.full(len(copies.maker), -1, np.int64)
    home, back = homes(graph, added)[copies.maker], returns(graph, added)[copies.maker]
    read_by = {int(row): int(tensor) for row, tensor in zip(rows, tensors, strict=True) if row >= graph.num_ops}
    for at in np.flatnonzero(added.tensor[copies.maker] >= 0).tolist():
        alias[at] = home[at] if back[at] else read_by[graph.num_ops + int(copies.maker[at])]
    return ints(alias)


def _starts(rows: Ints, count: int) -> Ints:
    return ints(np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]))


def _names(graph: Graph, added: Additions) -> list[str]:
    """[nodes] an op that runs again is "op.again", then "op.again2"; a stay is "tensor.stay"."""
    names, taken = list(graph.op_name), set(graph.op_name)
    for op, tensor in zip(added.op.tolist(), added.tensor.tolist(), strict=True):
        stem = f"{graph.op_name[op]}.again" if op >= 0 else f"{graph.tensor_name[tensor]}.stay"
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}{number}"
        taken.add(name)
        names.append(name)
    return names


def _copy_names(graph: Graph, added: Additions, copies: _Copies, names: list[str]) -> list[str]:
    suffix = [name.rpartition(".")[2] for name in names[graph.num_ops :]]
    return [f"{graph.tensor_name[t]}.{suffix[i]}" for i, t in zip(copies.maker.tolist(), copies.tensor, strict=True)]


def _priced(problem: Problem, added: Additions, shape: _Shape, graph: Graph, sizes: Ints) -> Problem:
    of = np.concatenate([np.arange(problem.num_ops), _origin(problem.graph, added)])[shape.node]
    stays = np.concatenate([np.zeros(problem.num_ops, bool), added.tensor >= 0])[shape.node]
    rows, _, _ = reads_with(problem.graph, added)
    tensor = np.concatenate([np.arange(problem.graph.num_tensors), shape.copies.tensor])
    free = stays[:, None]
    spread, asked = problem.spread_ns, problem.dispatch_ns
    return replace(
        problem,
        graph=graph,
        source_ops=ints(problem.source_ops[of]),
        heads=ints(np.arange(len(of))),
        tie=ints(np.arange(len(of))),
        op_ns=ints(np.where(free, 0, problem.op_ns[of])),
        compute_ns=ints(np.where(free, 0, problem.compute_ns[of])),
        fixed_ns=ints(np.where(free, 0, problem.fixed_ns[of])),
        traffic_bytes=ints(np.where(stays, 0, problem.traffic_bytes[of])),
        read_bytes=ints(sizes[np.argsort(shape.place[rows], kind="stable")]),
        send_ns=ints(problem.send_ns[tensor]),
        dispatch_ns=asked if not len(asked) else ints(np.where(stays, 0, asked[of])),
        spread_ns=spread if not spread.size else ints(np.where(free[None], 0, spread[:, of])),
        expansion=Expansion(problem, added, shape.node, shape.place, ints(tensor)),
    )
