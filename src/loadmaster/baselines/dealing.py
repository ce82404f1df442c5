"""Dealing: groups of ops that share heavy tensors, dealt out so that every device gets about as many bytes.

For peak memory: which groups share a device decides how much is alive there at once, and no rule knows that beforehand,
so several deals are made with sizes that are a little off each time, alike for every seed, and simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem

SPREAD = 0.5  # how much the bytes of a group are taken to be off each time, in factors of e


def dealt(problem: Problem, often: Mapping[int, int]) -> Iterator[Ints]:
    """Placements: for each number of groups so many, alike for every seed. Which groups share a device decides how much
    is alive there at once, and no rule knows that, so they differ: the largest group goes first to the device with the
    least, and sizes are only about right."""
    size = bytes_of(problem)
    room = np.maximum(1, problem.memory_bytes).astype(np.float64)
    for groups, times in often.items():
        label = group_ops(problem, groups)
        total = np.bincount(label, size).astype(np.float64)
        drawn = np.random.default_rng(groups)
        for turn in range(times):
            noise = drawn.standard_normal(len(total)) * (SPREAD if turn else 0.0)
            yield legal(problem, ints(_deal(total * np.exp(noise), room)[label]))


def bytes_of(problem: Problem) -> NDArray[np.float64]:
    """[ops] bytes that each makes, and of residents that it updates or is the first to read."""
    graph = problem.graph
    total = resident_bytes(problem)
    own = graph.is_fresh
    np.add.at(total, graph.producer[own], graph.nbytes[own])
    return total


def resident_bytes(problem: Problem) -> NDArray[np.float64]:
    """[ops] bytes of residents that each updates, or is the first to read."""
    graph, total = problem.graph, np.zeros(problem.num_ops)
    start, readers = graph.readers
    holder = problem.updater.copy()
    first = problem.resident & (holder < 0) & (np.diff(start) > 0)
    holder[first] = readers[start[:-1][first]]
    mine = problem.resident & (holder >= 0)
    np.add.at(total, holder[mine], graph.nbytes[mine])
    return total


def _deal(total: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.int64]:
    """[groups] devices: the largest group that is left goes to the device that is least full with it."""
    load, device = np.zeros(len(room)), np.zeros(len(total), np.int64)
    for group in np.argsort(-total, kind="stable").tolist():
        device[group] = ((load + total[group]) / room).argmin()
        load[device[group]] += total[group]
    return device
