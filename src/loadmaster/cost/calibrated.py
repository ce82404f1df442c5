"""A roofline with the efficiencies that kinds of ops reach, by their size, for where nothing was measured.

An op takes a floor (the shortest kernel there is) and the longer of its arithmetic and its traffic at the peak rates,
divided by an efficiency. Efficiencies go by the group of the op, whether it works in half precision, and its size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import NamedTuple

import numpy as np

from loadmaster.cluster import Cluster, Device
from loadmaster.cost.roofline import Roofline, unknown
from loadmaster.graph import MOST_NS, Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.kinds import HEAVY, work_of

HALVES = ("float16", "bfloat16")
_CONVOLUTION = re.compile(r"conv", re.IGNORECASE)
_ATTENTION = re.compile(r"attention", re.IGNORECASE)


class Efficiency(NamedTuple):
    """The share of the peak that ops of a group reach, a row of the table that `Calibrated` is.

    Attributes:
        group: as `group_of` names it: "product", "convolution", "attention", "update", "elementwise" and so on.
        half: float16 or bfloat16.
        size: the whole part of log4 of the ideal nanoseconds: efficiencies grow with size.
        share: of the peak, the median of what was measured; it may pass 1 where data comes from a cache.
    """

    group: str
    half: bool
    size: int
    share: float


def group_of(kind: str) -> str:
    """What an efficiency is shared by: products, convolutions, attention, updates, and the other kinds of work."""
    if kind.startswith("optim."):
        return "update"
    work = work_of(kind)
    if work != HEAVY:
        return work
    if _ATTENTION.search(kind):
        return "attention backward" if "backward" in kind else "attention"
    return "convolution" if _CONVOLUTION.search(kind) else "product"


def ideal_ns(device: Device, dtype: str, flops: int, bytes_moved: int) -> float:
    """The longer of arithmetic and traffic at the peak rates."""
    return max(flops / device.rate(dtype), bytes_moved / device.bytes_per_s) * 1e9


def size_of(ideal: float) -> int:
    """The class of an op's ideal time in ns, a power of four each: efficiencies grow with size, and are kept by
    class."""
    return math.floor(math.log(max(ideal, 1.0), 4))


@dataclass(frozen=True)
class Calibrated:
    """Efficiencies for every op, on devices that are no CPUs; a CPU keeps the plain roofline.

    An op takes its ideal time divided by the share of its group, precision and size, and no less than the floor. A size
    that is not in the table takes the nearest that is, a precision that is not the other one, a group that is not the
    peak.

    Attributes:
        efficiencies: the table, in any order.
        floor_ns: of a kernel that does next to nothing, launch on the device included. Updates of weights have none:
            they go together, in one launch.
        roofline: what arithmetic alone takes, which decides how much of a fused kernel is traffic.
    """

    efficiencies: tuple[Efficiency, ...]
    floor_ns: int
    roofline: Roofline = field(default_factory=Roofline)

    @staticmethod
    def shipped() -> Calibrated:
        """Fitted on an NVIDIA H200 (docs/fidelity.md)."""
        text = resources.files("loadmaster.cost").joinpath("efficiencies.json").read_text()
        return Calibrated.of_json(json.loads(text))

    @staticmethod
    def of_json(data: Mapping[str, object]) -> Calibrated:
        rows, floor = data["efficiencies"], data["floor_ns"]
        assert isinstance(rows, list) and isinstance(floor, int)
        return Calibrated(tuple(Efficiency(*row) for row in rows), floor)

    def as_json(self) -> dict[str, object]:
        return {"floor_ns": self.floor_ns, "efficiencies": [list(row) for row in self.efficiencies]}

    @property
    def basis(self) -> str:
        return "calibrated"

    def compute_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        return self.roofline.compute_ns(graph, cluster)

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        known = unknown(graph, cluster).copy()
        groups = [group_of(kind) for kind in graph.kind]
        for column, device in enumerate(cluster.devices):
            if device.kind.startswith("cpu"):
                continue
            rows = zip(groups, graph.dtype, graph.flops.tolist(), graph.bytes_moved.tolist(), strict=True)
            known[:, :, column] = [min(self.time_ns(device, *row), 2 * MOST_NS) for row in rows]
        return ints(known)

    def workspace_bytes(self, graph: Graph, cluster: Cluster) -> Ints:
        return graph.workspace_bytes

    def time_ns(self, device: Device, group: str, dtype: str, flops: int, bytes_moved: int) -> int:
        """ns of one op on a device: its ideal time divided by the share of its group, precision and size, the floor at
        least."""
        ideal = ideal_ns(device, dtype, flops, bytes_moved)
        if not ideal:
            return 0 if group == "update" else self.floor_ns
        time = ideal / self._share(group, dtype in HALVES, size_of(ideal))
        # Weights are updated together, in one launch.
        return math.ceil(time) if group == "update" else max(self.floor_ns, math.ceil(time))

    @cached_property
    def _table(self) -> dict[tuple[str, bool], list[tuple[int, float]]]:
        table: dict[tuple[str, bool], list[tuple[int, float]]] = {}
        for row in self.efficiencies:
            table.setdefault((row.group, row.half), []).append((row.size, row.share))
        return table

    def _share(self, group: str, half: bool, size: int) -> float:
        """Of the nearest size that is known for the group; of the other precision where this one is not."""
        rows = self._table.get((group, half)) or self._table.get((group, not half))
        return min(rows, key=lambda row: (abs(row[0] - size), row[0]))[1] if rows else 1.0


Sample = tuple[str, str, int, int, int]  # group, dtype, flops, bytes moved, measured ns


def fit_efficiencies(device: Device, samples: Iterable[Sample], floor_ns: int) -> Calibrated:
    """The median share of the peak that the samples of each group, precision and size reached."""
    shares: dict[tuple[str, bool, int], list[float]] = {}
    for group, dtype, flops, bytes_moved, measured_ns in samples:
        ideal = ideal_ns(device, dtype, flops, bytes_moved)
        if ideal > 0 and measured_ns > 0:
            shares.setdefault((group, dtype in HALVES, size_of(ideal)), []).append(ideal / measured_ns)
    rows = [Efficiency(*key, round(float(np.median(found)), 4)) for key, found in sorted(shares.items())]
    return Calibrated(tuple(row for row in rows if row.share > 0), floor_ns)
