"""Stages of equal length: what the slots of a line take, send and update, and where to cut the line so that the longest
stage is as short as can be.

A dynamic program over (slots, stages), quadratic in the slots for each stage, exact for a line without replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph import WEIGHT
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.pipelines.stages import UPDATE
from loadmaster.problem import CANNOT, Problem


def balanced_edges(work: Ints, device: Sequence[int], crossing: Ints | None = None) -> tuple[int, ...]:
    """First slots of all stages but the first, such that the longest stage is as short as can be and, where there is a
    choice, the others are alike. A stage is as long as its work or, if that is more, what it sends."""
    total = np.concatenate([np.zeros((1, work.shape[1])), np.cumsum(work, axis=0)])
    ahead = np.tri(len(work) + 1, k=-1, dtype=bool)  # [end, begin]: a stage has at least one slot
    sent = np.zeros(len(total)) if crossing is None else crossing / 2  # what crosses an edge goes half each way
    both = sent[:, None] + sent[None, :]
    lengths = [
        np.where(ahead, np.maximum(total[:, where][:, None] - total[:, where][None, :], both), np.inf)
        for where in device
    ]
    longest, _ = _line_of_stages(lengths, np.maximum)
    squares = [np.where(length <= longest, length * length, np.inf) for length in lengths]
    return _line_of_stages(squares, np.add)[1]


def _line_of_stages(
    costs: Sequence[NDArray[np.float64]], joined: Callable[[Any, Any], NDArray[np.float64]]
) -> tuple[float, tuple[int, ...]]:
    """(least cost, edges) of all slots in that many stages, of which each costs [end, begin]."""
    slots = len(costs[0]) - 1
    best = np.full(slots + 1, np.inf)
    best[0] = 0.0
    begins = []
    for cost in costs:
        value = joined(best[None, :], cost)
        begins.append(value.argmin(axis=1))
        best = value.min(axis=1)
    edges, end = [], slots
    for begin in reversed(begins[1:]):
        end = int(begin[end])
        edges.append(end)
    return float(best[slots]), tuple(reversed(edges))


def work_of(problem: Problem, slot: Ints, phase: Ints, microbatches: int) -> Ints:
    """[slots, devices] ns for one microbatch, with its share of the update."""
    share = np.where(phase == UPDATE, 1.0 / microbatches, 1.0)
    times = np.where(problem.op_ns == CANNOT, 2**50, problem.op_ns) * share[:, None]
    work = np.zeros((int(slot.max()) + 1, problem.num_devices))
    np.add.at(work, slot, times)
    return ints(work)


def crossing_of(problem: Problem, slot: Ints) -> Ints:
    """[slots + 1] ns of sending, once a microbatch, what is on both sides of the edge before each slot."""
    graph, count = problem.graph, int(slot.max()) + 1
    moved = np.flatnonzero(graph.is_fresh)
    low, high = np.full(graph.num_tensors, count), np.full(graph.num_tensors, -1)
    low[moved] = high[moved] = slot[graph.producer[moved]]
    np.minimum.at(low, graph.reads, slot[rows_of(graph.read_start)])
    np.maximum.at(high, graph.reads, slot[rows_of(graph.read_start)])
    change = np.zeros(count + 2, np.int64)
    ns = problem.send_ns.max(axis=1, initial=0)
    np.add.at(change, low[moved] + 1, ns[moved])
    np.add.at(change, high[moved] + 1, -ns[moved])
    return ints(np.cumsum(change)[: count + 1])


def gradients_of(problem: Problem, slot: Ints) -> Ints:
    """[slots] bytes of weights that are updated there."""
    graph, total = problem.graph, np.zeros(int(slot.max()) + 1, np.int64)
    updated = np.flatnonzero(problem.is_updated)
    weights = updated[graph.role[updated] == WEIGHT]
    np.add.at(total, slot[problem.updater[weights]], graph.nbytes[weights])
    return ints(total)
