"""What the loop does over and over: one thing less to wait for, one use less of a tensor, a tensor that is there.

Each becomes machine code inside the loop (`heaps.part`); arrays come in tuples, which the loop makes once. What is to
be queued is put on a list, and the loop queues it when the instant's ends are all done.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, Ints32, Whole
from loadmaster.simulator.heaps import part
from loadmaster.simulator.state import MADE


@part
def wake(waking: tuple[Ints32, Ints32, Ints32, Ints32, Ints, bool, Ints32, Ints, Ints], op: Whole) -> None:
    """One thing less to wait for; an op that waits for nothing more will be queued."""
    left, place, rank, tie, queue, hosted, come_at, come_key, tally = waking
    left[op] -= 1
    if left[op] == 0:
        order = np.int64(rank[op]) if len(rank) > 0 else tally[1]
        if hosted:
            order = queue[op]
        tally[1] += 1
        come_at[tally[2]] = place[op]
        come_key[tally[2]] = (order << 32) | np.int64(tie[op])
        tally[2] += 1


Asking: TypeAlias = tuple[np.ndarray, Ints32, np.ndarray, int, np.ndarray, np.ndarray, np.ndarray]  # see `run`


@part
def ask(asking: Asking, op: Whole) -> None:
    """Queues it for the host, which asks for what has the lowest rank."""
    _, rank, tie, host, come_at, come_key, tally = asking
    order = np.int64(rank[op]) if len(rank) > 0 else np.int64(0)
    come_at[tally[2]] = host
    come_key[tally[2]] = (order << 32) | np.int64(tie[op])
    tally[2] += 1


@part
def ask_later(asking: Asking, op: Whole) -> None:
    """One thing less that must be asked for before it."""
    unasked = asking[0]
    unasked[op] -= 1
    if unasked[op] == 0:
        ask(asking, op)


@part
def let_go(
    holding: tuple[Ints32, Ints32, Ints32, Ints32, NDArray[np.int8], Ints, Ints, Whole], tensor: Whole, device: Whole
) -> None:
    """One use of the tensor on the device less; when none is left it is freed, and what it kept alive there."""
    hold, base, place, maker, origin, nbytes, memory, devices = holding
    while True:
        slot = tensor * devices + device
        hold[slot] -= 1
        if hold[slot] > 0:
            break
        if base[tensor] < 0 or place[maker[tensor]] != device:
            memory[device] -= nbytes[tensor]
            break
        tensor = np.int64(base[tensor])
        if origin[tensor] != MADE:
            break


@part
def announce(
    reading: tuple[Ints32, Ints32, NDArray[np.int8], Ints32, Ints, Ints],
    holding: tuple[Ints32, Ints32, Ints32, Ints32, NDArray[np.int8], Ints, Ints, Whole],
    waking: tuple[Ints32, Ints32, Ints32, Ints32, Ints, bool, Ints32, Ints, Ints],
    linked: tuple[Ints, Whole, Ints32, Ints32, Ints, Ints, Whole],
    tensor: Whole,
    device: Whole,
    made: bool,
) -> None:
    """Counts who needs the tensor where, queues its sends, and wakes its readers on the device."""
    reader_start, readers, stays, count, far, low = reading
    left, place, rank, _, _, _, come_at, come_key, tally = waking
    send_ns, send_classes, send_class, channel, send_rank, worked, resources = linked
    hold, devices = holding[0], holding[7]
    local, fars = 0, 0
    for at in range(reader_start[tensor], reader_start[tensor + 1]):
        op = readers[at]
        where = place[op]
        if where == device:
            local += 1
            if made:
                wake(waking, op)
        else:
            order = np.int64(rank[op]) if len(rank) > 0 else tally[1]
            if count[where] == 0:
                far[fars] = where
                fars += 1
                low[where] = order
            elif order < low[where]:
                low[where] = order
            count[where] += 1
            if not made:
                left[op] += 1
    longest = np.int64(0)
    for index in range(fars):
        where = far[index]
        slot = tensor * devices + where
        ns = send_ns[tensor * send_classes + send_class[device * devices + where]]
        worked[resources + where] += ns
        longest = max(longest, ns)
        hold[slot] = count[where]
        count[where] = 0
        order = low[where]
        if len(send_rank) > 0 and send_rank[slot] >= 0:
            order = send_rank[slot]
        come_at[tally[2]] = channel[device * devices + where]
        come_key[tally[2]] = (order << 32) | np.int64(slot)
        tally[2] += 1
    worked[resources + device] += longest
    hold[tensor * devices + device] = local + fars + stays[tensor]
