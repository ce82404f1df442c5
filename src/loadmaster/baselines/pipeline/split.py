"""The pipeline split: consecutive stages of the model on consecutive devices, cut exactly by dynamic programming.

Ops are laid on a line of slots (the program, or folded so that a layer's backward lies with its forward), and the line
is cut for the least largest load or the least total, over all orders of unlike devices. Quadratic in the slots times
sets of devices; longer lines are merged until that is about a second (`MOST_CELLS`). `downsets` does the same for every
order of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from loadmaster.baselines.ordering import Order, best_of, ordered
from loadmaster.baselines.partition.parts import op_times
from loadmaster.baselines.simple import OneDevice, legal
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes.groups import mirrored_position, scope_slots, turning_point
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Search

if TYPE_CHECKING:
    from loadmaster.baselines.pipeline.stages import DeviceSets, SlotLine

Goal = Literal["step-time", "max-load"]
Fold = Literal["auto", "program", "mirror", "scope"]

MOST_CELLS = 60_000_000  # slots squared times moves: about a second
MOST_STATES = 256  # sets of devices in use; with more, devices come in order of their kind only
MOST_SLOTS = 2_048  # on a line of ops; with more, neighbours with little work are one


@dataclass(frozen=True)
class PipelineSplit:
    """Contiguous stages, the best of all cuts and of all orders of unlike devices.

    Goal "max-load": the busiest device has as little as can be, as when a pipeline is kept full. "step-time": the
    splits with least load and with least total for each number of devices, whichever steps fastest. Work is laid out in
    slots: the program order, or, for training, so that a layer's backward and update lie with its forward; by module
    scope where scopes are known, else by the forward op whose result a backward op reads. "auto" tries them all.

    In the manner of PipeDream's planner (Narayanan et al., 2019) without replication.

    Attributes:
        goal: step-time, or max-load for a pipeline that is kept full.
        order: in which order a device takes its ops, as `ordering` has it.
        fold: how work is laid out on the line: program, mirror, scope, or auto: all of them.
    """

    goal: Goal = "step-time"
    order: Order = "best"
    fold: Fold = "auto"

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        if self.goal == "max-load":
            splits = [split for slot in _folds(problem, self.fold) for split in least_loads(problem, slot)]
            device = min(splits, key=lambda split: split[0])[1] if splits else OneDevice().optimize(search).device
            return ordered(search, device, self.order)
        return _fastest(search, _candidates(problem, self.fold), self.order)


def _fastest(search: Search, devices: Iterator[Ints], order: Order) -> Plan:
    """The best candidate under one order each, then under all orders asked for."""
    first: Order = "critical" if order == "best" else order
    plan, _ = best_of(search, (ordered(search, device, first) for device in devices))
    return ordered(search, plan.device, order) if order == "best" and search.simulations_left else plan


def _candidates(problem: Problem, fold: Fold) -> Iterator[Ints]:
    seen = set()
    for slot in _folds(problem, fold):
        for _, device in [*least_loads(problem, slot), *least_totals(problem, slot)]:
            if device.tobytes() not in seen:
                seen.add(device.tobytes())
                yield device
    if not seen:
        yield legal(problem, np.zeros(problem.num_ops, np.int64))


def least_loads(problem: Problem, slot: Ints) -> list[tuple[float, Ints]]:
    """(largest stage, placement) of the best split over any number of devices, the best first."""
    return _splits(problem, slot, longest=True)


def least_totals(problem: Problem, slot: Ints) -> list[tuple[float, Ints]]:
    """(work and sends of all stages, placement) of the best split over any number of devices, the best first."""
    return _splits(problem, slot, longest=False)


def _splits(problem: Problem, slot: Ints, *, longest: bool) -> list[tuple[float, Ints]]:
    from loadmaster.baselines.pipeline.stages import NEVER, best_splits

    kind_of = problem.device_kind
    moves = all_moves(np.bincount(kind_of))
    most = int(min(MOST_SLOTS, (MOST_CELLS / len(moves.source)) ** 0.5))
    slot = merged_slots(slot, op_times(problem) + 1, most)
    for limits in (problem.memory_bytes, np.full(problem.num_devices, np.iinfo(np.int64).max)):
        value, cut, by = best_splits(_line(problem, slot, kind_of, ints(limits)), moves, longest)
        ends = [state for state in np.argsort(value[:, -1], kind="stable").tolist() if value[state, -1] < NEVER]
        if ends:
            break
    used = _devices_used(moves)
    best = {used[state]: state for state in reversed(ends)}
    chosen = sorted(best.values(), key=lambda state: (value[state, -1], used[state]))
    return [(float(value[state, -1]), _placement(problem, slot, state, cut, by, moves, kind_of)) for state in chosen]


def _placement(problem: Problem, slot: Ints, state: int, cut: Ints, by: Ints, moves: DeviceSets, kind_of: Ints) -> Ints:
    """[ops] devices, stages from the last to the first; devices of one kind are taken in order of stage."""
    stages, right = [], cut.shape[1] - 1
    while right > 0:
        move = int(by[state, right])
        stages.append((int(cut[state, right]), right, int(moves.kind[move])))
        state, right = int(moves.source[move]), int(cut[state, right])
    free = {kind: np.flatnonzero(kind_of == kind).tolist() for kind in set(kind_of.tolist())}
    of_slot = np.zeros(cut.shape[1], np.int64)
    for left, end, kind in reversed(stages):
        of_slot[left:end] = free[kind].pop(0)
    return legal(problem, of_slot[slot])


def all_moves(count: Ints) -> DeviceSets:
    """Every way to add devices one by one; where that is too much, in order of kind only."""
    from loadmaster.baselines.pipeline.stages import DeviceSets

    if np.prod(count + 1.0) > MOST_STATES:
        kinds = np.repeat(np.arange(len(count)), count)
        source = np.arange(len(kinds))
        return DeviceSets(source, source + 1, kinds, len(kinds) + 1)
    states = {used: number for number, used in enumerate(product(*(range(c + 1) for c in count)))}
    moves = []
    for used, number in states.items():
        for kind in range(len(count)):
            more = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
            if more in states:
                moves.append((number, states[more], kind))
    source, target, kind_column = (np.array(column, np.int64) for column in zip(*moves, strict=True))
    return DeviceSets(source, target, kind_column, len(states))


def _devices_used(moves: DeviceSets) -> list[int]:
    used = [0] * moves.states
    for source, target in zip(moves.source.tolist(), moves.target.tolist(), strict=True):
        used[target] = used[source] + 1
    return used


def merged_slots(slot: Ints, work: np.ndarray, most: int) -> Ints:
    """[ops] slots numbered from 0; neighbours with little work are one where there are more than `most`."""
    slot = ints(np.unique(slot, return_inverse=True)[1].reshape(-1))
    if int(slot.max()) < most:
        return slot
    work = np.bincount(slot, weights=work)
    share = (np.cumsum(work) - work / 2) / work.sum()
    return ints(np.unique((share * most).astype(np.int64)[slot], return_inverse=True)[1].reshape(-1))


def _line(problem: Problem, slot: Ints, kind_of: Ints, limits: Ints) -> SlotLine:
    from loadmaster.baselines.pipeline.stages import SlotLine

    slots = int(slot.max()) + 1
    first = np.unique(kind_of, return_index=True)[1]
    able = problem.op_ns[:, first] != CANNOT
    return SlotLine(
        _summed(np.where(able, problem.op_ns[:, first], 0), slot, slots),
        _summed((~able).astype(np.int64), slot, slots),
        _summed(_saved_bytes(problem), slot, slots),
        *_touches(problem, slot, slots),
        ints(limits[first]),
    )


def _summed(column: Ints, slot: Ints, slots: int) -> Ints:
    total = np.zeros((slots + 1, *column.shape[1:]), np.int64)
    np.add.at(total, slot + 1, column)
    return ints(np.cumsum(total, axis=0))


def _saved_bytes(problem: Problem) -> Ints:
    """[ops] bytes it makes before the turning point that are read after it: all of a stage's are alive at once."""
    graph, turn = problem.graph, turning_point(problem)
    last = np.full(graph.num_tensors, -1, np.int64)
    np.maximum.at(last, graph.reads, rows_of(graph.read_start))
    made = graph.producer
    saved = graph.is_fresh & (((made <= turn) & (last > turn)) | problem.stays)
    total = np.zeros(problem.num_ops, np.int64)
    np.add.at(total, made[saved], graph.nbytes[saved])
    return ints(total)


