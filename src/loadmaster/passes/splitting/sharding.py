"""Sharding: every op on every device, each on its share of the work, where that can be told from the axes of ops.

A tensor is *whole* on each device, or each has its *share* along a dimension, or a *summand* of it. An op that reads
shares runs on shares where one of its axes fits all that it reads: of what is whole a device takes its share at no
cost, of summands by a reduce-scatter. Else what it reads is put together first: an all-gather of shares, an all-reduce
of summands. Weights that are read whole lie in shares, too, so that each device updates its own.

There are two ways to begin. The inputs by samples: data parallelism within a step. And the products of layers by
features: Megatron's tensor split (Shoeybi et al., 2019; what is between, by samples or places, Korthikanti et al.,
2022), found in the graph: a product with a weight goes by columns if all that comes of its shares leads to products
along the inner dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from loadmaster.graph import INPUT, OUTPUT, WEIGHT, Graph
from loadmaster.passes.splitting.axes import LOSS, RESHAPES, SUM, Axis, axes_of, bare_kind, runs, softmax_dim

Way = Literal["samples", "features"]
WAYS: tuple[Way, ...] = ("samples", "features")
FAR = 80  # ops that shares of a product may go through; an attention has about forty
SMALL = 2**16  # bytes: weights of less are whole everywhere
STAYS = 1_000  # times the bytes of a weight: to put it together is the last resort
BLOCKS = (1, 3, 2)  # that the columns of a product may consist of: queries, keys and values
_PRODUCTS = ("mm", "addmm")
_CUTS = ("split", "split_with_sizes")


class Share(NamedTuple):
    """Along a dimension that is made of equal blocks, of each of which every device has its part.

    Attributes:
        dim: of the tensor.
        blocks: that the dimension is made of: 3 where queries, keys and values lie side by side.
    """

    dim: int
    blocks: int = 1


Layout = Share | Literal["summand", "loss"] | None  # None: whole; "loss": a mean or sum over samples, and its weight
SUMMAND: Layout = "summand"
OF_LOSS: Layout = "loss"


@dataclass(frozen=True, eq=False)
class Sharding:
    """What each tensor is on each device, and as what each op reads it.

    Attributes:
        ways: devices that share the work.
        layout: [tensors] what each device has: all of it (None), its share, a summand, or a loss over its samples.
        wanted: [ops] as what it reads each of its tensors.
        stored: what lies in shares, and is put together for who reads it whole.
    """

    ways: int
    layout: dict[int, Layout]  # [tensors]
    wanted: dict[int, tuple[Layout, ...]]  # [ops]
    stored: dict[int, Share]

    def source(self, tensor: int) -> Layout:
        """What each device has before anything is put together."""
        return self.stored.get(tensor, self.layout[tensor])

    def on_shares(self, graph: Graph, op: int) -> bool:
        """Whether a device does its part of the op, rather than all of it."""
        made = [self.layout[tensor] for tensor in graph.makes_of(op).tolist()]
        return any(isinstance(layout, Share) for layout in (*self.wanted[op], *made))


def shard(graph: Graph, ways: int, way: Way) -> Sharding:
    """Which share of every tensor each of so many devices has if every op runs on all of them, by samples or by
    features."""
    return _Sharder(graph, ways, way).run()


@dataclass
class _State:
    """What is decided so far; where a product leads is tried on a copy."""

    layout: dict[int, Layout] = field(default_factory=dict)
    wanted: dict[int, tuple[Layout, ...]] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)  # weights that nothing has read yet, and views of them
    stored: dict[int, Share] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.layout), dict(self.wanted), set(self.free), dict(self.stored))


class _Choice(NamedTuple):
    moved: int  # bytes
    axis: Axis
    blocks: int


class _Sharder:
    def __init__(self, graph: Graph, ways: int, way: Way) -> None:
        self.graph, self.ways, self.way = graph, ways, way
        self.axes: dict[int, tuple[Axis, ...]] = {}
        made = graph.producer[(graph.role == OUTPUT) & graph.is_made]
        self.turn = int(made.max()) if len(made) else graph.num_ops  # the last op of the forward pass
        self.state = _State()
        self.updated = {int(graph.reads_of(op)[0]) for op in range(graph.num_ops) if self._updates(op)}
        for tensor in np.flatnonzero(~graph.is_made).tolist():
            rows = way == "samples" and graph.role[tensor] == INPUT and self._divides(tensor)
            self.state.layout[tensor] = Share(0) if rows else None
            if graph.role[tensor] == WEIGHT:
                self.state.free.add(tensor)

    def run(self) -> Sharding:
        for op in range(self.graph.num_ops):
            self._decide(self.state, op)
        return Sharding(self.ways, self.state.layout, self.state.wanted, self.state.stored)

    def _updates(self, op: int) -> bool:
        return self.graph.kind[op].startswith("optim.")

    def _divides(self, tensor: int) -> bool:
        """Whether it has rows, and every device as many of them."""
        shape = self.graph.shape[tensor]
        return bool(shape and shape[0] and shape[0] % self.ways == 0)

    # One op

    def _decide(self, state: _State, op: int, trial: bool = False) -> None:
        reads = self.graph.reads_of(op).tolist()
        if self._updates(op):
            self._update(state, op, reads)
            return
        if self.graph.is_view[op] and reads[0] in state.free:
            state.free.update(self.graph.makes_of(op).tolist())
            self._write(state, op, [None], [None] * len(self.graph.makes_of(op)))
            return
        layouts = [state.layout.get(tensor) for tensor in reads]
        if not trial and self.way == "features" and (self._embeds(state, op) or self._begins(state, op, layouts)):
            return
        if set(layouts) == {SUMMAND} and self._keeps_summands(op):
            self._write(state, op, layouts, [SUMMAND] * len(self.graph.makes_of(op)))
            return
        if self._cut(state, op, layouts) or self._joined(state, op, layouts) or self._viewed(state, op, layouts):
            return
        nearest = self._nearest(op, reads, layouts)
        if nearest is not None and (nearest.moved == 0 or not trial):
            self._apply(state, op, nearest.axis, nearest.blocks)
            return
        for tensor in reads:
            self._commit(state, tensor, None)
        self._write(state, op, [None] * len(reads), [None] * len(self.graph.makes_of(op)))

    def _write(self, state: _State, op: int, wanted: Sequence[Layout], makes: Sequence[Layout]) -> bool:
        state.wanted[op] = tuple(wanted)
        state.layout |= dict(zip(self.graph.makes_of(op).tolist(), makes, strict=True))
        return True

    def _keeps_summands(self, op: int) -> bool:
        """Views of summands, and summands that are added up, are summands."""
        kind = bare_kind(self.graph.kind[op])
        return kind == "add" or (bool(self.graph.is_view[op]) and kind not in _CUTS)

    def _axes(self, op: int) -> tuple[Axis, ...]:
        if op not in self.axes:
            found = (*axes_of(self.graph, op), *more_axes(self.graph, op))
            self.axes[op] = tuple(axis for axis in found if axis.size % self.ways == 0)
        return self.axes[op]

    def _nearest(self, op: int, reads: Sequence[int], layouts: Sequence[Layout]) -> _Choice | None:
        """The axis for which least of what is there in shares has to be put together."""
        blocks = dict.fromkeys(layout.blocks for layout in layouts if isinstance(layout, Share))
        if not blocks and SUMMAND not in layouts:
            return None
        found = [
            _Choice(self._moved(op, axis, count, layouts), axis, count)
            for axis in self._axes(op)
            for count in blocks or (1,)
            if self._has_blocks(axis, count, reads)
        ]
        return min(found, key=lambda choice: choice.moved, default=None)

    def _has_blocks(self, axis: Axis, blocks: int, reads: Sequence[int]) -> bool:
        sizes = {(self.graph.shape[t] or ())[d] for t, d in zip(reads, axis.reads, strict=True) if d is not None}
        return blocks == 1 or (sizes == {axis.size} and axis.size % (blocks * self.ways) == 0)

    def _moved(self, op: int, axis: Axis, blocks: int, layouts: Sequence[Layout]) -> int:
        """Bytes that have to be put together, now or, of new summands, later. Weights that lie in shares stay: what is
        made of them would fit nothing else."""
        total, reads = 0, self.graph.reads_of(op).tolist()
        for tensor, dim, layout in zip(reads, axis.reads, layouts, strict=True):
            size = int(self.graph.nbytes[tensor])
            if isinstance(layout, Share) and (dim is None or layout != Share(dim, blocks)):
                total += size * (1 if self.graph.is_made[self.graph.owner[tensor]] else STAYS)
            elif layout == SUMMAND and dim is None:
                total += size
        summed = SUM in axis.makes and any(isinstance(layout, Share) for layout in layouts)
        return total + (int(self.graph.nbytes[self.graph.makes_of(op)].sum()) if total and summed else 0)

    def _apply(self, state: _State, op: int, axis: Axis, blocks: int) -> None:
        wanted: list[Layout] = [None if dim is None else Share(dim, blocks) for dim in axis.reads]
        for tensor, layout in zip(self.graph.reads_of(op).tolist(), wanted, strict=True):
            self._commit(state, tensor, layout)
        named: dict[object, Layout] = {SUM: SUMMAND, LOSS: OF_LOSS}
        makes = [Share(made, blocks) if isinstance(made, int) else named[made] for made in axis.makes]
        self._write(state, op, wanted, makes)

    # Weights

    def _commit(self, state: _State, tensor: int, layout: Layout) -> None:
        """A weight that nothing has read yet becomes what its first reader wants, through the views between; one that
        is wanted whole lies in shares of its first dimension."""
        if tensor not in state.free:
            return
        state.free.discard(tensor)
        state.layout[tensor] = layout
        maker = int(self.graph.producer[tensor])
        if maker >= 0:
            before = self._through(maker, layout)
            state.wanted[maker] = (before,)
            self._commit(state, int(self.graph.reads_of(maker)[0]), before)
        elif layout is None and self._is_large(tensor) and self._divides(tensor):
            state.stored[tensor] = Share(0)

    def _is_large(self, tensor: int) -> bool:
        return tensor in self.updated and bool(self.graph.nbytes[tensor] >= SMALL)

    def _through(self, view: int, layout: Layout) -> Layout:
        """What a view reads for its result to be laid out so."""
        for axis in self._axes(view) if isinstance(layout, Share) else ():
            if axis.makes[0] == layout.dim and axis.reads[0] is not None:  # type: ignore[union-attr]
                return Share(axis.reads[0], layout.blocks)  # type: ignore[union-attr]
        return None

    def _update(self, state: _State, op: int, reads: list[int]) -> None:
        """On shares of the gradient and of states, where the weight is one."""
        self._commit(state, reads[0], None)
        own = state.stored.get(reads[0], state.layout[reads[0]])
        for tensor in (*reads[2:], *self.graph.makes_of(op).tolist()):
            state.layout[tensor] = own
        state.wanted[op] = (own,) * len(reads)

    # Stretches of features

    def _embeds(self, state: _State, op: int) -> bool:
        """A table of words by columns: what it makes is little beside it, and is put together at once."""
        kind = bare_kind(self.graph.kind[op])
        for axis in self._axes(op) if kind in ("embedding", "embedding_dense_backward") else ():
            made = self.graph.makes_of(op).tolist()[0]
            if axis.makes[0] != len(self.graph.shape[made] or ()) - 1:
                continue
            table = self.graph.reads_of(op).tolist()[0]
            if kind == "embedding" and table in state.free:
                self._commit(state, table, None)
                if table in self.updated:
                    state.stored[table] = Share(1)
            self._apply(state, op, axis, 1)
            if kind == "embedding":
                state.stored[made], state.layout[made] = Share(int(axis.makes[0])), None
            return True
        return False

    def _begins(self, state: _State, op: int, layouts: Sequence[Layout]) -> bool:
        """A product with a weight that nothing has read, by columns, or else by rows, if that leads to summands."""
        reads = self.graph.reads_of(op).tolist()
        if bare_kind(self.graph.kind[op]) not in _PRODUCTS or reads[-1] not in state.free:
            return False
        if any(isinstance(layout, Share) and layout.dim for layout in layouts):
            return False  # shares of features: the second product
        by_columns = [axis for axis in self._axes(op) if axis.makes == (1,)]
        for axis, blocks in [(axis, blocks) for axis in by_columns for blocks in BLOCKS]:
            if axis.size % (blocks * self.ways) == 0:
                tried = state.copy()
                self._apply(tried, op, axis, blocks)
                if self._leads_to_summands(tried, op):
                    self._apply(state, op, axis, blocks)
                    return True
        return False

    def _leads_to_summands(self, state: _State, start: int) -> bool:
        """Follows shares through the forward pass; what is not known yet counts as whole."""
        waiting, seen, ended = set(self._forward_readers(start)), {start}, False
        while waiting and len(seen) < FAR:
            op = min(waiting)
            waiting.discard(op)
            seen.add(op)
            self._decide(state, op, trial=True)
            made = [state.layout[tensor] for tensor in self.graph.makes_of(op).tolist()]
            if any(isinstance(layout, Share) for layout in made):
                waiting |= set(self._forward_readers(op)) - seen
            elif SUMMAND in made:
                ended = True
            else:
                return False
        return ended and not waiting

    def _forward_readers(self, op: int) -> list[int]:
        readers = [r for t in self.graph.makes_of(op).tolist() for r in self.graph.readers_of(t).tolist()]
        return [reader for reader in readers if reader <= self.turn]

    # Tensors of several blocks

    def _viewed(self, state: _State, op: int, layouts: Sequence[Layout]) -> bool:
        """Another shape of a share: what was a part of an inner dimension becomes parts of blocks, and back."""
        given = layouts[0] if len(layouts) == 1 else None
        if bare_kind(self.graph.kind[op]) not in RESHAPES or not isinstance(given, Share):
            return False
        read, made = (self.graph.shape[int(t)] or () for t in (self.graph.reads_of(op)[0], self.graph.makes_of(op)[0]))
        found = reshaped(read, made, given, self.ways)
        return found is not None and self._write(state, op, layouts, [found])

    def _cut(self, state: _State, op: int, layouts: Sequence[Layout]) -> bool:
        """One tensor in as many pieces as it has blocks: of each piece, a share."""
        pieces, given = self.graph.makes_of(op).tolist(), layouts[0] if layouts else None
        if bare_kind(self.graph.kind[op]) not in _CUTS or not isinstance(given, Share) or len(pieces) != given.blocks:
            return False
        sizes = {(self.graph.shape[piece] or ())[given.dim] for piece in pieces}
        return len(sizes) == 1 and self._write(state, op, layouts, [Share(given.dim)] * len(pieces))

    def _joined(self, state: _State, op: int, layouts: Sequence[Layout]) -> bool:
        """Pieces put together along the dimension of which each device has a share: as many blocks."""
        given, made = layouts[0] if layouts else None, self.graph.makes_of(op).tolist()
        if bare_kind(self.graph.kind[op]) != "cat" or not isinstance(given, Share) or set(layouts) != {given}:
            return False
        shapes = [self.graph.shape[tensor] or () for tensor in self.graph.reads_of(op).tolist()]
        whole = (self.graph.shape[made[0]] or ())[given.dim]
        if given.blocks > 1 or len(set(shapes)) > 1 or whole != len(shapes) * shapes[0][given.dim]:
            return False
        return self._write(state, op, layouts, [Share(given.dim, len(shapes))])


def reshaped(given: tuple[int, ...], made: tuple[int, ...], share: Share, ways: int) -> Share | None:
    """What a share is in another shape of the same numbers; None: no share."""
    for (first, last), (begin, end) in runs(given, made):
        if not first <= share.dim < last:
            continue
        blocks, before = prod(given[first : share.dim]) * share.blocks, 1
        for dim in range(begin, end):
            if blocks % before == 0 and made[dim] > 1 and made[dim] % (blocks // before * ways) == 0:
                return Share(dim, blocks // before)
            before *= made[dim]
    return None


def more_axes(graph: Graph, op: int) -> Iterator[Axis]:
    """Axes of ops that a split leaves whole, but whose shares are as good: dropout, of which each device draws its own
    numbers; softmax, over the last dimension as in attention where a file does not say over what; products with a
    bias, which the first device adds; slices; transpositions, along dimensions that they cannot have moved."""
    kind = bare_kind(graph.kind[op])
    reads: list[tuple[int, ...]] = [graph.shape[tensor] or () for tensor in graph.reads_of(op).tolist()]
    makes: list[tuple[int, ...]] = [graph.shape[tensor] or () for tensor in graph.makes_of(op).tolist()]
    alike = len({*reads, *makes}) == 1
    if kind in ("native_dropout", "_softmax", "_softmax_backward_data") and alike and softmax_dim(graph, op) is None:
        for dim in range(len(reads[0]) - (kind != "native_dropout")):
            yield Axis(reads[0][dim], (dim,) * len(reads), (dim,) * len(makes))
    if kind == "addmm" and [len(s) for s in (*reads[1:], *makes)] == [2, 2, 2]:
        yield Axis(reads[1][1], (None, 1, 0), (SUM,))
    if kind in ("slice", "slice_backward") and [len(s) for s in reads] == [len(s) for s in makes]:
        kept = [dim for dim, size in enumerate(reads[0]) if makes[0][dim] == size]
        for dim in kept if len(kept) == len(reads[0]) - 1 else ():
            yield Axis(reads[0][dim], (dim,), (dim,))
    if kind == "transpose" and reads == makes:
        for dim, size in enumerate(reads[0]):
            if reads[0].count(size) == 1:
                yield Axis(size, (dim,), (dim,))
