"""Bounds on the throughput of devices that do nothing else while they send and receive.

Two facts, each of every placement. Ops on k devices that belong together by what they read need at least k - 1
transfers, less one for each group of ops that nothing joins: a device that receives is busy, and so is one that sends.
(Devices that overlap, a host among accelerators, count as one: what goes between them costs nothing.)
And the device of an op either receives what the op reads or runs the ops that make it, and either sends what the op
makes or runs the ops that read it.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.problem import CANNOT, Problem


def least_load(problem: Problem, times: Ints) -> int:
    """Of the busiest device, if some are held up by transfers. `times`: [ops, devices] the least each op takes."""
    held_up = problem.goal.held_up
    if problem.num_devices < 2 or not problem.num_ops or not held_up.any():
        return 0
    ways = _Ways(problem)
    return max(_shared(problem, times, ways, int((held_up == 0).sum())), _around(times, ways, held_up))


class _Ways:
    """Who makes what for whom: (maker, tensor, reader) of every read that another op's device must send for."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        reader, tensor = rows_of(graph.read_start), graph.reads
        maker = np.where(problem.resident[tensor], problem.updater[tensor], graph.producer[tensor])
        joins = (maker >= 0) & (maker != reader)
        self.maker, self.tensor, self.reader = maker[joins], tensor[joins], reader[joins]
        self.fresh = ~problem.resident[self.tensor]  # [ways] made in this step, not updated at its end
        apart = ~np.eye(problem.num_devices, dtype=bool)
        self.send_ns: Ints = ints(problem.send_ns[:, np.unique(problem.send_class[apart])].min(axis=1))
        self.groups = self._groups(problem)

    def _groups(self, problem: Problem) -> int:
        """How many sets of ops there are with nothing to send between them."""
        ends = np.concatenate([self.maker, problem.leader]), np.concatenate([self.reader, np.arange(problem.num_ops)])
        joined = coo_array((np.ones(len(ends[0])), ends), shape=(problem.num_ops, problem.num_ops))
        return int(connected_components(joined, directed=False)[0])


def _shared(problem: Problem, times: Ints, ways: _Ways, free: int) -> int:
    """Work and transfers shared out evenly, over the number of devices that have any work; `free` of all overlap.
    A transfer costs its receiver or, where that overlaps, its sender, who pays for a tensor once."""
    able = times != CANNOT
    whole = np.where(able.all(axis=0), np.where(able, times, 0).sum(axis=0), np.iinfo(np.int64).max)
    best = int(np.where(able, times, np.iinfo(np.int64).max).min(axis=1).sum())
    least, cheapest = int(whole.min()), np.sort(ways.send_ns[ways.tensor])
    for count in range(2, problem.num_devices + 1):
        moved = max(0, count - max(0, min(free, count) - 1) - ways.groups)
        if moved > len(cheapest):
            break  # so many devices have no ops to run
        sent = int(cheapest[:moved].sum()) + (int(cheapest[0]) if moved and not free else 0)
        least = min(least, -(-(best + sent) // count))
    return least


def _around(times: Ints, ways: _Ways, held_up: Ints) -> int:
    """The heaviest op with what it reads and makes: transfers, or the ops on their other ends. An op that updates what
    this one reads may also read what this one makes, so updated tensors are left out: none counts twice."""
    able = times != CANNOT
    load = np.where(able, times, 0)
    most = np.iinfo(np.int64).max // 4
    work = np.where(able, times, most)
    fresh = ways.fresh
    pair, where = np.unique(ways.reader[fresh] * len(times) + ways.maker[fresh], return_inverse=True)
    sends = ways.send_ns[ways.tensor[fresh]]
    received = np.bincount(where, weights=sends, minlength=len(pair)).astype(np.int64)
    reader, maker = pair // len(times), pair % len(times)
    total: Ints = load.copy()
    np.add.at(total, reader, np.minimum(work[maker], received[:, None]) * held_up)
    total += _passed_on(work, ways) * held_up
    return int(np.where(able, total, most).min(axis=1).max())


def _passed_on(work: Ints, ways: _Ways) -> Ints:
    """[ops, devices] of all that an op makes, the tensor that costs most to send, or to have all readers of."""
    fresh = ways.fresh
    tensors, where = np.unique(ways.tensor[fresh], return_inverse=True)
    readers = np.zeros((len(tensors), work.shape[1]), np.int64)
    np.add.at(readers, where, np.minimum(work[ways.reader[fresh]], 2**50))
    sent = np.minimum(readers, ways.send_ns[tensors][:, None])
    made = np.zeros(len(tensors), np.int64)
    made[where] = ways.maker[fresh]
    found = np.zeros_like(work)
    np.maximum.at(found, made, sent)
    return ints(found)
