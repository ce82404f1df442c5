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
    mirror_place: np.ndarray  # [ops] position in by_mirror
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


@njit(inline="always")
def _send_to(ground, chain, op, device, touched, old, count, stamp, mark):
    """Places one op and its colocation group; returns the number of ops touched."""
    if stamp[op] == mark or chain.place[op] == device or not ground.able[op, device]:
        return count
    group = ground.colocate[op]
    if group < 0:
        stamp[op] = mark
        touched[count] = op
        old[count] = chain.place[op]
        chain.place[op] = device
        return count + 1
    for at in range(ground.mate_start[group], ground.mate_start[group + 1]):
        mate = ground.mates[at]
        stamp[mate] = mark
        touched[count] = mate
        old[count] = chain.place[mate]
        chain.place[mate] = device
        count += 1
    return count


@njit(inline="always")
def _neighbour(ground, layout, chain, op, state):
    """A random op that this one reads from or feeds, or -1."""
    reads = ground.read_start[op + 1] - ground.read_start[op]
    makes = layout.make_start[op + 1] - layout.make_start[op]
    if reads + makes == 0:
        return -1
    pick = _below(state, reads + makes)
    if pick < reads:
        tensor = ground.reads[ground.read_start[op] + pick]
        if ground.producer[tensor] >= 0:
            return ground.producer[tensor]
    else:
        tensor = layout.makes[layout.make_start[op] + pick - reads]
    readers = layout.reader_start[tensor + 1] - layout.reader_start[tensor]
    if readers == 0:
        return -1
    return layout.readers[layout.reader_start[tensor] + _below(state, readers)]


@njit(inline="always")
def _critical(ground, layout, chain, times, rank):
    """Ranks by the longest way to the end under the placement, on the scale of ranks."""
    devices, ops = layout.devices, len(chain.place)
    for op in range(ops):
        times[op] = layout.op_ns[op * devices + chain.place[op]]
    level = upward_placed(
        ground.read_start, ground.reads, ground.producer, ground.after_start, ground.after, times, ground.send_ns, ground.send_class, chain.place
    )
    top = np.int64(1)
    for op in range(ops):
        top = max(top, level[op])
    scale = np.float64(TOP_RANK - 1) / np.float64(top)
    for op in range(ops):
        rank[op] = np.int32(np.float64(top - level[op]) * scale)


@njit(cache=True, nogil=True)
def walk(layout, ground, chain, weights, steps, heat_from, heat_to, follow):
    """Takes `steps` moves from where the chain stands, cooling from heat_from to heat_to (shares of the value).

    `follow`: the chance that ranks are set anew to the critical path after a change of placement.
    """
    ops, devices = len(chain.place), layout.devices
    room, record, no_sends = make_room(layout), make_record(0, 0, 0), np.empty(0, np.int64)
    peak, times = np.zeros(devices, np.int64), np.empty(ops, np.int64)
    touched, old, old_rank, stamp = np.empty(ops, np.int64), np.empty(ops, np.int32), np.empty(ops, np.int32), np.full(ops, -1, np.int64)
    total = weights.sum()
    state = chain.random
    groups = len(ground.group_start) - 1
    for step in range(steps):
        share = step / steps
        heat = 0.0 if heat_from <= 0.0 else heat_from * (heat_to / heat_from) ** share
        pick, kind = _unit(state) * total, 0
        while kind < KINDS - 1 and pick >= weights[kind]:
            pick -= weights[kind]
            kind += 1
        placed, ranked = _propose(layout, ground, chain, kind, groups, touched, old, old_rank, stamp, step, times, state)
        chain.tried[kind] += 1
        if placed == 0 and not ranked:
            continue
        if placed > 0 and not ranked and follow > 0.0 and _unit(state) < follow:
            old_rank[:] = chain.rank
            _critical(ground, layout, chain, times, chain.rank)
            ranked = True
        over, value = chain.score[0], chain.score[1]
        slack = -np.log(_unit(state)) * heat
        most_ns, most_bytes = FOREVER, FOREVER
        if over == 0:
            bar = np.int64(value + value * slack)
            if ground.by_time:
                most_ns = bar
            else:
                most_bytes = bar
        time = run(layout, chain.place, chain.rank, no_sends, room, most_ns, most_bytes, peak, False, record)
        keep = time >= 0
        if keep:
            new_over, new_value = np.int64(0), time if ground.by_time else peak.max()
            for device in range(devices):
                new_over += max(0, peak[device] - ground.limits[device])
            if over == 0:
                keep = new_over == 0 and new_value <= value + value * slack
            else:
                keep = new_over < over or (new_over <= over + over * slack and (new_over > over or new_value <= value + value * slack))
            if keep:
                chain.score[0], chain.score[1] = new_over, new_value
                if new_over < chain.score[2] or (new_over == chain.score[2] and new_value < chain.score[3]):
                    chain.score[2], chain.score[3] = new_over, new_value
                    chain.best_place[:] = chain.place
                    chain.best_rank[:] = chain.rank
                    chain.gained[kind] += 1
        if not keep:
            for index in range(placed - 1, -1, -1):
                chain.place[touched[index]] = old[index]
            if ranked:
                chain.rank[:] = old_rank


