"""The best lines of stages that may be there several times over: a dynamic programme in the manner of PipeDream's
planner (Narayanan et al., 2019), over cuts of one line and numbers of replicas.

A stage costs its work shared out over its replicas, plus the ring in which they add up gradients. For each number of
stages the split whose busiest stage costs least; lines of more than `MOST_SLOTS` slots are joined first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.cluster import Link
from loadmaster.graph.columns import Ints

MOST_SLOTS = 128  # that replicated stages are made of


@dataclass(frozen=True)
class Replicated:
    """Stages from left to right: where each but the first begins, and how often each is there.

    Attributes:
        busiest: what the busiest stage costs.
    """

    busiest: float
    edges: tuple[int, ...]
    replicas: tuple[int, ...]


def replicated_splits(work: Ints, gradients: Ints, devices: int, most: int, link: Link) -> list[Replicated]:
    """The best split for each number of stages: the busiest one, its work [slots] shared out over its replicas and the
    bytes of its gradients [slots] passed round in a ring, has as little as can be."""
    step = max(1, -(-len(work) // MOST_SLOTS))
    ends = np.unique([*range(0, len(work), step), len(work)])
    total, size = (np.concatenate([[0], np.cumsum(column)])[ends] for column in (work, gradients))
    length, nbytes = total[:, None] - total[None, :], size[:, None] - size[None, :]  # [end, begin]
    costs = {r: length / r + _ring_ns(nbytes, r, link) for r in range(1, most + 1)}
    found = best_lines(costs, devices)
    return [Replicated(way.busiest, tuple(int(ends[edge]) for edge in way.edges), way.replicas) for way in found]


def _ring_ns(nbytes: Ints, replicas: int, link: Link) -> NDArray[np.float64]:
    if replicas == 1:
        return np.zeros(nbytes.shape)
    per_ns = 0.0 if link.bytes_per_s is None else 1e9 / link.bytes_per_s
    return 2 * (replicas - 1) * (link.latency_ns + nbytes / replicas * per_ns)


def best_lines(costs: Mapping[int, NDArray[np.float64]], devices: int) -> list[Replicated]:
    """For each number of stages, the split on at most that many devices whose busiest stage costs least; `costs` of r
    replicas are [end, begin], of which only those with end > begin count."""
    size = len(costs[1])
    ahead = np.tri(size, k=-1, dtype=bool)
    costs = {r: np.where(ahead, cost, np.inf) for r, cost in costs.items()}
    best = np.full((devices + 1, size), np.inf)  # of stages that use so many devices, up to each end
    best[0, 0] = 0.0
    found, choices = [], []
    for _ in range(devices):
        best, choice = _one_more(best, costs)
        choices.append(choice)
        used = int(best[:, -1].argmin())
        if np.isfinite(best[used, -1]):
            found.append(_walk_back(choices, used, float(best[used, -1])))
    return found


def _one_more(
    best: NDArray[np.float64], costs: Mapping[int, NDArray[np.float64]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """([devices + 1, ends] with one more stage, [devices + 1, ends, 2] its replicas and its begin)."""
    following = np.full(best.shape, np.inf)
    choice = np.zeros((*best.shape, 2), np.int64)
    every = np.arange(best.shape[1])
    for replicas, cost in costs.items():
        for used in range(replicas, len(best)):
            value = np.maximum(best[used - replicas][None, :], cost)
            begin = value.argmin(axis=1)
            better = value[every, begin] < following[used]
            following[used][better] = value[every, begin][better]
            choice[used][better] = np.stack([np.full(len(every), replicas), begin], axis=1)[better]
    return following, choice


def _walk_back(choices: list[NDArray[np.int64]], used: int, busiest: float) -> Replicated:
    edges, counts, end = [], [], choices[0].shape[1] - 1
    for choice in reversed(choices):
        replicas, begin = choice[used, end].tolist()
        edges.append(begin)
        counts.append(replicas)
        used, end = used - replicas, begin
    return Replicated(busiest, tuple(reversed(edges[:-1])), tuple(reversed(counts)))
