"""Groups of ops that belong together, for methods that place or learn on groups.

A partition into at most so many (`group_ops`), by one of five rules. They know the mirror of a training step: a
backward op belongs where its forward op is, and finds its position by the earliest forward op that it works on.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from loadmaster.errors import UnknownName
from loadmaster.graph.columns import Ints, ints, positions, rows_of
from loadmaster.passes import joining
from loadmaster.problem import Problem
from loadmaster.problem.remembering import LastFew

_MIRRORED: LastFew[Ints] = LastFew("mirrored", 1)  # many rules ask for them
_CHAINS: LastFew[Ints] = LastFew("chains", 1)


def mirrored_position(problem: Problem) -> Ints:
    """[ops] the index of a forward op; for an op after the turning point, that of the earliest forward op it works on.

    The turning point is where the most bytes are alive in program order: a training step saves until its loss.
    """
    return _MIRRORED.of(problem, None, lambda: _mirrored(problem))


def mirrored_order(problem: Problem) -> Ints:
    """Ops by mirrored position, then by index: a backward op beside its forward op."""
    return ints(np.lexsort((np.arange(problem.num_ops), mirrored_position(problem))))


def _mirrored(problem: Problem) -> Ints:
    graph = problem.graph
    turn = turning_point(problem)
    position: list[int] = list(range(problem.num_ops))
    maker, start = graph.producer[graph.reads].tolist(), graph.read_start.tolist()
    for op in range(turn + 1, problem.num_ops):
        found = [position[made] for made in maker[start[op] : start[op + 1]] if made >= 0]
        if found:
            position[op] = min(found)
        elif op:
            position[op] = position[op - 1]
    return ints(position)


def turning_point(problem: Problem) -> int:
    """The op at which the most made bytes are alive when ops run in program order."""
    graph = problem.graph
    last = np.array(graph.producer)
    np.maximum.at(last, graph.reads, rows_of(graph.read_start))
    made = graph.is_fresh & ~problem.stays
    change = np.zeros(problem.num_ops + 1, np.int64)
    np.add.at(change, graph.producer[made], graph.nbytes[made])
    np.add.at(change, last[made] + 1, -graph.nbytes[made])
    return int(np.cumsum(change)[:-1].argmax())


def scope_slots(problem: Problem) -> Ints:
    """[ops] number of its module in order of first use; an op of no module goes with what it reads, or the next op."""
    graph = problem.graph
    number = {scope: index for index, scope in enumerate(dict.fromkeys(s for s in graph.scope if s))}
    slot = [number.get(scope, -1) for scope in graph.scope]
    maker, start = graph.producer[graph.reads].tolist(), graph.read_start.tolist()
    for op in [op for op, known in enumerate(slot) if known < 0]:
        slot[op] = max((slot[made] for made in maker[start[op] : start[op + 1]] if made >= 0), default=-1)
    after = 0
    for op in reversed(range(problem.num_ops)):
        slot[op] = after = slot[op] if slot[op] >= 0 else after
    return ints(slot)


def sets_of(label: Ints) -> list[list[int]]:
    """The ops of each label."""
    order = np.argsort(label, kind="stable")
    edges = np.flatnonzero(np.diff(label[order], prepend=-1, append=-1)).tolist()
    ops = order.tolist()
    return [ops[low:high] for low, high in pairwise(edges)]


def join_single_readers(problem: Problem) -> Ints:
    """[ops] the op at the end of each op's chain of single readers."""
    return _CHAINS.of(problem, None, lambda: _ends_of_chains(problem))


def _ends_of_chains(problem: Problem) -> Ints:
    graph = problem.graph
    maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
    made = maker >= 0
    first, last = np.full(problem.num_ops, problem.num_ops), np.full(problem.num_ops, -1)
    np.minimum.at(first, maker[made], reader[made])
    np.maximum.at(last, maker[made], reader[made])
    only: list[int] = np.where(first == last, first, -1).tolist()
    label = list(range(problem.num_ops))
    for op in range(problem.num_ops - 1, -1, -1):
        if only[op] >= 0:
            label[op] = label[only[op]]
    return ints(label)


Grouper = Literal["edges", "readers", "scope", "window", "op"]
GROUPERS: tuple[Grouper, ...] = get_args(Grouper)


def group_ops(problem: Problem, most: int = 256, by: Grouper = "edges") -> Ints:
    """[ops] a group for each op, numbered along the program; at most `most`, except that "op" joins only colocated ops.

    edges: the heaviest tensors first join maker and readers, in groups of bounded time; readers: an op whose only
    reader is Y joins Y (Mirhoseini 2017); scope: the deepest module paths that are few enough; window: windows of the
    mirrored order of equal time, a backward op with its forward op. What is still too many is joined along the mirrored
    order.
    """
    if by not in GROUPERS:
        raise UnknownName.among("grouping", by, list(GROUPERS))
    label = {"edges": _by_edges, "readers": _by_readers, "scope": _by_scope, "window": _by_window, "op": _by_op}[by](
        problem, most
    )
    label = _with_colocation(problem, label)
    return _in_program_order(label if by == "op" else _few(problem, label, most))


