"""List schedulers: ops one by one, each to the device where it starts or ends soonest.

One pass over the graph and no search: the usual start of searches. Variants keep clear of full devices (`memory`), or
count the time that a choice costs others on the links (`thrift`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.baselines.lists import earliest, loop
from loadmaster.compiled import compiled
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints, positions, rows_of
from loadmaster.graph.order import topological_order
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Search
from loadmaster.simulator import layout


@dataclass(frozen=True)
class Heft:
    """Heterogeneous earliest finish time (Topcuoglu, Hariri and Wu, 2002).

    Differs from the paper: transfers wait for their channel unless `contention` is off, a weight that is updated stays
    where it is first read and is sent to other readers, and colocation groups stay together.

    Attributes:
        contention: transfers wait for their channel; no: as in the paper.
        memory: keep clear of devices that are full.
        thrift: share of the time on links that a choice costs, by which it counts as later.
    """

    contention: bool = True
    memory: bool = False
    thrift: float = 0.0

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        level = upward_rank(problem)
        order = np.lexsort((np.arange(problem.num_ops), -level))
        return _in_order(problem, ints(order), no_device(problem), self.contention, self.memory, self.thrift)


@dataclass(frozen=True)
class Cpop:
    """Critical path on a processor (Topcuoglu, Hariri and Wu, 2002): the critical path on one device, the rest as in
    HEFT.

    Attributes:
        contention: transfers wait for their channel; no: as in the paper.
        memory: keep clear of devices that are full.
    """

    contention: bool = True
    memory: bool = False

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        up, down = upward_rank(problem), downward_rank(problem)
        mean = mean_times(problem)
        through = up + down - mean
        on_path = _one_longest_path(problem, through)
        fixed = no_device(problem).copy()
        total = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 100, problem.op_ns)[on_path].sum(axis=0)
        fixed[on_path] = total.argmin()
        order = ints(topological_order(*problem.graph.dependencies, ints(-through)))
        return _in_order(problem, order, ints(fixed), self.contention, self.memory)


@dataclass(frozen=True)
class Etf:
    """Earliest time first (Hwang, Chow, Anger and Lee, 1989): of all ready ops, the one that can start soonest.

    Ties by upward rank. Differs from the paper as Heft does. `favourite`: a device is kept for the child with the
    largest transfer of the op that just ran there, in the manner of small-communication-times scheduling (Hanen and
    Munier, 1995).

    Attributes:
        contention: transfers wait for their channel; no: as in the paper.
        memory: keep clear of devices that are full.
        favourite: keep a device for the child of the op that ran there with the largest transfer.
    """

    contention: bool = True
    memory: bool = False
    favourite: bool = False

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        level = upward_rank(problem)
        plain = layout(problem)
        limits = problem.memory_bytes if self.memory else ints(np.full(problem.num_devices, np.iinfo(np.int64).max))
        favourite = favourite_child(problem) if self.favourite else ints(np.full(problem.num_ops, -1))
        device, start = earliest.earliest_first(
            plain,
            *problem.graph.dependencies,
            fixed_reads(problem),
            problem.graph.colocate,
            np.ascontiguousarray(problem.able),
            level,
            favourite,
            limits,
            self.contention and problem.cluster.contention,
        )
        return _plan(problem, device, start, level)


def _one_longest_path(problem: Problem, through: Ints) -> list[int]:
    """One way through the graph on which every op has the largest upward and downward rank together."""
    graph, most = problem.graph, through.max() * (1 - 1e-6)
    path = [int(np.flatnonzero(through >= most)[0])]
    while True:
        readers = [int(reader) for tensor in graph.makes_of(path[-1]) for reader in graph.readers_of(int(tensor))]
        further = [reader for reader in readers if through[reader] >= most]
        if not further:
            return path
        path.append(min(further))


def _in_order(problem: Problem, order: Ints, fixed: Ints, contention: bool, memory: bool, thrift: float = 0.0) -> Plan:
    limits = problem.memory_bytes if memory else ints(np.full(problem.num_devices, np.iinfo(np.int64).max))
    device, start = loop.in_order(
        layout(problem),
        *problem.graph.dependencies,
        fixed_reads(problem),
        problem.graph.colocate,
        np.ascontiguousarray(problem.able),
        order,
        fixed,
        limits,
        contention and problem.cluster.contention,
        float(thrift),
    )
    return _plan(problem, device, start, upward_rank(problem))


def _plan(problem: Problem, device: Ints, start: Ints, level: Ints) -> Plan:
    """Ranks by planned start, then by level."""
    return Plan.of(problem, device, positions(np.lexsort((-level, start))))


def fixed_reads(problem: Problem) -> tuple[Ints, Ints]:
    """(start, tensors) the fixed residents each op reads: they cost memory where it runs, never time."""
    graph = problem.graph
    fixed = problem.is_fixed
    keep = fixed[graph.reads]
    count = np.zeros(problem.num_ops + 1, np.int64)
    np.cumsum(
        np.add.reduceat(np.append(keep, 0), graph.read_start[:-1]) * (np.diff(graph.read_start) > 0), out=count[1:]
    )
    return ints(count), ints(graph.reads[keep])


def no_device(problem: Problem) -> Ints:
    """[ops] -1: none of them is bound to a device."""
    return ints(np.full(problem.num_ops, -1))


def mean_times(problem: Problem) -> Ints:
    """[ops] time averaged over the devices that can run it."""
    able = problem.op_ns != CANNOT
    return ints(np.where(able, problem.op_ns, 0).sum(axis=1) // able.sum(axis=1))


def mean_sends(problem: Problem) -> Ints:
    """[tensors] time of a send averaged over all ordered pairs of two devices."""
    devices = problem.num_devices
    if devices == 1:
        return ints(np.zeros(problem.graph.num_tensors))
    classes = problem.send_class[~np.eye(devices, dtype=bool)]
    weight = np.bincount(classes, minlength=problem.send_ns.shape[1])
    return ints((problem.send_ns * weight).sum(axis=1) // len(classes))


def upward_rank(problem: Problem) -> Ints:
    """[ops] mean length of the longest way from the op's start to the end of the step, transfers included."""
    return longest_to_end(problem.graph, mean_times(problem), mean_sends(problem)[problem.graph.reads])


