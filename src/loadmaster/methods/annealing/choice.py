"""Compiled: which kind of move is tried next, what it is aimed at, and whether what makes a plan worse is kept.

Kinds that paid of late are tried more often.
In the manner of a bandit: the chance of each kind, about any op or an aimed one, with or without new ranks, is what it
gained for the simulations it took of late, against the average of all. None dies out.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Floats, Ints, Ints32, Whole
from loadmaster.methods.annealing.state import ARMS, CRITICAL, SHIFT, WAYS, Scratch, Terrain
from loadmaster.search.xorshift import RandomState, unit
from loadmaster.simulator.state import Layout

FADE = 0.9998  # of what is known of a kind of move, kept after each one: about the last five thousand count
TRIAL = 8.0  # whole runs of every kind that are taken to have gone as the average did
LEAST = 0.05  # of the average chance, that a kind of move has at least


@compiled(_nrt=False)
def fade(spent: Floats, gained: Floats, moves: Whole) -> None:
    kept = FADE**moves
    for arm in range(ARMS):
        spent[arm] *= kept
        gained[arm] *= kept


@compiled(_nrt=False)
def choose(kinds: Bools, aims: bool, spent: Floats, gained: Floats, chances: Floats) -> float:
    """Writes chances of every way of every kind: how much it gained of late for what it cost, against the average of
    all; returns their sum. `kinds`: [KINDS] which may be made at all."""
    gains, runs, total = 1.0, TRIAL, 0.0
    for arm in range(ARMS):
        gains, runs = gains + gained[arm], runs + spent[arm]
    rate = gains / runs
    for arm in range(ARMS):
        kind, aimed, anew = arm // WAYS, arm % 2 == 1, arm % WAYS >= 2
        allowed = kinds[kind] and (aims or not aimed)
        if kind == CRITICAL:
            allowed = allowed and not aimed
        if anew:  # ranks, after ops were placed
            allowed = allowed and kind < SHIFT and kinds[CRITICAL]
        paid = (gained[arm] + TRIAL * rate) / (spent[arm] + TRIAL) / rate
        chances[arm] = max(LEAST, paid) if allowed else 0.0
        total += chances[arm]
    return total


@compiled(_nrt=False)
def slack_of(temperature: float, state: RandomState) -> float:
    """By which share of its value a plan may be worse and still be kept. A plan worse by a share d is kept with chance
    exp(-d ÷ temperature), the rule of Metropolis; drawn first, it says when a run need not be finished."""
    return -np.log(unit(state)) * temperature  # type: ignore[no-any-return]


@compiled(_nrt=False)
def cooled(hot: float, cold: float, share: float) -> float:
    """The temperature after a share of the cooling: geometric, from hot at 0 to cold at 1."""
    return hot * (cold / hot) ** share  # type: ignore[no-any-return]


# What a step waits for: the longest ways to its end, and the chain of ops that its last moment hangs on.
#
# Tails (the longest way from an op to the end, sends included) let a simulation stop as soon as it must pass the value
# that would be kept; they are kept up as ops move. The critical chain is looked up now and then from a recorded run,
# and moves are aimed at it: elsewhere there is less to gain.


@compiled(_nrt=False)
def measure_tails(layout: Layout, place: Ints32, top: Whole, tail: Ints) -> None:
    """The longest path from the start of each op to the end of the step, sends included, for ops up to `top`; those
    of later ops are taken as they are. No run can be shorter than when an op starts and its tail."""
    devices, classes, op_ns, send_ns, send_class = (
        layout.devices,
        layout.send_classes,
        layout.op_ns,
        layout.send_ns,
        layout.send_class,
    )
    make_start, makes, reader_start, readers = layout.make_start, layout.makes, layout.reader_start, layout.readers
    next_start, nexts, rest = layout.next_start, layout.nexts, layout.rest
    for op in range(top, -1, -1):
        here, longest = np.int64(place[op]), rest[op] if len(rest) > 0 else np.int64(0)
        for make in range(make_start[op], make_start[op + 1]):
            tensor = np.int64(makes[make])
            for at in range(reader_start[tensor], reader_start[tensor + 1]):
                reader = readers[at]
                way = tail[reader]
                if place[reader] != here:
                    way += send_ns[tensor * classes + send_class[here * devices + place[reader]]]
                longest = max(longest, way)
        for at in range(next_start[op], next_start[op + 1]):
            longest = max(longest, tail[nexts[at]])
        tail[op] = op_ns[op * devices + here] + longest


@compiled(_nrt=False)
def _ends_last(end: Ints, rest: Ints) -> Whole:
    """The first of the ops after which the step ends last."""
    last, latest = np.int64(0), np.int64(-1)
    for op in range(len(end)):
        ends = end[op] + rest[op] if len(rest) > 0 else end[op]
        if ends > latest:
            last, latest = np.int64(op), ends
    return last


@compiled(_nrt=False)
def critical_ops(layout: Layout, terrain: Terrain, place: Ints32, scratch: Scratch) -> Whole:
    """How many ops a chain has that ends with the step and in which each op starts because the one before it ended:
    on the same device (then it was queued there), or as the last maker of what it reads. Writes them, last one first,
    and all ops in order of dispatch."""
    count: Whole
    op: Whole
    ops, devices, classes, record = len(place), layout.devices, layout.send_classes, scratch.record
    start, end, turn, producer = record.start_ns, record.end_ns, record.turn, terrain.producer
    turns, found = scratch.turns, scratch.critical
    before, last = scratch.old_tail, scratch.peak  # free until the next move
    last[:] = -1
    for op in range(ops):
        turns[turn[op]] = op
    for at in range(ops):
        op = turns[at]
        before[op] = last[place[op]]
        last[place[op]] = op
    op, count = _ends_last(end, layout.rest), 0
    while op >= 0:
        cause, latest = before[op], np.int64(-1)
        found[count] = op
        count += 1
        if cause < 0 or end[cause] != start[op]:
            cause = np.int64(-1)
            for at in range(terrain.read_start[op], terrain.read_start[op + 1]):
                tensor = terrain.reads[at]
                maker = producer[tensor]
                if maker < 0:
                    continue
                there = end[maker]
                if place[maker] != place[op]:
                    link = layout.send_class[np.int64(place[maker]) * devices + place[op]]
                    there += layout.send_ns[tensor * classes + link]
                if there > latest:
                    cause, latest = maker, there
            for at in range(terrain.after_start[op], terrain.after_start[op + 1]):
                if end[terrain.after[at]] > latest:
                    cause, latest = terrain.after[at], end[terrain.after[at]]
        op = cause
    return count
