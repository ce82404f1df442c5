"""The compiled loop behind GO's look at a timeline.

For each op when all it reads was made, when that was there, and how late it may end without the step ending later: one
walk backwards in order of dispatch.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints


@compiled
def arrivals(
    read_start: Ints,
    reads: Ints,
    home: Ints,
    after_start: Ints,
    after: Ints,
    device: Ints,
    start_ns: Ints,
    end_ns: Ints,
    send_ns: Ints,
    send_class: Ints,
    turn: Ints,
) -> tuple[Ints, Ints, Ints]:
    """[ops] when all it reads was made, when that was there, and how late it may end without the step ending later."""
    ops = len(start_ns)
    made, there = np.zeros(ops, np.int64), np.zeros(ops, np.int64)
    late = np.full(ops, end_ns.max(), np.int64)
    following = np.full(device.max() + 1, -1, np.int64)
    for at in range(ops - 1, -1, -1):
        op = turn[at]
        follower = following[device[op]]
        if follower >= 0:
            late[op] = min(late[op], late[follower] - (end_ns[follower] - start_ns[follower]))
        following[device[op]] = op
        begin = late[op] - (end_ns[op] - start_ns[op])
        for read in range(read_start[op], read_start[op + 1]):
            maker = home[reads[read]]
            if maker < 0 or start_ns[maker] >= end_ns[op]:
                continue
            send = np.int64(0)
            if device[maker] != device[op]:
                send = send_ns[reads[read], send_class[device[maker], device[op]]]
            late[maker] = min(late[maker], begin - send)
            made[op] = max(made[op], end_ns[maker])
            there[op] = max(there[op], end_ns[maker] + send)
        for before in range(after_start[op], after_start[op + 1]):
            late[after[before]] = min(late[after[before]], begin)
            made[op] = max(made[op], end_ns[after[before]])
            there[op] = max(there[op], end_ns[after[before]])
    return made, there, late
