"""What the recurrent placers read of a grouped problem: kinds, output shapes and wiring as published, and the rest.

"Published" features are the paper's; "full" ones add time, memory and links, which unlike devices need.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.learn.recurrent.seq2seq import Full, Scene
from loadmaster.papers.features import Features, Floats, device_class, features_of, group_features
from loadmaster.passes.groups import turning_point
from loadmaster.problem import CANNOT, Problem

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
KINDS = 32  # kinds of ops are hashed into so many
OUTPUTS, DIMS = 5, 5  # shapes of so many outputs, so many dimensions of each (HDP 2018)
SHAPES = OUTPUTS * DIMS


def kinds_of(problem: Problem) -> Ints:
    """[ops] the number of each op's kind, the same for the same word everywhere."""
    known = {kind: zlib.crc32(kind.encode()) % KINDS for kind in set(problem.graph.kind)}
    return ints([known[kind] for kind in problem.graph.kind])


def output_shapes(problem: Problem) -> NDArray[np.float64]:
    """[ops, SHAPES] dimensions of each op's first outputs, its bytes where they are unknown; 0 where there are none."""
    graph = problem.graph
    shapes = np.zeros((problem.num_ops, OUTPUTS, DIMS))
    for op in range(problem.num_ops):
        for row, tensor in enumerate(graph.makes_of(op)[:OUTPUTS].tolist()):
            known = graph.shape[tensor]
            dims = (int(graph.nbytes[tensor]),) if known is None else known[:DIMS]
            shapes[op, row, : len(dims)] = dims
    return shapes.reshape(problem.num_ops, SHAPES)


def totals(label: Ints, columns: NDArray[np.floating], count: int) -> NDArray[np.float64]:
    """[count, width] the rows of each group added up."""
    total = np.zeros((count, columns.shape[1]))
    np.add.at(total, label, columns)
    return total


def one_hot(values: Ints, width: int) -> NDArray[np.float64]:
    hot = np.zeros((len(values), width))
    hot[np.arange(len(values)), values] = 1
    return hot


def wires(problem: Problem, label: Ints) -> Ints:
    """[wires, 2] (group before, group after), each pair of two groups once."""
    start, before = problem.graph.dependencies
    pairs = np.unique(np.stack([label[before], label[rows_of(start)]], axis=1), axis=0)
    return ints(pairs[pairs[:, 0] != pairs[:, 1]])


def published_vectors(problem: Problem, label: Ints, most: int) -> Floats:
    """[groups, KINDS + SHAPES + 2 · most] counts of op kinds, summed output shapes, adjacency to and from.

    Counts and sums as logarithms: they go from one to millions.
    """
    count = int(label.max()) + 1
    kinds = np.log1p(totals(label, one_hot(kinds_of(problem), KINDS), count))
    shapes = np.log2(1 + totals(label, output_shapes(problem), count)) / 8
    beside = np.zeros((count, 2, most))
    before, after = wires(problem, label).T
    beside[after, 0, before] = 1
    beside[before, 1, after] = 1
    return np.concatenate([kinds, shapes, beside.reshape(count, -1)], axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Loads:
    """What placing a group costs, in shares of the step, of the memory and of a group's time.

    Attributes:
        send: [groups, devices, groups, devices] only from groups of lower number.
    """

    time: NDArray[np.float64]  # [groups, devices]
    held: NDArray[np.float64]  # [groups, devices]
    send: NDArray[np.float64]  # [groups, devices, groups, devices]


def loads_of(problem: Problem, label: Ints) -> Loads:
    count, devices = int(label.max()) + 1, problem.num_devices
    whole = max(1.0, float(problem.best_ns.sum()))
    slow = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 100, problem.op_ns)
    held = _held_bytes(problem, label, count)[:, None] / np.maximum(1, problem.memory_bytes)[None, :]
    return Loads(
        time=totals(label, slow, count) * devices / whole, held=held, send=_sends(problem, label, count) * count / whole
    )


def _held_bytes(problem: Problem, label: Ints, count: int) -> NDArray[np.float64]:
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


def _sends(problem: Problem, label: Ints, count: int) -> NDArray[np.float64]:
    """[groups, devices, groups, devices] ns of all sends between the two, each tensor once per reading group."""
    graph, devices = problem.graph, problem.num_devices
    maker = np.where(problem.resident, problem.updater, graph.producer)[graph.reads]
    made = maker >= 0
    rows = np.stack([label[maker[made]], label[rows_of(graph.read_start)[made]], graph.reads[made]], axis=1)
    rows = np.unique(rows[rows[:, 0] != rows[:, 1]], axis=0)
    low, high = rows[:, :2].min(axis=1), rows[:, :2].max(axis=1)
    apart = ~np.eye(devices, dtype=bool)
    sends = np.zeros((count, devices, count, devices))
    for kind in range(problem.send_ns.shape[1]):
        between = np.zeros((count, count))
        np.add.at(between, (low, high), np.maximum(0, problem.send_ns[rows[:, 2], kind]))
        sends += between[:, None, :, None] * ((problem.send_class == kind) & apart)[None, :, None, :]
    return sends


def scene_of(problem: Problem, label: Ints, most: int, full: bool) -> Scene:
    """The grouped problem as the placer reads it, with the published features alone or with all."""
    vectors = published_vectors(problem, label, most)
    count = len(vectors)
    able = torch.from_numpy(able_groups(problem, label, count))[None]
    if not full:
        return Scene(torch.from_numpy(vectors)[None], able)
    features = group_features(features_of(problem), label)
    every = np.concatenate([vectors, features.ops], axis=1)
    return Scene(torch.from_numpy(every)[None], able, full_of(problem, label, features))


def able_groups(problem: Problem, label: Ints, count: int) -> NDArray[np.bool_]:
    """[groups, devices] where every op of the group can run; everywhere, for a group that no device can run whole."""
    able: NDArray[np.bool_] = totals(label, (~problem.able).astype(np.float64), count) == 0
    able[~able.any(axis=1)] = True
    return able


def full_of(problem: Problem, label: Ints, features: Features) -> Full:
    loads = loads_of(problem, label)

    def floats(column: NDArray[np.floating]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(column, np.float32))

    return Full(
        devices=floats(features.devices),
        pairs=floats(features.pairs.reshape(features.num_ops, features.num_devices, -1)),
        send=floats(loads.send),
        load=floats(loads.time),
        held=floats(loads.held),
        twin=torch.from_numpy(_twins(problem)),
    )


def _twins(problem: Problem) -> NDArray[np.int64]:
    label = device_class(problem)
    lower = [[d for d in range(device) if label[d] == label[device]] for device in range(problem.num_devices)]
    return np.array([known[-1] if known else problem.num_devices for known in lower], np.int64)
