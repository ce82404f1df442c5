"""What Placeto walks over: the groups of a problem in numbers, who comes before whom, and what moving data costs.

No column names a device: equal devices look equal, so that a policy cannot prefer one by its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.lists.schedulers import downward_rank, mean_sends, upward_rank
from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.papers.grouped import edges_of, relations, topological
from loadmaster.passes.groups import Grouper, group_ops
from loadmaster.problem import CANNOT, Problem

Traversal = Literal["topological", "reverse", "random"]
TRAVERSALS: tuple[Traversal, ...] = ("topological", "reverse", "random")
Floats = NDArray[np.float64]

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
GROUPS_WIDTH, DEVICES_WIDTH, GRAPH_WIDTH = 12, 3, 5
MOST_JOINED = 64  # groups by tensors: more of them are harder to place well
ANCESTORS, DESCENDANTS, UNRELATED = range(3)


@dataclass(frozen=True, eq=False)
class Board:
    """One problem, seen by groups. Times are in units of the mean group's time on its best device.

    Attributes:
        time: [groups, devices] all members one after the other.
        need: [groups] bytes that hang on the group.
        memory: [devices] bytes.
        edges: [groups, groups] the second waits for the first.
        tie: [groups, groups] typical time of sending what the first makes for the second.
        wire: [groups, groups, classes + 1] that time over each class of links; the last: on one device, free.
        link: [devices, devices] class of each link.
        related: [3, groups, groups] 1 where the second is an ancestor, a descendant, unrelated to the first.
        order: [groups] topological.
    """

    groups: Floats  # [groups, GROUPS_WIDTH]
    devices: Floats  # [devices, DEVICES_WIDTH]
    graph: Floats  # [GRAPH_WIDTH]
    time: Floats  # [groups, devices]
    able: Bools  # [groups, devices]
    need: Floats  # [groups]
    memory: Floats  # [devices]
    edges: Bools  # [groups, groups]
    tie: Floats  # [groups, groups]
    wire: Floats  # [groups, groups, classes + 1]
    link: Ints  # [devices, devices]
    related: Floats  # [3, groups, groups]
    order: Ints  # [groups]

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    @property
    def num_devices(self) -> int:
        return len(self.devices)


def board_of(problem: Problem, label: Ints) -> Board:
    """The board of a problem whose op i belongs to group label[i]."""
    count = int(label.max()) + 1
    edges = edges_of(problem, label)
    time, able = _times(problem, label, count)
    unit = max(1.0, float(np.bincount(label, problem.best_ns, count).mean()))
    wire, link = _wires(problem, label, count)
    tie = np.zeros((count, count))
    np.add.at(tie, *_sent(problem, label, mean_sends(problem)))
    need = _need(problem, label, count)
    related = relations(edges)
    times, ties = time / unit, tie / unit
    return Board(
        groups=_group_columns(problem, label, times, ties, need, edges, related),
        devices=_device_columns(problem, times, need),
        graph=_graph_columns(problem, times, ties, need),
        time=times,
        able=able,
        need=need,
        memory=np.maximum(1.0, problem.memory_bytes.astype(np.float64)),
        edges=edges,
        tie=ties,
        wire=wire / unit,
        link=link,
        related=related,
        order=topological(edges),
    )


def groups_of(problem: Problem, most: int = 128, by: Grouper = "scope") -> Ints:
    """[ops] the shared coarsening; where scopes are no more than devices, heavy tensors join ops instead."""
    label = group_ops(problem, most, by)
    if by == "scope" and int(label.max()) + 1 <= min(problem.num_ops - 1, problem.num_devices):
        return group_ops(problem, min(most, MOST_JOINED), "edges")
    return label


def squeezed(values: Floats) -> Floats:
    """Small numbers nearly as they are, large ones by their logarithm; the sign stays."""
    return np.asarray(np.sign(values) * np.log2(1 + np.abs(values)) / 4)


def visits(board: Board, traversal: Traversal, rng: np.random.Generator) -> Ints:
    """[groups] the order in which an episode comes to the groups."""
    if traversal == "random":
        return ints(rng.permutation(board.num_groups))
    return board.order if traversal == "topological" else ints(board.order[::-1])


def group_start(problem: Problem, label: Ints, device: Ints) -> Ints:
    """[groups] where most of each group's time is under a placement of ops."""
    count = int(label.max()) + 1
    held = np.zeros((count, problem.num_devices))
    np.add.at(held, (label, device), problem.best_ns + 1.0)
    return ints(held.argmax(axis=1))


def _times(problem: Problem, label: Ints, count: int) -> tuple[Floats, Bools]:
    can = problem.able
    time = np.zeros((count, problem.num_devices))
    np.add.at(time, label, np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns))
    cannot = np.zeros((count, problem.num_devices), np.int64)
    np.add.at(cannot, label, ~can)
    able = cannot == 0
    able[~able.any(axis=1)] = True  # members with no device in common are moved apart when the plan is made
    return time, able


