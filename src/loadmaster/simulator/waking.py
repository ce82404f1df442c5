"""What becomes ready: ops wake when all they wait for is there, tensors are announced to their readers, and what can
start is queued on its device, its channel or the host.

Each function becomes machine code inside the loop (`heaps.part`).
"""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Whole
from loadmaster.simulator.heaps import part, push
from loadmaster.simulator.state import FREE, READY, WOKEN, Ledger, Step


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