def _by_op(problem: Problem, most: int) -> Ints:
    return ints(np.arange(problem.num_ops))


def _by_readers(problem: Problem, most: int) -> Ints:
    return join_single_readers(problem)


def _by_scope(problem: Problem, most: int) -> Ints:
    scopes = problem.graph.scope
    paths = {scope: scope.split(".") if scope else [] for scope in dict.fromkeys(scopes)}
    depth = max(map(len, paths.values()), default=0)
    while depth > 1 and len({tuple(path[:depth]) for path in paths.values()}) > most:
        depth -= 1
    names: dict[tuple[str, ...], int] = {}
    label = {scope: names.setdefault(tuple(path[:depth]), len(names)) for scope, path in paths.items()}
    return ints([label[scope] for scope in scopes])


def _by_window(problem: Problem, most: int) -> Ints:
    order = mirrored_order(problem)
    label = np.empty(problem.num_ops, np.int64)
    label[order] = _windows(problem.best_ns[order].astype(np.float64), most)
    return ints(label)


def _windows(weight: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """[n] windows 0 to most - 1 of about equal weight, along the way."""
    middle = np.cumsum(weight + 1e-9) - (weight + 1e-9) / 2
    windows: NDArray[np.int64] = np.minimum(most - 1, middle / middle[-1] * most * (1 - 1e-12)).astype(np.int64)
    return windows


def _by_edges(problem: Problem, most: int) -> Ints:
    graph = problem.graph
    reader, maker = rows_of(graph.read_start), graph.producer[graph.reads]
    inside = maker >= 0
    one, two, tensor = _sharers(problem)
    heavy = np.concatenate([problem.read_bytes[inside], graph.nbytes[tensor]])
    order = np.lexsort((np.arange(len(heavy)), -heavy))
    mate = _mates(problem)
    heads = np.concatenate([mate[0], np.concatenate([maker[inside], one])[order]])
    tails = np.concatenate([mate[1], np.concatenate([reader[inside], two])[order]])
    time = problem.best_ns.astype(np.float64) + 1
    return ints(joining.join_edges(ints(heads), ints(tails), len(mate[0]), time, most))


def _sharers(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Pairs of ops that read one resident tensor, each with the next, and the tensor."""
    graph = problem.graph
    there = problem.resident[graph.reads]
    tensor, reader = graph.reads[there], rows_of(graph.read_start)[there]
    order = np.lexsort((reader, tensor))
    same = tensor[order[1:]] == tensor[order[:-1]]
    return ints(reader[order[:-1]][same]), ints(reader[order[1:]][same]), ints(tensor[order[1:]][same])


def _mates(problem: Problem) -> tuple[Ints, Ints]:
    """Pairs of ops that must be together."""
    group = problem.graph.colocate
    members = np.flatnonzero(group >= 0)
    order = members[np.argsort(group[members], kind="stable")]
    same = group[order[1:]] == group[order[:-1]]
    return ints(order[:-1][same]), ints(order[1:][same])


def _with_colocation(problem: Problem, label: Ints) -> Ints:
    """The labels with those of colocated ops made one."""
    one, two = _mates(problem)
    if not len(one):
        return label
    _, together = connected_components(
        csr_array((np.ones(len(one)), (label[one], label[two])), shape=(label.max() + 1,) * 2), directed=False
    )
    return ints(together[label])


def _few(problem: Problem, label: Ints, most: int) -> Ints:
    """At most so many groups: neighbours in the mirrored order are joined, those of the least time first."""
    _, label = np.unique(label, return_inverse=True)
    count = int(label.max()) + 1
    if count <= most:
        return ints(label)
    place = np.bincount(label, mirrored_position(problem)) / np.bincount(label)
    order = np.lexsort((np.arange(count), place))
    time = np.bincount(label, problem.best_ns)[order].astype(np.float64)
    run = np.empty(count, np.int64)
    run[order] = joining.join_neighbours(time, most)
    return ints(run[label])


def _in_program_order(label: Ints) -> Ints:
    """Groups numbered by the mean place of their ops."""
    _, dense = np.unique(label, return_inverse=True)
    place = np.bincount(dense, np.arange(len(dense))) / np.bincount(dense)
    return ints(positions(np.lexsort((np.arange(len(place)), place)))[dense])
