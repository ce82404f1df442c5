"""Balancing: groups of ops go from device to device until none holds much more at any moment than the others, if the
program ran one op after another. Nothing is simulated: what devices hold is added up, which is the peak of most plans
to a tenth of a percent and takes a fraction of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.baselines.simple import legal
from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole, ints, ragged, rows_of
from loadmaster.passes.groups import Grouper, group_ops, sets_of
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.problem import LastFew
from loadmaster.search.xorshift import RandomState, below, seeded

EFFORT = 40_000_000  # additions in one call, at most: about a tenth of a second
FEWEST = 200  # moves; where there is no time for so many nothing is moved
# One part in so many, by which a plan may be worse than the one before at first, and less with every move: threshold
# accepting (Dueck and Scheuer 1990), which draws no number; what is simulated is annealed by the one engine.
WORSE = 256
TRIES = 20  # to find a group on another device to swap with


class Stage(NamedTuple):
    """Which groups are moved, and how many times one of them is."""

    groups: tuple[tuple[Grouper, int], ...]
    moves: int


# From groups that share heavy tensors down to single ops: how many groups of each kind, and moves of a stage.
HEAVY, MOVES = (24, 64, 192), 1_000
OPS = Stage((("op", 0),), MOVES)
MIXED = (Stage((*(("edges", most) for most in HEAVY), *(("window", most) for most in HEAVY)), 2 * MOVES), OPS)
FINER = (*(Stage((("edges", most),), MOVES) for most in HEAVY), OPS)
MOST, OVER = 8, 64  # times that bytes of the fullest device count, and bytes over a limit


class Held(NamedTuple):
    """A problem as what devices hold.

    Attributes:
        users: ops that need a tensor, along the program.
        home: [tensors] op whose device has it from its start on; -1: it is wherever it is read.
        resident: [tensors] from the beginning to the end.
        stays: [tensors] to the end.
        nbytes: [tensors] 0 of those that are written over others.
        memory: [devices] bytes.
    """

    use_start: np.ndarray  # [tensors + 1]
    users: np.ndarray
    home: np.ndarray  # [tensors]
    resident: np.ndarray  # [tensors]
    stays: np.ndarray  # [tensors]
    nbytes: np.ndarray  # [tensors]
    workspace: np.ndarray  # [ops]
    able: np.ndarray  # [ops, devices]
    memory: np.ndarray  # [devices]


def balanced(problem: Problem, given: Sequence[Ints], stages: Sequence[Stage], seed: int = 0) -> Ints:
    """A placement made from the one of those given under which the fullest device holds least."""
    held = _HELD.of(problem, None, lambda: held_of(problem))
    device = min(given, key=lambda some: fullest(held, some)).copy()
    each = problem.num_ops * problem.num_devices + len(held.users) + len(held.home)
    state = seeded(seed + 1)
    for stage in stages:
        moves = min(stage.moves, EFFORT // each)
        if moves >= FEWEST:
            pools = _POOLS.of(problem, stage.groups, _pools_of(problem, stage.groups))
            device = balance(held, *pools, device, moves, state)
    return legal(problem, ints(device))


def fullest(held: Held, device: Ints) -> int:
    """Bytes that the fullest device holds at its fullest."""
    devices = len(held.memory)
    change, last = np.zeros((devices, len(device) + 1), np.int64), np.empty(devices, np.int64)
    return int(_peaks(held, device, change, last)[0])


def held_of(problem: Problem) -> Held:
    graph, ops = problem.graph, problem.num_ops
    written = np.flatnonzero(graph.is_in_place)
    tensor = np.concatenate([graph.owner[graph.reads], graph.owner[written]])
    key = np.unique(tensor * ops + np.concatenate([rows_of(graph.read_start), graph.producer[written]]))
    stays = np.zeros(graph.num_tensors, bool)
    stays[graph.owner[problem.stays]] = True
    return Held(
        ints(np.searchsorted(key // ops, np.arange(graph.num_tensors + 1))),
        ints(key % ops),
        ints(np.where(problem.resident, problem.updater, graph.producer)),
        np.array(problem.resident),
        stays,
        ints(graph.own_bytes),
        graph.workspace_bytes,
        problem.op_ns != CANNOT,
        problem.memory_bytes,
    )


def _pools_of(problem: Problem, groups: Sequence[tuple[Grouper, int]]) -> Callable[[], tuple[Ints, Ints, Ints]]:
    """(start, group start, ops): groups of one pool after those of another, and the ops of each."""

    def make() -> tuple[Ints, Ints, Ints]:
        pools = [sets_of(group_ops(problem, most, by)) for by, most in groups]
        start = np.cumsum([0, *map(len, pools)])
        return ints(start), *ragged([group for pool in pools for group in pool])

    return make


_HELD: LastFew[Held] = LastFew("held", 1)
_POOLS: LastFew[tuple[Ints, Ints, Ints]] = LastFew("pools", len(FINER))


@compiled(_nrt=False)
def _peaks(held: Held, device: Ints, change: Ints, last: Ints) -> tuple[Whole, Whole, Whole]:
    """(bytes of the fullest device, of all at their fullest, over their memory). A copy is there from when its tensor
    is made, since sends go as soon as they can, until the last op that reads it."""
    devices, ops = change.shape[0], len(device)
    for here in range(devices):
        for at in range(ops + 1):
            change[here, at] = 0
    for op in range(ops):
        change[device[op], op] += held.workspace[op]
        change[device[op], op + 1] -= held.workspace[op]
    for tensor in range(len(held.home)):
        size = held.nbytes[tensor]
        low, high = held.use_start[tensor], held.use_start[tensor + 1]
        if size == 0 or (held.home[tensor] < 0 and low == high):
            continue
        for here in range(devices):
            last[here] = -1
        for at in range(low, high):
            last[device[held.users[at]]] = held.users[at]
        born = held.home[tensor]
        home = device[born] if born >= 0 else np.int64(-1)
        for here in range(devices):
            if here != home and last[here] < 0:
                continue
            if held.resident[tensor]:
                change[here, 0] += size
                if here != home and home >= 0:
                    change[here, last[here] + 1] -= size
            elif here == home:
                change[here, born] += size
                if not held.stays[tensor]:
                    change[here, max(born, last[here]) + 1] -= size
            else:
                change[here, born + 1] += size
                change[here, last[here] + 1] -= size
    most, total, over = np.int64(0), np.int64(0), np.int64(0)
    for here in range(devices):
        now, top = np.int64(0), np.int64(0)
        for at in range(ops):
            now += change[here, at]
            top = max(top, now)
        most, total = max(most, top), total + top
        over += max(0, top - held.memory[here])
    return most, total, over


@compiled(_nrt=False)
def _value(held: Held, device: Ints, change: Ints, last: Ints) -> Whole:
    """Less is better: the fullest first of all, but others count, too, so that moves between them are told apart."""
    most, total, over = _peaks(held, device, change, last)
    return MOST * most + total // len(last) + OVER * over


@compiled(_nrt=False)
def _move(
    held: Held,
    low: Whole,
    high: Whole,
    ops: Ints,
    device: Ints,
    there: Whole,
    changed: Ints,
    before: Ints,
    count: Whole,
) -> Whole:
    """Moves the ops of a group, if all can run there; returns how many have been moved by now, or -1."""
    for at in range(low, high):
        if not held.able[ops[at], there]:
            return -1
    for at in range(low, high):
        changed[count], before[count] = ops[at], device[ops[at]]
        device[ops[at]] = there
        count += 1
    return count


@compiled
def balance(held: Held, pools: Ints, start: Ints, ops: Ints, given: Ints, moves: Whole, state: RandomState) -> Ints:
    """[ops] devices: groups of a pool are moved, or two of them swapped, and it stays so unless the fullest device then
    holds more, or at first much more, than before (threshold accepting: Dueck and Scheuer, 1990)."""
    devices, count = len(held.memory), len(given)
    device, best = given.copy(), given.copy()
    change, last = np.zeros((devices, count + 1), np.int64), np.empty(devices, np.int64)
    changed, before = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    now = _value(held, device, change, last)
    least = now
    for turn in range(moves if devices > 1 else 0):
        pool = below(state, len(pools) - 1)
        low, many = pools[pool], pools[pool + 1] - pools[pool]
        group = low + below(state, many)
        here = device[ops[start[group]]]
        there = below(state, devices - 1)
        there += there >= here
        other = np.int64(-1)
        if below(state, 2) == 1:
            for _ in range(TRIES):
                some = low + below(state, many)
                if device[ops[start[some]]] == there:
                    other = some
                    break
        moved = _move(held, start[group], start[group + 1], ops, device, there, changed, before, 0)
        if moved < 0:
            continue
        if other >= 0:
            more = _move(held, start[other], start[other + 1], ops, device, here, changed, before, moved)
            moved = moved if more < 0 else more
        value = _value(held, device, change, last)
        if value <= now + least // WORSE * (moves - turn) // moves:
            now = value
            if value < least:
                least = value
                best[:] = device
        else:
            for at in range(moved - 1, -1, -1):
                device[changed[at]] = before[at]
    return best
