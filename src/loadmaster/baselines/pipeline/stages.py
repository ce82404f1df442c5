"""The compiled dynamic program of the pipeline split: arrays in, arrays out.

State: slots covered and the set of devices used. What a stage sends and receives is counted as it grows by one slot,
from the tensors that the slot touches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Floats, Ints

NEVER = 1e300  # cost of a stage that cannot be


class SlotLine(NamedTuple):
    """Work laid out in slots from left to right. A touch is a tensor that some op of a slot makes or reads.

    Attributes:
        times: [slots + 1, kinds] ns of all slots before this one.
        cannot: [slots + 1, kinds] ops of all slots before this one that the kind cannot run.
        saved: [slots + 1] bytes kept from forward to backward by all slots before this one.
        touch_next: next slot to the right that touches the tensor; `slots` if none.
        touch_low: first slot that touches it.
        touch_high: last slot that touches it.
        touch_ns: time of sending it; 0 for residents that stay where they are read.
        touch_bytes: bytes that a stage holds for good if it touches the tensor here; 0 if it comes and goes.
    """

    times: np.ndarray  # [slots + 1, kinds]
    cannot: np.ndarray  # [slots + 1, kinds]
    saved: np.ndarray  # [slots + 1]
    touch_start: np.ndarray  # [slots + 1]
    touch_next: np.ndarray
    touch_low: np.ndarray
    touch_high: np.ndarray
    touch_ns: np.ndarray
    touch_bytes: np.ndarray
    memory: np.ndarray  # [kinds]


class DeviceSets(NamedTuple):
    """Sets of devices used so far, and how one more device of some kind leads from one to the next.

    Attributes:
        source, target: [moves] the set before and after it.
        kind: [moves] of the device that is added.
        states: how many sets there are.
    """

    source: np.ndarray  # [moves]
    target: np.ndarray  # [moves]
    kind: np.ndarray  # [moves]
    states: int


@compiled
def best_splits(line: SlotLine, moves: DeviceSets, longest: bool) -> tuple[Floats, Ints, Ints]:
    """(value, cut, move): of the best split of slots 0 … j-1 that ends in each state, its value, where its last stage
    begins, and the move that added it.

    `longest`: the value is that of the largest stage, its work or its sends, whichever is more; else the sum of work
    and sends of all stages, which is the step of a chain.
    """
    slots, kinds = len(line.times) - 1, line.times.shape[1]
    value = np.full((moves.states, slots + 1), NEVER)
    cut = np.full((moves.states, slots + 1), -1, np.int64)
    by = np.full((moves.states, slots + 1), -1, np.int64)
    value[0, 0] = 0.0
    stage = np.empty(kinds)
    for right in range(1, slots + 1):
        sends, held = np.int64(0), np.int64(0)
        for left in range(right - 1, -1, -1):
            for at in range(line.touch_start[left], line.touch_start[left + 1]):
                if line.touch_next[at] >= right:  # nothing right of here in the stage touched it
                    held += line.touch_bytes[at]
                    if line.touch_low[at] < left or line.touch_high[at] >= right:
                        sends += line.touch_ns[at]
                elif line.touch_low[at] == left and line.touch_high[at] < right:  # now all of it is inside
                    sends -= line.touch_ns[at]
            for kind in range(kinds):
                work = line.times[right, kind] - line.times[left, kind]
                over = held + line.saved[right] - line.saved[left] > line.memory[kind]
                if over or line.cannot[right, kind] > line.cannot[left, kind]:
                    stage[kind] = NEVER
                elif longest:
                    stage[kind] = max(work, sends)
                else:
                    stage[kind] = work + sends / 2  # the other half is the other stage's
            for move in range(len(moves.source)):
                before = value[moves.source[move], left]
                cost = stage[moves.kind[move]]
                total = max(before, cost) if longest else before + cost
                if before < NEVER and cost < NEVER and total < value[moves.target[move], right]:
                    value[moves.target[move], right] = total
                    cut[moves.target[move], right] = left
                    by[moves.target[move], right] = move
    return value, cut, by