def _pairs(problem: Problem, label: Ints) -> tuple[Ints, Ints, Ints]:
    """(maker's group, reader's group, tensor), each once: what is sent where the two groups lie apart."""
    graph = problem.graph
    tensor, reader = graph.reads, label[rows_of(graph.read_start)]
    home = np.where(problem.resident, problem.updater, graph.producer)[tensor]
    there = home >= 0
    maker = label[home[there]]
    triples = np.unique(np.stack([maker, reader[there], tensor[there]], axis=1), axis=0)
    triples = triples[triples[:, 0] != triples[:, 1]]
    return ints(triples[:, 0]), ints(triples[:, 1]), ints(triples[:, 2])


def _sent(problem: Problem, label: Ints, per_tensor: NDArray[np.integer]) -> tuple[tuple[Ints, Ints], Floats]:
    maker, reader, tensor = _pairs(problem, label)
    return (maker, reader), np.maximum(per_tensor[tensor], 0).astype(np.float64)


def _wires(problem: Problem, label: Ints, count: int) -> tuple[Floats, Ints]:
    classes = problem.send_ns.shape[1] if problem.send_ns.ndim > 1 else 0
    wire = np.zeros((count, count, classes + 1))
    for number in range(classes):
        where, sent_ns = _sent(problem, label, problem.send_ns[:, number])
        np.add.at(wire[:, :, number], where, sent_ns)
    link = problem.send_class.copy()
    np.fill_diagonal(link, classes)
    return wire, ints(link)


def _need(problem: Problem, label: Ints, count: int) -> Floats:
    """Made bytes, and resident ones where they are first read."""
    graph = problem.graph
    nbytes = graph.own_bytes.astype(np.float64)
    made = graph.is_made
    need = np.bincount(label[graph.producer[made]], nbytes[made], count)
    there = problem.resident[graph.reads]
    tensor, first = np.unique(graph.reads[there], return_index=True)
    reader = label[rows_of(graph.read_start)[there][first]]
    return np.asarray(need + np.bincount(reader, nbytes[tensor], count))


def _group_columns(
    problem: Problem, label: Ints, time: Floats, tie: Floats, need: Floats, edges: Bools, related: Floats
) -> Floats:
    count = len(time)
    down, up = downward_rank(problem).astype(np.float64), upward_rank(problem).astype(np.float64)
    path = max(1.0, float(down.max()))
    start, end, tail = np.full(count, np.inf), np.zeros(count), np.zeros(count)
    np.minimum.at(start, label, down - problem.best_ns)
    np.maximum.at(end, label, down)
    np.maximum.at(tail, label, up)
    best = time.min(axis=1)
    members = np.bincount(label, minlength=count)
    columns = [
        squeezed(best),
        squeezed(tie.sum(axis=1)),
        squeezed(tie.sum(axis=0)),
        np.clip(start / path, 0, 1),
        end / path,
        tail / max(1.0, float(up.max())),
        squeezed(need / max(1.0, need.mean())),
        squeezed(members / members.mean()),
        related[UNRELATED] @ best / max(1e-9, best.sum()),
        np.log2(1 + edges.sum(axis=0)) / 4,
        np.log2(1 + edges.sum(axis=1)) / 4,
        related[DESCENDANTS].sum(axis=1) / count,
    ]
    return np.asarray(np.minimum(np.stack(columns, axis=1), 8.0))


def _device_columns(problem: Problem, time: Floats, need: Floats) -> Floats:
    total = time.sum(axis=0) + 1e-9
    count = problem.num_devices
    sends = (
        np.maximum(problem.send_ns, 0).mean(axis=0)
        if len(problem.send_ns)
        else np.zeros(int(problem.send_class.max()) + 1)
    )
    apart = ~np.eye(count, dtype=bool)
    link = np.where(apart, sends[problem.send_class], 0.0).sum(axis=1) / max(1, count - 1)
    columns = [
        np.log2(total.min() / total) / 4,
        np.minimum(4.0, problem.memory_bytes / max(1.0, need.sum())) / 2,
        np.log2((link + 1) / (link.min() + 1)) / 4,
    ]
    return np.asarray(np.clip(np.stack(columns, axis=1), -8, 8))


def _graph_columns(problem: Problem, time: Floats, tie: Floats, need: Floats) -> Floats:
    path = max(1.0, float(upward_rank(problem).max()))
    columns = [
        np.log2(problem.num_devices) / 3,
        np.log2(max(1.0, float(problem.best_ns.sum())) / path) / 4,
        float(squeezed(tie.sum(axis=1)).mean()),
        np.log2(1e-3 + problem.memory_bytes.sum() / max(1.0, need.sum())) / 8,
        float(not problem.objective.of_memory),
    ]
    return np.asarray(np.clip(np.array(columns), -8, 8))