@njit(inline="always")
def _propose(layout, ground, chain, kind, groups, touched, old, old_rank, stamp, mark, times, state):
    """Changes the chain; returns how many ops were placed anew and whether ranks changed (old_rank has the old ones)."""
    ops, devices = len(chain.place), layout.devices
    count = 0
    if kind == CRITICAL or (devices == 1 and kind < SHIFT):
        if kind == CRITICAL:
            old_rank[:] = chain.rank
            _critical(ground, layout, chain, times, chain.rank)
            return 0, True
        kind = SHIFT if kind % 2 else BESIDE
    if (kind == SCOPE or kind == SLICE) and groups == 0:
        kind = WINDOW
    if kind == WINDOW:
        length = _length(state, max(1, ops // 2))
        begin = _below(state, ops)
        device = _below(state, devices)
        mirrored = _below(state, 4) != 0
        for at in range(begin, min(ops, begin + length)):
            count = _send_to(ground, chain, ground.by_mirror[at] if mirrored else at, device, touched, old, count, stamp, mark)
    elif kind == SCOPE or kind == SLICE:
        group = _below(state, groups)
        low, high = ground.group_start[group], ground.group_start[group + 1]
        device = _below(state, devices)
        if kind == SLICE:
            length = _length(state, high - low)
            low += _below(state, high - low)
            high = min(high, low + length)
        for at in range(low, high):
            count = _send_to(ground, chain, ground.group_ops[at], device, touched, old, count, stamp, mark)
    elif kind == NEIGHBOUR:
        op = _below(state, ops)
        other = _neighbour(ground, layout, chain, op, state)
        if other >= 0:
            count = _send_to(ground, chain, op, np.int64(chain.place[other]), touched, old, count, stamp, mark)
    elif kind == BORDER:
        # Finds where the mirrored order changes device and moves some ops across.
        begin = _below(state, ops)
        here = begin
        for _ in range(ops):
            after = here + 1 if here + 1 < ops else 0
            if chain.place[ground.by_mirror[here]] != chain.place[ground.by_mirror[after]]:
                break
            here = after
        after = here + 1 if here + 1 < ops else 0
        left, right = np.int64(chain.place[ground.by_mirror[here]]), np.int64(chain.place[ground.by_mirror[after]])
        if left != right:
            length = _length(state, max(1, ops // 8))
            if _below(state, 2) == 0:
                for at in range(after, min(ops, after + length)):
                    count = _send_to(ground, chain, ground.by_mirror[at], left, touched, old, count, stamp, mark)
            else:
                for at in range(max(0, here - length + 1), here + 1):
                    count = _send_to(ground, chain, ground.by_mirror[at], right, touched, old, count, stamp, mark)
    elif kind == SWAP:
        length = _length(state, ops)
        begin = _below(state, ops)
        one, two = _below(state, devices), _below(state, devices)
        for at in range(begin, min(ops, begin + length)):
            op = ground.by_mirror[at]
            if chain.place[op] == one:
                count = _send_to(ground, chain, op, two, touched, old, count, stamp, mark)
            elif chain.place[op] == two:
                count = _send_to(ground, chain, op, one, touched, old, count, stamp, mark)
    elif kind == SHIFT:
        old_rank[:] = chain.rank
        length = _length(state, max(1, ops // 2))
        begin = _below(state, ops)
        far = np.int64(np.exp(np.log(float(TOP_RANK // 2)) - _unit(state) * np.log(float(ops) * 2.0)))
        shift = far if _below(state, 2) == 0 else -far
        way = _below(state, 3)
        if way == 2 and groups > 0:
            group = _below(state, groups)
            for at in range(ground.group_start[group], ground.group_start[group + 1]):
                op = ground.group_ops[at]
                chain.rank[op] = min(np.int64(TOP_RANK), max(np.int64(0), chain.rank[op] + shift))
        else:
            for at in range(begin, min(ops, begin + length)):
                op = ground.by_mirror[at] if way else at
                chain.rank[op] = min(np.int64(TOP_RANK), max(np.int64(0), chain.rank[op] + shift))
        return 0, True
    elif kind == BESIDE:
        op = _below(state, ops)
        other = _neighbour(ground, layout, chain, op, state)
        if other >= 0:
            old_rank[:] = chain.rank
            near = chain.rank[other] + (1 if _below(state, 2) == 0 else -1)
            chain.rank[op] = min(np.int64(TOP_RANK), max(np.int64(0), near))
            return 0, True
    return count, False
