"""What GO sees of a problem: features of groups, their times, sizes and traffic, and where simple rules put them.

Made once per problem; the network's batch pads several of them. Groups are those of `passes.groups`, at most as many as
the settings say; fusion is asked for op by op.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, from_pairs, ints, rows_of
from loadmaster.learn.go2020.candidates import CLASSES, SUMMARY_WIDTH, Candidates, candidates_of, class_of
from loadmaster.papers.features import Features, features_of, group_features
from loadmaster.passes.groups import group_ops
from loadmaster.problem import CANNOT, Problem

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GoInput:
    """One problem in numbers, group by group along the program.

    Attributes:
        label: [ops] group of each op.
        pairs: [groups, devices, PAIRS_WIDTH + CLASSES] the last: what each class of candidates says, in the mean.
        traffic: [edges] how long sending it takes, mean about 1.
        time: [groups, devices] share of an equal part of the whole.
        size: [groups] share of all bytes.
        capacity: [devices] memory as a share of all bytes.
        mirror: [groups] place in the mirrored order.
        single: [ops, OPS_WIDTH], or no rows where kernels are not asked for.
        kind: [ops] a number for each kind of op, or none.
        candidates: placements to choose from.
        candidate_groups: [candidates, groups] the device that has most of each group.
    """

    label: Ints  # [ops]
    ops: Floats  # [groups, OPS_WIDTH]
    devices: Floats  # [devices, DEVICES_WIDTH]
    pairs: Floats  # [groups, devices, PAIRS_WIDTH + CLASSES]
    able: NDArray[np.bool_]  # [groups, devices]
    graph: Floats  # [GRAPH_WIDTH]
    before: Ints  # [edges]
    after: Ints  # [edges]
    traffic: Floats  # [edges]
    time: Floats  # [groups, devices]
    size: Floats  # [groups]
    capacity: Floats  # [devices]
    mirror: Ints  # [groups]
    single: Floats  # [ops, OPS_WIDTH]
    kind: Ints  # [ops]
    candidates: Candidates
    candidate_groups: Ints  # [candidates, groups]

    @property
    def num_groups(self) -> int:
        return len(self.ops)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def there(self) -> NDArray[np.bool_]:
        return np.ones(self.num_groups, bool)

    @cached_property
    def neighbours(self) -> tuple[Ints, Ints]:
        """For each group, the groups it has an edge with, as a ragged column."""
        ends = np.concatenate([self.before, self.after]), np.concatenate([self.after, self.before])
        return from_pairs(ints(ends[0]), ints(ends[1]), self.num_groups)

    def candidate_shares(self, candidate: int) -> Floats:
        """[groups, devices] 1 where a candidate has most of each group."""
        return np.asarray(np.eye(self.num_devices, dtype=np.float32)[self.candidate_groups[candidate]])


def go_input(
    problem: Problem, groups: int, *, scopes: bool = True, kernels: bool = False, offered: bool = True
) -> GoInput:
    """The problem in at most that many groups; 0: every op by itself. `offered`: with placements to choose from."""
    features = features_of(problem) if scopes else features_of(problem).without_scopes()
    label = group_ops(problem, groups, "edges") if 0 < groups < problem.num_ops else group_ops(problem, by="op")
    coarse = group_features(features, label)
    count, devices = coarse.num_ops, problem.num_devices
    candidates = candidates_of(problem, features) if offered else no_candidates(problem)
    shares = np.zeros((len(candidates), count, devices), np.float32)
    for row, device in enumerate(map(ints, candidates.device)):
        shares[row] = group_shares(problem, label, device)
    said = np.stack([_mean(shares[class_of(candidates.slot) == number]) for number in range(CLASSES)], axis=2)
    pairs = np.concatenate([coarse.pairs.reshape(count, devices, -1), said], axis=2).astype(np.float32)
    size = group_bytes(problem, label, count)
    return GoInput(
        label=label,
        ops=coarse.ops,
        devices=coarse.devices,
        pairs=pairs,
        able=_able(problem, label, count),
        graph=coarse.graph,
        before=coarse.before,
        after=coarse.after,
        traffic=_traffic(problem, label, coarse),
        time=_times(problem, label, count),
        size=(size / size.sum()).astype(np.float32),
        capacity=np.minimum(16.0, problem.memory_bytes / size.sum()).astype(np.float32),
        mirror=coarse.mirror,
        single=features.ops if kernels else features.ops[:0],
        kind=ints(np.unique(np.array(problem.graph.kind), return_inverse=True)[1] if kernels else []),
        candidates=candidates,
        candidate_groups=ints(shares.argmax(axis=2)),
    )


def no_candidates(problem: Problem) -> Candidates:
    """Where devices are given: rules for them may take seconds on large graphs."""
    return Candidates(ints([]), np.zeros((0, problem.num_ops), np.uint8), np.zeros((0, SUMMARY_WIDTH), np.float32))


def _mean(shares: Floats) -> Floats:
    return shares.mean(axis=0) if len(shares) else np.zeros(shares.shape[1:], np.float32)


def group_shares(problem: Problem, label: Ints, device: Ints) -> Floats:
    """[groups, devices] the part of each group's time that the placement has on each device."""
    count = int(label.max()) + 1
    time = problem.best_ns + 1.0
    total = np.bincount(label * problem.num_devices + device, time, count * problem.num_devices)
    shares: Floats = (total.reshape(count, -1) / np.bincount(label, time, count)[:, None]).astype(np.float32)
    return shares