def _touches(problem: Problem, slot: Ints, slots: int) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """(start, next, low, high, ns, bytes) per slot, of the tensors that its ops make, read or update."""
    graph = problem.graph
    maker = problem.maker
    owned = np.flatnonzero(maker >= 0)
    tensor = np.concatenate([graph.reads, owned])
    where = np.concatenate([slot[rows_of(graph.read_start)], slot[maker[owned]]])
    key = np.unique(tensor * slots + where)
    tensor, where = key // slots, key % slots
    low, high = np.full(graph.num_tensors, slots), np.full(graph.num_tensors, -1)
    np.minimum.at(low, tensor, where)
    np.maximum.at(high, tensor, where)
    follows = np.append(np.where(np.diff(tensor) == 0, where[1:], slots), slots) if len(tensor) else where
    fixed = problem.is_fixed
    at_home = problem.resident[tensor] & (fixed[tensor] | (slot[problem.updater[tensor]] == where))
    ns = np.where(fixed[tensor], 0, problem.send_ns.max(axis=1, initial=0)[tensor])
    order = np.argsort(where, kind="stable")
    start = np.zeros(slots + 1, np.int64)
    np.cumsum(np.bincount(where, minlength=slots), out=start[1:])
    columns = (follows, low[tensor], high[tensor], ns, np.where(at_home, graph.nbytes[tensor], 0))
    return (ints(start), *(ints(column[order]) for column in columns))  # type: ignore[return-value]


def _folds(problem: Problem, fold: Fold) -> list[Ints]:
    """[ops] slot of each op, for each layout asked for."""
    slots = []
    if fold in ("auto", "scope") and any(problem.graph.scope):
        slots.append(scope_slots(problem))
    if fold in ("auto", "mirror") or (fold == "scope" and not slots):
        slots.append(mirrored_position(problem))
    if fold in ("auto", "program"):
        slots.append(ints(np.arange(problem.num_ops)))
    return [_together(problem, slot) for slot in slots]


def _together(problem: Problem, slot: Ints) -> Ints:
    """The same with every colocation group in its first slot."""
    group = problem.graph.colocate
    members = np.flatnonzero(group >= 0)
    if not len(members):
        return slot
    first = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group[members], slot[members])
    joined = slot.copy()
    joined[members] = first[group[members]]
    return ints(joined)
