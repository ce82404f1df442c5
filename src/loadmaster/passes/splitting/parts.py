"""The graph in which a region is split: parts, slices of what they read, and whole results from those of the parts.

A graph is written anew op by op. What is not split keeps its name and its numbers; of a split op there are as many as
there are parts, each with its share of the flops and of the bytes. What a part reads from outside it takes as a slice,
an op of its own; what somebody outside reads whole is put together, or summed in pairs where parts are partial sums.
The parts are ops like any other: a plan places and orders them, and may put all on one device again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from loadmaster.graph import ACTIVATION, ROLES, Graph, GraphBuilder
from loadmaster.passes.splitting.axes import LOSS, SUM
from loadmaster.passes.splitting.regions import Split, SplitRegion, grow, remembered

SLICE, CONCATENATE, ADD, JOIN_LOSS = (
    "aten.slice_copy.Tensor",
    "aten.cat.default",
    "aten.add.Tensor",
    "aten.nll_loss_join",
)


@dataclass(frozen=True)
class SplitOrigin:
    """Where an op that a split has made comes from.

    Attributes:
        op: of the graph before: the one it is a part of, whose result it joins, or whose result it slices.
        part: -1: it serves all parts.
        dim: that a slice is taken along, or along which parts are put together.
    """

    op: int
    part: int = -1
    dim: int = -1


@dataclass(frozen=True, eq=False)
class SplitGraph:
    """The graph after a split, and where its new ops come from, by name."""

    graph: Graph
    origin: Mapping[str, SplitOrigin]


def split_graph(graph: Graph, splits: Sequence[Split]) -> Graph:
    """The graph after the splits, one after another."""
    for split in splits:
        graph = split_region(graph, grow(graph, split)).graph
    return graph


def split_region(graph: Graph, region: SplitRegion) -> SplitGraph:
    """The graph with the ops of the region in parts."""
    rewrite = _GraphRewrite(graph, region)
    return SplitGraph(rewrite.graph(), rewrite.origin)


def part_name(name: str, part: int) -> str:
    """What a part of an op is called."""
    return f"{name}/part{part}"


def is_part(name: str) -> bool:
    """Whether an op of that name is a part of one."""
    return re.search(r"/part\d+$", name) is not None


class _GraphRewrite:
    """Copies a graph op by op; what is whole keeps its name, and a split tensor is made whole for those who need it."""

    def __init__(self, graph: Graph, region: SplitRegion) -> None:
        self.old, self.region, self.parts = graph, region, region.parts
        self.build = GraphBuilder(graph.name)
        self.whole: dict[int, int] = {}  # old tensor -> new one
        self.pieces: dict[tuple[int, int], list[int]] = {}  # (old tensor, dimension) -> its parts
        self.sliced: dict[int, list[str]] = {}  # old op -> names of what reads for its parts
        self.origin: dict[str, SplitOrigin] = {}
        self.adds = 0
        self.taken = {*graph.op_name, *graph.tensor_name}  # of earlier splits, too
        self.colocated = [f"group {g}" if g >= 0 else None for g in graph.colocate.tolist()]

    def graph(self) -> Graph:
        for tensor in np.flatnonzero(~self.old.is_made).tolist():
            self._whole(tensor)
        for op in range(self.old.num_ops):
            if op in self.region.axis:
                self._split(op)
            else:
                self._copy(op)
        for tensor in self.region.dims:
            if self.old.role[tensor] != ACTIVATION:
                self._whole(tensor)
        return replace(self.build.build(), captured=remembered(self.old.captured, self.region.split))

    # Ops that stay whole

    def _copy(self, op: int) -> None:
        old = self.old
        reads = [self._whole(t) for t in old.reads_of(op).tolist()]
        makes = [self._whole(t) for t in old.makes_of(op).tolist()]
        self.build.copy_op(old, op, reads, makes, colocate=self.colocated[op], after=self._after(op))

    def _whole(self, tensor: int) -> int:
        """The new tensor of that old one, made whole from its parts if it has to be."""
        if tensor in self.whole:
            return self.whole[tensor]
        old = self.old
        alias = self._shown(tensor)
        shared = alias >= 0 and tensor not in self.region.dims
        self.whole[tensor] = self.build.tensor(
            int(old.nbytes[tensor]),
            ROLES[old.role[tensor]],
            name=old.tensor_name[tensor],
            shape=old.shape[tensor],
            dtype=old.tensor_dtype[tensor],
            alias_of=self._whole(alias) if shared else None,
        )
        if tensor in self.region.dims:
            parts = self.pieces[tensor, self.region.dims[tensor]]
            moved = 2 * int(old.nbytes[tensor])
            self._joining(tensor, CONCATENATE, parts, [self.whole[tensor]], 0, moved)
        return self.whole[tensor]

    def _shown(self, tensor: int) -> int:
        """Whose memory it is in: a tensor that is put together from parts has its own, which views of it show."""
        old, maker = self.old, int(self.old.producer[tensor])
        if maker >= 0 and old.is_view[maker]:
            for read in old.reads_of(maker).tolist():
                if old.owner[read] == old.owner[tensor]:
                    return read if read in self.region.dims or not old.is_alias[read] else self._shown(read)
        return int(old.alias_of[tensor])

    def _after(self, op: int) -> list[str]:
        names: list[str] = []
        for earlier in self.old.after_of(op).tolist():
            name = self.old.op_name[earlier]
            if earlier in self.region.axis:
                names += [part_name(name, p) for p in range(self.parts)] + self.sliced.get(earlier, [])
            else:
                names.append(name)
        return names

    # Ops that are split

    def _split(self, op: int) -> None:
        old, axis = self.old, self.region.axis[op]
        reads = [self._read(op, t, d) for t, d in zip(old.reads_of(op).tolist(), axis.reads, strict=True)]
        makes = [self._make(op, t, d, reads) for t, d in zip(old.makes_of(op).tolist(), axis.makes, strict=True)]
        after, moved = self._after(op), self._moved(op)
        for p in range(self.parts):
            name = part_name(old.op_name[op], p)
            self.origin[name] = SplitOrigin(op, p)
            self.build.op(
                name,
                old.kind[op],
                [read[p] for read in reads],
                [make[p] for make in makes],
                flops=ceil(int(old.flops[op]) / self.parts),
                scope=old.scope[op],
                source=old.source[op],
                dtype=old.dtype[op],
                bytes_moved=moved,
                workspace_bytes=ceil(int(old.workspace_bytes[op]) / self.parts),
                after=after,
            )
        for i, (tensor, join) in enumerate(zip(old.makes_of(op).tolist(), axis.makes, strict=True)):
            if join == SUM:
                self._sum(tensor, makes[i])
        if LOSS in axis.makes:
            whole = [self._whole(t) for t in old.makes_of(op).tolist()]
            every = [part for make in makes for part in make]
            self._joining(int(old.makes_of(op)[0]), JOIN_LOSS, every, whole, len(every), 8 * len(every))

    def _read(self, op: int, tensor: int, dim: int | None) -> list[int]:
        """What each part reads: its piece, or all of it."""
        if dim is None:
            return [self._whole(tensor)] * self.parts
        if (tensor, dim) not in self.pieces:
            self._slice(op, tensor, dim)
        elif tensor not in self.region.dims:
            self.sliced.setdefault(op, []).extend(self._slice_names(tensor, dim))
        return self.pieces[tensor, dim]

    def _slice(self, op: int, tensor: int, dim: int) -> None:
        """A copy of each piece of a tensor from outside, or that was split along another dimension."""
        source, size = self._whole(tensor), ceil(int(self.old.nbytes[tensor]) / self.parts)
        pieces = self.pieces[tensor, dim] = [self._piece(tensor, dim, p, None) for p in range(self.parts)]
        names = self._slice_names(tensor, dim)
        after = [name for name in self._after(op) if name not in names]
        maker = int(self.old.producer[self.old.owner[tensor]])
        origin = SplitOrigin(maker if maker >= 0 else op, dim=dim)
        for name, piece in zip(names, pieces, strict=True):
            self._helper(name, SLICE, op, [source], [piece], 0, 2 * size, after)
            self.origin[name] = origin
        self.sliced.setdefault(op, []).extend(names)

    def _slice_names(self, tensor: int, dim: int) -> list[str]:
        return [self._named(f"slice:{self.old.tensor_name[tensor]}:{dim}", p) for p in range(self.parts)]

    def _named(self, name: str, part: int) -> str:
        """The name of a part, other than those of parts that were there before."""
        while part_name(name, part) in self.taken:
            name += "'"
        return part_name(name, part)

    def _make(self, op: int, tensor: int, dim: int | str, reads: list[list[int]]) -> list[int]:
        """What the parts make: a piece each, or a result of the size of the whole."""
        view = bool(self.old.is_view[op])
        bases = reads[0] if view else [None] * self.parts
        if isinstance(dim, int):
            made = [self._piece(tensor, dim, p, base) for p, base in enumerate(bases)]
            self.pieces[tensor, dim] = made
            return made
        return [self._piece(tensor, None, p, None) for p in range(self.parts)]

    def _piece(self, tensor: int, dim: int | None, part: int, base: int | None) -> int:
        old, shape, size = self.old, self.old.shape[tensor], int(self.old.nbytes[tensor])
        if dim is not None:
            assert shape is not None
            shape = (*shape[:dim], shape[dim] // self.parts, *shape[dim + 1 :])
            size = ceil(size / self.parts)
        name = self._named(old.tensor_name[tensor] if dim is None else f"{old.tensor_name[tensor]}:{dim}", part)
        return self.build.tensor(size, name=name, shape=shape, dtype=old.tensor_dtype[tensor], alias_of=base)

    def _moved(self, op: int) -> int:
        """Bytes that a part moves: of what is split its share, of the rest all."""
        old, axis = self.old, self.region.axis[op]
        shares, total = 0.0, 0
        for tensors, dims in ((old.reads_of(op), axis.reads), (old.makes_of(op), axis.makes)):
            for tensor, dim in zip(tensors.tolist(), dims, strict=True):
                size = int(min(old.nbytes[tensor], old.nbytes[old.owner[tensor]]))
                total += size
                shares += size / self.parts if isinstance(dim, int) else size
        return ceil(int(old.bytes_moved[op]) * shares / total) if total else 0

    # What puts results together

    def _sum(self, tensor: int, parts: list[int]) -> None:
        """Partial sums are added in pairs, so that devices share the work and the wires."""
        count = int(self.old.nbytes[tensor]) // 4
        level = list(parts)
        while len(level) > 1:
            pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
            last = len(pairs) == 1
            level = [pair[0] if len(pair) == 1 else self._added(tensor, pair, last, count) for pair in pairs]

    def _added(self, tensor: int, pair: list[int], last: bool, count: int) -> int:
        old, size = self.old, int(self.old.nbytes[tensor])
        if last:
            made = self._whole(tensor)
            self._joining(tensor, ADD, pair, [made], count, 3 * size)
            return made
        self.adds += 1
        while (name := f"{old.tensor_name[tensor]}/sum{self.adds}") in self.taken:
            self.adds += 1
        made = self.build.tensor(size, name=name, shape=old.shape[tensor], dtype=old.tensor_dtype[tensor])
        self._helper(f"add:{name}", ADD, int(old.producer[tensor]), pair, [made], count, 3 * size, [])
        return made

    def _joining(self, tensor: int, kind: str, parts: list[int], makes: list[int], flops: int, moved: int) -> None:
        name, maker = f"join:{self.old.tensor_name[tensor]}", int(self.old.producer[tensor])
        self._helper(name, kind, maker, parts, makes, flops, moved, [])
        self.origin[name] = SplitOrigin(maker, dim=self.region.dims.get(tensor, -1))

    def _helper(
        self,
        name: str,
        kind: str,
        op: int,
        reads: list[int],
        makes: list[int],
        flops: int,
        moved: int,
        after: list[str],
    ) -> None:
        """An op that comes with the parts of `op`: it has their module and their source line."""
        old = self.old
        self.origin[name] = SplitOrigin(op)
        self.build.op(
            name,
            kind,
            reads,
            makes,
            flops=flops,
            scope=old.scope[op],
            source=old.source[op],
            dtype=old.dtype[op],
            bytes_moved=moved,
            after=after,
        )
