"""A plan of one problem as a plan of another: ops go where those most like them were, in their order.

Devices are matched by speed; where there are another number of them, the known ones' ops are laid in a row and cut anew
into shares. Ops without a like go where their largest tensor is. Several plans come out, since a stack that grew can be
stretched in more than one way; a search scores them all (`trying`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Bools, Ints, ints, positions, rows_of
from loadmaster.methods.experience.known import Known, speeds
from loadmaster.methods.experience.likeness import Sight, matches
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem

REACH = 4  # steps that a device is carried to ops without a like


def adapt(known: Known, problem: Problem, seen: Sight | None = None) -> tuple[list[Plan], float]:
    """(plans for the problem after a known one, the share of its work whose like was found by more than its name)."""
    work = ints(np.where(problem.op_ns == CANNOT, np.iinfo(np.int64).max, problem.op_ns).min(axis=1))
    plans, shares = list[Plan](), list[float]()
    for like, close in matches(known.sight, seen or Sight.of(problem.graph)):
        rank = positions(np.lexsort((np.arange(problem.num_ops), _places(known, like))))
        devices = _devices(known, like, problem, work)
        plans += [Plan.of(problem, _allowed(problem, device), rank) for device in devices]
        shares.append(float(work[close].sum() / max(1, work.sum())))
    return plans, max(shares)


def _places(known: Known, like: Ints) -> Ints:
    """When the like of each op ran; an op without one runs after the op before it."""
    place = np.where(like >= 0, known.place[like], -1)
    return ints(_filled(place))


def _filled(values: Ints) -> Ints:
    """-1 takes the value before it, at the beginning 0."""
    given = np.maximum.accumulate(np.where(values >= 0, np.arange(len(values)), -1))
    return ints(np.where(given >= 0, values[given], 0))


def _devices(known: Known, like: Ints, problem: Problem, work: Ints) -> list[Ints]:
    """Where ops may go: where their like was, while there are as many devices; where there are others, cut anew too."""
    rate = speeds(problem)
    found = []
    if len(rate) >= len(known.speed):
        device = _beside(problem, ints(np.where(like >= 0, known.device[like], -1)))
        found.append(ints(_by_speed(known.speed, rate)[device]))
    if len(rate) != len(known.speed):
        found.append(_cut_anew(known, like, rate, work))
    return found


def _beside(problem: Problem, device: Ints) -> Ints:
    """An op without a like goes where the largest tensor that it reads comes from, or else where the largest that it
    makes goes to; what is beside no op that has one, where the op before it is."""
    graph, device = problem.graph, device.copy()
    made = graph.is_made[graph.reads]
    before, later, tensor = graph.producer[graph.reads][made], rows_of(graph.read_start)[made], graph.reads[made]
    order = np.argsort(graph.nbytes[tensor], kind="stable")  # the largest is written last
    for _ in range(REACH):
        for there, here in ((before[order], later[order]), (later[order], before[order])):
            some = (device[here] < 0) & (device[there] >= 0)
            device[here[some]] = device[there[some]]
    return _filled(ints(device))


def _by_speed(known: NDArray[np.float64], rate: NDArray[np.float64]) -> Ints:
    """[known devices] the device here: itself where speeds are as they were, else the one of the same rank by speed."""
    if np.allclose(known, rate[: len(known)], rtol=0.2):
        return ints(np.arange(len(known)))
    there, here = (np.argsort(-speed, kind="stable") for speed in (known, rate))
    return ints(here[positions(there)])


def _cut_anew(known: Known, like: Ints, rate: NDArray[np.float64], work: Ints) -> Ints:
    """For another number of devices: the known ones stand in a row by when their ops run on average, their ops in a row
    within each; the row is cut into shares of work as large as the devices here are fast."""
    count = len(known.speed)
    load = np.maximum(1, np.bincount(known.device, known.work, count))
    mean = np.bincount(known.device, known.work * known.place, count) / load
    row = positions(np.argsort(mean, kind="stable"))
    where = np.where(like >= 0, row[known.device[like]] * len(known.place) + known.place[like], -1)
    order = np.argsort(_filled(where), kind="stable")
    done = np.cumsum(work[order]) - work[order] / 2
    ends = np.cumsum(rate) / rate.sum() * max(1, work.sum())
    device = np.empty(len(like), np.int64)
    device[order] = np.minimum(np.searchsorted(ends, done), len(rate) - 1)
    return ints(device)


def _allowed(problem: Problem, device: Ints) -> Ints:
    """Ops that must share a device go where most of them would, then all where they can run."""
    can: Bools = problem.op_ns != CANNOT
    group, chosen = problem.graph.colocate, device.copy()
    members = np.flatnonzero(group >= 0)
    if len(members):
        votes = np.zeros((int(group.max()) + 1, problem.num_devices))
        np.add.at(votes, (group[members], device[members]), 1.0)
        for number in np.unique(group[members]):
            mine = members[group[members] == number]
            votes[number, ~can[mine].all(axis=0)] = -1.0
        chosen[members] = votes.argmax(axis=1)[group[members]]
    stuck = ~can[np.arange(problem.num_ops), chosen]
    fastest = np.where(can, problem.op_ns, np.iinfo(np.int64).max).argmin(axis=1)
    chosen[stuck] = fastest[stuck]
    return ints(chosen)
