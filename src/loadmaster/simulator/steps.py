"""The steps of the loop: what becomes ready, what devices hold, and what a recorded run writes down.

Ops wake when all they wait for is there, tensors are announced to their readers, and what can start is queued on its
device, its channel or the host. Bytes come with the start of an op or of a transfer and go when nobody needs them any
more (rules 7 to 9). Each function becomes machine code inside the loop (`heaps.part`).
"""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Whole
from loadmaster.simulator.heaps import part, push
from loadmaster.simulator.state import FREE, MADE, POINTS, READY, SENDS, TURNS, WOKEN, Ledger, Step

# What becomes ready


@part
def queue(step: Step, at: Whole, order: Whole, key: Whole) -> None:
    """Puts something on the heap of a resource; one that does nothing is looked at in this round."""
    scratch = step.scratch
    resource = scratch.resources[at]
    push(scratch.heap, resource.heap, resource.queued, (np.int64(order) << 32) | np.int64(key))
    resource.queued += 1
    if resource.busy == FREE and resource.is_dirty == 0:
        resource.is_dirty = 1
        scratch.woken[scratch.tally[WOKEN]] = at
        scratch.tally[WOKEN] += 1


@part
def order_of(step: Step, op: Whole) -> Whole:
    """Its rank (rules 3 and 4); without ranks, how many became ready before it."""
    return np.int64(step.rank[op]) if step.ranked else step.scratch.tally[READY]


@part
def wake(step: Step, op: Whole) -> None:
    """One thing less to wait for; an op that waits for nothing more is queued on its device (rule 3)."""
    scratch = step.scratch
    scratch.left[op] -= 1
    if scratch.left[op] == 0:
        order = np.int64(scratch.queue[op]) if step.hosted else order_of(step, op)
        scratch.tally[READY] += 1
        queue(step, np.int64(step.place[op]), order, step.layout.tie[op])


@part
def ask(step: Step, op: Whole) -> None:
    """Queues it for the host, which asks for what has the lowest rank (rule 14)."""
    host = step.layout.devices + step.layout.channels
    queue(step, host, np.int64(step.rank[op]) if step.ranked else np.int64(0), step.layout.tie[op])


@part
def ask_later(step: Step, op: Whole) -> None:
    """One thing less that the host must ask for before it."""
    unasked = step.scratch.unasked
    unasked[op] -= 1
    if unasked[op] == 0:
        ask(step, op)


@part
def announce(step: Step, ledger: Ledger | None, tensor: Whole, here: Whole, made: bool) -> None:
    """A tensor is on a device: its readers there have one thing less to wait for, and it is queued once for each other
    device that reads it, by the lowest rank among the readers there (rule 4). `made`: it was not there before."""
    longest: Whole
    order: Whole
    layout, place, scratch = step.layout, step.place, step.scratch
    readers, count, far, low = layout.readers, scratch.count, scratch.far, scratch.low
    first, last, local, fars, longest = layout.reader_start[tensor], layout.reader_start[tensor + 1], 0, 0, np.int64(0)
    if last == first + 1:  # most tensors have one reader
        op = readers[first]
        where = np.int64(place[op])
        if where != here:
            fars = 1
            if not made:
                scratch.left[op] += 1
            longest = queue_send(step, ledger, tensor, here, where, order_of(step, op), 1)
        else:
            local = 1
            if made:
                wake(step, op)
    else:
        for at in range(first, last):
            op = readers[at]
            where = np.int64(place[op])
            if where == here:
                local += 1
                if made:
                    wake(step, op)
                continue
            order = order_of(step, op)
            if count[where] == 0:
                far[fars] = where
                fars += 1
                low[where] = order
            elif order < low[where]:
                low[where] = order
            count[where] += 1
            if not made:
                scratch.left[op] += 1
        for index in range(fars):
            where = far[index]
            longest = max(longest, queue_send(step, ledger, tensor, here, where, low[where], count[where]))
            count[where] = 0
    if ledger is not None:
        ledger.worked[layout.devices + layout.channels + here] += longest
        # It is needed until the last reader here and the last send out have ended (rule 8).
        ledger.uses[tensor << layout.shift | here] = local + fars + layout.stays[tensor]


@part
def queue_send(
    step: Step, ledger: Ledger | None, tensor: Whole, here: Whole, where: Whole, order: Whole, uses: Whole
) -> Whole:
    """Queues a transfer on its channel; how long it takes, where that is counted."""
    ns: Whole
    layout, ns = step.layout, np.int64(0)
    if ledger is not None:
        ns = send_ns_of(step, tensor, here, where)
        ledger.worked[layout.devices + layout.channels + where] += ns
        ledger.uses[tensor << layout.shift | where] = uses
        if len(ledger.send_rank) > 0 and ledger.send_rank[tensor * layout.devices + where] >= 0:
            order = ledger.send_rank[tensor * layout.devices + where]
    queue(step, np.int64(layout.channel[here * layout.devices + where]), order, tensor << layout.shift | where)
    return ns


