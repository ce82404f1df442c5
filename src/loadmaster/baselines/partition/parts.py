"""A problem as a graph partitioner sees it: weighted units joined by weighted nets, and devices at distances.

Units are ops, or colocation groups, weighed by time or by bytes; nets are tensors with all that touch them. Libraries
that know only edges get stars, and those that know only equal parts get seats, several for a fast device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.problem import CANNOT, Problem

Floats = NDArray[np.float64]
Balance = Literal["auto", "time", "memory"]

TOTAL_WEIGHT = 10**8  # what weights are scaled to: METIS counts in 32 bits


@dataclass(frozen=True, eq=False)
class Parts:
    """Units: ops, colocation groups in one. Nets: tensors, each with its maker or updater first and then its readers.

    Attributes:
        weight: [units] at least 1.
        pins: units of each net, at least two.
        cost: [nets] at least 1, in proportion to the time of a send.
        share: [devices] how much of the weight each should get, 1 in all.
        distance: [devices, devices] at least 1, symmetric, 0 on the diagonal.
    """

    unit: Ints  # [ops]
    weight: Ints  # [units]
    net_start: Ints  # [nets + 1]
    pins: Ints
    cost: Ints  # [nets]
    share: Floats  # [devices]
    distance: Ints  # [devices, devices]

    @property
    def num_units(self) -> int:
        return len(self.weight)

    @property
    def num_devices(self) -> int:
        return len(self.share)

    @property
    def alike(self) -> bool:
        """Every device should get the same share."""
        return bool(np.ptp(self.share) < 1e-6)

    @cached_property
    def edges(self) -> tuple[Ints, Ints, Ints]:
        """(start, others, weights): nets as stars around their first pin, both ways, parallel edges added up.

        A net costs one send however many of its readers lie together, so each of k spokes weighs 1 ÷ √k of it: of the
        powers of k tried, the one with the shortest steps.
        """
        size = np.diff(self.net_start)
        hub = np.repeat(self.pins[self.net_start[:-1]], size - 1)
        first = np.zeros(len(self.pins), bool)
        first[self.net_start[:-1]] = True
        spoke = self.pins[~first]
        weight = np.repeat(self.cost / np.sqrt(size - 1.0), size - 1)
        low, high = np.minimum(hub, spoke), np.maximum(hub, spoke)
        key, where = np.unique(low * self.num_units + high, return_inverse=True)
        total = np.maximum(1, np.rint(np.bincount(where, weights=weight, minlength=len(key)))).astype(np.int64)
        low, high = key // self.num_units, key % self.num_units
        row = np.concatenate([low, high])
        order = np.argsort(row, kind="stable")
        start = np.zeros(self.num_units + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=self.num_units), out=start[1:])
        return ints(start), ints(np.concatenate([high, low])[order]), ints(np.concatenate([total, total])[order])

    def traffic(self, block: Ints, count: int) -> Floats:
        """[blocks, blocks] cost of nets between blocks: from the first pin's block to each other block once."""
        net = rows_of(self.net_start)
        home = block[self.pins[self.net_start[:-1]]]
        key = np.unique(net * count + block[self.pins])
        net, there = key // count, key % count
        between = np.zeros((count, count))
        away = home[net] != there
        np.add.at(between, (home[net[away]], there[away]), self.cost[net[away]])
        return between


def parts_of(problem: Problem, balance: Balance = "auto") -> Parts:
    """The problem as a graph to be cut: units of ops that stay together, their weights by time or memory, and what
    their edges carry."""
    unit = _units(problem)
    count = int(unit.max()) + 1
    by_memory = balance == "memory" or (balance == "auto" and problem.objective.of_memory)
    weight = op_bytes(problem) if by_memory else op_times(problem)
    total = np.bincount(unit, weights=weight, minlength=count).astype(np.float64)
    if by_memory:
        share = np.maximum(problem.memory_bytes, 1).astype(np.float64)
    else:
        share = _speeds(problem)
    start, pins, cost = _nets(problem, unit)
    return Parts(unit, _scaled(total), start, pins, _scaled(cost), share / share.sum(), _distances(problem))


def _scaled(weight: Floats) -> Ints:
    """Whole numbers of at least 1 in the same proportions."""
    total = float(weight.sum())
    return ints(np.maximum(1, np.rint(weight * (TOTAL_WEIGHT / total if total > 0 else 0.0))))


def _units(problem: Problem) -> Ints:
    """[ops] colocation groups, in order of their first op, so that neighbours in the program are neighbours here."""
    return ints(np.unique(problem.leader, return_inverse=True)[1])


