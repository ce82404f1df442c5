"""What a step waits for: the longest ways to its end, and the chain of ops that its last moment hangs on.

Tails (the longest way from an op to the end, sends included) let a simulation stop as soon as it must pass the value
that would be kept; they are kept up as ops move. The critical chain is looked up now and then from a recorded run, and
moves are aimed at it: elsewhere there is less to gain.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.methods.annealing.state import Scratch, Terrain
from loadmaster.simulator.state import Layout


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
