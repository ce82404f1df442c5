"""Measured: ops take what they took alone on a device of the same kind; where that is not known, the learned time.

Measurements are data: a table by kind of device and signature of the call (name, shapes, strides, dtypes, attributes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmaster.cluster import Cluster
from loadmaster.cost.features import OpFacts, facts_of
from loadmaster.cost.learned import Learned
from loadmaster.cost.roofline import Roofline, unknown
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints

COLD_SHARE = 0.5  # of a step's ops find their operands out of the cache; docs/fidelity.md


class OpTime(NamedTuple):
    """One distinct op, timed alone: `loadmaster measure` times them, `files.costs` keeps them.

    Attributes:
        kind, dtype, flops, bytes_moved: of the op, as in Graph, so that the network can be fitted without the graph.
        hot_ns: the median with its operands in the cache.
        low_ns, high_ns: the quartiles of the same runs.
        cold_ns: the median with its operands out of the cache.
        host_ns: what asking for it takes the host.
        workspace_bytes: what the libraries behind it allocated while it ran.
        stable: whether the runs agreed closely enough to be trusted.
        reference_ns: what a call that never changes took beside it, which tells how busy the machine was; 0: unknown.
    """

    kind: str
    dtype: str
    flops: int
    bytes_moved: int
    hot_ns: int
    low_ns: int
    high_ns: int
    cold_ns: int
    host_ns: int
    workspace_bytes: int
    stable: bool
    reference_ns: int = 0

    @property
    def time_ns(self) -> int:
        """Between what it takes with warm and with cold caches."""
        return round(self.hot_ns + COLD_SHARE * max(0, self.cold_ns - self.hot_ns))


Times = Mapping[str, Mapping[str, OpTime]]  # kind of device -> signature -> time


@dataclass(frozen=True)
class Measured:
    """Times of ops by kind of device and signature, and what to do about the others.

    An op whose signature (name, shapes, strides, dtypes, attributes) was timed on a device of that kind takes what it
    took there; one that was not takes the learned time, as scaled to that kind of device, where there is one, else the
    roofline.

    Attributes:
        times: kind of device to signature to time.
        fallback: by kind of device, the network as scaled to it (`fit` does that from the same measurements).
        roofline: what arithmetic alone takes.
    """

    times: Times
    fallback: Mapping[str, Learned] = field(default_factory=dict)
    roofline: Roofline = field(default_factory=Roofline)

    @property
    def basis(self) -> str:
        return "measured"

    def compute_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        return self.roofline.compute_ns(graph, cluster)

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        known = unknown(graph, cluster).copy()
        signatures = [graph.signature.get(name, "") for name in graph.op_name]
        for column, device in enumerate(cluster.devices):
            table, learned = self.times.get(device.kind, {}), self.fallback.get(device.kind)
            if learned is not None:
                known[:, :, column] = learned.times_ns(device, facts_of(graph))
            for op, signature in enumerate(signatures):
                if signature in table:
                    known[:, op, column] = _with_spread(table[signature])
        return ints(known)

    def workspace_bytes(self, graph: Graph, cluster: Cluster) -> Ints:
        """What the libraries behind each op allocated while it ran, on the device where that was most."""
        most = graph.workspace_bytes.copy()
        for kind in {device.kind for device in cluster.devices}:
            table = self.times.get(kind, {})
            for op, name in enumerate(graph.op_name):
                known = table.get(graph.signature.get(name, ""))
                if known is not None and not known.kind.startswith("optim."):
                    most[op] = max(most[op], known.workspace_bytes)
        return ints(most)


def _with_spread(time: OpTime) -> tuple[int, int, int]:
    middle = time.time_ns
    return middle, middle + time.low_ns - time.hot_ns, middle + time.high_ns - time.hot_ns


def samples_of(times: Mapping[str, OpTime]) -> list[tuple[OpFacts, int]]:
    """What `learned.fit` wants of measurements: each call, and its time in ns."""
    found = []
    for signature, time in times.items():
        third = time.bytes_moved // 3  # where the signature does not say it: two reads and a result of one size
        sizes = third, third, third, 2
        found.append((OpFacts(time.kind, time.dtype, time.flops, time.bytes_moved, *sizes, signature), time.time_ns))
    return found