@part
def send_ns_of(step: Step, tensor: Whole, here: Whole, where: Whole) -> Whole:
    """How long a transfer takes."""
    layout = step.layout
    return layout.send_ns[tensor * layout.send_classes + layout.send_class[here * layout.devices + where]]  # type: ignore[no-any-return]


# What devices hold


@part
def hold(ledger: Ledger, device: Whole, nbytes: Whole) -> bool:
    """The device holds more; False where that passes the most it may."""
    held = ledger.held[device] + nbytes
    ledger.held[device] = held
    if held <= ledger.peak[device]:
        return True
    ledger.peak[device] = held
    return held <= ledger.most_bytes  # type: ignore[no-any-return]


@part
def needed_by(step: Step, op: Whole) -> Whole:
    """What a device takes when an op starts: its workspace, and what it makes that has bytes of its own."""
    layout = step.layout
    nbytes = layout.workspace[op]
    for make in range(layout.make_start[op], layout.make_start[op + 1]):
        if layout.base[layout.makes[make]] < 0:
            nbytes += layout.nbytes[layout.makes[make]]
    return nbytes  # type: ignore[no-any-return]


@part
def let_go(step: Step, ledger: Ledger, tensor: Whole, device: Whole) -> None:
    """One use of the tensor on the device less; when none is left it is freed, and what it kept alive there."""
    layout = step.layout
    while True:
        slot = tensor << layout.shift | device
        ledger.uses[slot] -= 1
        if ledger.uses[slot] > 0:
            break
        if layout.base[tensor] < 0 or step.place[layout.maker[tensor]] != device:
            ledger.held[device] -= layout.nbytes[tensor]
            break
        tensor = np.int64(layout.base[tensor])
        if layout.origin[tensor] != MADE:
            break


@part
def let_go_after(step: Step, ledger: Ledger, op: Whole, device: Whole) -> None:
    """What an op no longer needs when it has ended and announced what it made."""
    layout = step.layout
    ledger.held[device] -= layout.workspace[op]
    # What is written in place comes before what it overwrites, which it may keep alive.
    for make in range(layout.make_start[op + 1] - 1, layout.make_start[op] - 1, -1):
        tensor = np.int64(layout.makes[make])
        under = np.int64(layout.base[tensor])
        if ledger.uses[tensor << layout.shift | device] == 0:
            if under < 0:
                ledger.held[device] -= layout.nbytes[tensor]
        elif under >= 0 and layout.origin[under] == MADE:
            ledger.uses[under << layout.shift | device] += 1
    for read in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = np.int64(layout.reads[read])
        # What is updated in place stays at home, with its updater; elsewhere it is a copy like any other (rule 7).
        if layout.origin[tensor] == MADE or step.place[layout.maker[tensor]] != device:
            let_go(step, ledger, tensor, device)


@part
def settle_residents(step: Step, ledger: Ledger) -> None:
    """What is there before the step: what no op updates, on every device that reads it; what is updated, at home."""
    layout, place, seen = step.layout, step.place, step.scratch.far
    for device in range(layout.devices):
        ledger.held[device] = 0
        seen[device] = -1
    for tensor in layout.fixed:
        for at in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
            device = place[layout.readers[at]]
            if seen[device] != tensor:
                seen[device] = tensor
                ledger.held[device] += layout.nbytes[tensor]
    for tensor in layout.updated:
        ledger.held[place[layout.maker[tensor]]] += layout.nbytes[tensor]
    for device in range(layout.devices):
        ledger.peak[device] = ledger.held[device]


# What is written down


@part
def note_op(step: Step, ledger: Ledger, op: Whole, start: Whole, end: Whole) -> None:
    """An op starts; without a host that is when it is dispatched."""
    if ledger.recording:
        ledger.record.start_ns[op] = start
        ledger.record.end_ns[op] = end
        if not step.hosted:
            note_turn(step, ledger, op)


@part
def note_turn(step: Step, ledger: Ledger, op: Whole) -> None:
    """An op is dispatched next."""
    if ledger.recording:
        ledger.record.turn[op] = step.scratch.tally[TURNS]
        step.scratch.tally[TURNS] += 1


@part
def note_send(step: Step, ledger: Ledger, tensor: Whole, where: Whole, start: Whole, end: Whole) -> None:
    """A transfer starts."""
    if ledger.recording:
        record, index = ledger.record, step.scratch.tally[SENDS]
        record.send_key[index] = tensor * step.layout.devices + where
        record.send_start_ns[index] = start
        record.send_end_ns[index] = end
        step.scratch.tally[SENDS] += 1


@part
def note_memory(step: Step, ledger: Ledger, now: Whole, first: bool) -> None:
    """A point of the curve of each device that holds another amount than at its last point."""
    if ledger.recording:
        record, before, tally = ledger.record, step.scratch.before, step.scratch.tally
        for device in range(step.layout.devices):
            if first or ledger.held[device] != before[device]:
                before[device] = ledger.held[device]
                record.curve_device[tally[POINTS]] = device
                record.curve_ns[tally[POINTS]] = now
                record.curve_bytes[tally[POINTS]] = before[device]
                tally[POINTS] += 1
