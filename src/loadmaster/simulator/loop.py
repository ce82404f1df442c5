"""The compiled inner loop of the simulator: arrays in, arrays out. The rules are in rules.py.

One call runs one step. Devices and channels are resources 0 … devices-1, devices … devices+channels-1; each has a
heap of what waits for it, keyed (rank << 32) | id. Nothing of size tensors x devices is reset between candidates:
`hold` is written when a tensor is made.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.problem.objective import BUSIEST, PEAK, Goal
from loadmaster.simulator.heaps import pack_heaps, pop, pop_event, push, push_event
from loadmaster.simulator.state import MADE, NO_RECORD, Layout, Record, RunScratch, kept_scratch
from loadmaster.simulator.waking import announce, ask, ask_later, let_go, wake

FOREVER = np.iinfo(np.int64).max


@compiled(error_model="numpy", _nrt=False, apart=True)  # callers without number: it takes seconds to compile
def run(
    layout: Layout,
    place: Ints32,
    rank: Ints32,
    send_rank: Ints,
    scratch: RunScratch,
    most_ns: Whole,
    most_bytes: Whole,
    peak: Ints,
    recording: bool,
    record: Record,
) -> Whole:
    """Runs one step; returns its time, or -1 once it must pass most_ns or a device passes most_bytes.

    Without ranks, ops and sends go first come first served. Arrays are taken out of their tuples once: reading one from
    a tuple inside the loop would count its references each time, which costs more than the loop itself.
    """
    at: Whole
    op: Whole
    running: Whole
    tensor: Whole
    where: Whole
    devices, op_ns, workspace, tie, op_of_tie = (
        layout.devices,
        layout.op_ns,
        layout.workspace,
        layout.tie,
        layout.op_of_tie,
    )
    make_start, makes, read_start, reads = layout.make_start, layout.makes, layout.read_start, layout.reads
    next_start, nexts, reader_start, readers = layout.next_start, layout.nexts, layout.reader_start, layout.readers
    nbytes, origin, maker, base, stays = layout.nbytes, layout.origin, layout.maker, layout.base, layout.stays
    send_classes, send_ns, send_class = layout.send_classes, layout.send_ns, layout.send_class
    channel, heap_start, rest = layout.channel, scratch.heap_start, layout.rest
    contention, unqueued = layout.contention, layout.devices + layout.channels + 1  # sends that no channel counts
    left, hold, heap, size, busy = scratch.left, scratch.hold, scratch.heap, scratch.size, scratch.busy
    event_ns, event_at, dirty, is_dirty = scratch.event_ns, scratch.event_at, scratch.dirty, scratch.is_dirty
    memory, count, low, far = scratch.memory, scratch.count, scratch.low, scratch.far
    come_at, come_key = scratch.come_at, scratch.come_key  # what is to be queued: resource and key
    tally = scratch.tally  # [0] resources to look at this round, [1] ops that became ready, [2] things to be queued
    tail, ahead, worked = scratch.tail, scratch.ahead, scratch.worked
    resources = devices + layout.channels
    bounded = len(scratch.tail) > 0
    dispatch, unasked, queue, asked = layout.dispatch, scratch.unasked, scratch.queue, scratch.asked
    host, hosted = devices + layout.channels, len(layout.dispatch) > 0

    waking = (left, place, rank, tie, queue, hosted, come_at, come_key, tally)
    asking = (unasked, rank, tie, host, come_at, come_key, tally)
    holding = (hold, base, place, maker, origin, nbytes, memory, devices)
    linked = (send_ns, send_classes, send_class, channel, send_rank, worked, resources)
    reading = (reader_start, readers, stays, count, far, low)
    if layout.packed:
        pack_heaps(layout, place, scratch)
    # Time 0: residents in place, updated weights queued for other readers, first ops ready.
    for device in range(devices):
        memory[device] = 0
        far[device] = -1
    for at in range(len(size)):
        size[at] = 0
        busy[at] = -1
        is_dirty[at] = 0
    worked[:] = 0
    for op in range(len(left)):
        left[op] = layout.waits[op]
    tally[:] = 0
    if hosted:
        asked[:] = 0
        for op in range(len(left)):
            unasked[op] = layout.waits[op]
            left[op] += 1
    for tensor in layout.fixed:
        for at in range(reader_start[tensor], reader_start[tensor + 1]):
            device = place[readers[at]]
            if far[device] != tensor:
                far[device] = tensor
                memory[device] += nbytes[tensor]
    for tensor in layout.updated:
        home = place[maker[tensor]]
        memory[home] += nbytes[tensor]
        announce(reading, holding, waking, linked, tensor, home, False)
    for op in layout.sources:
        if hosted:
            if unasked[op] == 0:
                ask(asking, op)
        elif left[op] == 0:
            left[op] = 1
            wake(waking, op)
    for device in range(devices):
        peak[device] = memory[device]
    for device in range(devices):
        if peak[device] > most_bytes:
            return np.int64(-1)

    events, now, turn, last = 0, np.int64(0), 0, np.int64(0)
    sends, points = 0, 0
    before = scratch.before
    for device in range(devices):
        before[device] = memory[device]
    if recording:
        for device in range(devices):
            record.curve_device[points] = device
            record.curve_ns[points] = 0
            record.curve_bytes[points] = before[device]
            points += 1
    while True:
        for index in range(tally[2]):
            at, key = come_at[index], come_key[index]
            push(heap, heap_start[at], size[at], key)
            size[at] += 1
            if busy[at] < 0 and is_dirty[at] == 0:
                is_dirty[at] = 1
                dirty[tally[0]] = at
                tally[0] += 1
        tally[2] = 0
        # Everything free takes the first thing that waits for it; a link without contention takes all of them.
        index = 0
        while index < tally[0]:
            at = dirty[index]
            is_dirty[at] = 0
            if size[at] == 0:
                index += 1
                continue
            if hosted and at < devices:
                # A device starts what it was asked for in the order in which it was asked.
                if heap[heap_start[at]] >> 32 != asked[devices + at]:
                    index += 1
                    continue
                asked[devices + at] += 1
            running = np.int64(at)
            size[at] -= 1
            key = pop(heap, heap_start[at], size[at]) & 0xFFFFFFFF
            if at < devices or at == host or contention:
                index += 1
            if at < devices:
                op = np.int64(op_of_tie[key])
                busy[at] = op
                end = now + op_ns[op * devices + at]
                if bounded:
                    if now + tail[op] > most_ns or now + ahead[at] > most_ns:
                        return np.int64(-1)
                    ahead[at] -= end - now
                where = np.int64(at)
                memory[at] += workspace[op]
                for make in range(make_start[op], make_start[op + 1]):
                    if base[makes[make]] < 0:
                        memory[at] += nbytes[makes[make]]
                if recording:
                    record.start_ns[op] = now
                    record.end_ns[op] = end
                    if not hosted:
                        record.turn[op] = turn
                        turn += 1
            elif at == host:
                op = np.int64(op_of_tie[key])
                busy[at] = op
                end = now + dispatch[op]
                where = np.int64(place[op])
                if recording:
                    record.turn[op] = turn
                    turn += 1
            else:
                if contention:
                    busy[at] = key
                else:
                    running = unqueued + key
                tensor, where = key // devices, key % devices
                link = send_class[place[maker[tensor]] * devices + where]
                end = now + send_ns[tensor * send_classes + link]
                memory[where] += nbytes[tensor]
                if recording:
                    record.send_key[sends] = key
                    record.send_start_ns[sends] = now
                    record.send_end_ns[sends] = end
                sends += 1
            if at != host:
                worked[at] += end - now
            if memory[where] > peak[where]:
                peak[where] = memory[where]
                if memory[where] > most_bytes:
                    return np.int64(-1)
            push_event(event_ns, event_at, events, end, running)
            events += 1
        tally[0] = 0
        if recording:
            for device in range(devices):
                if memory[device] != before[device]:
                    before[device] = memory[device]
                    record.curve_device[points] = device
                    record.curve_ns[points] = now
                    record.curve_bytes[points] = before[device]
                    points += 1
        if events == 0:
            break
        now = event_ns[0]
        if now > most_ns:
            return np.int64(-1)
        while events > 0 and event_ns[0] == now:
            events -= 1
            at = pop_event(event_ns, event_at, events)
            if at < unqueued:
                done = busy[at]
                busy[at] = -1
                if is_dirty[at] == 0:
                    is_dirty[at] = 1
                    dirty[tally[0]] = at
                    tally[0] += 1
            else:
                done = at - unqueued
            if at < devices:
                last = max(last, now + rest[done]) if len(rest) > 0 else now
                memory[at] -= workspace[done]
                for make in range(make_start[done], make_start[done + 1]):
                    announce(reading, holding, waking, linked, np.int64(makes[make]), at, True)
                # What is written in place comes before what it overwrites, which it may keep alive.
                for make in range(make_start[done + 1] - 1, make_start[done] - 1, -1):
                    tensor = np.int64(makes[make])
                    under = np.int64(base[tensor])
                    if hold[tensor * devices + at] == 0:
                        if under < 0:
                            memory[at] -= nbytes[tensor]
                    elif under >= 0 and origin[under] == MADE:
                        hold[under * devices + at] += 1
                for read in range(read_start[done], read_start[done + 1]):
                    tensor = np.int64(reads[read])
                    if origin[tensor] == MADE or place[maker[tensor]] != at:
                        let_go(holding, tensor, at)
                for index in range(next_start[done], next_start[done + 1]):
                    wake(waking, nexts[index])
            elif at == host:
                device = place[done]
                queue[done] = asked[device]
                asked[device] += 1
                wake(waking, done)
                for make in range(make_start[done], make_start[done + 1]):
                    tensor = np.int64(makes[make])
                    for reader in range(reader_start[tensor], reader_start[tensor + 1]):
                        ask_later(asking, readers[reader])
                for index in range(next_start[done], next_start[done + 1]):
                    ask_later(asking, nexts[index])
            else:
                tensor, where = done // devices, done % devices
                if origin[tensor] == MADE:
                    let_go(holding, tensor, np.int64(place[maker[tensor]]))
                for reader in range(reader_start[tensor], reader_start[tensor + 1]):
                    if place[readers[reader]] == where:
                        wake(waking, readers[reader])
    record.counts[0] = sends
    record.counts[1] = points
    return last


@compiled(_nrt=False)
def value_of(goal: Goal, step_ns: Whole, peak: Ints, worked: Ints) -> Whole:
    """What a step that ran to its end is worth; the same as Goal.values."""
    if goal.kind == PEAK:
        largest = peak[0]
        for device in range(1, len(peak)):
            largest = max(largest, peak[device])
        return largest  # type: ignore[no-any-return]
    if goal.kind == BUSIEST:
        held_up, most = goal.held_up, np.int64(0)
        devices, resources = len(held_up), len(worked) - len(held_up)
        for at in range(resources):
            shipping = worked[resources + at] * held_up[at] if at < devices else np.int64(0)
            most = max(most, worked[at] + shipping)
        return most
    value, price = step_ns * goal.step_price, goal.busy_price
    for device in range(len(price)):
        value += price[device] * worked[device]
    return value


@compiled(_nrt=False)
def stops_at(goal: Goal, most: Whole) -> tuple[Whole, Whole]:
    """(most_ns, most_bytes): a run that passes either is worth more than `most`."""
    if goal.kind == PEAK:
        return FOREVER, most
    return (most // goal.step_price if goal.step_price > 0 else FOREVER), FOREVER


def run_many(
    layout: Layout,
    places: Ints32,
    ranks: np.ndarray,
    low: Whole,
    high: Whole,
    most_ns: Whole,
    most_bytes: Whole,
    step_ns: Ints,
    peaks: Ints,
    busy_ns: Ints,
) -> None:
    """Scores candidates low … high-1; a single row of ranks serves all."""
    scratch = (kept_scratch(layout), NO_RECORD, np.empty(0, np.int64))
    _run_many(layout, places, ranks, low, high, most_ns, most_bytes, step_ns, peaks, busy_ns, *scratch)


@compiled(_nrt=False)
def _run_many(
    layout: Layout,
    places: Ints32,
    ranks: Ints32,
    low: Whole,
    high: Whole,
    most_ns: Whole,
    most_bytes: Whole,
    step_ns: Ints,
    peaks: Ints,
    busy_ns: Ints,
    scratch: RunScratch,
    record: Record,
    no_sends: Ints,
) -> None:
    worked = scratch.worked
    for k in range(low, high):
        rank = ranks[k if len(ranks) > 1 else 0]
        step_ns[k] = run(layout, places[k], rank, no_sends, scratch, most_ns, most_bytes, peaks[k], False, record)
        for at in range(len(worked)):
            busy_ns[k, at] = worked[at]
