"""The step time alone: the compiled loop without what devices hold.

`loop.run` knows how many bytes each device holds at every moment, which takes a quarter to nearly half of its time. A
search that only asks how long a step takes, and for most of its candidates only whether it takes too long, can do
without. The rules are the same, and so is the time, to the nanosecond (tests/properties/test_quick.py): who asks for
memory too asks `run` about the few candidates that are quick enough.

Left out, too, is what few problems have: hosts that ask for kernels (rule 14), links without contention, work
that follows the last op; `times_alone` says where it may be asked.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.problem.objective import SUM, Goal
from loadmaster.simulator.heaps import pack_heaps, part, pop, pop_event, push, push_event
from loadmaster.simulator.state import Layout, RunScratch

FREE = -1  # what a resource does that does nothing
KEY = 0xFFFFFFFF  # the part of a heap's key below its rank


def times_alone(layout: Layout, goal: Goal) -> bool:
    """Whether `step_time` says all that a plan is judged by, but for what devices hold."""
    plain = layout.contention and not len(layout.dispatch) and not len(layout.rest)
    plain = plain and 2 * layout.devices * len(layout.nbytes) <= KEY
    return plain and goal.kind == SUM and goal.step_price > 0 and not len(goal.busy_price)


@part
def _queue(
    queues: tuple[Ints, Ints, Ints32, Ints, Ints32, np.ndarray, Ints], at: Whole, rank: Whole, key: Whole
) -> None:
    """Puts something on the heap of a resource, which is then looked at in this round if it does nothing."""
    heap, heap_start, size, busy, dirty, is_dirty, tally = queues
    push(heap, heap_start[at], size[at], (rank << 32) | key)
    size[at] += 1
    if busy[at] == FREE and is_dirty[at] == 0:
        is_dirty[at] = 1
        dirty[tally[0]] = at
        tally[0] += 1


@part
def _wake(
    ops: tuple[Ints32, Ints32, Ints32, Ints32],
    queues: tuple[Ints, Ints, Ints32, Ints, Ints32, np.ndarray, Ints],
    op: Whole,
) -> None:
    """One thing less to wait for; an op that waits for nothing more is queued on its device."""
    left, place, rank, tie = ops
    left[op] -= 1
    if left[op] == 0:
        queues[6][1] += 1
        _queue(queues, place[op], np.int64(rank[op]), np.int64(tie[op]))


@part
def _announce(
    ops: tuple[Ints32, Ints32, Ints32, Ints32],
    queues: tuple[Ints, Ints, Ints32, Ints, Ints32, np.ndarray, Ints],
    reading: tuple[Ints32, Ints32, Ints32, Ints, Ints, Ints32, Whole, Whole],
    tensor: Whole,
    here: Whole,
    made: bool,
) -> None:
    """Wakes the readers of a tensor on the device where it lies, and queues its sends to the others."""
    left, place, rank, _ = ops
    reader_start, readers, count, far, low, channel, devices, shift = reading
    first, last = reader_start[tensor], reader_start[tensor + 1]
    if last == first + 1:  # most tensors have one reader
        op = readers[first]
        where = np.int64(place[op])
        if where == here:
            if made:
                _wake(ops, queues, op)
        else:
            if not made:
                left[op] += 1
            _queue(queues, channel[here * devices + where], np.int64(rank[op]), (tensor << shift) | where)
        return
    fars = 0
    for at in range(first, last):
        op = readers[at]
        where = np.int64(place[op])
        if where == here:
            if made:
                _wake(ops, queues, op)
            continue
        if count[where] == 0:
            count[where] = 1
            far[fars] = where
            fars += 1
            low[where] = rank[op]
        elif rank[op] < low[where]:
            low[where] = rank[op]
        if not made:
            left[op] += 1
    for index in range(fars):
        where = far[index]
        count[where] = 0
        _queue(queues, channel[here * devices + where], low[where], (tensor << shift) | where)


@compiled(error_model="numpy", _nrt=False, apart=True)
def step_time(layout: Layout, place: Ints32, rank: Ints32, scratch: RunScratch, most_ns: Whole) -> Whole:
    """How long the step takes, or -1 once it must pass most_ns. Where the scratch space is `bounded`, its caller has
    filled `tail` and `ahead`; how many ops became ready is in `tally[1]`, as after `run`."""
    at: Whole
    op: Whole
    devices, op_ns, op_of_tie = layout.devices, layout.op_ns, layout.op_of_tie
    make_start, makes, next_start, nexts = layout.make_start, layout.makes, layout.next_start, layout.nexts
    reader_start, readers, maker = layout.reader_start, layout.readers, layout.maker
    send_classes, send_ns, send_class = layout.send_classes, layout.send_ns, layout.send_class
    heap, heap_start, size, busy = scratch.heap, scratch.heap_start, scratch.size, scratch.busy
    event_ns, event_at, dirty, is_dirty = scratch.event_ns, scratch.event_at, scratch.dirty, scratch.is_dirty
    tail, ahead, tally, left = scratch.tail, scratch.ahead, scratch.tally, scratch.left
    bounded = len(tail) > 0
    shift = np.int64(1)
    while (np.int64(1) << shift) < devices:
        shift += 1
    to = (np.int64(1) << shift) - 1
    ops = (left, place, rank, layout.tie)
    queues = (heap, heap_start, size, busy, dirty, is_dirty, tally)
    reading = (reader_start, readers, scratch.count, scratch.far, scratch.low, layout.channel, devices, shift)
    if layout.packed:
        pack_heaps(layout, place, scratch)
    for at in range(len(size)):
        size[at] = 0
        busy[at] = FREE
        is_dirty[at] = 0
    for op in range(len(left)):
        left[op] = layout.waits[op]
    tally[:] = 0
    for index in range(len(layout.updated)):
        tensor = np.int64(layout.updated[index])
        _announce(ops, queues, reading, tensor, np.int64(place[maker[tensor]]), False)
    for index in range(len(layout.sources)):
        op = np.int64(layout.sources[index])
        if left[op] == 0:
            left[op] = 1
            _wake(ops, queues, op)
    events, now = 0, np.int64(0)
    while True:
        for index in range(tally[0]):
            at = np.int64(dirty[index])
            is_dirty[at] = 0
            if size[at] == 0:
                continue
            size[at] -= 1
            key = pop(heap, heap_start[at], size[at]) & KEY
            if at < devices:
                key = np.int64(op_of_tie[key])
                end = now + op_ns[key * devices + at]
                if bounded:
                    if now + tail[key] > most_ns or now + ahead[at] > most_ns:
                        return np.int64(-1)
                    ahead[at] -= end - now
            else:
                tensor, where = key >> shift, key & to
                link = send_class[np.int64(place[maker[tensor]]) * devices + where]
                end = now + send_ns[tensor * send_classes + link]
            busy[at] = key
            push_event(event_ns, event_at, events, end, at)
            events += 1
        tally[0] = 0
        if events == 0:
            return now
        now = event_ns[0]
        if now > most_ns:
            return np.int64(-1)
        while events > 0 and event_ns[0] == now:
            events -= 1
            at = np.int64(pop_event(event_ns, event_at, events))
            done = busy[at]
            busy[at] = FREE
            if is_dirty[at] == 0:
                is_dirty[at] = 1
                dirty[tally[0]] = at
                tally[0] += 1
            if at < devices:
                for make in range(make_start[done], make_start[done + 1]):
                    _announce(ops, queues, reading, np.int64(makes[make]), at, True)
                for index in range(next_start[done], next_start[done + 1]):
                    _wake(ops, queues, np.int64(nexts[index]))
            else:
                tensor, where = done >> shift, done & to
                for index in range(reader_start[tensor], reader_start[tensor + 1]):
                    if place[readers[index]] == where:
                        _wake(ops, queues, np.int64(readers[index]))
