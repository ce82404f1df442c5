"""Groups: the decisions of a plan as people think of them, a module on a device.

Thousands of ops are too many to explain one by one. Kernels of one module on one device are a group, modules folded
until few enough are left (`scopes`); moves, diffs and decisions speak of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import CANNOT, Problem
from loadmaster.report.scopes import folded, paths_of

MOST_GROUPS = 200  # each is tried on every device: a thousand simulations on four or five


@dataclass(frozen=True, eq=False)
class Group:
    """Kernels of one module that are on one device and can be moved together.

    Attributes:
        name: module.
        device: its number.
        kernels: indices of its kernels.
    """

    name: str
    device: int
    kernels: Ints


def groups_of(problem: Problem, place: Ints, time_ns: Ints, most: int = MOST_GROUPS) -> list[Group]:
    """At most `most` groups, in program order; ops of one colocation group are never parted."""
    allowed = most
    while True:
        groups = _groups(problem, place, time_ns, allowed)
        if len(groups) <= most or allowed == 1:
            return groups
        allowed = max(1, allowed * 2 // 3)


def _groups(problem: Problem, place: Ints, time_ns: Ints, most: int) -> list[Group]:
    labels = _together(problem, _labels(problem, time_ns, most))
    members: dict[tuple[str, int], list[int]] = {}
    for kernel, (label, device) in enumerate(zip(labels, place.tolist(), strict=True)):
        members.setdefault((label, device), []).append(kernel)
    return [Group(label, device, ints(kernels)) for (label, device), kernels in members.items()]


def _labels(problem: Problem, time_ns: Ints, most: int) -> list[str]:
    """[ops] module; single ops where all of them find room; a long run of ops without a module, in pieces."""
    graph, paths = problem.graph, list(paths_of(problem.graph))
    loose = [op for op, path in enumerate(paths) if not path]
    for op in range(graph.num_ops) if graph.num_ops <= most else loose:
        paths[op] = (*paths[op], graph.op_name[op])
    if len(loose) > most // 2 and len(loose) > 1:
        for piece in np.array_split(np.array(loose), max(1, min(len(loose), most // 2))):
            first, last = graph.op_name[piece[0]], graph.op_name[piece[-1]]
            for op in piece.tolist():
                paths[op] = (first if len(piece) == 1 else f"{first} … {last}",)
    return folded(paths, (time_ns + 1).tolist(), most)


def _together(problem: Problem, labels: Sequence[str]) -> list[str]:
    """Gives every op of a colocation group the label of its first op."""
    first: dict[int, str] = {}
    joined = list(labels)
    for op, group in enumerate(problem.graph.colocate.tolist()):
        if group >= 0:
            joined[op] = first.setdefault(group, labels[op])
    return joined


def can_run(problem: Problem, group: Group, device: int) -> bool:
    """Whether every kernel of the group can run on the device."""
    return bool((problem.op_ns[group.kernels, device] != CANNOT).all())
