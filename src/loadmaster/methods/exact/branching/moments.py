"""A step stopped in the middle, as a row of numbers, and what can be decided next; compiled.

A row holds where each op is to run (-1: not decided), whether it waits, runs or has ended, which copies of tensors wait
for their channel, travel or are there, and what each device and channel is doing. `advance` follows the simulator's
rules until something is to be chosen. An op gets its device when the first tensor that it reads is made, since from
then on the tensor may be sent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole

WAITS, RUNS, ENDED = 0, 1, 2  # of an op
NOWHERE, QUEUED, ON_ITS_WAY, THERE = 0, 1, 2, 3  # of a copy
OVER, PLACE, SEND, RUN = 0, 1, 2, 3  # what is to be chosen: nothing; a device for an op; what a channel or device takes
MAKER, UPDATED = 0, 1  # columns of tensors
LEADER, UPDATES, TWIN, USUAL = 0, 1, 2, 3  # columns of ops
FAR = np.iinfo(np.int64).max // 4


class BranchFacts(NamedTuple):
    """The problem as these loops want it. Ragged columns: entry i lies at [column[i], column[i + 1]) of the same array.
    Few arrays, since each is compiled into every call.

    Attributes:
        times: [ops, devices] CANNOT where it cannot run.
        waits: ragged: all ops that an op waits for.
        after: ragged: those it waits for without reading.
        nexts: ragged: the other way round.
        reads: ragged: tensors that come and go.
        makes: ragged.
        readers: ragged: of tensors.
        tensors: [tensors, 2] MAKER (updater of a resident; -1), UPDATED: it is a resident that is overwritten.
        ops: [ops, 4] LEADER of its group; whether it UPDATES a resident; a TWIN; where it USUALly runs.
        channel: [devices * devices] resource number.
        alike: [devices, devices] swapping the two changes nothing.
        price: [devices] of device time, 1 over all devices.
        work: [ops] price x time at the cheapest place.
        sends: [tensors, devices, devices] 0 within a device.
    """

    devices: int
    channels: int
    contention: bool
    times: np.ndarray  # [ops, devices]
    waits: np.ndarray
    after: np.ndarray
    nexts: np.ndarray
    reads: np.ndarray
    makes: np.ndarray
    readers: np.ndarray
    tensors: np.ndarray  # [tensors, 2]
    ops: np.ndarray  # [ops, 4]
    channel: np.ndarray  # [devices * devices]
    alike: np.ndarray  # [devices, devices]
    price: np.ndarray  # [devices]
    work: np.ndarray  # [ops]
    sends: np.ndarray  # [tensors, devices, devices]


@compiled
def parts(facts: BranchFacts, row: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
    """(place, status, end, copy, copy_end, device, channel, turn, copy_turn) views of a row; row[0] is the time and
    row[1] counts what was started."""
    ops, devices, slots = len(facts.ops), facts.devices, len(facts.tensors) * facts.devices
    at = 2
    place = row[at : at + ops]
    status = row[at + ops : at + 2 * ops]
    end = row[at + 2 * ops : at + 3 * ops]
    turn = row[at + 3 * ops : at + 4 * ops]
    at += 4 * ops
    copy = row[at : at + slots]
    copy_end = row[at + slots : at + 2 * slots]
    copy_turn = row[at + 2 * slots : at + 3 * slots]
    at += 3 * slots
    device = row[at : at + devices]
    channel = row[at + devices : at + devices + facts.channels]
    return place, status, end, copy, copy_end, device, channel, turn, copy_turn


@compiled
def room_of(facts: BranchFacts) -> tuple[Whole, Whole]:
    """(numbers in a row, decisions at most)"""
    ops, slots = len(facts.ops), len(facts.tensors) * facts.devices
    return 2 + 4 * ops + 3 * slots + facts.devices + facts.channels, 2 * ops + slots + 3


@compiled
def begin(facts: BranchFacts, row: Ints) -> None:
    """Writes the moment at which nothing is decided."""
    row[:] = 0
    place, _, end, _, copy_end, device, channel, turn, copy_turn = parts(facts, row)
    for column in (place, end, copy_end, device, channel, turn, copy_turn):
        column[:] = -1


@compiled
def _is_due(facts: BranchFacts, op: Whole, status: Ints) -> bool:
    """Whether it must have a device now: something that it reads is made, or it waits for nothing."""
    if facts.ops[op, UPDATES]:
        return True
    for at in range(facts.reads[op], facts.reads[op + 1]):
        tensor = facts.reads[at]
        if facts.tensors[tensor, UPDATED] or status[facts.tensors[tensor, MAKER]] == ENDED:
            return True
    waiting = 0
    for at in range(facts.waits[op], facts.waits[op + 1]):
        waiting += status[facts.waits[at]] != ENDED
    return waiting == 0


@compiled
def _is_ready(facts: BranchFacts, op: Whole, place: Ints, status: Ints, copy: Ints) -> bool:
    for at in range(facts.after[op], facts.after[op + 1]):
        if status[facts.after[at]] != ENDED:
            return False
    for at in range(facts.reads[op], facts.reads[op + 1]):
        tensor = facts.reads[at]
        maker = facts.tensors[tensor, MAKER]
        if not facts.tensors[tensor, UPDATED] and status[maker] != ENDED:
            return False
        if place[maker] != place[op] and copy[tensor * facts.devices + place[op]] != THERE:
            return False
    return True


@compiled
def settle(facts: BranchFacts, place: Ints, op: Whole, device: Whole) -> None:
    """The op, and all of its colocation group, will run there."""
    for other in range(len(place)):
        if facts.ops[other, LEADER] == facts.ops[op, LEADER]:
            place[other] = device


@compiled
def launch(facts: BranchFacts, row: Ints, what: Whole, on: Whole) -> None:
    """Starts op `what` on device `on`."""
    _, status, end, _, _, device, _, turn, _ = parts(facts, row)
    status[what], end[what], turn[what] = RUNS, row[0] + facts.times[what, on], row[1]
    device[on] = what
    row[1] += 1


@compiled
def send(facts: BranchFacts, row: Ints, slot: Whole) -> None:
    """Starts the transfer of a copy."""
    devices = facts.devices
    place, _, _, copy, copy_end, _, channel, _, copy_turn = parts(facts, row)
    tensor, to = slot // devices, slot % devices
    home = place[facts.tensors[tensor, MAKER]]
    copy[slot], copy_end[slot] = ON_ITS_WAY, row[0] + facts.sends[tensor, home, to]
    copy_turn[slot] = row[1]
    row[1] += 1
    if facts.contention:
        channel[facts.channel[home * devices + to] - devices] = slot


@compiled
def options(facts: BranchFacts, row: Ints, kind: Whole, what: Whole, found: Ints) -> Whole:
    """Writes what can be chosen into `found` and returns how many there are."""
    ops, devices, slots = len(facts.ops), facts.devices, len(facts.tensors) * facts.devices
    place, status, _, copy, _, _, _, _, _ = parts(facts, row)
    count = 0
    if kind == PLACE:
        # Ops that nothing tells apart go to devices in order.
        twin = facts.ops[what, TWIN]
        for device in range(place[twin] if twin >= 0 and place[twin] >= 0 else 0, devices):
            if facts.times[what, device] >= 0 and not _has_a_fresh_twin(facts, place, device):
                found[count] = device
                count += 1
    elif kind == SEND:
        for slot in range(slots):
            if copy[slot] == QUEUED and _channel_of(facts, place, slot) == what:
                found[count] = slot
                count += 1
    elif kind == RUN:
        for op in range(ops):
            if status[op] == WAITS and place[op] == what and _is_ready(facts, op, place, status, copy):
                twin = facts.ops[op, TWIN]
                if twin >= 0 and status[twin] == WAITS and place[twin] == what:
                    continue  # the two could change places
                found[count] = op
                count += 1
    return count


@compiled
def _channel_of(facts: BranchFacts, place: Ints, slot: Whole) -> Whole:
    devices = facts.devices
    return facts.channel[place[facts.tensors[slot // devices, MAKER]] * devices + slot % devices] - devices  # type: ignore[no-any-return]


@compiled
def _has_a_fresh_twin(facts: BranchFacts, place: Ints, device: Whole) -> bool:
    """Nothing is on the device, nor on an earlier one that is just like it."""
    for other in range(device):
        if facts.alike[other, device]:
            fresh = True
            for op in range(len(place)):
                if place[op] == other or place[op] == device:
                    fresh = False
                    break
            if fresh:
                return True
    return False


@compiled
def choose(facts: BranchFacts, row: Ints, kind: Whole, what: Whole, option: Whole) -> None:
    """Makes one decision: where an op goes, which send goes next, or which op is launched."""
    if kind == PLACE:
        settle(facts, parts(facts, row)[0], what, option)
    elif kind == SEND:
        send(facts, row, option)
    else:
        launch(facts, row, option, what)


@compiled
def advance(facts: BranchFacts, row: Ints, found: Ints) -> tuple[Whole, Whole]:
    """Goes on until there is a choice of two or more; returns (kind, what)."""
    ops, devices, slots = len(facts.ops), facts.devices, len(facts.tensors) * facts.devices
    place, status, end, copy, copy_end, device, channel, _, _ = parts(facts, row)
    while True:
        for op in range(ops):
            if place[op] < 0 and _is_due(facts, op, status):
                count = options(facts, row, PLACE, op, found)
                if count > 1:
                    return PLACE, op
                settle(facts, place, op, found[0])
        _queue(facts, place, status, copy)
        for slot in range(slots):
            if copy[slot] != QUEUED:
                continue
            if not facts.contention:
                send(facts, row, slot)
                continue
            wire = _channel_of(facts, place, slot)
            if channel[wire] < 0:
                if options(facts, row, SEND, wire, found) > 1:
                    return SEND, wire
                send(facts, row, slot)
        for at in range(devices):
            if device[at] < 0:
                count = options(facts, row, RUN, at, found)
                if count > 1:
                    return RUN, at
                if count == 1:
                    launch(facts, row, found[0], at)
        if not _wait(facts, row, status, end, copy, copy_end, device, channel):
            return OVER, 0


@compiled
def _queue(facts: BranchFacts, place: Ints, status: Ints, copy: Ints) -> None:
    """Copies that readers elsewhere need, of tensors that are made."""
    for tensor in range(len(facts.tensors)):
        maker = facts.tensors[tensor, MAKER]
        if facts.tensors[tensor, UPDATED] or (maker >= 0 and status[maker] == ENDED):
            for at in range(facts.readers[tensor], facts.readers[tensor + 1]):
                to = place[facts.readers[at]]
                slot = tensor * facts.devices + to
                if to != place[maker] and copy[slot] == NOWHERE:
                    copy[slot] = QUEUED


@compiled
def _wait(
    facts: BranchFacts, row: Ints, status: Ints, end: Ints, copy: Ints, copy_end: Ints, device: Ints, channel: Ints
) -> bool:
    """To the next instant in which something ends; False where nothing is going on."""
    soonest = FAR
    for op in range(len(status)):
        if status[op] == RUNS:
            soonest = min(soonest, end[op])
    for slot in range(len(copy)):
        if copy[slot] == ON_ITS_WAY:
            soonest = min(soonest, copy_end[slot])
    if soonest == FAR:
        return False
    row[0] = soonest
    for at in range(len(device)):
        if device[at] >= 0 and end[device[at]] == soonest:
            status[device[at]] = ENDED
            device[at] = -1
    for slot in range(len(copy)):
        if copy[slot] == ON_ITS_WAY and copy_end[slot] == soonest:
            copy[slot] = THERE
    for wire in range(len(channel)):
        if channel[wire] >= 0 and copy[channel[wire]] == THERE:
            channel[wire] = -1
    return True
