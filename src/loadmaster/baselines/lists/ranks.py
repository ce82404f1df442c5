"""Compiled walks for the ranks of list schedulers: the longest way to the end of the step, and from its start.

Linear in the reads. Times and sends are means over devices, or, under a placement, what they are there.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints


@compiled
def upward(
    read_start: Ints, reads: Ints, producer: Ints, after_start: Ints, after: Ints, times: Ints, sends: Ints
) -> Ints:
    """[ops] the longest way from the start of an op to the end of the step, sends included (HEFT's upward rank)."""
    level = np.zeros(len(times), np.int64)
    for op in range(len(times) - 1, -1, -1):
        level[op] += times[op]
        for at in range(read_start[op], read_start[op + 1]):
            maker = producer[reads[at]]
            if maker >= 0:
                level[maker] = max(level[maker], level[op] + sends[reads[at]])
        for at in range(after_start[op], after_start[op + 1]):
            level[after[at]] = max(level[after[at]], level[op])
    return level


@compiled
def downward(
    read_start: Ints, reads: Ints, producer: Ints, after_start: Ints, after: Ints, times: Ints, sends: Ints
) -> Ints:
    """[ops] the longest way from the start of the step to that of the op (HEFT's downward rank)."""
    level = np.zeros(len(times), np.int64)
    for op in range(len(times)):
        longest = np.int64(0)
        for at in range(read_start[op], read_start[op + 1]):
            maker = producer[reads[at]]
            if maker >= 0:
                longest = max(longest, level[maker] + sends[reads[at]])
        for at in range(after_start[op], after_start[op + 1]):
            longest = max(longest, level[after[at]])
        level[op] = longest + times[op]
    return level


@compiled
def upward_placed(
    read_start: Ints,
    reads: Ints,
    producer: Ints,
    after_start: Ints,
    after: Ints,
    times: Ints,
    send_ns: Ints,
    send_class: Ints,
    device: Ints,
) -> Ints:
    """As `upward`, under a placement: only what crosses between devices is sent."""
    level = np.zeros(len(times), np.int64)
    for op in range(len(times) - 1, -1, -1):
        level[op] += times[op]
        for at in range(read_start[op], read_start[op + 1]):
            tensor = reads[at]
            maker = producer[tensor]
            if maker >= 0:
                way = level[op]
                if device[maker] != device[op]:
                    way += send_ns[tensor, send_class[device[maker], device[op]]]
                level[maker] = max(level[maker], way)
        for at in range(after_start[op], after_start[op + 1]):
            level[after[at]] = max(level[after[at]], level[op])
    return level
