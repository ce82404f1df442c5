"""Rehearsals: a quick estimate of what a pipeline takes, and annealing over cuts by it: tens of thousands of cuts in
the time in which the simulator judges a few.

The model is a line of slots, of which each has a time for its forward pass, its backward pass and the gradients of its
weights. Devices take what is ready, as in an eager schedule. Sends take their time on the way and never wait for each
other, and only neighbours on the line send: that is what an estimate leaves out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole
from loadmaster.methods.annealing.choice import cooled, slack_of
from loadmaster.search.xorshift import RandomState, below, unit

_FAR = 2**62
COLD = 0.0005  # of the step: the last temperature
SHIFT, HOLD, SWAP, PART = 0.5, 0.65, 0.75, 0.87  # shares of the moves, added up; the rest joins stages


class Slots(NamedTuple):
    """Sums over all slots before each, and what crosses the edge before each.

    Attributes:
        forward: [slots + 1, devices] ns of one microbatch.
        weight: [slots + 1, devices] gradients of weights, with what adding them up takes.
        resident: [slots + 1] bytes that are there all the time.
        saved: [slots + 1] bytes of one microbatch, from forward to backward.
        up_ns: [slots + 1] sending what crosses there in the forward pass.
        down_ns: [slots + 1] sending what crosses there in the backward pass.
    """

    forward: np.ndarray  # [slots + 1, devices]
    backward: np.ndarray  # [slots + 1, devices]
    weight: np.ndarray  # [slots + 1, devices]
    update: np.ndarray  # [slots + 1, devices]
    resident: np.ndarray  # [slots + 1]
    saved: np.ndarray  # [slots + 1]
    up_ns: np.ndarray  # [slots + 1]
    down_ns: np.ndarray  # [slots + 1]
    memory: np.ndarray  # [devices]


class Stages(NamedTuple):
    """A line of stages with room for more; `number` of them are there.

    Attributes:
        begin: [room + 1] first slot of each, then the number of slots.
        most: [room] microbatches that each may hold.
    """

    begin: np.ndarray  # [room + 1]
    device: np.ndarray  # [room]
    most: np.ndarray  # [room]
    number: np.ndarray  # [1]


class RehearsalScratch(NamedTuple):
    """Memory of a rehearsal, made once.

    Attributes:
        following: [3, room] next microbatch.
        first: [devices + 1] of the stages of each device.
        own: [room] stages by device.
        start: [devices] of what it does next.
        task: [devices] phase and stage of that; -1: nothing that is known yet.
        last: [devices] ns of the update.
        now: [devices] bytes.
        log: [3 * room * microbatches, 3] phase, stage and microbatch of what was done, in order.
    """

    time: np.ndarray  # [3, room]
    saved: np.ndarray  # [room]
    up: np.ndarray  # [room]
    down: np.ndarray  # [room]
    ready: np.ndarray  # [3, room, microbatches]
    following: np.ndarray  # [3, room]
    held: np.ndarray  # [room]
    first: np.ndarray  # [devices + 1]
    own: np.ndarray  # [room]
    start: np.ndarray  # [devices]
    task: np.ndarray  # [devices]
    free: np.ndarray  # [devices]
    last: np.ndarray  # [devices]
    now: np.ndarray  # [devices]
    peak: np.ndarray  # [devices]
    log: np.ndarray  # [3 * room * microbatches, 3]


@compiled
def rehearse(slots: Slots, stages: Stages, scratch: RehearsalScratch, count: Whole) -> tuple[Whole, Whole]:
    """(ns of the step, bytes over the limits)."""
    _lay_out(slots, stages, scratch, count)
    number, devices = stages.number[0], len(slots.memory)
    device, most, first, own = stages.device, stages.most, scratch.first, scratch.own
    time, ready, following, held, free = scratch.time, scratch.ready, scratch.following, scratch.held, scratch.free
    start, task = scratch.start, scratch.task
    for d in range(devices):
        _choose(d, first, own, ready, following, held, most, free, start, task, count)
    for turn in range(3 * number * count):
        d = 0
        for other in range(1, devices):
            if start[other] < start[d]:
                d = other
        if task[d] < 0:
            return _FAR, _FAR  # cannot be: something is always ready
        phase, s = task[d] // len(own), task[d] % len(own)
        m, end = following[phase, s], start[d] + time[phase, s]
        free[d] = end
        scratch.log[turn, 0], scratch.log[turn, 1], scratch.log[turn, 2] = phase, s, m
        following[phase, s] += 1
        told = d
        if phase == 0:
            held[s] += 1
            scratch.now[d] += scratch.saved[s]
            scratch.peak[d] = max(scratch.peak[d], scratch.now[d])
            if s + 1 < number:
                ready[0, s + 1, m] = end + scratch.up[s + 1]
                told = device[s + 1]
            else:
                ready[1, s, m] = end
        elif phase == 1:
            ready[2, s, m] = end
            if s > 0:
                ready[1, s - 1, m] = end + scratch.down[s - 1]
                told = device[s - 1]
        else:
            held[s] -= 1
            scratch.now[d] -= scratch.saved[s]
        _choose(d, first, own, ready, following, held, most, free, start, task, count)
        if told != d:
            _choose(told, first, own, ready, following, held, most, free, start, task, count)
    over, end = np.int64(0), np.int64(0)
    for d in range(devices):
        over += max(np.int64(0), scratch.peak[d] - slots.memory[d])
        end = max(end, free[d] + scratch.last[d])
    return end, over


@compiled
def _choose(
    d: Whole,
    first: Ints,
    own: Ints,
    ready: Ints,
    following: Ints,
    held: Ints,
    most: Ints,
    free: Ints,
    start: Ints,
    task: Ints,
    count: Whole,
) -> None:
    """What a device does next, and when: backward passes first, then forward passes where there is room, then
    gradients of weights; of these the first microbatch, and the last stage."""
    soonest = _FAR
    for at in range(first[d], first[d + 1]):
        s = own[at]
        for phase in range(3):
            m = following[phase, s]
            if m < count and (phase > 0 or held[s] < most[s]):
                soonest = min(soonest, ready[phase, s, m])
    start[d], task[d] = max(soonest, free[d]), -1
    if soonest == _FAR:
        start[d] = _FAR
        return
    order = _FAR
    for at in range(first[d], first[d + 1]):
        s = own[at]
        for phase in range(3):
            m = following[phase, s]
            if m < count and (phase > 0 or held[s] < most[s]) and ready[phase, s, m] <= start[d]:
                urgency = 0 if phase == 1 else 1 if phase == 0 else 2
                rank = (urgency * (count + 1) + m) * (len(own) + 1) - s
                if rank < order:
                    order, task[d] = rank, phase * len(own) + s


@compiled
def _lay_out(slots: Slots, stages: Stages, scratch: RehearsalScratch, count: Whole) -> None:
    """Times and bytes of each stage on its device, and what is ready at the start."""
    number, devices = stages.number[0], len(slots.memory)
    scratch.last[:], scratch.now[:], scratch.free[:] = 0, 0, 0
    scratch.following[:], scratch.held[:], scratch.ready[:] = 0, 0, _FAR
    scratch.ready[0, 0, :] = 0
    scratch.up[:], scratch.down[:] = 0, 0
    for s in range(number):
        low, high, d = stages.begin[s], stages.begin[s + 1], stages.device[s]
        scratch.time[0, s] = slots.forward[high, d] - slots.forward[low, d]
        scratch.time[1, s] = slots.backward[high, d] - slots.backward[low, d]
        scratch.time[2, s] = slots.weight[high, d] - slots.weight[low, d]
        scratch.saved[s] = slots.saved[high] - slots.saved[low]
        scratch.last[d] += slots.update[high, d] - slots.update[low, d]
        scratch.now[d] += slots.resident[high] - slots.resident[low]
        if s > 0 and stages.device[s - 1] != d:
            scratch.up[s], scratch.down[s - 1] = slots.up_ns[low], slots.down_ns[low]
    scratch.time[2, 0] += scratch.time[1, 0]  # nobody waits for what the first stage passes on
    scratch.time[1, 0] = 0
    scratch.peak[:] = scratch.now
    at = 0
    for d in range(devices):
        scratch.first[d] = at
        for s in range(number):
            if stages.device[s] == d:
                scratch.own[at] = s
                at += 1
    scratch.first[devices] = at


@compiled
def anneal(
    slots: Slots,
    stages: Stages,
    tried: Stages,
    best: Stages,
    scratch: RehearsalScratch,
    count: Whole,
    rehearsals: Whole,
    hot: float,
    state: RandomState,
) -> tuple[Whole, Whole]:
    """Moves `stages` about; (ns, bytes over) of the best, which is left in `best`. `tried` has room for one more."""
    value, over = rehearse(slots, stages, scratch, count)
    least, least_over = value, over
    _copy(stages, best)
    for turn in range(rehearsals):
        _copy(stages, tried)
        if not _move(slots, tried, count, state):
            continue
        new, new_over = rehearse(slots, tried, scratch, count)
        if new_over > over:
            continue
        temperature = cooled(hot, COLD, turn / rehearsals)
        if new_over < over or new <= value or new - value < least * slack_of(temperature, state):
            value, over = new, new_over
            _copy(tried, stages)
            if over < least_over or (over == least_over and value < least):
                least, least_over = value, over
                _copy(stages, best)
    return least, least_over


@compiled
def _copy(source: Stages, target: Stages) -> None:
    target.begin[:], target.device[:], target.most[:] = source.begin, source.device, source.most
    target.number[0] = source.number[0]


@compiled
def _move(slots: Slots, stages: Stages, count: Whole, state: RandomState) -> bool:
    """Whether something could be moved."""
    number, kind = stages.number[0], unit(state)
    s = below(state, number)
    if kind < SHIFT:
        if s == 0:
            return False
        far = max(1, stages.begin[number] // 16) if unit(state) < 0.3 else 2
        way = 1 + below(state, far)
        stages.begin[s] += way if unit(state) < 0.5 else -way
        return stages.begin[s - 1] < stages.begin[s] < stages.begin[s + 1]  # type: ignore[no-any-return]
    if kind < HOLD:
        stages.most[s] = min(count, max(1, stages.most[s] + below(state, 5) - 2))
        return True
    if kind < SWAP:
        other = below(state, number)
        stages.device[s], stages.device[other] = stages.device[other], stages.device[s]
        return True
    if kind < PART:
        return _part(stages, s, below(state, len(slots.memory)), unit(state) < 0.5, state)
    return _join(stages, s, unit(state) < 0.5)


@compiled
def _part(stages: Stages, s: Whole, device: Whole, left: bool, state: RandomState) -> bool:
    """A stage becomes two, of which one goes to another device."""
    number, low, high = stages.number[0], stages.begin[s], stages.begin[s + 1]
    if high - low < 2 or number >= len(stages.device):
        return False
    for at in range(number, s, -1):
        stages.begin[at + 1] = stages.begin[at]
        stages.device[at], stages.most[at] = stages.device[at - 1], stages.most[at - 1]
    stages.begin[s + 1] = low + 1 + below(state, high - low - 1)
    stages.device[s if left else s + 1] = device
    stages.number[0] += 1
    return True


@compiled
def _join(stages: Stages, s: Whole, left: bool) -> bool:
    """A stage takes in the next one, unless a device would have nothing left."""
    number = stages.number[0]
    if s + 1 >= number:
        return False
    gone = stages.device[s] if left else stages.device[s + 1]
    others = 0
    for at in range(number):
        others += stages.device[at] == gone
    if others == 1:
        return False
    if left:
        stages.device[s], stages.most[s] = stages.device[s + 1], stages.most[s + 1]
    for at in range(s + 1, number - 1):
        stages.begin[at] = stages.begin[at + 1]
        stages.device[at], stages.most[at] = stages.device[at + 1], stages.most[at + 1]
    stages.begin[number - 1] = stages.begin[number]
    stages.number[0] -= 1
    return True
