"""Module scopes folded until few enough are left to read."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from loadmaster.graph import Graph

NO_SCOPE = "(no module)"
ITSELF = "(itself)"  # ops of a module that are in none of those below it

Path = tuple[str, ...]
_paths: WeakKeyDictionary[Graph, list[Path]] = WeakKeyDictionary()


@dataclass
class _Branch:
    """A module: what is under it, and what it weighs."""

    name: str
    path: Path
    weight: int = 0
    below: dict[str, _Branch] = field(default_factory=dict)
    own: bool = False  # whether it has ops that are in no module below


def paths_of(graph: Graph) -> list[Path]:
    """[ops] where each op stands: its module path; where modules are unknown, the parts of its name before the last."""
    if graph not in _paths:
        _paths[graph] = _find_paths(graph)
    return _paths[graph]


def _find_paths(graph: Graph) -> list[Path]:
    if sum(1 for scope in graph.scope if scope) * 2 < graph.num_ops:
        names = [tuple(part for part in re.split(r"[/.]", name) if part)[:-1] for name in graph.op_name]
        if sum(1 for path in names if path) * 2 >= graph.num_ops:
            return names
    known = {scope: tuple(scope.split(".")) if scope else () for scope in set(graph.scope)}
    return [known[scope] for scope in graph.scope]


def folded(paths: Sequence[Path], weight: Sequence[int], most: int) -> list[str]:
    """[ops] the module each op is shown under: at most `most` of them, the heaviest unfolded first."""
    total: dict[Path, int] = {}
    for path, heavy in zip(paths, weight, strict=True):
        total[path] = total.get(path, 0) + heavy
    label = _labels(_tree(total.items()), most)
    return [label[path] for path in paths]


def _labels(root: _Branch, most: int) -> dict[Path, str]:
    heap, shown, number = [(-root.weight, 0, root)], 1, 0
    label: dict[Path, str] = {}
    while heap:
        _, _, branch = heapq.heappop(heap)
        more = len(branch.below) + branch.own - 1
        if not branch.below or shown + more > most:
            for path in _under(branch):
                label[path] = branch.name or NO_SCOPE
            continue
        shown += more
        for child in branch.below.values():
            number += 1
            heapq.heappush(heap, (-child.weight, number, child))
        if branch.own:
            label[branch.path] = f"{branch.name} {ITSELF}" if branch.name else NO_SCOPE
    return label


def _tree(total: Iterable[tuple[Path, int]]) -> _Branch:
    root = _Branch("", ())
    for path, weight in total:
        here = root
        here.weight += int(weight)
        for depth, part in enumerate(path, 1):
            if part not in here.below:
                here.below[part] = _Branch(f"{here.name}.{part}" if here.name else part, path[:depth])
            here = here.below[part]
            here.weight += int(weight)
        here.own = True
    return root


def _under(branch: _Branch) -> list[Path]:
    """Paths of all modules under a branch that have ops, its own among them."""
    found, stack = [], [branch]
    while stack:
        here = stack.pop()
        if here.own:
            found.append(here.path)
        stack += here.below.values()
    return found
