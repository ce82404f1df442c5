"""What Mirhoseini 2017 and HDP 2018 read of a problem: kinds of ops, output shapes and wiring, per op and per group.

`published_vectors` is exactly that. `cost_columns` is what the papers leave out: time on each device, memory and links.
"""

from __future__ import annotations

import heapq
import zlib

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.passes.groups import Grouper, group_ops, turning_point
from loadmaster.problem import CANNOT, Problem

Floats = NDArray[np.float64]

KINDS = (
    32  # kinds of ops are hashed into so many columns: the paper's vocabulary of TensorFlow's kinds does not fit all
)
OUTPUTS, DIMS = 5, 5  # shapes of so many outputs, so many dimensions of each (HDP 2018, released code)
SHAPES = OUTPUTS * DIMS


def kinds_of(problem: Problem) -> Ints:
    """[ops] the number of each op's kind, the same for the same word everywhere."""
    known = {kind: zlib.crc32(kind.encode()) % KINDS for kind in set(problem.graph.kind)}
    return ints([known[kind] for kind in problem.graph.kind])


def output_shapes(problem: Problem) -> Floats:
    """[ops, SHAPES] dimensions of each op's first outputs, its bytes where they are unknown; 0 where there are none."""
    graph = problem.graph
    shapes = np.zeros((problem.num_ops, OUTPUTS, DIMS))
    for op in range(problem.num_ops):
        for row, tensor in enumerate(graph.makes_of(op)[:OUTPUTS].tolist()):
            known = graph.shape[tensor]
            dims = (int(graph.nbytes[tensor]),) if known is None else known[:DIMS]
            shapes[op, row, : len(dims)] = dims
    return shapes.reshape(problem.num_ops, SHAPES)


def totals(label: Ints, columns: NDArray[np.generic], count: int) -> Floats:
    """[count, width] the rows of each group added up."""
    total = np.zeros((count, columns.shape[1]))
    np.add.at(total, label, columns)
    return total


def one_hot(values: Ints, width: int) -> Floats:
    hot = np.zeros((len(values), width))
    hot[np.arange(len(values)), values] = 1
    return hot


def groups_of(problem: Problem, most: int, by: Grouper = "scope") -> Ints:
    """[ops] the group of each; where a graph has no more modules than devices, heavy tensors join ops instead."""
    label = group_ops(problem, most, by)
    few = by == "scope" and label.max() < min(problem.num_ops - 1, problem.num_devices)
    return group_ops(problem, most, "edges") if few else label


def wires(problem: Problem, label: Ints) -> Ints:
    """[wires, 2] (group before, group after), each pair of two groups once."""
    start, before = problem.graph.dependencies
    pairs = np.unique(np.stack([label[before], label[rows_of(start)]], axis=1), axis=0)
    return ints(pairs[pairs[:, 0] != pairs[:, 1]])


def published_vectors(problem: Problem, label: Ints) -> Floats:
    """[groups, KINDS + SHAPES + 2 · groups] counts of kinds, summed output shapes, wires in and wires out.

    Counts and sums as logarithms, since they go from one to millions.
    """
    count = int(label.max()) + 1
    kinds = np.log1p(totals(label, one_hot(kinds_of(problem), KINDS), count))
    shapes = np.log2(1 + totals(label, output_shapes(problem), count)) / 8
    beside = np.zeros((count, 2, count))
    before, after = wires(problem, label).T
    beside[after, 0, before] = 1
    beside[before, 1, after] = 1
    return np.concatenate([kinds, shapes, beside.reshape(count, -1)], axis=1)


def able_groups(problem: Problem, label: Ints) -> NDArray[np.bool_]:
    """[groups, devices] where every op of the group can run; everywhere, for a group that no device can run whole."""
    count = int(label.max()) + 1
    able: NDArray[np.bool_] = totals(label, ~problem.able, count) == 0
    able[~able.any(axis=1)] = True
    return able


