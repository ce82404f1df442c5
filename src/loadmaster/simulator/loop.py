"""The compiled loop of the simulator: arrays in, arrays out. The rules are in rules.py.

`follow` is the loop: it goes from one instant at which something ends to the next. It is made twice, with a ledger of
what devices hold (`run`) and without one (`step_time`). Devices and channels are resources 0 … devices-1, devices
… devices+channels-1, then comes the host; each has a heap of what waits for it. Nothing of size tensors x devices is
reset between candidates: `uses` are written when a tensor is made.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.problem.objective import BUSIEST, PEAK, SUM, Goal
from loadmaster.simulator.heaps import pack_heaps, part, pop, pop_event, push_event
from loadmaster.simulator.state import (
    DIRTY,
    EVENTS,
    FREE,
    KEY,
    MADE,
    NO_RECORD,
    POINTS,
    SENDS,
    WOKEN,
    Layout,
    Ledger,
    Record,
    RunScratch,
    Step,
    kept_scratch,
)
from loadmaster.simulator.steps import (
    announce,
    ask,
    ask_later,
    hold,
    let_go,
    let_go_after,
    needed_by,
    note_memory,
    note_op,
    note_send,
    note_turn,
    send_ns_of,
    settle_residents,
    wake,
)

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

    Without ranks, ops and sends go first come first served."""
    hosted, ranked, rests = len(layout.dispatch) > 0, len(rank) > 0, len(layout.rest) > 0
    step = Step(layout, scratch, place, rank, most_ns, hosted, layout.contention, ranked, rests)
    held, uses, worked = scratch.memory, scratch.hold, scratch.worked
    time = follow(step, Ledger(send_rank, held, peak, most_bytes, uses, worked, recording, record))
    record.counts[0] = scratch.tally[SENDS]
    record.counts[1] = scratch.tally[POINTS]
    return time


# The step time alone, for searches that ask only how long a step takes.
#
# Counting bytes takes a quarter to nearly half of the time of a run, and most candidates of a search are too slow
# whatever they hold: whoever asks for memory too asks `run` about the few that are quick enough. The rules are the same
# and so is the time, to the nanosecond (tests/properties/test_quick.py).
#
# Left out, too, is what few problems have: hosts that ask for kernels (rule 14), links without contention, work that
# follows the last op: `times_alone` says where it may be asked.


def times_alone(layout: Layout, goal: Goal) -> bool:
    """Whether `step_time` says all that a plan is judged by, but for what devices hold."""
    plain = layout.contention and not len(layout.dispatch) and not len(layout.rest)
    return plain and goal.kind == SUM and goal.step_price > 0 and not len(goal.busy_price)


@compiled(error_model="numpy", _nrt=False, apart=True)
def step_time(layout: Layout, place: Ints32, rank: Ints32, scratch: RunScratch, most_ns: Whole) -> Whole:
    """How long the step takes, or -1 once it must pass most_ns. Where the scratch space is `bounded`, its caller has
    filled `tail` and `ahead`; how many ops became ready is in `tally[READY]`, as after `run`."""
    step = Step(layout, scratch, place, rank, most_ns, False, True, True, False)
    return follow(step, None)


# The rules


@part
def follow(step: Step, ledger: Ledger | None) -> Whole:
    """The rules, one instant after another (rule 11): what is free takes what waits for it; time goes on to the next
    end; what ends frees what it used and wakes what waited for it. Returns the end of the last op, or -1."""
    at: Whole
    now: Whole
    last: Whole
    layout, scratch, tally, now, last = step.layout, step.scratch, step.scratch.tally, np.int64(0), np.int64(0)
    if not begin(step, ledger):
        return np.int64(-1)
    while True:
        gather(step)
        for index in range(tally[DIRTY]):
            at = np.int64(scratch.dirty[index])
            if not serve(step, ledger, at, now):
                return np.int64(-1)
        tally[DIRTY] = 0
        if ledger is not None:
            note_memory(step, ledger, now, False)
        if tally[EVENTS] == 0:
            return last
        now = scratch.event_ns[0]
        if now > step.most_ns:
            return np.int64(-1)
        while tally[EVENTS] > 0 and scratch.event_ns[0] == now:
            at, done = next_end(step)
            if at < layout.devices:
                last = max(last, now + layout.rest[done]) if step.rests else now
                end_op(step, ledger, done, at)
            elif step.hosted and at == layout.devices + layout.channels:
                end_asking(step, done)
            else:
                end_send(step, ledger, done)


