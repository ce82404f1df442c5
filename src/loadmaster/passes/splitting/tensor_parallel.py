"""Megatron's tensor split of a transformer (Shoeybi et al., 2019), as a graph and a placement to judge like any plan.

The weights of chosen layers are cut over all devices, by columns or by rows; every op runs on every device, on its
share where what it reads is a share, else on all of it: norms and residuals are there as often as there are devices. A
product of two shares along the inner dimension is a partial sum, and what reads it as a whole waits for an all-reduce,
a ring in which the device does nothing else. Partial sums that are added to each other are reduced once, as Megatron
does.

This is a measure to compare with, made by hand from the names of weights, of which it does not look at the sizes.
`sharding` finds such a split in the graph, with sizes that divide and a dimension for each share, so that it can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph import INPUT, ROLES, UNGIVEN, Graph, GraphBuilder
from loadmaster.passes.splitting.axes import bare_kind

# Layers whose weights are cut: attention and feed-forward of GPT-2, and of LLaMA and its kin; tables of words by rows.
MEGATRON = re.compile(
    r"(attn\.c_attn\.(weight|bias)|attn\.c_proj\.weight|mlp\.c_fc\.(weight|bias)|mlp\.c_proj\.weight|wte\.weight"
    r"|self_attn\.[qkvo]_proj\.weight|mlp\.(gate|up|down)_proj\.weight|embed_tokens\.weight|lm_head\.weight)$"
)
WHOLE, SHARE, PARTIAL = range(3)  # on each device: all of it, its share, or a summand of it
_STATE = re.compile(r"\.(m|v)(\.new)?$|\.new$")
_PRODUCTS = ("mm", "addmm")


@dataclass(frozen=True, eq=False)
class TensorParallel:
    """The graph with every op on every device, and which device each op is for, by name.

    Attributes:
        reductions: all-reduces of a step.
    """

    graph: Graph
    device: Mapping[str, int]
    reductions: int


def tensor_parallel(
    graph: Graph, ways: int, reduce_ns: Callable[[int], int], cut: re.Pattern[str] = MEGATRON
) -> TensorParallel:
    """`reduce_ns`: time of an all-reduce of so many bytes over all devices; `cut`: names of weights that are cut."""
    writer = _TensorParallelWriter(graph, ways, reduce_ns, cut)
    for op in range(graph.num_ops):
        writer.add(op)
    if not writer.cut_shapes:
        what = f"no weight of '{graph.name}' has a name of a layer that is cut"
        raise InvalidSetting(what, "tensor_parallel", "give a pattern of names that suits the model")
    return TensorParallel(writer.build.build(), writer.device, writer.reductions)


class _TensorParallelWriter:
    def __init__(self, graph: Graph, ways: int, reduce_ns: Callable[[int], int], cut: re.Pattern[str]) -> None:
        self.old, self.ways, self.reduce_ns = graph, ways, reduce_ns
        self.build = GraphBuilder(f"{graph.name}, tensor parallel {ways}")
        self.device: dict[str, int] = {}
        self.state: dict[int, int] = {}
        self.copies: dict[int, list[int]] = {}  # tensor -> its copy, share or summand on each device
        self.reduced: dict[int, list[int]] = {}  # partial sum -> the whole on each device
        self.reductions = 0
        self.made_by: dict[int, str] = {}  # new tensor -> the op that makes it
        self.cut_shapes = set()
        for tensor in np.flatnonzero(~graph.is_made).tolist():
            share = cut.search(_STATE.sub("", graph.tensor_name[tensor])) is not None
            self.state[tensor] = SHARE if share and graph.role[tensor] != INPUT else WHOLE
            if self.state[tensor] == SHARE:
                self.cut_shapes.add(graph.shape[tensor])
            self.copies[tensor] = self._tensors(tensor, None)

    def add(self, op: int) -> None:
        kind = bare_kind(self.old.kind[op])
        states = [self.state[t] for t in self.old.reads_of(op).tolist()]
        made = self._made(op, kind, states)
        keeps = made == PARTIAL and PARTIAL in states  # a view of a partial sum, or partial sums added up
        reads = [self._read(t, keeps) for t in self.old.reads_of(op).tolist()]
        if kind == "_log_softmax" and made == SHARE:
            self._softmax_over_shares(op, reads)
        share = made == SHARE or (made == PARTIAL and not keeps)
        for tensor in self.old.makes_of(op).tolist():
            self.state[tensor] = made
            alias = int(self.old.alias_of[tensor])
            self.copies[tensor] = self._tensors(tensor, None if alias < 0 else self.copies[alias])
        for p in range(self.ways):
            self._op(op, p, [read[p] for read in reads], share)

    def _made(self, op: int, kind: str, states: list[int]) -> int:
        """What the results are, by what is read."""
        old, shares = self.old, states.count(SHARE)
        if old.is_view[op] and PARTIAL in states:
            return PARTIAL
        if kind == "add" and states and set(states) == {PARTIAL}:
            return PARTIAL
        if kind == "embedding_dense_backward":  # the gradient of a table that is cut is cut
            return SHARE if old.shape[old.makes_of(op)[0]] in self.cut_shapes else WHOLE
        if not shares:
            return WHOLE
        if kind in ("embedding", "nll_loss_forward") or (kind in _PRODUCTS and self._inner(op)):
            return PARTIAL
        return SHARE

    def _inner(self, op: int) -> bool:
        """Both factors are shares: along the inner dimension, since products of attention are of another kind."""
        factors = self.old.reads_of(op).tolist()[-2:]
        return all(self.state[t] == SHARE for t in factors) and len(factors) == 2

    def _read(self, tensor: int, keeps: bool) -> list[int]:
        if self.state[tensor] != PARTIAL or keeps:
            return self.copies[tensor]
        return self._reduce(tensor)

    def _reduce(self, tensor: int) -> list[int]:
        """The whole of a partial sum on each device; of a view, of what it shows."""
        if tensor not in self.reduced:
            size = int(min(self.old.nbytes[tensor], self.old.nbytes[self.old.owner[tensor]]))
            label, makes = f"all-reduce {self.old.tensor_name[tensor]}", self._tensors(tensor, None, "reduced")
            self.reduced[tensor] = self._all(label, self.copies[tensor], size, makes)
        return self.reduced[tensor]

    def _softmax_over_shares(self, op: int, reads: list[list[int]]) -> None:
        """The largest value and the sum of each row, over all devices."""
        shape = self.old.shape[self.old.makes_of(op)[0]]
        assert shape is not None
        self._all(f"all-reduce rows of {self.old.op_name[op]}", reads[0], 8 * shape[0], [])

    def _all(self, label: str, reads: list[int], size: int, makes: list[int]) -> list[int]:
        """A ring: no device ends before all have begun. Each reads its own, and waits for the others' makers."""
        self.reductions += 1
        makers = [self.made_by[tensor] for tensor in reads if tensor in self.made_by]
        for p in range(self.ways):
            name = f"{label}@{p}"
            self.device[name] = p
            made = makes[p : p + 1]
            self.build.op(name, "collective.all_reduce", [reads[p]], made, after=makers, time_ns=self.reduce_ns(size))
        return makes

    def _tensors(self, tensor: int, shown: list[int] | None, mark: str = "") -> list[int]:
        old, state = self.old, self.state[tensor]
        size = int(old.nbytes[tensor])
        size = ceil(size / self.ways) if state == SHARE else size
        return [
            self.build.tensor(
                size,
                ROLES[old.role[tensor]] if not mark else "activation",
                name=f"{old.tensor_name[tensor]}{' ' + mark if mark else ''}@{p}",
                shape=old.shape[tensor],
                dtype=old.tensor_dtype[tensor],
                alias_of=None if shown is None else shown[p],
            )
            for p in range(self.ways)
        ]

    def _op(self, op: int, p: int, reads: list[int], share: bool) -> None:
        old, name = self.old, f"{self.old.op_name[op]}@{p}"
        makes = [self.copies[t][p] for t in old.makes_of(op).tolist()]
        part = 1 / self.ways if share else 1.0
        time = None if not old.time_ns.shape[1] or (old.time_ns[op] == UNGIVEN).all() else int(old.time_ns[op].max())
        self.build.op(
            name,
            old.kind[op],
            reads,
            makes,
            flops=ceil(int(old.flops[op]) * part),
            scope=old.scope[op],
            source=old.source[op],
            dtype=old.dtype[op],
            bytes_moved=self._moved(op),
            workspace_bytes=ceil(int(old.workspace_bytes[op]) * part),
            after=[f"{old.op_name[earlier]}@{p}" for earlier in old.after_of(op).tolist()],
            time_ns=time,
        )
        self.device[name] = p
        for tensor in makes:
            self.made_by[tensor] = name

    def _moved(self, op: int) -> int:
        """Of shares a share, of the rest all."""
        old = self.old
        total, own = 0, 0.0
        for tensor in (*old.reads_of(op).tolist(), *old.makes_of(op).tolist()):
            size = int(min(old.nbytes[tensor], old.nbytes[old.owner[tensor]]))
            total += size
            own += size / self.ways if self.state[tensor] == SHARE else size
        return ceil(int(old.bytes_moved[op]) * own / total) if total else int(old.bytes_moved[op])
