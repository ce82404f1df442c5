"""Module scopes folded until few enough are left to read."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmaster.graph import Graph

NO_SCOPE = "(no module)"
ITSELF = "(itself)"  # ops of a module that are in none of those below it


@dataclass
class _Branch:
    """A module: what is under it, and what it weighs."""

    name: str
    weight: int = 0
    below: dict[str, _Branch] = field(default_factory=dict)
    ops: list[int] = field(default_factory=list)  # that are in this module and in none below


def paths_of(graph: Graph) -> list[tuple[str, ...]]:
    """[ops] where each op stands: its module path; where modules are unknown, the parts of its name before the last."""
    if sum(1 for scope in graph.scope if scope) * 2 < graph.num_ops:
        names = [tuple(part for part in re.split(r"[/.]", name) if part)[:-1] for name in graph.op_name]
        if sum(1 for path in names if path) * 2 >= graph.num_ops:
            return names
    return [tuple(scope.split(".")) if scope else () for scope in graph.scope]


def folded(paths: Sequence[tuple[str, ...]], weight: Sequence[int], most: int) -> list[str]:
    """[ops] the module each op is shown under: at most `most` of them, the heaviest unfolded first."""
    root = _tree(paths, weight)
    label = [NO_SCOPE] * len(paths)
    heap, shown = [(-root.weight, 0, root)], 1
    number = 0
    done: list[_Branch] = []
    while heap:
        _, _, branch = heapq.heappop(heap)
        more = len(branch.below) + bool(branch.ops) - 1
        if not branch.below or shown + more > most:
            done.append(branch)
            continue
        shown += more
        for child in branch.below.values():
            number += 1
            heapq.heappush(heap, (-child.weight, number, child))
        for op in branch.ops:
            label[op] = f"{branch.name} {ITSELF}" if branch.name else NO_SCOPE
    for branch in done:
        for op in _all_ops(branch):
            label[op] = branch.name or NO_SCOPE
    return label


def _tree(paths: Sequence[tuple[str, ...]], weight: Sequence[int]) -> _Branch:
    root = _Branch("")
    for op, path in enumerate(paths):
        here = root
        here.weight += int(weight[op])
        for part in path:
            name = f"{here.name}.{part}" if here.name else part
            here = here.below.setdefault(part, _Branch(name))
            here.weight += int(weight[op])
        here.ops.append(op)
    return root


def _all_ops(branch: _Branch) -> list[int]:
    ops, stack = [], [branch]
    while stack:
        here = stack.pop()
        ops += here.ops
        stack += here.below.values()
    return ops
