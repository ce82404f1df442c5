"""CostModel, the interface that `price` asks, and the plain roofline.

The roofline needs nothing but a data sheet, and is what `plan` uses unless it is told otherwise. It is a floor, not a
forecast: docs/fidelity.md has what real steps take beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.graph import MOST_NS, UNGIVEN, Graph
from loadmaster.graph.columns import Ints, ints


@runtime_checkable
class CostModel(Protocol):
    """What ops take, as `price` asks for it, once for a graph and a cluster.

    An op takes launch + max(compute, traffic ÷ bandwidth), the roofline, unless its time is known; known times replace
    the roofline. Where ops are fused, what they need not move is saved at the rate that known ops reach, and what else
    they differ by stays (`Problem.fixed_ns`). The graph that a model is given has no views; its columns may be read,
    and what is returned must be whole numbers, 0 or more, or UNGIVEN where that is allowed. Times the graph gives by
    itself are never asked for.
    """

    @property
    def basis(self) -> str:
        """What its known times rest on, as reports say it."""
        ...

    def compute_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        """[ops, devices] arithmetic time of each op; memory traffic and launches are added by `price`."""
        ...

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        """[3, ops, devices] median and quartiles of times, launch included; UNGIVEN where the roofline decides."""
        ...

    def workspace_bytes(self, graph: Graph, cluster: Cluster) -> Ints:
        """[ops] memory that each needs while it runs, beside what it reads and makes."""
        ...


@dataclass(frozen=True)
class Roofline:
    """An op takes the longer of its arithmetic and its memory traffic (Williams, Waterman and Patterson, 2009).

    Attributes:
        efficiency: share of the peak rate that arithmetic reaches, for all ops alike; traffic stays at its peak.
    """

    efficiency: float = 1.0

    @property
    def basis(self) -> str:
        return "data sheet"

    def compute_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        kinds = sorted(set(graph.dtype))
        which = np.array([kinds.index(dtype) for dtype in graph.dtype])
        rates = np.array([[device.rate(dtype) for device in cluster.devices] for dtype in kinds])
        # Cut off far above any sensible time: `price` refuses such ops by name.
        return ints(np.minimum(np.ceil(graph.flops[:, None] * 1e9 / (rates[which] * self.efficiency)), 2.0 * MOST_NS))

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        return unknown(graph, cluster)

    def workspace_bytes(self, graph: Graph, cluster: Cluster) -> Ints:
        return graph.workspace_bytes


def unknown(graph: Graph, cluster: Cluster) -> Ints:
    """[3, ops, devices] a cost model that knows no times of its own: median and quartiles, all ungiven."""
    return ints(np.full((3, graph.num_ops, cluster.num_devices), UNGIVEN, np.int64))
