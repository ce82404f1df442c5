"""Modules: a graph as people think of it, by module path; and `bind`, which keeps every module on one device.

Runtimes take whole modules, not ops. A unit is what must not be split: a module (the ops that one module issues
itself), or a block (a member of a list of layers with all that is inside it, such as `model.layers.3`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.graph import WEIGHT, Graph

Granularity = Literal["op", "module", "block"]
GRANULARITIES = ("op", "module", "block")


@dataclass(frozen=True, eq=False)
class ModuleUnits:
    """What must stay whole: names are module paths in the order in which the step first uses them.

    Attributes:
        names: [units] module paths.
        of_op: [ops] the unit of each op; every op has one.
        of_tensor: [tensors] the unit that reads a weight first; -1 for all else, and for weights that nobody reads.
    """

    names: tuple[str, ...]
    of_op: Ints  # [ops]
    of_tensor: Ints  # [tensors]


def units_of(
    graph: Graph, granularity: Granularity, blocks: Collection[str] = (), apart: Collection[str] = ()
) -> ModuleUnits:
    """Every op in one unit.

    Ops that only a container issues (masks, residual sums of the whole model) belong to the unit that reads them first;
    where nobody does, to that of what they read.

    Args:
        granularity: "module": ops of one module path are a unit; "block": a member of a list of layers with all in it.
        blocks: modules that are blocks, where somebody knows better than their paths say.
        apart: parts of blocks that are units of their own, such as the experts of a mixture.

    Raises:
        InvalidSetting: the granularity is "op", which names no units, or no op says which module it belongs to: plan op
            by op, or import the model with its module paths.
    """
    if granularity not in GRANULARITIES or granularity == "op":
        raise InvalidSetting(f"'{granularity}' names no units", "granularity", "use module or block")
    alone = frozenset(apart)
    paths = [scope if scope in alone else unit_path(scope, granularity, blocks) for scope in graph.scope]
    containers = {path[:at] for path in set(paths) - alone for at in range(len(path)) if path[at] == "."} | {""}
    number: dict[str, int] = {}
    unit = np.full(graph.num_ops, -1, np.int64)
    for op, path in enumerate(paths):
        if path and not (granularity == "block" and path in containers):
            unit[op] = number.setdefault(path, len(number))
    if not number:
        what = "no op says which module it belongs to"
        raise InvalidSetting(what, graph.name, "plan op by op, or import the model with its module paths")
    _attach(graph, unit)
    return ModuleUnits(tuple(number), ints(unit), _weight_units(graph, unit))


def unit_path(scope: str, granularity: Granularity, blocks: Collection[str] = ()) -> str:
    """The path of the unit that a module belongs to.

    >>> unit_path("model.layers.3.mlp.up_proj", "block")
    'model.layers.3'
    """
    if granularity == "module":
        return scope
    parts = scope.split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        if path in blocks or (not blocks and parts[length - 1].isdecimal()):
            return path
    return scope


def _attach(graph: Graph, unit: Ints) -> None:
    """Gives ops without a unit that of their first reader; failing that, of what they read; failing that, the first."""
    for op in range(graph.num_ops - 1, -1, -1):
        if unit[op] < 0:
            readers = [int(unit[r]) for t in graph.makes_of(op) for r in graph.readers_of(int(t)) if unit[r] >= 0]
            unit[op] = readers[0] if readers else -1
    for op in range(graph.num_ops):
        if unit[op] < 0:
            makers = [int(unit[graph.producer[t]]) for t in graph.reads_of(op) if graph.is_made[t]]
            unit[op] = makers[0] if makers and makers[0] >= 0 else 0


def _weight_units(graph: Graph, unit: Ints) -> Ints:
    of_tensor = np.full(graph.num_tensors, -1, np.int64)
    start, readers = graph.readers
    for tensor in np.flatnonzero((graph.role == WEIGHT) & (np.diff(start) > 0)):
        of_tensor[tensor] = unit[readers[start[tensor]]]
    return ints(of_tensor)


def bind(graph: Graph, granularity: Granularity, blocks: Collection[str] = ()) -> Graph:
    """The graph in which ops of one unit must share a device, and units that share a weight too: colocation groups that
    every method keeps, so that a plan of any of them can be run by a runtime that places whole modules
    (`runtime.placing`)."""
    if granularity == "op":
        return graph
    units = units_of(graph, granularity, blocks)
    leader = np.arange(len(units.names))
    for together in _sharing(graph, units):
        _join(leader, together)
    group = np.array([_top(leader, int(unit)) for unit in units.of_op])
    return replace(graph, colocate=ints(np.unique(group, return_inverse=True)[1]))


def _sharing(graph: Graph, units: ModuleUnits) -> list[list[int]]:
    """Sets of units that must share a device: those that read one weight, and those of ops that were bound before."""
    start, readers = graph.readers
    sets = [
        sorted(set(units.of_op[readers[start[t] : start[t + 1]]].tolist()))
        for t in np.flatnonzero(graph.role == WEIGHT)
    ]
    for group in np.unique(graph.colocate[graph.is_colocated]):
        sets.append(sorted(set(units.of_op[graph.colocate == group].tolist())))
    return [units_together for units_together in sets if len(units_together) > 1]


def _top(leader: np.ndarray, unit: int) -> int:
    while leader[unit] != unit:
        unit = int(leader[unit])
    return unit


def _join(leader: np.ndarray, units: list[int]) -> None:
    first = min(_top(leader, unit) for unit in units)
    for unit in units:
        leader[_top(leader, unit)] = first
