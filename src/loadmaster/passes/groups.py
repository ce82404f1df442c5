"""Groups of ops that belong together, for methods that place or learn on groups.

A partition into at most so many (`group_ops`), by one of five rules. They know the mirror of a training step: a
backward op belongs where its forward op is, and finds its position by the earliest forward op that it works on.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from loadmaster.compiled import compiled
from loadmaster.errors import UnknownName
from loadmaster.graph.columns import Ints, ints, positions, rows_of
from loadmaster.problem import Problem
from loadmaster.problem.problem import LastFew

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
    return ints(join_edges(ints(heads), ints(tails), len(mate[0]), time, most))


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
    run[order] = join_neighbours(time, most)
    return ints(run[label])


def _in_program_order(label: Ints) -> Ints:
    """Groups numbered by the mean place of their ops."""
    _, dense = np.unique(label, return_inverse=True)
    place = np.bincount(dense, np.arange(len(dense))) / np.bincount(dense)
    return ints(positions(np.lexsort((np.arange(len(place)), place)))[dense])


# Compiled: groups of bounded time, grown along the heaviest edges or along chains of single readers.
# Union-find with a bound on what a group may take: at first half of an equal share of the time, then twice as much from
# round to round until there are few enough. Callers say which edges, and in which order.

ROUNDS = 6  # the bound on a group's time doubles from one to the next


@compiled
def join_edges(heads: Ints, tails: Ints, forced: int, time: NDArray[np.float64], most: int) -> Ints:
    """[ops] a label for each op. The first `forced` edges always join; the others in the order given, as long as both
    ends together take no more than a bound that starts at half an equal share of the time; until there are few enough.
    """
    count = len(time)
    parent = np.arange(count)
    load = time.copy()
    groups = count
    for at in range(forced):
        groups -= _join(parent, load, heads[at], tails[at], np.inf)
    bound = 0.5 * time.sum() / max(1, most)
    for _ in range(ROUNDS):
        for at in range(forced, len(heads)):
            if groups <= most:
                break
            groups -= _join(parent, load, heads[at], tails[at], bound)
        bound *= 2
    return np.array([_root(parent, op) for op in range(count)])


def join_neighbours(time: NDArray[np.float64], most: int) -> Ints:
    """[rows] runs of neighbouring rows, at most so many: the two runs that take the least together are joined first.
    In Python: 40,000 rows take a tenth of the time that numba takes to compile the loop with its heap."""
    count = len(time)
    load: list[float] = time.tolist()
    after, before, gone = list(range(1, count + 1)), list(range(-1, count - 1)), [False] * count
    heap = [(load[row] + load[row + 1], row, load[row], load[row + 1]) for row in range(count - 1)]
    heapq.heapify(heap)
    runs = count
    while runs > most:
        _, row, mine, theirs = heapq.heappop(heap)
        nearest = after[row]
        if gone[row] or nearest >= count or load[row] != mine or load[nearest] != theirs:
            continue  # one of the two has grown since
        load[row] += load[nearest]
        gone[nearest] = True
        after[row] = after[nearest]
        if after[row] < count:
            before[after[row]] = row
            heapq.heappush(heap, (load[row] + load[after[row]], row, load[row], load[after[row]]))
        if before[row] >= 0:
            heapq.heappush(heap, (load[before[row]] + load[row], before[row], load[before[row]], load[row]))
        runs -= 1
    return ints(np.cumsum(~np.array(gone)) - 1)


@compiled(_nrt=False)
def _root(parent: Ints, op: int) -> int:
    while parent[op] != op:
        parent[op] = parent[parent[op]]
        op = parent[op]
    return op


@compiled(_nrt=False)
def _join(parent: Ints, load: NDArray[np.float64], one: int, two: int, bound: float) -> int:
    """1 where two groups became one."""
    first, second = _root(parent, one), _root(parent, two)
    if first == second or load[first] + load[second] > bound:
        return 0
    low, high = min(first, second), max(first, second)
    parent[high] = low
    load[low] += load[high]
    return 1


@compiled
def join_in_a_row(before: Ints, later: Ints, time: Ints, colocate: Ints, able: Ints, most: float) -> Ints:
    """[ops] a label for each op. In each round a group may join the only group that follows it, or the only one it
    follows, where both can run on the same devices and together take at most so much time."""
    count = len(time)
    label, load = np.arange(count), time.astype(np.float64)
    for _ in range(ROUNDS):
        follower, maker = np.full(count, -1), np.full(count, -1)  # -2: several
        for at in range(len(before)):
            one, other = label[before[at]], label[later[at]]
            if one != other:
                follower[one] = other if follower[one] == -1 or follower[one] == other else -2
                maker[other] = one if maker[other] == -1 or maker[other] == one else -2
        into, taken, joined = np.arange(count), np.zeros(count, np.bool_), 0
        for op in range(count - 1, -1, -1):
            if label[op] != op or taken[op]:
                continue
            for mate in (follower[op], maker[op]):
                free = mate >= 0 and not taken[mate] and load[op] + load[mate] <= most and able[op] == able[mate]
                if free and (colocate[op] < 0 or colocate[op] == colocate[mate]):
                    into[op] = mate
                    load[mate] += load[op]
                    taken[op] = taken[mate] = True
                    joined += 1
                    break
        for op in range(count):
            label[op] = into[label[op]]
        if joined == 0:
            break
    return label
