"""The graph of a sharding: every op once for each device, and collectives where something is put together.

A collective is a ring over the cluster's links in which the device does nothing else, as a runtime has them; nobody
ends before all have begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost.pricing import send_time_ns
from loadmaster.errors import InvalidPlan
from loadmaster.graph import OUTPUT, ROLES, UNGIVEN, Graph, GraphBuilder
from loadmaster.passes.splitting.axes import RESHAPES, bare_kind
from loadmaster.passes.splitting.sharding import OF_LOSS, SUMMAND, WAYS, Layout, Sharding, Share, Way, shard
from loadmaster.problem import Problem

SHARDING = "sharding"  # in `captured`: how a graph was sharded
BUNDLE = 2**25  # bytes that are put together at once, or a little more: about as torch's DDP, 25 MiB
Ring = Callable[[int, int], int]  # ns of so many times round with so many bytes on each device


@dataclass(frozen=True)
class Sharded:
    """What a sharded graph remembers.

    Attributes:
        way: samples or features.
        devices: how many share each op.
        graph: digest of the graph before.
    """

    way: Way
    devices: int
    graph: str


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """The graph, and the device that each op is for, by name."""

    graph: Graph
    device: Mapping[str, int]


def sharded_of(captured: Mapping[str, Any], where: str = "plan: captured") -> Sharded | None:
    """What a graph, or the file of a plan, remembers; None: it is not sharded."""
    data = captured.get(SHARDING)
    if data is None:
        return None
    kinds = {"way": str, "devices": int, "graph": str}
    whole = isinstance(data, dict) and data.keys() == kinds.keys()
    if not whole or not all(type(data[key]) is kind for key, kind in kinds.items()) or data["way"] not in WAYS:
        what = "what it says of its sharding is not whole"
        raise InvalidPlan(what, f"{where}: {SHARDING}", "is the file as it was written?")
    return Sharded(**data)


def ring_of(cluster: Cluster) -> Ring:
    """Over all devices, as fast as the slowest link."""
    ways = len(cluster.devices)
    slowest = min(cluster.links.values(), key=lambda link: link.bytes_per_s or float("inf"))
    return lambda times, size: times * (ways - 1) * send_time_ns(slowest, -(-size // ways))


def least_ns(problem: Problem, way: Way) -> int:
    """What a device must do for all ops, its share of each where it has one, without collectives."""
    graph, found = problem.source, shard(problem.source, problem.num_devices, way)
    times = problem.op_ns.min(axis=1).tolist()
    sources = zip(problem.source_ops.tolist(), times, strict=True)
    return sum(ns // (found.ways if found.on_shares(graph, op) else 1) for op, ns in sources)


def sharded_graph(graph: Graph, cluster: Cluster, way: Way) -> ShardedGraph | None:
    """None: no op would run on a share."""
    ways, ring = len(cluster.devices), ring_of(cluster)
    found = shard(graph, ways, way)
    if not any(found.on_shares(graph, op) for op in range(graph.num_ops) if not graph.is_view[op]):
        return None
    writer = _ShardedWriter(graph, found, ring)
    made = replace(writer.graph(), captured={**graph.captured, SHARDING: vars(Sharded(way, ways, graph.digest))})
    return ShardedGraph(made, writer.device)


class _ShardedWriter:
    def __init__(self, graph: Graph, sharding: Sharding, ring: Ring) -> None:
        self.old, self.sharding, self.ways, self.ring = graph, sharding, sharding.ways, ring
        self.build = GraphBuilder(f"{graph.name} on {sharding.ways} devices")
        self.device: dict[str, int] = {}
        self.own: dict[int, list[int]] = {}  # tensor -> what each device has of it
        self.read: dict[tuple[int, Layout], list[int]] = {}  # the same as somebody reads it
        self.maker: dict[int, str] = {}  # new tensor -> the op that makes it
        updates = [op for op in range(graph.num_ops) if graph.kind[op].startswith("optim.")]
        self.gradient = {int(graph.reads_of(op)[1]): sharding.wanted[op][1] for op in updates}
        self.bundles = self._bundles()

    def graph(self) -> Graph:
        old = self.old
        for tensor in np.flatnonzero(~old.is_made).tolist():
            self.own[tensor] = self._tensors(tensor, self.sharding.source(tensor), [None] * self.ways)
        for op in range(old.num_ops):
            self._add(op)
        for tensor in np.flatnonzero((old.role == OUTPUT) & old.is_made).tolist():
            self._as(tensor, None)
        return self.build.build()

    def _add(self, op: int) -> None:
        old, wanted = self.old, self.sharding.wanted[op]
        reads = [self._as(tensor, layout) for tensor, layout in zip(old.reads_of(op).tolist(), wanted, strict=True)]
        for tensor in old.makes_of(op).tolist():
            alias = int(old.alias_of[tensor])
            shown = reads[0] if old.is_view[op] else self.own[alias] if alias >= 0 else [None] * self.ways
            self.own[tensor] = self._tensors(tensor, self.sharding.source(tensor), shown)
        for part in range(self.ways):
            self._op(op, part, [read[part] for read in reads])

    def _as(self, tensor: int, wanted: Layout) -> list[int]:
        """What each device reads: its share of what is whole is there already."""
        source = self.sharding.source(tensor)
        if source == wanted or source is None:
            return self.own[tensor]
        if isinstance(source, Share) and wanted is not None:
            return self._as(tensor, None)  # along another dimension: of the whole
        if (tensor, wanted) not in self.read:
            maker = int(self.old.producer[tensor])
            if isinstance(source, Share) and maker >= 0 and self._shows_whole(maker):
                self._view_of_whole(tensor, maker)
            else:
                self._collective(self._bundle(tensor, wanted), wanted)
        return self.read[tensor, wanted]

    def _shows_whole(self, op: int) -> bool:
        """A view of a share that is put together once for all of its views."""
        kind = bare_kind(self.old.kind[op])
        return bool(self.old.is_view[op]) and kind in (*RESHAPES, "t", "transpose", "detach", "alias")

    def _view_of_whole(self, tensor: int, view: int) -> None:
        whole = self._as(int(self.old.reads_of(view)[0]), None)
        makes = self._tensors(tensor, None, list(whole), mark=" of the whole")
        for part in range(self.ways):
            name = f"{self.old.op_name[view]} of the whole@{part}"
            self.device[name] = part
            self.build.op(name, self.old.kind[view], [whole[part]], [makes[part]], scope=self.old.scope[view])
            self.maker[makes[part]] = name
        self.read[tensor, None] = makes

    def _bundle(self, tensor: int, wanted: Layout) -> list[int]:
        """Weights that are put together at once, or gradients, as far as they are there; else the tensor alone."""
        for bundle in self.bundles.get(wanted is None, ()):
            if tensor in bundle and self._update_layout(tensor, wanted) == wanted:
                there = [one for one in bundle if one in self.own and (one, wanted) not in self.read]
                return [one for one in there if type(self.sharding.source(one)) is type(self.sharding.source(tensor))]
        return [tensor]

    def _bundles(self) -> dict[bool, list[list[int]]]:
        """By whether they are wanted whole: weights in the order of their first readers, gradients in that of their
        updates, in bundles of some size, since every round of a ring takes its time."""
        old, sharding = self.old, self.sharding
        updates = [op for op in range(old.num_ops) if old.kind[op].startswith("optim.")]
        weights = [(t, None) for t in dict.fromkeys(old.reads.tolist()) if t in sharding.stored and not old.is_made[t]]
        gradients = [(int(old.reads_of(op)[1]), sharding.wanted[op][1]) for op in updates]
        summed = [(t, layout) for t, layout in gradients if sharding.source(t) == SUMMAND]
        found: dict[bool, list[list[int]]] = {True: [], False: []}
        for pairs in (weights, [pair for pair in summed if pair[1] is None], [pair for pair in summed if pair[1]]):
            size = BUNDLE + 1
            for tensor, layout in pairs:
                if size > BUNDLE:
                    found[layout is None].append([])
                    size = 0
                found[layout is None][-1].append(tensor)
                size += self._size(tensor)
        return found

    def _collective(self, tensors: list[int], wanted: Layout) -> None:
        """A ring passes an r-th on r - 1 times, and as often again for an all-reduce (Patarasuk and Yuan, 2009). Shares
        of a bundle are each along their own dimension."""
        source = self.sharding.source(tensors[0])
        name = "all_gather" if isinstance(source, Share) else "all_reduce" if wanted is None else "reduce_scatter"
        size = sum(16 if source == OF_LOSS else self._size(tensor) for tensor in tensors)
        alone = wanted is None or len(tensors) == 1
        layouts = [wanted if alone else self._update_layout(tensor, wanted) for tensor in tensors]
        known = sum(tensor == tensors[0] and isinstance(layout, Share) for tensor, layout in self.read)
        along = f" along {wanted.dim}" if isinstance(wanted, Share) and known else ""  # some read it otherwise
        makes = [
            self._tensors(tensor, layout, [None] * self.ways, mark=f" by {name}{along}")
            for tensor, layout in zip(tensors, layouts, strict=True)
        ]
        every = [copy for tensor in tensors for copy in self.own[tensor]]
        makers = list(dict.fromkeys(self.maker[copy] for copy in every if copy in self.maker))
        ns = self.ring(2 if name == "all_reduce" else 1, size)
        for part in range(self.ways):
            full = f"{name} {self.old.tensor_name[tensors[0]]}{along}@{part}"
            self.device[full] = part
            own = [self.own[tensor][part] for tensor in tensors]
            made = [make[part] for make in makes]
            self.build.op(full, f"collective.{name}", own, made, after=makers, time_ns=ns)
            self.maker |= dict.fromkeys(made, full)
        self.read |= {(t, layout): made for t, layout, made in zip(tensors, layouts, makes, strict=True)}

    def _update_layout(self, tensor: int, wanted: Layout) -> Layout:
        """As what the update of a bundle's gradient reads it."""
        return wanted if wanted is None else self.gradient.get(tensor, wanted)

    def _size(self, tensor: int) -> int:
        return int(min(self.old.nbytes[tensor], self.old.nbytes[self.old.owner[tensor]]))

    def _tensors(self, tensor: int, layout: Layout, shown: list[Any], mark: str = "") -> list[int]:
        old, shape, size = self.old, self.old.shape[tensor], int(self.old.nbytes[tensor])
        if isinstance(layout, Share):
            assert shape is not None
            shape = (*shape[: layout.dim], shape[layout.dim] // self.ways, *shape[layout.dim + 1 :])
            size = ceil(size / self.ways)
        role = "activation" if mark else ROLES[old.role[tensor]]
        return [
            self.build.tensor(
                size,
                role,
                name=f"{old.tensor_name[tensor]}{mark}@{part}",
                shape=shape,
                dtype=old.tensor_dtype[tensor],
                alias_of=shown[part],
            )
            for part in range(self.ways)
        ]

    def _op(self, op: int, part: int, reads: list[int]) -> None:
        old, name = self.old, f"{self.old.op_name[op]}@{part}"
        makes = [self.own[tensor][part] for tensor in old.makes_of(op).tolist()]
        share = 1 / self.ways if self.sharding.on_shares(old, op) else 1.0
        given = old.time_ns[op] if old.time_ns.shape[1] else np.empty(0, np.int64)
        timed = len(given) and bool((given != UNGIVEN).any())
        self.build.op(
            name,
            old.kind[op],
            list(dict.fromkeys(reads)),
            makes,
            flops=ceil(int(old.flops[op]) * share),
            scope=old.scope[op],
            source=old.source[op],
            dtype=old.dtype[op],
            bytes_moved=self._moved(op),
            workspace_bytes=ceil(int(old.workspace_bytes[op]) * share),
            after=[f"{old.op_name[earlier]}@{part}" for earlier in old.after_of(op).tolist()],
            time_ns=ceil(int(given.max()) * share) if timed else None,
        )
        self.device[name] = part
        for tensor in makes:
            self.maker[tensor] = name

    def _moved(self, op: int) -> int:
        """Of shares a share, of the rest all."""
        old, sharding = self.old, self.sharding
        made = [(tensor, sharding.source(tensor)) for tensor in old.makes_of(op).tolist()]
        pairs = [*zip(old.reads_of(op).tolist(), sharding.wanted[op], strict=True), *made]
        total = sum(self._size(tensor) for tensor, _ in pairs)
        own = sum(self._size(t) / (self.ways if isinstance(layout, Share) else 1) for t, layout in pairs)
        return ceil(int(old.bytes_moved[op]) * own / total) if total else int(old.bytes_moved[op])