@part
def begin(step: Step, ledger: Ledger | None) -> bool:
    """Time 0: residents in place, updated weights queued for other readers, first ops ready. False: they do not fit."""
    layout, scratch, place = step.layout, step.scratch, step.place
    if layout.packed:
        pack_heaps(layout, place, scratch)
    at: Whole
    op: Whole
    for at in range(len(scratch.resources)):
        resource = scratch.resources[at]
        resource.heap, resource.busy, resource.queued, resource.is_dirty = scratch.heap_start[at], FREE, 0, 0
    for at in range(len(scratch.tally)):
        scratch.tally[at] = 0
    for op in range(len(scratch.left)):
        scratch.left[op] = layout.waits[op]
    if step.hosted:  # an op waits for the host too
        for at in range(len(scratch.asked)):
            scratch.asked[at] = 0
        for op in range(len(scratch.left)):
            scratch.unasked[op] = layout.waits[op]
            scratch.left[op] += 1
    if ledger is not None:
        for at in range(len(ledger.worked)):
            ledger.worked[at] = 0
        settle_residents(step, ledger)
    for index in range(len(layout.updated)):
        tensor = np.int64(layout.updated[index])
        announce(step, ledger, tensor, np.int64(place[layout.maker[tensor]]), False)
    for index in range(len(layout.sources)):
        op = np.int64(layout.sources[index])
        if step.hosted:
            if scratch.unasked[op] == 0:
                ask(step, op)
        elif scratch.left[op] == 0:
            scratch.left[op] = 1
            wake(step, op)
    if ledger is not None:
        for device in range(layout.devices):
            if ledger.peak[device] > ledger.most_bytes:
                return False
        note_memory(step, ledger, np.int64(0), True)
    return True


@part
def gather(step: Step) -> None:
    """Resources to look at in this round: after those that something ended on, those that something came for."""
    scratch, tally = step.scratch, step.scratch.tally
    for index in range(tally[WOKEN]):
        scratch.dirty[tally[DIRTY]] = scratch.woken[index]
        tally[DIRTY] += 1
    tally[WOKEN] = 0


@part
def serve(step: Step, ledger: Ledger | None, at: Whole, now: Whole) -> bool:
    """A free resource takes the first thing that waits for it; a link without contention takes all of them. False: the
    step must pass a limit."""
    layout, scratch = step.layout, step.scratch
    host, fits = layout.devices + layout.channels, True
    resource = scratch.resources[at]
    resource.is_dirty = 0
    while fits and resource.queued > 0:
        if step.hosted and at < layout.devices:
            # A device starts what it was asked for in the order in which it was asked, and may idle (rule 14).
            if scratch.heap[resource.heap] >> 32 != scratch.asked[layout.devices + at]:
                break
            scratch.asked[layout.devices + at] += 1
        resource.queued -= 1
        key = pop(scratch.heap, resource.heap, np.int64(resource.queued)) & KEY
        if at < layout.devices:
            fits = start_op(step, ledger, np.int64(layout.op_of_tie[key]), at, now)
        elif step.hosted and at == host:
            start_asking(step, ledger, np.int64(layout.op_of_tie[key]), now)
        else:
            fits = start_send(step, ledger, key, at, now)
        if step.contended or at < layout.devices or at == host:
            break
    return fits


@part
def start_op(step: Step, ledger: Ledger | None, op: Whole, device: Whole, now: Whole) -> bool:
    """A device starts an op (rule 2). False: that the step, or what the device holds, must pass a limit."""
    scratch = step.scratch
    ns = step.layout.op_ns[op * step.layout.devices + device]
    if len(scratch.tail) > 0:  # the caller told what is left to do, at least, after each op and on each device
        if now + scratch.tail[op] > step.most_ns or now + scratch.ahead[device] > step.most_ns:
            return False
        scratch.ahead[device] -= ns
    scratch.resources[device].busy = op
    note_end(step, device, now + ns)
    if ledger is None:
        return True
    ledger.worked[device] += ns
    note_op(step, ledger, op, now, now + ns)
    return hold(ledger, device, needed_by(step, op))


