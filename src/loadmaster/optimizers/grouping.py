"""Groups of ops that belong together: one coarsening shared by all methods that move, place or learn on groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.columns import Ints, ints, ragged, rows_of
from loadmaster.problem import Problem


@dataclass(frozen=True, eq=False)
class Grouping:
    """Several ways to cut one problem into sets of ops, all in the same two columns."""

    start: Ints  # [groups + 1]
    ops: Ints  # group g is ops[start[g]:start[g + 1]]
    mirror: Ints  # [ops] position in the forward pass; a backward op has that of the forward op it belongs to
    by_mirror: Ints  # [ops] ops in order of mirror, then of index


def grouping(problem: Problem) -> Grouping:
    """Scopes of every depth, readers of one weight, chains with single readers; and the mirrored positions."""
    mirror = mirrored_position(problem)
    groups = [*scope_groups(problem), *weight_groups(problem), *chain_groups(problem)]
    unique = {tuple(group) for group in groups if 1 < len(group) < problem.num_ops}
    start, ops = ragged(sorted(unique))
    return Grouping(start, ops, mirror, ints(np.lexsort((np.arange(problem.num_ops), mirror))))


def mirrored_position(problem: Problem) -> Ints:
    """[ops] the index of a forward op; for an op after the turning point, that of the earliest forward op it works on.

    The turning point is where the most bytes are alive in program order: a training step saves until its loss.
    """
    graph = problem.graph
    turn = turning_point(problem)
    position = np.arange(problem.num_ops)
    maker = graph.producer[graph.reads]
    for op in range(turn + 1, problem.num_ops):
        makers = maker[graph.read_start[op] : graph.read_start[op + 1]]
        makers = makers[makers >= 0]
        if len(makers):
            position[op] = position[makers].min()
        elif op:
            position[op] = position[op - 1]
    return ints(position)


def turning_point(problem: Problem) -> int:
    """The op at which the most made bytes are alive when ops run in program order."""
    graph = problem.graph
    last = np.maximum(graph.producer, 0)
    np.maximum.at(last, graph.reads, rows_of(graph.read_start))
    made = (graph.producer >= 0) & (graph.alias_of < 0) & ~problem.stays
    change = np.zeros(problem.num_ops + 1, np.int64)
    np.add.at(change, graph.producer[made], graph.nbytes[made])
    np.add.at(change, last[made] + 1, -graph.nbytes[made])
    return int(np.cumsum(change)[:-1].argmax())


def scope_groups(problem: Problem) -> list[list[int]]:
    """Ops under each module path, whole and in part."""
    groups: dict[str, list[int]] = {}
    for op, scope in enumerate(problem.graph.scope):
        parts = scope.split(".") if scope else []
        for depth in range(1, len(parts) + 1):
            groups.setdefault(".".join(parts[:depth]), []).append(op)
    return list(groups.values())


def weight_groups(problem: Problem) -> list[list[int]]:
    """Readers of each resident tensor, with the op that updates it."""
    graph = problem.graph
    groups = []
    for tensor in np.flatnonzero(problem.resident).tolist():
        members = set(graph.readers_of(tensor).tolist())
        if problem.updater[tensor] >= 0:
            members.add(int(problem.updater[tensor]))
        if len(members) > 1:
            groups.append(sorted(members))
    return groups


def chain_groups(problem: Problem) -> list[list[int]]:
    """Runs of ops in which each but the last has one reader: an op whose only reader is Y joins Y (Mirhoseini 2017)."""
    label = join_single_readers(problem)
    order = np.argsort(label, kind="stable")
    edges = np.flatnonzero(np.diff(label[order])) + 1
    return [part.tolist() for part in np.split(order, edges)]


def join_single_readers(problem: Problem) -> Ints:
    """[ops] the op at the end of each op's chain of single readers."""
    graph = problem.graph
    label = np.arange(problem.num_ops)
    start, readers = graph.readers
    for op in range(problem.num_ops - 1, -1, -1):
        made = graph.makes_of(op)
        after = {int(r) for t in made for r in readers[start[t] : start[t + 1]]}
        if len(after) == 1:
            label[op] = label[after.pop()]
    return ints(label)
