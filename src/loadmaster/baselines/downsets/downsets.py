"""Downsets: the pipeline split over every order of the program, exact where it finishes.

For the throughput of devices that are held up by transfers. There may be exponentially many downsets: beyond so many,
light units are joined and the answer is no longer proved. Only loads under a bar are looked for, and the bar is raised
from the lower bound up until there is a split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.baselines.downsets.units import Downs, Units, downsets, joined, units_of
from loadmaster.baselines.ordering import Order, ordered
from loadmaster.baselines.partition.parts import op_bytes
from loadmaster.baselines.pipeline.split import all_moves
from loadmaster.baselines.simple import OneDevice, legal
from loadmaster.graph.columns import Ints, Ints32, from_pairs, ints, numbered, rows_of
from loadmaster.passes.groups import mirrored_position
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.baselines.downsets.stages import UnitCosts
    from loadmaster.baselines.pipeline.stages import DeviceSets

CANNOT_NS = 2**42  # of an op on a device that cannot run it: over an hour
MOST_SETS = 60_000  # downsets; with more, light units are joined first
FEWER = 0.8  # of the units at most are left after light ones have joined
PER_SECOND, SETS_PER_SECOND = 1_000_000, 400  # stages tried, and downsets found over and over, on a slow machine
FIRST, WIDER = 1.05, 1.2  # times the lower bound: loads looked for at first, and how much more each time none is found


Split = tuple[int, Ints]  # largest load, and the device of each op


@dataclass(frozen=True)
class Downsets:
    """The busiest device has as little as can be: over all ways to cut the program into contiguous stages, whatever the
    order in which independent ops are laid out.

    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020): a dynamic
    programme over downsets (ideals), exact where devices are held up by transfers and links are alike. Backward ops lie
    with their forward ops.

    Differs from the paper: only loads up to a bar are looked for, and the bar is raised until there is a split; light
    units are joined where there are too many downsets; any kinds of devices.

    Attributes:
        order: in which order a device takes its ops, as `ordering` has it.
        effort: stages tried before light units are joined: about ten seconds.
        sets: downsets, likewise.
    """

    order: Order = "critical"
    effort: int = 40_000_000
    sets: int = MOST_SETS

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        effort, sets = self.effort, self.sets
        if not search.counts_simulations:  # most of it goes into the last try, and there may be a few
            effort = int(min(effort, max(1000, search.seconds_left * PER_SECOND / 10)))
            sets = int(min(sets, max(100, search.seconds_left * SETS_PER_SECOND)))
        tried = (split_of(problem, label, effort, sets) for label in _labels(problem))
        found = [split for split in tried if split is not None]
        if not found:
            return OneDevice().optimize(search)
        return ordered(search, min(found, key=lambda split: split[0])[1], self.order)


def _labels(problem: Problem) -> list[Ints]:
    """[ops] what goes together: colocation groups; where there are none, with backward ops beside their forward ops,
    too."""
    colocate, ops = problem.graph.colocate, np.arange(problem.num_ops)
    plain = ints(np.where(colocate >= 0, problem.num_ops + colocate, ops))
    if problem.graph.is_colocated.any():
        return [plain]
    return [plain, mirrored_position(problem)]


def split_of(problem: Problem, label: Ints, effort: int, sets: int = MOST_SETS) -> Split | None:
    """(largest load, placement) of the best stages; None where there are none within memory."""
    units = units_of(problem, label)
    work = np.bincount(units.unit, weights=problem.best_ns, minlength=units.count)
    light = work.sum() / problem.num_devices / 64
    while True:
        downs = downsets(units, sets)
        if downs is not None:
            done, split = _solved(problem, units, downs, effort)
            if done:
                return split
        label = joined(units, work, light)[units.unit]
        if len(np.unique(label)) > FEWER * units.count:
            label = ints(units.unit // 2)  # too few join by themselves: neighbours in order do
        units, light = units_of(problem, label), light * 2
        work = np.bincount(units.unit, weights=problem.best_ns, minlength=units.count)


def _solved(problem: Problem, units: Units, downs: Downs, effort: int) -> tuple[bool, Split | None]:
    """(whether it took no more than the effort, the best stages if there are any)."""
    from loadmaster.baselines.downsets.stages import NEVER, Lattice, best_stages

    kind_of, lattice = _kinds(problem), Lattice(downs.start, downs.unit, downs.after)
    moves, loads = all_moves(np.bincount(kind_of)), _loads(problem, units, kind_of)
    least = loads.times.min(axis=1).astype(np.float64)
    most = FIRST * max(least.sum() / problem.num_devices, least.max(), 1.0)
    top = 2.0 * least.sum() + loads.send_ns.sum()
    while True:
        value, before, by = best_stages(lattice, loads, moves, np.int64(min(most, 2.0**60)), effort)
        if not len(value):
            return False, None
        state = int(value[:, -1].argmin())
        if value[state, -1] < NEVER:
            return True, (int(value[state, -1]), _placement(problem, units, downs, moves, kind_of, (state, before, by)))
        if most > top:
            return True, None
        most *= WIDER


def _kinds(problem: Problem) -> Ints:
    """[devices] devices with equal times, memory and overlap are of one kind."""
    overlap = [device.overlap for device in problem.cluster.devices]
    return numbered(zip(problem.device_kind.tolist(), overlap, strict=True))


def _loads(problem: Problem, units: Units, kind_of: Ints) -> UnitCosts:
    from loadmaster.baselines.downsets.stages import UnitCosts

    graph, first = problem.graph, np.unique(kind_of, return_index=True)[1]
    times = np.zeros((units.count, len(first)), np.int64)
    np.add.at(times, units.unit, np.where(problem.op_ns[:, first] == CANNOT, CANNOT_NS, problem.op_ns[:, first]))
    maker = problem.maker
    moving = np.flatnonzero(maker >= 0)
    number = np.full(graph.num_tensors, -1, np.int64)
    number[moving] = np.arange(len(moving))
    home = units.unit[maker[moving]]
    reader, tensor = units.unit[rows_of(graph.read_start)], number[graph.reads]
    away = tensor >= 0
    away[away] = home[tensor[away]] != reader[away]
    _, read = from_pairs(reader[away], tensor[away], units.count)
    touch_start, touch = from_pairs(
        np.concatenate([reader[away], home]), np.concatenate([tensor[away], np.arange(len(moving))]), units.count
    )
    return UnitCosts(
        times,
        ints(np.bincount(units.unit, weights=op_bytes(problem), minlength=units.count)),
        ints(problem.memory_bytes[first]),
        np.array([not problem.cluster.devices[d].overlap for d in first]),
        touch_start,
        touch,
        ints(home),
        ints(np.bincount(read, minlength=len(moving))),
        ints(problem.send_ns.max(axis=1, initial=0)[moving]),
    )


def _placement(
    problem: Problem,
    units: Units,
    downs: Downs,
    moves: DeviceSets,
    kind_of: Ints,
    answer: tuple[int, Ints32, Ints32],
) -> Ints:
    """[ops] devices, stages from the last to the first; devices of one kind are taken in order of stage."""
    state, before, by = answer
    here, stages = before.shape[1] - 1, []
    while here > 0:
        move, smaller = int(by[state, here]), int(before[state, here])
        stages.append((downs.between(smaller, here), int(moves.kind[move])))
        state, here = int(moves.source[move]), smaller
    free = {kind: np.flatnonzero(kind_of == kind).tolist() for kind in set(kind_of.tolist())}
    device = np.zeros(units.count, np.int64)
    for members, kind in reversed(stages):
        device[members] = free[kind].pop(0)
    return legal(problem, ints(device[units.unit]))
