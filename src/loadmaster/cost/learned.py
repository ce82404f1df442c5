"""Learned: what ops take, as a share of the roofline that a small network predicts, with an interval.

After Kaufman et al., "A Learned Performance Model for Tensor Processing Units" (MLSys 2021, arXiv 2008.01040). Differs
from the paper: an op is a row of sizes, layouts and names (`features`), not a graph, and the network says by how much
the op misses the roofline of the device's data sheet, so that it can be asked about devices that nobody measured. Its
weights and its card (data, errors, controls) lie in learned.json; benchmarks/forecast.py makes both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np

from loadmaster.cluster import Cluster, Device
from loadmaster.cost.features import GROUPS, Floats, OpFacts, facts_of, group_of, ideal_ns, rows_of, rows_on
from loadmaster.cost.roofline import Roofline, unknown
from loadmaster.graph import MOST_NS, Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.kinds import ALONE, POINTWISE, REDUCTION, fusing_of, work_of

LEAST_NS, LEAST_UPDATE_NS = 1_000.0, 50.0  # what a share is of, at least; weights are updated together, in one launch
BLOCK = 4096  # ops that are asked about at once
STEP = 256  # shares are rounded to so many to a factor of e: the same on every machine
GENERATED_ERROR = 0.25  # the usual one of kernels that a compiler made
UNTESTED = 2.0  # how much wider the interval is on a device of which nothing was measured
SHRINK = 3.0  # measured ops of a group that count as much as the network


@dataclass(frozen=True, eq=False)
class Network:
    """A few small networks whose answers are averaged.

    Attributes:
        card: data, seeds, errors and controls.
        names: kinds of ops that have a feature of their own.
        centre, width: [features] by which features are brought to one scale.
        limits: of the logarithm of a time over its roofline.
        nets: of each network its layers, (weights, biases).
        error: by group, the usual error of that logarithm, scaled so that a step's interval holds four of five.
        tested: kinds of devices that were measured.
        generated: of kernels that a compiler makes, by "pointwise" and "reducing": ns of the shortest, and the share of
            the bandwidth that large ones reach.
    """

    card: Mapping[str, Any]
    names: tuple[str, ...]
    centre: Floats
    width: Floats
    limits: tuple[float, float]
    nets: Sequence[Sequence[tuple[Floats, Floats]]]
    error: Mapping[str, float]
    tested: tuple[str, ...]
    generated: Mapping[str, tuple[float, float]]

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Network:
        nets = [[(np.array(w, float), np.array(b, float)) for w, b in net] for net in data["nets"]]
        low, high = data["limits"]
        scale = np.array(data["centre"], float), np.array(data["width"], float)
        return Network(
            data["card"],
            tuple(data["names"]),
            *scale,
            (low, high),
            nets,
            data["error"],
            tuple(data["tested"]),
            {way: (floor, share) for way, (floor, share) in data["generated"].items()},
        )

    def __call__(self, rows: Floats) -> Floats:
        """[ops] logarithms of times over their rooflines."""
        answers = np.concatenate([self._answers(rows[at : at + BLOCK]) for at in range(0, len(rows), BLOCK)])
        rounded: Floats = np.round(np.clip(answers, *self.limits) * STEP) / STEP
        return rounded

    def _answers(self, rows: Floats) -> Floats:
        scaled, answers = np.clip((rows - self.centre) / self.width, -3, 3), np.zeros(len(rows))
        for net in self.nets:
            layer = scaled
            for number, (weights, biases) in enumerate(net):
                layer = (np.tanh(layer) if number else layer) @ weights + biases
            answers += layer[:, 0] / len(self.nets)
        return answers


@cache
def shipped() -> Network:
    """Trained on one NVIDIA H200 (docs/fidelity.md)."""
    return Network.of_json(json.loads(resources.files("loadmaster.cost").joinpath("learned.json").read_text()))


@dataclass(frozen=True)
class Learned:
    """Times by the network, on devices that are no CPUs; a CPU that was not measured keeps the plain roofline.

    Attributes:
        scale: by group of ops, what ops took on this machine over what the network said (`fit`).
        roofline: what arithmetic alone takes, which decides how much of a fused kernel is traffic.
    """

    scale: Mapping[str, float] = field(default_factory=dict)
    roofline: Roofline = field(default_factory=Roofline)

    @property
    def basis(self) -> str:
        return "learned"

    @cached_property
    def network(self) -> Network:
        return shipped()

    def compute_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        return self.roofline.compute_ns(graph, cluster)

    def known_ns(self, graph: Graph, cluster: Cluster) -> Ints:
        known = unknown(graph, cluster).copy()
        facts = facts_of(graph)
        for column, device in enumerate(cluster.devices):
            twin = next((at for at in range(column) if _alike(cluster.devices[at], device)), None)
            if twin is not None:
                known[:, :, column] = known[:, :, twin]
            elif self.scale or not device.kind.startswith("cpu"):
                known[:, :, column] = self.times_ns(device, facts, compiled=cluster.mode == "compiled")
        return ints(known)

    def workspace_bytes(self, graph: Graph, cluster: Cluster) -> Ints:
        return graph.workspace_bytes

    def times_ns(self, device: Device, facts: Sequence[OpFacts], *, compiled: bool = False) -> Ints:
        """[3, ops] what ops take on a device, and the ends of its interval; `compiled`: a compiler makes the kernels of
        which it calls no library."""
        unique = {fact: number for number, fact in enumerate(dict.fromkeys(facts))}
        which, every = np.array([unique[fact] for fact in facts]), list(unique)
        compute, moving = ideal_ns(device, every)
        groups = [group_of(fact.kind) for fact in every]
        answer = self.network(rows_on(compute, moving, rows_of(every, self.network.names)))
        answer += np.array([math.log(self.scale.get(group, 1.0)) for group in groups])
        wider = 1.0 if self.scale or device.kind in self.network.tested else UNTESTED
        error = np.array([self.network.error[group] * wider for group in groups])
        least = np.where(np.array(groups) == "update", LEAST_UPDATE_NS, LEAST_NS)
        ideal = np.maximum(np.maximum(compute, moving), least)
        if compiled:
            made = np.array(
                [self._generated_ns(fact.kind, ns) for fact, ns in zip(every, moving.tolist(), strict=True)]
            )
            answer, error = np.where(made > 0, 0.0, answer), np.where(made > 0, GENERATED_ERROR * wider, error)
            ideal = np.where(made > 0, made, ideal)
        # Rates that make an op absurdly long are refused by name later.
        times = [np.minimum(ideal * np.exp(answer + shift), 2.0 * MOST_NS) for shift in (0 * error, -error, error)]
        return ints(np.ceil(np.stack(times)[:, which]))

    def _generated_ns(self, kind: str, moving_ns: float) -> float:
        """What the op alone takes as a kernel that a compiler made; 0 of what it calls from a library, and of what
        reads or writes here and there, which no compiler makes a stream of."""
        way, sums = fusing_of(kind), work_of(kind) == REDUCTION
        if way != POINTWISE and not sums:
            return 0.0
        floor, share = self.network.generated["reducing" if sums else "pointwise"]
        return (2 if way == ALONE else 1) * floor + moving_ns / share  # norms over rows and columns are two


def _alike(one: Device, other: Device) -> bool:
    return (one.kind, one.flops_per_s, one.bytes_per_s) == (other.kind, other.flops_per_s, other.bytes_per_s)


def fit(samples: Sequence[tuple[OpFacts, int]], device: Device) -> Learned:
    """The network, scaled by group of ops to what some of them took on a device in ns."""
    plain = Learned({group: 1.0 for group in GROUPS})
    facts = [fact for fact, _ in samples]
    if not facts:
        return plain
    missed: dict[str, list[float]] = {}
    for fact, (_, taken), told in zip(facts, samples, plain.times_ns(device, facts)[0].tolist(), strict=True):
        if taken > 0:
            missed.setdefault(group_of(fact.kind), []).append(math.log(taken / told))
    every = [error for errors in missed.values() for error in errors]
    usual = float(np.median(every)) if every else 0.0
    scale = {}
    for group in GROUPS:
        errors = missed.get(group, [])
        own = float(np.median(errors)) if errors else usual
        scale[group] = round(math.exp((own * len(errors) + usual * SHRINK) / (len(errors) + SHRINK)), 4)
    return Learned(scale)
