"""Regions: ops that are split together, along axes that fit each other.

To split one op alone rarely pays: its parts must be sliced before and joined after. A region grows from a seed over
tensors that are split the same way on both sides (`axes` says which axis of the neighbour that is), nearest first,
until it has as many ops as the decision allows or nothing fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.graph import Graph
from loadmaster.passes.splitting.axes import Axis, axes_of

MOST_PARTS = 1024  # far more than there are devices: a guard against slips


@dataclass(frozen=True)
class Split:
    """The decision: which op, along which of its axes, into how many parts, and how many ops around it go along.

    Plan files keep it, so that a run can split the captured step the same way.

    Attributes:
        op: by name.
        axis: index into `axes_of`.
        parts: how many; it must divide the size of the axis.
        ops: at most so many that cost something, nearest first; views are not counted.
    """

    op: str
    axis: int
    parts: int
    ops: int = 1


@dataclass(frozen=True, eq=False)
class SplitRegion:
    """What a split means for a graph.

    Attributes:
        parts: how many.
        axis: of each op that is split.
        dims: of each tensor that they make in parts, the dimension.
        split: the decision that it came from.
    """

    parts: int
    axis: Mapping[int, Axis]
    dims: Mapping[int, int] = field(default_factory=dict)
    split: Split | None = None


def splits_of(captured: Mapping[str, Any]) -> tuple[Split, ...]:
    """The splits that a graph was made by, as it and the files of its plans remember them."""
    rows = captured.get("splits", ())
    kinds = {"op": str, "axis": int, "parts": int, "ops": int}
    if not isinstance(rows, (list, tuple)) or not all(_is_split(row, kinds) for row in rows):
        what = "its splits are no list of an op, an axis, a number of parts and a number of ops each"
        raise InvalidPlan(what, "plan: captured: splits", "is the file as it was written?")
    return tuple(Split(**row) for row in rows)


def _is_split(row: Any, kinds: Mapping[str, type]) -> bool:
    return isinstance(row, dict) and row.keys() == kinds.keys() and all(type(row[k]) is kinds[k] for k in kinds)


def remembered(captured: Mapping[str, Any], split: Split | None) -> dict[str, Any]:
    """How the graph was captured, and how it was split since."""
    return {**captured, **({} if split is None else {"splits": [*captured.get("splits", ()), asdict(split)]})}


def grow(graph: Graph, split: Split) -> SplitRegion:
    """The ops that go along: from the seed over tensors that are split, while the number of parts divides."""
    seed = _find(graph, split)
    axes = axes_of(graph, seed)
    if not 0 <= split.axis < len(axes):
        what = f"op '{split.op}' ({graph.kind[seed]}) cannot be split along axis {split.axis}: it has {len(axes)}"
        raise InvalidSetting(what, graph.name, "split an op whose kind and shapes say how")
    if not 2 <= split.parts <= MOST_PARTS or axes[split.axis].size % split.parts:
        what = f"op '{split.op}' cannot be split into {split.parts} parts of {axes[split.axis].size}"
        raise InvalidSetting(what, graph.name, "give a number that divides it, of at least 2")
    axis: dict[int, Axis] = {}
    dims: dict[int, int] = {}
    waiting, costly = deque([(seed, axes[split.axis])]), 0
    while waiting:
        op, way = waiting.popleft()
        if op in axis or way.size % split.parts or (costly >= split.ops and not graph.is_view[op]):
            continue
        axis[op] = way
        costly += not graph.is_view[op]
        dims |= {int(t): d for t, d in zip(graph.makes_of(op), way.makes, strict=True) if isinstance(d, int)}
        waiting.extend(_neighbours(graph, op, way))
    return _without_loose_views(graph, SplitRegion(split.parts, axis, dims, split))


def _find(graph: Graph, split: Split) -> int:
    try:
        return graph.op_name.index(split.op)
    except ValueError:
        raise InvalidSetting(f"there is no op '{split.op}'", graph.name, "name an op of this graph") from None


def _neighbours(graph: Graph, op: int, way: Axis) -> Iterator[tuple[int, Axis]]:
    """Ops that make or read what this one has parts of, with the axis that goes with it."""
    for tensor, dim in zip(graph.makes_of(op).tolist(), way.makes, strict=True):
        if isinstance(dim, int):
            for reader in graph.readers_of(tensor).tolist():
                yield from _fitting(graph, reader, tensor, dim, made=False)
    for tensor, place in zip(graph.reads_of(op).tolist(), way.reads, strict=True):
        maker = int(graph.producer[tensor])
        if place is not None and maker >= 0:
            yield from _fitting(graph, maker, tensor, place, made=True)


def _fitting(graph: Graph, op: int, tensor: int, dim: int, *, made: bool) -> Iterator[tuple[int, Axis]]:
    tensors = (graph.makes_of(op) if made else graph.reads_of(op)).tolist()
    for axis in axes_of(graph, op):
        if (axis.makes if made else axis.reads)[tensors.index(tensor)] == dim:
            yield op, axis
            return


def _without_loose_views(graph: Graph, region: SplitRegion) -> SplitRegion:
    """The same without views that nothing in the region reads and that read nothing of it: they only add ops."""
    axis = dict(region.axis)
    for op in sorted(axis, reverse=True):
        inside = any(int(r) in axis for t in graph.makes_of(op) for r in graph.readers_of(int(t)))
        if graph.is_view[op] and not inside:
            del axis[op]
    made = {int(t) for op in axis for t in graph.makes_of(op)}
    return SplitRegion(region.parts, axis, {t: d for t, d in region.dims.items() if t in made}, region.split)
