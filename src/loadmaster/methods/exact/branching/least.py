"""What no way on from a moment can beat, and moments that need not be looked at twice; compiled.

The bound of a moment: for ops that are left, critical paths with the sends they need, from when devices and data are
free; and work of ops that all start late and have much after them, on one device and on all. A moment is remembered as
128 bits of all that its future depends on, with times counted from now: met again no sooner, it is given up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Floats, Ints, Whole
from loadmaster.methods.exact.branching.moments import (
    ENDED,
    FAR,
    MAKER,
    NOWHERE,
    ON_ITS_WAY,
    QUEUED,
    RUNS,
    THERE,
    UPDATED,
    UPDATES,
    WAITS,
    BranchFacts,
    parts,
)


@compiled
def _may_run(facts: BranchFacts, place: Ints, op: Whole, device: Whole) -> bool:
    return place[op] == device if place[op] >= 0 else facts.times[op, device] >= 0  # type: ignore[no-any-return]


@compiled
def tails(facts: BranchFacts, place: Ints, status: Ints, tail: Ints) -> None:
    """[ops, devices] the step does not end sooner than this after the op's end there."""
    longest: Whole
    soonest: Whole
    devices = facts.devices
    for op in range(len(status) - 1, -1, -1):
        if status[op] == ENDED:
            continue
        for device in range(devices):
            tail[op, device] = 0
            if not _may_run(facts, place, op, device):
                continue
            longest = np.int64(0)
            for make in range(facts.makes[op], facts.makes[op + 1]):
                tensor = facts.makes[make]
                for at in range(facts.readers[tensor], facts.readers[tensor + 1]):
                    reader, soonest = facts.readers[at], FAR
                    for other in range(devices):
                        if _may_run(facts, place, reader, other):
                            way = facts.sends[tensor, device, other] + facts.times[reader, other] + tail[reader, other]
                            soonest = min(soonest, way)
                    longest = max(longest, soonest)
            for at in range(facts.nexts[op], facts.nexts[op + 1]):
                later, soonest = facts.nexts[at], FAR
                for other in range(devices):
                    if _may_run(facts, place, later, other):
                        soonest = min(soonest, facts.times[later, other] + tail[later, other])
                longest = max(longest, soonest)
            tail[op, device] = longest


@compiled
def _arrives(
    facts: BranchFacts,
    row: Ints,
    tensor: Whole,
    device: Whole,
    place: Ints,
    status: Ints,
    end: Ints,
    copy: Ints,
    copy_end: Ints,
    channel: Ints,
    head: Ints,
) -> Whole:
    """When the tensor can be on the device at the soonest."""
    devices, maker = facts.devices, facts.tensors[tensor, MAKER]
    slot, home = tensor * devices + device, place[facts.tensors[tensor, MAKER]]
    if home == device:
        return row[0] if facts.tensors[tensor, UPDATED] or status[maker] == ENDED else head[maker, device]  # type: ignore[no-any-return]
    if copy[slot] == THERE:
        return row[0]  # type: ignore[no-any-return]
    if copy[slot] == ON_ITS_WAY:
        return copy_end[slot]  # type: ignore[no-any-return]
    if copy[slot] == QUEUED:
        free, wire = row[0], facts.channel[home * devices + device] - devices
        if facts.contention and channel[wire] >= 0:
            free = copy_end[channel[wire]]
        return free + facts.sends[tensor, home, device]  # type: ignore[no-any-return]
    if home >= 0:
        made = row[0]
        if not facts.tensors[tensor, UPDATED] and status[maker] != ENDED:
            made = head[maker, home]
        return made + facts.sends[tensor, home, device]  # type: ignore[no-any-return]
    soonest = FAR
    for other in range(devices):
        if facts.times[maker, other] >= 0:
            made = np.int64(0) if facts.tensors[tensor, UPDATED] else head[maker, other]
            soonest = min(soonest, made + facts.sends[tensor, other, device])
    return soonest


@compiled
def least(facts: BranchFacts, row: Ints, head: Ints, tail: Ints, first: Ints, last: Ints, order: Ints) -> Whole:
    """No timeline that goes on from here ends sooner. `head` becomes the soonest end of each op on each device."""
    ops, devices = len(facts.ops), facts.devices
    place, status, end, copy, copy_end, device, channel, _, _ = parts(facts, row)
    tails(facts, place, status, tail)
    longest, count = row[0], 0
    for op in range(ops):
        if status[op] == ENDED:
            continue
        if status[op] == RUNS:
            head[op, place[op]] = end[op]
            longest = max(longest, end[op] + tail[op, place[op]])
            continue
        through, first[op], last[op] = FAR, FAR, FAR
        base = row[0]
        for at in range(facts.after[op], facts.after[op + 1]):
            other = facts.after[at]
            if status[other] != ENDED:
                soonest = FAR
                for to in range(devices):
                    if _may_run(facts, place, other, to):
                        soonest = min(soonest, head[other, to])
                base = max(base, soonest)
        for to in range(devices):
            if not _may_run(facts, place, op, to):
                continue
            begin = base
            if device[to] >= 0:
                begin = max(begin, end[device[to]])
            for at in range(facts.reads[op], facts.reads[op + 1]):
                tensor = facts.reads[at]
                here = _arrives(facts, row, tensor, to, place, status, end, copy, copy_end, channel, head)
                begin = max(begin, here)
            head[op, to] = begin + facts.times[op, to]
            through = min(through, head[op, to] + tail[op, to])
            first[op], last[op] = min(first[op], begin), min(last[op], tail[op, to])
        longest = max(longest, through)
        here = count
        while here > 0 and last[order[here - 1]] < last[op]:
            order[here] = order[here - 1]
            here -= 1
        order[here] = op
        count += 1
    return max(longest, _crowds(facts, row, place, end, device, first, last, order, count))  # type: ignore[no-any-return]