def group_bytes(problem: Problem, label: Ints, count: int) -> NDArray[np.float64]:
    """[groups] bytes that its ops make, and resident bytes where they are first read; at least 1."""
    graph = problem.graph
    own = graph.own_bytes
    made = graph.is_made
    total = np.bincount(label[graph.producer[made]], own[made], count)
    there = np.flatnonzero(problem.resident[graph.reads])
    tensors, first = np.unique(graph.reads[there], return_index=True)
    readers = rows_of(graph.read_start)[there[first]]
    return np.asarray(total + np.bincount(label[readers], own[tensors], count) + 1.0)


def _able(problem: Problem, label: Ints, count: int) -> NDArray[np.bool_]:
    """Where every member may run; everywhere, where no device can run them all: decoding moves the rest."""
    able = np.ones((count, problem.num_devices), bool)
    np.logical_and.at(able, label, problem.able)
    able[~able.any(axis=1)] = True
    return able


def _times(problem: Problem, label: Ints, count: int) -> Floats:
    time = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns).astype(np.float64)
    total = np.stack([np.bincount(label, column, count) for column in time.T], axis=1)
    return (total / max(1.0, float(problem.best_ns.sum())) * problem.num_devices).astype(np.float32)


def _traffic(problem: Problem, label: Ints, coarse: Features) -> Floats:
    """[edges] time to send what passes between the two groups, in means of all edges, as a square root."""
    graph, count = problem.graph, coarse.num_ops
    reader, maker = rows_of(graph.read_start), graph.producer[graph.reads]
    made = maker >= 0
    cost = np.maximum(problem.send_ns, 0).max(axis=1).astype(np.float64) if problem.send_ns.size else np.zeros(0)
    if not cost.size or not made.any():  # groups may wait for each other without any tensor
        return np.ones(len(coarse.before), np.float32)
    key = label[maker[made]] * count + label[reader[made]]
    names, where = np.unique(key, return_inverse=True)
    total = np.bincount(where, cost[graph.reads[made]], len(names))
    at = np.searchsorted(names, coarse.before * count + coarse.after)
    known = (at < len(names)) & (names[np.minimum(at, len(names) - 1)] == coarse.before * count + coarse.after)
    sent = np.where(known, total[np.minimum(at, len(names) - 1)], 0.0)
    return np.sqrt((sent + 1.0) / (sent.mean() + 1.0 if len(sent) else 1.0)).clip(0, 8).astype(np.float32)


def group_majority(problem: Problem, label: Ints, device: Ints) -> Ints:
    """[groups] the device that has most of each group's time."""
    return ints(group_shares(problem, label, device).argmax(axis=1))
