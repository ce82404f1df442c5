"""Modules: the one grouping of ops that all views share.

Thousands of ops are too many to read one by one. Paths of modules are folded until few enough are left, the heaviest
unfolded first (`folded`); the heaviest get a colour each (`coloured`), all others share grey. Kernels of one module on
one device are a group (`groups_of`), which moves and decisions speak of.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import CANNOT, Problem
from loadmaster.report.schedule import Schedule

NO_SCOPE = "(no module)"
LEAST_RUNS = 3
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
        parts, more = list(branch.below.values()), len(branch.below) + branch.own - 1
        if not parts or shown + more > most:
            runs = _runs(branch, most - shown + 1 - branch.own)
            if not runs:
                label.update((path, branch.name or NO_SCOPE) for path in _under(branch))
                continue
            for name, members in runs:
                label.update((path, name) for member in members for path in _under(member))
            parts, more = [], len(runs) + branch.own - 1
        shown += more
        for child in parts:
            number += 1
            heapq.heappush(heap, (-child.weight, number, child))
        if branch.own:
            label[branch.path] = f"{branch.name} {ITSELF}" if branch.name else NO_SCOPE
    return label


def _runs(branch: _Branch, most: int) -> list[tuple[str, list[_Branch]]]:
    """Modules side by side that are too many to show: at most so many stretches of them, of about the same weight, as
    layers.0 … 2; none where that would say nothing."""
    modules = list(branch.below.values())
    if most < LEAST_RUNS or len(modules) <= most:
        return []
    total, before, runs = max(1, sum(module.weight for module in modules)), 0, dict[int, list[_Branch]]()
    for module in modules:
        runs.setdefault(min(most - 1, (2 * before + module.weight) * most // (2 * total)), []).append(module)
        before += module.weight
    names = [f"{run[0].name} … {run[-1].path[-1]}" if len(run) > 1 else run[0].name for run in runs.values()]
    return list(zip(names, runs.values(), strict=True))


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


# Colours and tables


# Okabe and Ito (2008), without the two that deuteranopes cannot tell from these; all six are more than 15 apart (CIEDE
# 2000) as they see them. A seventh and eighth come again with stripes. The same in page.css (--c0 to --c5).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442")
GREY = "#999999"
MOST_MODULES = 8


def colour_of(number: int) -> str:
    """Of a module or phase by its number."""
    return COLOURS[number % len(COLOURS)] if number < MOST_MODULES else GREY


@dataclass(frozen=True)
class ModuleWork:
    """A module of the model and the work of its kernels.

    Attributes:
        name: module path, folded.
        ops: of it.
        device_ns: [devices] time of its kernels there.
        weight_bytes: of the weights and states it reads.
    """

    name: str
    ops: int
    device_ns: tuple[int, ...]  # [devices]
    weight_bytes: int

    @property
    def time_ns(self) -> int:
        return sum(self.device_ns)


def module_labels(schedule: Schedule, most: int) -> list[str]:
    """[kernels] the module each is shown under: at most `most` of them."""
    return folded(paths_of(schedule.problem.graph), (schedule.end_ns - schedule.start_ns).tolist(), most)


def coloured(labels: Sequence[str], time_ns: Ints) -> tuple[Ints, list[str]]:
    """([kernels] number of its colour, names): the heaviest modules get one each, all others share the last number."""
    total: dict[str, int] = {}
    for label, time in zip(labels, time_ns.tolist(), strict=True):
        total[label] = total.get(label, 0) + time
    names = sorted(total, key=lambda name: -total[name])[:MOST_MODULES]
    number = {name: at for at, name in enumerate(names)}
    return ints([number.get(label, len(names)) for label in labels]), names


def module_table(schedule: Schedule, most: int) -> list[ModuleWork]:
    """In the order of the program."""
    labels, graph = module_labels(schedule, most), schedule.problem.graph
    names = list(dict.fromkeys(labels))
    number = {name: at for at, name in enumerate(names)}
    label = np.array([number[name] for name in labels], np.int64)
    time_ns, ops = np.zeros((len(names), schedule.num_devices), np.int64), np.zeros(len(names), np.int64)
    np.add.at(time_ns, (label, schedule.device), schedule.end_ns - schedule.start_ns)
    np.add.at(ops, label, schedule.members)
    reader = np.repeat(label, np.diff(graph.read_start))
    kept = np.unique(np.stack([reader, graph.reads])[:, ~graph.is_made[graph.reads]], axis=1)
    weights = np.bincount(kept[0], graph.nbytes[kept[1]].astype(np.float64), len(names)).astype(np.int64)
    rows = zip(names, ops.tolist(), time_ns.tolist(), weights.tolist(), strict=True)
    return [ModuleWork(name, count, tuple(times), nbytes) for name, count, times, nbytes in rows]


def places_text(module: ModuleWork, devices: Sequence[str]) -> str:
    """gpu:2, or gpu:1 (70 %), gpu:0 (30 %); shares under one in a hundred are left out."""
    total = module.time_ns
    if not total:
        return "-"
    shares = sorted(((time, name) for time, name in zip(module.device_ns, devices, strict=True) if time), reverse=True)
    shown = [(time, name) for time, name in shares if 100 * time >= total] or shares[:1]
    if len(shown) == 1:
        return shown[0][1]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return ", ".join(f"{name} ({100 * time / total:.0f} %)" for time, name in shown[:4]) + more


# Groups: kernels of a module on a device

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
    labels = _together(problem, _group_labels(problem, time_ns, most))
    members: dict[tuple[str, int], list[int]] = {}
    for kernel, (label, device) in enumerate(zip(labels, place.tolist(), strict=True)):
        members.setdefault((label, device), []).append(kernel)
    return [Group(label, device, ints(kernels)) for (label, device), kernels in members.items()]


def _group_labels(problem: Problem, time_ns: Ints, most: int) -> list[str]:
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