@compiled
def _crowds(
    facts: BranchFacts,
    row: Ints,
    place: Ints,
    end: Ints,
    device: Ints,
    first: Ints,
    last: Ints,
    order: Ints,
    count: Whole,
) -> Whole:
    """Over sets of ops that all start late and have much after them: their work on one device, and on all."""
    longest, devices = row[0], len(device)
    free = np.empty(devices, np.int64)
    for chosen in range(count):
        since, on = first[order[chosen]], place[order[chosen]]
        alone, work, since_all = np.int64(0), 0.0, 0.0
        for to in range(devices):
            free[to] = since
            if device[to] >= 0:
                free[to] = max(since, end[device[to]])
            since_all += facts.price[to] * free[to]
        for at in range(count):
            op = order[at]
            if first[op] < since:
                continue
            if place[op] < 0:
                work += facts.work[op]
            else:
                work += facts.price[place[op]] * facts.times[op, place[op]]
                if place[op] == on:
                    alone += facts.times[op, on]
                    longest = max(longest, since + alone + last[op])
            # A part in 10^9 for the rounding of the sums.
            if (since_all + work) * (1 - 1e-9) + last[op] - 1e-6 > longest:
                done = _level(facts.price, free, work) * (1 - 1e-9) - 1e-6
                longest = max(longest, np.int64(np.ceil(done)) + last[op])
    return longest  # type: ignore[no-any-return]


@compiled
def _level(price: Floats, free: Ints, work: float) -> float:
    """When devices that are free at those times have done so much work, weighed by price, if all are kept busy."""
    top = np.int64(np.iinfo(np.int64).max)
    while True:
        weight, total, highest = 0.0, work, np.int64(-1)
        for at in range(len(free)):
            if free[at] < top:
                weight += price[at]
                total += price[at] * free[at]
                highest = max(highest, free[at])
        if highest < 0 or weight <= 0.0:
            return 0.0
        if total >= weight * highest:
            return total / weight
        top = highest  # those that are free so late do nothing of it


@compiled
def _mix(digest: np.uint64, value: Whole) -> np.uint64:
    digest = (digest ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return digest ^ (digest >> np.uint64(29))


@compiled
def digest(facts: BranchFacts, row: Ints) -> tuple[np.uint64, np.uint64]:
    """128 bits of all that what follows depends on, times counted from now."""
    ops, slots = len(facts.ops), len(facts.tensors) * facts.devices
    place, status, end, copy, copy_end, _, _, _, _ = parts(facts, row)
    one, two = np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344)
    for op in range(ops):
        value = np.int64(status[op])
        if status[op] == RUNS:
            value += 4 * (end[op] - row[0])
        value *= 64  # so that no status is taken for a place
        if status[op] != ENDED or facts.ops[op, UPDATES] or _is_awaited(facts, op, status):
            value += place[op] + 1
        one, two = _mix(one, value), _mix(two, value ^ (op << 40))
    for slot in range(slots):
        if copy[slot] != NOWHERE and _is_used(facts, slot, place, status):
            value = np.int64(copy[slot])
            if copy[slot] == ON_ITS_WAY:
                value += 4 * (copy_end[slot] - row[0])
            one, two = _mix(one, value + (slot << 44)), _mix(two, value ^ (slot << 41))
    return one, two


@compiled
def _is_awaited(facts: BranchFacts, op: Whole, status: Ints) -> bool:
    """Something that it made is yet to be read."""
    for make in range(facts.makes[op], facts.makes[op + 1]):
        tensor = facts.makes[make]
        for at in range(facts.readers[tensor], facts.readers[tensor + 1]):
            if status[facts.readers[at]] == WAITS:
                return True
    return False


@compiled
def _is_used(facts: BranchFacts, slot: Whole, place: Ints, status: Ints) -> bool:
    tensor, device = slot // facts.devices, slot % facts.devices
    for at in range(facts.readers[tensor], facts.readers[tensor + 1]):
        reader = facts.readers[at]
        if status[reader] == WAITS and place[reader] == device:
            return True
    return False


@compiled
def was_seen(memory: NDArray[np.uint64], facts: BranchFacts, row: Ints) -> bool:
    """Whether the same moment was met before, no later; remembers it. `memory`: [entries, 3], 0 where empty."""
    one, two = digest(facts, row)
    entries = np.uint64(len(memory))
    at = one % entries
    for _ in range(4):
        if memory[at, 0] == one and memory[at, 1] == two:
            if memory[at, 2] <= np.uint64(row[0]):
                return True
            memory[at, 2] = np.uint64(row[0])
            return False
        if memory[at, 0] == 0 and memory[at, 1] == 0:
            break
        at = (at + np.uint64(1)) % entries
    memory[at, 0], memory[at, 1], memory[at, 2] = one, two, np.uint64(row[0])
    return False