@part
def start_send(step: Step, ledger: Ledger | None, key: Whole, at: Whole, now: Whole) -> bool:
    """A channel begins a transfer; from now on its bytes are there (rule 8). False: they pass the limit."""
    layout = step.layout
    tensor, where = key >> layout.shift, key & ((np.int64(1) << layout.shift) - 1)
    ns = send_ns_of(step, tensor, np.int64(step.place[layout.maker[tensor]]), where)
    if step.contended:
        step.scratch.resources[at].busy = key
        note_end(step, at, now + ns)
    else:  # a channel that carries any number does nothing itself: what ends is the transfer
        note_end(step, layout.devices + layout.channels + 1 + key, now + ns)
    if ledger is None:
        return True
    ledger.worked[at] += ns
    note_send(step, ledger, tensor, where, now, now + ns)
    return hold(ledger, where, layout.nbytes[tensor])


@part
def start_asking(step: Step, ledger: Ledger | None, op: Whole, now: Whole) -> None:
    """The host begins to ask for a kernel."""
    host = step.layout.devices + step.layout.channels
    step.scratch.resources[host].busy = op
    note_end(step, host, now + step.layout.dispatch[op])
    if ledger is not None:
        note_turn(step, ledger, op)


@part
def note_end(step: Step, at: Whole, end: Whole) -> None:
    """Something ends on a resource at that time."""
    push_event(step.scratch.event_ns, step.scratch.event_at, step.scratch.tally[EVENTS], end, at)
    step.scratch.tally[EVENTS] += 1


@part
def next_end(step: Step) -> tuple[Whole, Whole]:
    """(Where, what) ends next; its resource is free then, and looked at in this round."""
    scratch, unqueued = step.scratch, step.layout.devices + step.layout.channels + 1
    scratch.tally[EVENTS] -= 1
    at = np.int64(pop_event(scratch.event_ns, scratch.event_at, scratch.tally[EVENTS]))
    if not step.contended and at >= unqueued:
        return at, at - unqueued
    resource = scratch.resources[at]
    done, resource.busy = resource.busy, FREE
    if resource.is_dirty == 0:
        resource.is_dirty = 1
        scratch.dirty[scratch.tally[DIRTY]] = at
        scratch.tally[DIRTY] += 1
    return at, done


@part
def end_op(step: Step, ledger: Ledger | None, op: Whole, device: Whole) -> None:
    """What an op made is there, what it no longer needs goes, what comes after it has one thing less to wait for."""
    layout = step.layout
    for make in range(layout.make_start[op], layout.make_start[op + 1]):
        announce(step, ledger, np.int64(layout.makes[make]), device, True)
    if ledger is not None:
        let_go_after(step, ledger, op, device)
    for index in range(layout.next_start[op], layout.next_start[op + 1]):
        wake(step, np.int64(layout.nexts[index]))


@part
def end_send(step: Step, ledger: Ledger | None, key: Whole) -> None:
    """A tensor has come: its readers there have one thing less to wait for, and its maker's device one use less."""
    layout = step.layout
    tensor, where = key >> layout.shift, key & ((np.int64(1) << layout.shift) - 1)
    if ledger is not None and layout.origin[tensor] == MADE:
        let_go(step, ledger, tensor, np.int64(step.place[layout.maker[tensor]]))
    for at in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
        if step.place[layout.readers[at]] == where:
            wake(step, np.int64(layout.readers[at]))


@part
def end_asking(step: Step, op: Whole) -> None:
    """The host has asked for a kernel: it may start, after those its device was asked for before (rule 14)."""
    layout, scratch = step.layout, step.scratch
    device = step.place[op]
    scratch.queue[op] = scratch.asked[device]
    scratch.asked[device] += 1
    wake(step, op)
    for make in range(layout.make_start[op], layout.make_start[op + 1]):
        tensor = layout.makes[make]
        for reader in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
            ask_later(step, np.int64(layout.readers[reader]))
    for index in range(layout.next_start[op], layout.next_start[op + 1]):
        ask_later(step, np.int64(layout.nexts[index]))


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
