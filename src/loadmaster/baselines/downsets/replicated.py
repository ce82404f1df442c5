"""Replicated stages over downsets: contiguous stages that may be there several times over, whatever the order in which
independent ops are laid out. What a stage costs is the caller's to say.

All pairs of downsets are looked at, so there may be some thousand of them; with more, only cuts of the program's own
order are (`ReplicatedStages.exact` says which).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.downsets.units import Downs, downsets, units_of
from loadmaster.baselines.pipeline.replicas import best_lines
from loadmaster.graph import WEIGHT
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem

MOST_SETS = 1_500  # downsets, whose pairs are all looked at; with more, the order of the program decides

Matrix = NDArray[np.float64]
Cost = Callable[[Matrix, Matrix, int], Matrix]  # of stages with this work (ns) and these weights (bytes), r times over


@dataclass(frozen=True, eq=False)
class ReplicatedStages:
    """The stages whose busiest costs least.

    Attributes:
        exact: over all downsets; else over those of the program's order.
    """

    busiest: float
    stage: Ints  # [ops]
    replicas: tuple[int, ...]  # [stages]
    exact: bool


def replicated_stages(problem: Problem, label: Ints, devices: int, cost: Cost) -> ReplicatedStages:
    """The best contiguous stages on so many alike devices; ops of one label stay together."""
    units = units_of(problem, label)
    downs = downsets(units, MOST_SETS)
    work = np.bincount(units.unit, weights=problem.best_ns, minlength=units.count)
    weights = np.bincount(units.unit, weights=_weight_bytes(problem), minlength=units.count)
    inside = _in_order(units.count) if downs is None else _members(downs, units.count)
    total, held = inside @ work, inside @ weights
    contained = (inside.astype(np.float32) @ (1 - inside).T.astype(np.float32)).T == 0  # [end, begin]
    length, nbytes = total[:, None] - total[None, :], held[:, None] - held[None, :]
    costs = {r: np.where(contained, cost(length, nbytes, r), np.inf) for r in range(1, devices + 1)}
    best = min(best_lines(costs, devices), key=lambda way: way.busiest)
    stage = np.zeros(units.count, np.int64)
    for begin in best.edges:
        stage += inside[begin] == 0
    return ReplicatedStages(best.busiest, ints(stage[units.unit]), best.replicas, downs is not None)


def _weight_bytes(problem: Problem) -> Matrix:
    """[ops] bytes of weights that it is the first to read."""
    graph, total = problem.graph, np.zeros(problem.num_ops)
    for tensor in np.flatnonzero(problem.resident).tolist():
        readers = graph.readers_of(tensor)
        if len(readers) and graph.role[tensor] == WEIGHT:
            total[readers[0]] += graph.nbytes[tensor]
    return total


def _members(downs: Downs, count: int) -> Matrix:
    """[downsets, units] 1 where the unit is in it, smaller ones first."""
    rows = np.array([[members >> unit & 1 for unit in range(count)] for members in downs.members], np.float64)
    return rows.reshape(len(downs.members), count)


def _in_order(count: int) -> Matrix:
    return np.tri(count + 1, count, k=-1)