def cost_columns(problem: Problem, label: Ints) -> Floats:
    """[groups, 2 · devices + 2] time on each device, memory as a share of each device's, sends in and sends out.

    In units of the mean group's time; as logarithms, since groups differ by orders of magnitude.
    """
    count = int(label.max()) + 1
    unit = max(1.0, float(problem.best_ns.sum())) / count
    slow = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 100, problem.op_ns)
    held = _held_bytes(problem, label, count)[:, None] / np.maximum(1, problem.memory_bytes)[None, :]
    sends = _sent_ns(problem, label, count)
    return np.concatenate(
        [np.log2(1 + totals(label, slow, count) / unit), np.log2(1 + held * count), np.log2(1 + sends / unit)], axis=1
    )


def _held_bytes(problem: Problem, label: Ints, count: int) -> Floats:
    """[groups] weights and inputs that the group reads, and what of its making is alive where the most is."""
    graph, turn = problem.graph, turning_point(problem)
    reader = rows_of(graph.read_start)
    last = np.zeros(graph.num_tensors, np.int64)
    np.maximum.at(last, graph.reads, reader)
    there = problem.resident[graph.reads]
    pairs = np.unique(np.stack([label[reader[there]], graph.reads[there]], axis=1), axis=0)
    held = np.bincount(pairs[:, 0], graph.nbytes[pairs[:, 1]], count).astype(np.float64)
    alive = graph.is_fresh & (((graph.producer <= turn) & (last > turn)) | problem.stays)
    held += np.bincount(label[graph.producer[alive]], graph.nbytes[alive], count)
    return held


def _sent_ns(problem: Problem, label: Ints, count: int) -> Floats:
    """[groups, 2] time over the mean link of what the group reads from others, and of what others read from it."""
    graph = problem.graph
    maker = np.where(problem.resident, problem.updater, graph.producer)[graph.reads]
    made = maker >= 0
    rows = np.stack([label[maker[made]], label[rows_of(graph.read_start)[made]], graph.reads[made]], axis=1)
    rows = np.unique(rows[rows[:, 0] != rows[:, 1]], axis=0)
    ns = np.maximum(0, problem.send_ns[rows[:, 2]]).mean(axis=1) if len(rows) else np.zeros(0)
    return np.stack([np.bincount(rows[:, 1], ns, count), np.bincount(rows[:, 0], ns, count)], axis=1)


# ---------------------------------------------------------------- who comes before whom (Placeto 2019)


def edges_of(problem: Problem, label: Ints) -> Bools:
    """[groups, groups] the second waits for the first."""
    count = int(label.max()) + 1
    edges = np.zeros((count, count), bool)
    before, after = wires(problem, label).T
    edges[before, after] = True
    return edges


def relations(edges: Bools) -> Floats:
    """[3, groups, groups] ancestors, descendants and unrelated groups of each; one of a cycle is both of the first."""
    count = len(edges)
    reach = edges.copy()
    for _ in range(count.bit_length()):
        wider = reach | ((reach.astype(np.float32) @ reach.astype(np.float32)) > 0)
        if (wider == reach).all():
            break
        reach = wider
    apart = ~np.eye(count, dtype=bool)
    ancestor, descendant = reach.T & apart, reach & apart
    return np.stack([ancestor, descendant, apart & ~ancestor & ~descendant]).astype(np.float64)


def topological(edges: Bools) -> Ints:
    """Groups in an order that obeys the edges, lowest number first; groups that wait for each other by their number."""
    _, part = connected_components(coo_array(edges), connection="strong")
    count = len(edges)
    within = part[:, None] == part[None, :]
    waits = (edges & ~within).sum(axis=0)
    ready = [int(g) for g in np.flatnonzero(waits == 0)]
    heapq.heapify(ready)
    order = []
    while ready:
        group = heapq.heappop(ready)
        order.append(group)
        for after in np.flatnonzero(edges[group] & ~within[group]).tolist():
            waits[after] -= 1
            if not waits[after]:
                heapq.heappush(ready, after)
    assert len(order) == count, "edges between unlike parts make no cycle"
    return ints(order)
