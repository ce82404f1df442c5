# mypy: ignore-errors
"""The compiled loop of local search and annealing: propose a change of placement or order, simulate, keep or undo."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from loadmaster._kernel import make_record, make_room, run
from loadmaster.optimizers._lists import upward_placed

TOP_RANK = 2**31 - 1
FOREVER = np.iinfo(np.int64).max
KINDS = 9
PROGRAM, MIRROR, GROUPS = range(3)
WINDOW, SCOPE, SLICE, NEIGHBOUR, BORDER, SWAP, SHIFT, BESIDE, CRITICAL = range(KINDS)


class Ground(NamedTuple):
    """What moves need to know besides the layout."""

    read_start: np.ndarray
    reads: np.ndarray
    producer: np.ndarray
    after_start: np.ndarray
    after: np.ndarray
    send_ns: np.ndarray  # [tensors, classes]
    send_class: np.ndarray  # [devices, devices]
    group_start: np.ndarray
    group_ops: np.ndarray
    by_mirror: np.ndarray
    colocate: np.ndarray
    mate_start: np.ndarray  # [colocation groups + 1]
    mates: np.ndarray
    able: np.ndarray  # [ops, devices]
    limits: np.ndarray  # [devices]
    by_time: bool  # the objective is step time, else the largest peak


class Chain(NamedTuple):
    """One walker: where it stands, the best it has seen, and what it did."""

    place: np.ndarray
    rank: np.ndarray
    best_place: np.ndarray
    best_rank: np.ndarray
    score: np.ndarray  # [4] over and value where it stands, over and value of the best
    random: np.ndarray  # [2] state of its generator
    tried: np.ndarray  # [kinds]
    gained: np.ndarray  # [kinds] improvements of the best


@njit(inline="always")
def _draw(state):
    x, y = state[0], state[1]
    state[0] = y
    x ^= x << np.uint64(23)
    x ^= x >> np.uint64(17)
    x ^= y ^ (y >> np.uint64(26))
    state[1] = x
    return x + y


@njit(inline="always")
def _below(state, count):
    return np.int64((_draw(state) >> np.uint64(33)) % np.uint64(count))


@njit(inline="always")
def _unit(state):
    return (np.float64(_draw(state) >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(inline="always")
def _length(state, most):
    """Log-uniform in 1 … most."""
    return max(1, min(most, np.int64(np.exp(_unit(state) * np.log(most + 1.0)))))


@njit(cache=True, nogil=True)
def _neighbour(read_start, reads, producer, make_start, makes, reader_start, readers, op, state):
    """A random op that this one reads from or feeds, or -1."""
    inputs, outputs = read_start[op + 1] - read_start[op], make_start[op + 1] - make_start[op]
    if inputs + outputs == 0:
        return np.int64(-1)
    pick = _below(state, inputs + outputs)
    tensor = reads[read_start[op] + pick] if pick < inputs else np.int64(makes[make_start[op] + pick - inputs])
    if pick < inputs and producer[tensor] >= 0:
        return producer[tensor]
    count = reader_start[tensor + 1] - reader_start[tensor]
    if count == 0:
        return np.int64(-1)
    return np.int64(readers[reader_start[tensor] + _below(state, count)])


@njit(cache=True, nogil=True)
def walk(layout, ground, chain, weights, steps, heat, follow):
    """Takes `steps` moves from where the chain stands, at a heat that is a share of the value.

    `follow`: the chance that ranks are set anew to the critical path after a change of placement. Arrays are taken
    out of
    their tuples once, as in the simulator's loop.
    """
    devices, op_ns = layout.devices, layout.op_ns
    make_start, makes, reader_start, readers = layout.make_start, layout.makes, layout.reader_start, layout.readers
    read_start, reads, producer, after_start, after = (
        ground.read_start,
        ground.reads,
        ground.producer,
        ground.after_start,
        ground.after,
    )
    send_ns, send_class, able, limits, by_time = (
        ground.send_ns,
        ground.send_class,
        ground.able,
        ground.limits,
        ground.by_time,
    )
    group_start, group_ops, by_mirror = ground.group_start, ground.group_ops, ground.by_mirror
    colocate, mate_start, mates = ground.colocate, ground.mate_start, ground.mates
    place, rank, score, state = chain.place, chain.rank, chain.score, chain.random
    ops, groups = len(place), len(group_start) - 1
    room, record, no_sends = make_room(layout), make_record(0, 0, 0), np.empty(0, np.int64)
    peak, times = np.zeros(devices, np.int64), np.empty(ops, np.int64)
    touched, old, old_rank, stamp = (
        np.empty(ops, np.int64),
        np.empty(ops, np.int32),
        np.empty(ops, np.int32),
        np.full(ops, -1, np.int64),
    )
    total = weights.sum()

    for step in range(steps):
        pick, kind = _unit(state) * total, 0
        while kind < KINDS - 1 and pick >= weights[kind]:
            pick -= weights[kind]
            kind += 1
        if devices == 1 and kind < SHIFT:
            kind = SHIFT if kind % 2 else BESIDE
        if groups == 0 and (kind == SCOPE or kind == SLICE):
            kind = WINDOW
        # Which ops: positions low … high-1 of the program, of the mirrored order or of the groups.
        low = _below(state, ops)
        high, listing, device, other_device = low, PROGRAM, _below(state, devices), np.int64(-1)
        by, anew = np.int64(0), kind == CRITICAL
        if kind == WINDOW or kind == SWAP:
            high = min(ops, low + _length(state, max(1, ops // 2)))
            listing = MIRROR if kind == SWAP or _below(state, 4) else PROGRAM
            other_device = _below(state, devices) if kind == SWAP else other_device
        elif kind == SCOPE or kind == SLICE or (kind == SHIFT and groups > 0 and _below(state, 3) == 0):
            group, listing = _below(state, groups), GROUPS
            low, high = group_start[group], group_start[group + 1]
            if kind == SLICE:
                length = _length(state, high - low)
                low += _below(state, high - low)
                high = min(high, low + length)
        elif kind == SHIFT:
            high, listing = min(ops, low + _length(state, max(1, ops // 2))), _below(state, 2)
        elif kind == BORDER:
            listing = MIRROR
            # Where the mirrored order changes device, some ops move across.
            here, after_here = low, low + 1 if low + 1 < ops else 0
            for _ in range(ops):
                if place[by_mirror[here]] != place[by_mirror[after_here]]:
                    break
                here, after_here = after_here, after_here + 1 if after_here + 1 < ops else 0
            length = _length(state, max(1, ops // 8))
            if _below(state, 2):
                low, high, device = after_here, min(ops, after_here + length), np.int64(place[by_mirror[here]])
            else:
                low, high, device = max(0, here - length + 1), here + 1, np.int64(place[by_mirror[after_here]])
        elif kind == NEIGHBOUR or kind == BESIDE:
            other = _neighbour(read_start, reads, producer, make_start, makes, reader_start, readers, low, state)
            if other >= 0:
                high = low + 1
                device = np.int64(place[other])
                by = np.int64(rank[other]) - np.int64(rank[low]) + (1 if _below(state, 2) else -1)
        if kind == SHIFT:
            far = np.int64(np.exp(np.log(float(TOP_RANK // 2)) - _unit(state) * np.log(float(ops) * 2.0)))
            by = far if _below(state, 2) else -far
        chain.tried[kind] += 1
        moved, ranked = 0, anew or (high > low and (kind == SHIFT or kind == BESIDE))
        if ranked:
            old_rank[:] = rank
        for at in range(low, high):
            op = by_mirror[at] if listing == MIRROR else group_ops[at] if listing == GROUPS else np.int64(at)
            if ranked:
                rank[op] = np.int32(min(np.int64(TOP_RANK), max(np.int64(0), np.int64(rank[op]) + by)))
                continue
            target = device
            if other_device >= 0:
                if place[op] == device:
                    target = other_device
                elif place[op] != other_device:
                    continue
            if stamp[op] == step or place[op] == target or not able[op, target]:
                continue
            group = colocate[op]
            first, last = (mate_start[group], mate_start[group + 1]) if group >= 0 else (0, 1)
            for index in range(first, last):
                mate = mates[index] if group >= 0 else op
                stamp[mate] = step
                touched[moved] = mate
                old[moved] = place[mate]
                moved += 1
                place[mate] = target
        if moved == 0 and not ranked:
            continue
        if moved > 0 and follow > 0.0 and _unit(state) < follow:
            old_rank[:] = rank
            ranked = anew = True
        if anew:
            for op in range(ops):
                times[op] = op_ns[op * devices + place[op]]
            level = upward_placed(read_start, reads, producer, after_start, after, times, send_ns, send_class, place)
            top = max(np.int64(1), level.max())
            scale = np.float64(TOP_RANK - 1) / np.float64(top)
            for op in range(ops):
                rank[op] = np.int32(np.float64(top - level[op]) * scale)
        over, value = score[0], score[1]
        slack = -np.log(_unit(state)) * heat
        most_ns, most_bytes = FOREVER, FOREVER
        if over == 0:
            bar = np.int64(value + value * slack)
            if by_time:
                most_ns = bar
            else:
                most_bytes = bar
        time = run(layout, place, rank, no_sends, room, most_ns, most_bytes, peak, False, record)
        keep = time >= 0
        if keep:
            new_over, new_value = np.int64(0), time if by_time else peak.max()
            for at in range(devices):
                new_over += max(np.int64(0), peak[at] - limits[at])
            if over == 0:
                keep = new_over == 0 and new_value <= value + value * slack
            else:
                keep = new_over < over or (
                    new_over <= over + over * slack and (new_over > over or new_value <= value + value * slack)
                )
            if keep:
                score[0], score[1] = new_over, new_value
                if new_over < score[2] or (new_over == score[2] and new_value < score[3]):
                    score[2], score[3] = new_over, new_value
                    chain.best_place[:] = place
                    chain.best_rank[:] = rank
                    chain.gained[kind] += 1
        if not keep:
            for index in range(moved - 1, -1, -1):
                place[touched[index]] = old[index]
            if ranked:
                rank[:] = old_rank
