"""Bounds on the throughput of devices that do nothing else while they send and receive.

Work on k devices that belongs together by what it reads needs at least k - 1 transfers, less one for each set of ops
that nothing joins. (Devices that overlap, a host among accelerators, count as one: between them nothing costs.)

And a load T is out of reach if ops that cannot be apart under it are too much for one device: two groups of ops are
joined where on every choice of two devices the one that receives, or the one that sends, would have more than T to do.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.problem import CANNOT, Problem

MOST_OPS = 20_000  # groups of more ops take seconds to join
_FAR = 2**50  # more than any time


def least_load(problem: Problem, times: Ints) -> int:
    """Of the busiest device, if some are held up by transfers. `times`: [ops, devices] the least each op takes."""
    held_up = problem.goal.held_up
    if problem.num_devices < 2 or not problem.num_ops or not held_up.any():
        return 0
    ways = _Ways(problem)
    least = _shared(problem, times, ways, int((held_up == 0).sum()))
    return max(least, _joined(times, ways, held_up > 0)) if problem.num_ops <= MOST_OPS else least


class _Ways:
    """Who makes what for whom: (maker, tensor, reader) of every read for which another op's device must send."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        reader, tensor = rows_of(graph.read_start), graph.reads
        maker = np.where(problem.resident[tensor], problem.updater[tensor], graph.producer[tensor])
        joins = (maker >= 0) & (maker != reader)
        self.maker, self.tensor, self.reader = maker[joins], tensor[joins], reader[joins]
        apart = ~np.eye(problem.num_devices, dtype=bool)
        self.send_ns: Ints = ints(problem.send_ns[:, np.unique(problem.send_class[apart])].min(axis=1))
        self.leader = problem.leader
        self.groups = int(_components(self.maker, self.reader, problem.leader).max(initial=-1)) + 1


def _components(one: Ints, other: Ints, leader: Ints) -> Ints:
    """[ops] number of the set of ops that pairs, and colocation groups, join."""
    count = len(leader)
    ends = np.concatenate([one, leader]), np.concatenate([other, np.arange(count)])
    joined = coo_array((np.ones(len(ends[0])), ends), shape=(count, count))
    return ints(connected_components(joined, directed=False)[1])


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


def _joined(times: Ints, ways: _Ways, held_up: Bools) -> int:
    """The least load that is not out of reach, by halving: what joins groups under a load joins them under less."""
    work = np.where(times == CANNOT, _FAR, times)
    low, high = 0, int(np.minimum(work.sum(axis=0), _FAR).min())
    while low < high:
        middle = (low + high) // 2
        if _out_of_reach(work, ways, held_up, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _out_of_reach(work: Ints, ways: _Ways, held_up: Bools, load: int) -> bool:
    group = _components(ints([]), ints([]), ways.leader)
    while True:
        total = np.zeros((int(group.max()) + 1, work.shape[1]), np.int64)
        np.add.at(total, group, work)
        if (total > load).all(axis=1).any():
            return True
        one, other, sent = _between(group, ways)
        apart = _can_be_apart(total, one, other, sent, held_up, load)
        if apart.all():
            return False
        group = _merged(group, one[~apart], other[~apart])


def _between(group: Ints, ways: _Ways) -> tuple[Ints, Ints, Ints]:
    """(group that makes, group that reads, ns of sending all tensors from one to the other) of each such pair."""
    one, other = group[ways.maker], group[ways.reader]
    crossing = one != other
    count = int(group.max()) + 1
    pair = one[crossing] * count + other[crossing]
    once = np.unique(np.column_stack([pair, ways.tensor[crossing]]), axis=0) if len(pair) else np.zeros((0, 2), int)
    pairs, where = np.unique(once[:, 0], return_inverse=True)
    sent = np.zeros(len(pairs), np.int64)
    np.add.at(sent, where, ways.send_ns[once[:, 1]])
    return ints(pairs // count), ints(pairs % count), ints(sent)


def _can_be_apart(total: Ints, one: Ints, other: Ints, sent: Ints, held_up: Bools, load: int) -> Bools:
    """[pairs] on some two devices neither has too much; a device that overlaps has no more than its work."""

    def fits(groups: Ints) -> tuple[Bools, Bools]:
        busy: Bools = np.any(total[groups][:, held_up] + sent[:, None] <= load, axis=1)
        free: Bools = np.any(total[groups][:, ~held_up] <= load, axis=1)
        return busy, free

    (sender, free_sender), (reader, free_reader) = fits(one), fits(other)
    several = int((~held_up).sum()) > 1
    apart: Bools = (sender & (reader | free_reader)) | (free_sender & reader) | (free_sender & free_reader & several)
    return apart


def _merged(group: Ints, one: Ints, other: Ints) -> Ints:
    count = int(group.max()) + 1
    joined = coo_array((np.ones(len(one)), (one, other)), shape=(count, count))
    return ints(connected_components(joined, directed=False)[1][group])