def op_times(problem: Problem) -> Floats:
    """[ops] mean over the devices that can run it."""
    able = problem.op_ns != CANNOT
    times: Floats = np.where(able, problem.op_ns, 0).sum(axis=1) / able.sum(axis=1)
    return times


def op_bytes(problem: Problem) -> Floats:
    """[ops] bytes of what it makes, and of residents at the op that updates them or reads them first."""
    graph = problem.graph
    own = graph.own_bytes.astype(np.float64)
    start, readers = graph.readers
    holder = problem.maker.copy()
    orphan = (holder < 0) & (np.diff(start) > 0)
    holder[orphan] = readers[start[:-1][orphan]]
    held = holder >= 0
    total: Floats = np.bincount(holder[held], weights=own[held], minlength=problem.num_ops).astype(np.float64)
    return total


def _speeds(problem: Problem) -> Floats:
    """[devices] how much of the whole graph each would do in unit time."""
    slow = problem.best_ns[:, None] * 100
    speed: Floats = 1.0 / np.maximum(1, np.where(problem.op_ns == CANNOT, slow, problem.op_ns).sum(axis=0))
    return speed


def _nets(problem: Problem, unit: Ints) -> tuple[Ints, Ints, Floats]:
    """Made tensors with their readers; weights that are updated, with theirs (rule 7). Others are free to be
    anywhere."""
    graph = problem.graph
    count = int(unit.max()) + 1
    maker = problem.maker
    moving = maker[graph.reads] >= 0
    tensor = graph.reads[moving]
    reader = unit[rows_of(graph.read_start)[moving]]
    apart = reader != unit[maker[tensor]]
    key = np.unique(tensor[apart] * count + reader[apart])
    tensor, reader = key // count, key % count
    nets, size = np.unique(tensor, return_counts=True)
    start = np.zeros(len(nets) + 1, np.int64)
    np.cumsum(size + 1, out=start[1:])
    pins = np.empty(int(start[-1]), np.int64)
    first = np.zeros(len(pins), bool)
    first[start[:-1]] = True
    pins[first], pins[~first] = unit[maker[nets]], reader
    return ints(start), ints(pins), _send_times(problem)[nets]


def _send_times(problem: Problem) -> Floats:
    """[tensors] mean time of a send; bytes where every link is free, so that there is still something to keep low."""
    if problem.num_devices == 1:
        return np.ones(problem.graph.num_tensors)
    classes = problem.send_class[~np.eye(problem.num_devices, dtype=bool)]
    mean: Floats = problem.send_ns[:, classes].mean(axis=1)
    return mean if mean.max(initial=0.0) > 0 else problem.graph.nbytes.astype(np.float64)


def _distances(problem: Problem) -> Ints:
    """[devices, devices] time of sending everything, both ways, relative to the nearest pair, 16 for that."""
    total = problem.send_ns.astype(np.float64).sum(axis=0)
    way = total[problem.send_class] if len(total) else np.zeros((problem.num_devices, problem.num_devices))
    way = (way + way.T) / 2
    np.fill_diagonal(way, np.inf)
    nearest = max(1.0, float(way.min(initial=np.inf)) if problem.num_devices > 1 else 1.0)
    np.fill_diagonal(way, 0.0)
    apart = np.clip(np.rint(16 * way / nearest), 1, 16_000)
    np.fill_diagonal(apart, 0)
    return ints(apart)


def seat(traffic: Floats, seats: Ints, distance: Ints, swappable: NDArray[np.bool_]) -> Ints:
    """[blocks] a device for each block, one block per seat, so that busy pairs are near; swaps until none helps.

    `seats`: [blocks] the device of each seat; `swappable[i, j]`: the blocks of seats i and j may change places.
    """
    both = traffic + traffic.T
    at = np.arange(len(seats))  # seat of each block
    better = True
    while better:
        better = False
        for one in range(len(at)):
            for other in range(one + 1, len(at)):
                if seats[at[one]] == seats[at[other]] or not swappable[at[one], at[other]]:
                    continue
                away = distance[seats[at]]
                change = away[:, seats[at[other]]] - away[:, seats[at[one]]]
                gain = float(
                    ((both[one] - both[other]) * change)[[k for k in range(len(at)) if k not in (one, other)]].sum()
                )
                if gain < -1e-9:
                    at[one], at[other] = at[other], at[one]
                    better = True
    return ints(seats[at])