def downward_rank(problem: Problem) -> Ints:
    """[ops] mean length of the longest way from the start of the step to the op's end."""
    return longest_from_start(problem.graph, mean_times(problem), mean_sends(problem)[problem.graph.reads])


def critical_rank(problem: Problem, device: Ints) -> Ints:
    """[ops] ranks by the longest way to the end under this placement: the critical-path order."""
    times = ints(problem.op_ns[np.arange(problem.num_ops), device])
    level = longest_to_end(problem.graph, times, crossing_ns(problem, device))
    return positions(np.argsort(-level, kind="stable"))


def crossing_ns(problem: Problem, device: Ints) -> Ints:
    """[reads] how long each takes under a placement: what does not cross between devices takes no time."""
    graph = problem.graph
    if problem.num_devices == 1:
        return ints(np.zeros(len(graph.reads)))
    here, there = device[np.maximum(graph.producer[graph.reads], 0)], device[rows_of(graph.read_start)]
    crosses = (graph.producer[graph.reads] >= 0) & (here != there)
    return ints(np.where(crosses, problem.send_ns[graph.reads, problem.send_class[here, there]], 0))


def longest_to_end(graph: Graph, times: Ints, way_ns: Ints) -> Ints:
    """[ops] the longest way from the start of an op to the end of the step; `way_ns`: [reads] what each send takes."""
    level, maker = np.zeros(graph.num_ops, np.int64), graph.producer[graph.reads]
    _to_end(graph.read_start, maker, graph.after_start, graph.after, times, ints(way_ns), level)
    return ints(level)


def longest_from_start(graph: Graph, times: Ints, way_ns: Ints) -> Ints:
    """[ops] the longest way from the start of the step to the end of an op; `way_ns`: [reads] what each send takes."""
    level, maker = np.zeros(graph.num_ops, np.int64), graph.producer[graph.reads]
    _from_start(graph.read_start, maker, graph.after_start, graph.after, times, ints(way_ns), level)
    return ints(level)


@compiled(_nrt=False)
def _to_end(start: Ints, maker: Ints, after_start: Ints, after: Ints, times: Ints, way_ns: Ints, level: Ints) -> None:
    for op in range(len(level) - 1, -1, -1):
        level[op] += times[op]
        for at in range(start[op], start[op + 1]):
            if maker[at] >= 0:
                level[maker[at]] = max(level[maker[at]], level[op] + way_ns[at])
        for at in range(after_start[op], after_start[op + 1]):
            level[after[at]] = max(level[after[at]], level[op])


@compiled(_nrt=False)
def _from_start(
    start: Ints, maker: Ints, after_start: Ints, after: Ints, times: Ints, way_ns: Ints, level: Ints
) -> None:
    for op in range(len(level)):
        for at in range(start[op], start[op + 1]):
            if maker[at] >= 0:
                level[op] = max(level[op], level[maker[at]] + way_ns[at])
        for at in range(after_start[op], after_start[op + 1]):
            level[op] = max(level[op], level[after[at]])
        level[op] += times[op]


def favourite_child(problem: Problem) -> Ints:
    """[ops] the reader of its largest output with the highest upward rank, or -1."""
    graph, level = problem.graph, upward_rank(problem)
    start, readers = graph.readers
    tensor, child = rows_of(start), np.full(problem.num_ops, -1, np.int64)
    first = _first_of_each(tensor, -level[readers], graph.num_tensors)  # the highest
    largest = _first_of_each(rows_of(graph.make_start), -graph.nbytes[graph.makes], problem.num_ops)
    there = largest >= 0
    best = first[graph.makes[largest[there]]]
    child[there] = np.where(best >= 0, readers[best], -1) if len(readers) else -1
    return ints(child)


def _first_of_each(row: Ints, key: Ints, rows: int) -> Ints:
    """[rows] the place of the entry with the least key, of several the first; -1 where a row has none."""
    order = np.lexsort((np.arange(len(row)), key, row))
    place = np.full(rows, -1, np.int64)
    place[row[order][::-1]] = order[::-1]  # what is written last stays
    return ints(place)
