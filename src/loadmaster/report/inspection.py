"""What is in a graph: work, bytes by role, critical path, largest tensors.

Looked at before any plan: how much could run side by side at all (work ÷ critical path), and what memory must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadmaster.graph import ROLES, Graph
from loadmaster.graph.assumptions import Assumptions, assumptions_of
from loadmaster.graph.columns import Ints
from loadmaster.graph.order import longest_path_to
from loadmaster.problem import Problem

MOST_LISTED = 8  # kinds of ops; the others together have a row


@dataclass(frozen=True)
class KindShare:
    """All ops of one kind.

    Attributes:
        kind: as the importer names it.
        ops: how many.
        flops: of all of them.
        time_ns: of all of them, each on its fastest device.
    """

    kind: str
    ops: int
    flops: int
    time_ns: int


@dataclass(frozen=True)
class LargeTensor:
    """One of the largest tensors of a graph.

    Attributes:
        name, nbytes, role, shape: as in the graph.
        made_by: op, "" for an input or a weight.
    """

    name: str
    nbytes: int
    role: str
    shape: tuple[int, ...] | None
    made_by: str


@dataclass(frozen=True)
class Inspection:
    """Times are those on the fastest device of the cluster for each op.

    Attributes:
        ops: as imported.
        views: of them, folded away before planning.
        tensors: as imported.
        flops, bytes_moved: of all ops.
        assumed: what the importer did not know, None where it knew all.
        bytes_by_role: of all tensors of each role.
        cluster: that times are of.
        work_ns: all ops one after another.
        critical_path_ns, critical_path_ops: of the longest chain of ops that wait for each other.
        kinds: most time first.
        largest_tensors: largest first.
    """

    ops: int
    views: int
    tensors: int
    flops: int
    assumed: Assumptions | None
    bytes_moved: int
    bytes_by_role: Mapping[str, int]
    cluster: str
    work_ns: int
    critical_path_ns: int
    critical_path_ops: int
    kinds: tuple[KindShare, ...]
    largest_tensors: tuple[LargeTensor, ...]

    @property
    def parallelism(self) -> float:
        """Work ÷ critical path: no number of devices makes the step faster than this many times."""
        return self.work_ns / self.critical_path_ns if self.critical_path_ns else 1.0

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "parallelism": self.parallelism}


def inspect_problem(problem: Problem) -> Inspection:
    """What is in a model before any plan: ops by kind, arithmetic, bytes by role, the longest chain, the largest
    tensors."""
    source = problem.source
    length, chain = _critical_path(problem)
    return Inspection(
        ops=source.num_ops,
        views=source.num_ops - problem.num_ops,
        tensors=source.num_tensors,
        flops=int(source.flops.sum()),
        assumed=assumptions_of(source),
        bytes_moved=int(problem.graph.bytes_moved.sum()),
        bytes_by_role=_bytes_by_role(source),
        cluster=problem.cluster.name,
        work_ns=int(problem.best_ns.sum()),
        critical_path_ns=length,
        critical_path_ops=chain,
        kinds=_kinds(problem),
        largest_tensors=_largest(source),
    )


def _bytes_by_role(graph: Graph) -> dict[str, int]:
    own = graph.own_bytes
    return {role: int(own[graph.role == number].sum()) for number, role in enumerate(ROLES)}


def _critical_path(problem: Problem) -> tuple[int, int]:
    """Length in ns and number of ops of the longest chain."""
    start, before = problem.graph.dependencies
    reach: Ints = longest_path_to(start, before, problem.best_ns)
    op, count = int(reach.argmax()), 1
    while (earlier := before[start[op] : start[op + 1]]).size:
        op = int(earlier[reach[earlier].argmax()])
        count += 1
    return int(reach.max()), count


def _kinds(problem: Problem) -> tuple[KindShare, ...]:
    kinds, which = np.unique(np.array(problem.graph.kind), return_inverse=True)
    ops = np.bincount(which, minlength=len(kinds))
    flops, time_ns = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.int64)
    np.add.at(flops, which, problem.graph.flops)
    np.add.at(time_ns, which, problem.best_ns)
    order = np.argsort(-time_ns, kind="stable")[:MOST_LISTED]
    return tuple(KindShare(str(kinds[i]), int(ops[i]), int(flops[i]), int(time_ns[i])) for i in order)


def _largest(graph: Graph) -> tuple[LargeTensor, ...]:
    own = np.where(graph.is_alias, -1, graph.nbytes)
    order = [int(t) for t in np.argsort(-own, kind="stable")[:MOST_LISTED] if own[t] >= 0]
    return tuple(
        LargeTensor(
            graph.tensor_name[t],
            int(graph.nbytes[t]),
            ROLES[graph.role[t]],
            graph.shape[t],
            graph.op_name[graph.producer[t]] if graph.is_made[t] else "",
        )
        for t in order
    )
