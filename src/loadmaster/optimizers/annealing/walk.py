# mypy: ignore-errors
"""The compiled loop of local search and annealing: propose a change of placement or order, simulate, keep or undo."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.objective import Goal
from loadmaster.simulator.loop import make_record, make_room, run, stops_at, value_of

TOP_RANK = 2**31 - 1
FOREVER = np.iinfo(np.int64).max
KINDS = 10
WAYS = 4  # of each kind: about any op or one that the step waits for; ranks kept or set anew by the critical path
PROGRAM, MIRROR, GROUPS, TURNS = range(4)
WINDOW, SCOPE, SLICE, NEIGHBOUR, BORDER, SWAP, SHIFT, BESIDE, CRITICAL, BLOCK = range(KINDS)
REFRESH = 64  # moves after which what the step waits for is looked up again
FADE = 0.9998  # of what is known of a kind of move, kept after each one
TRIAL = 8.0  # whole runs of every kind that are taken to have gone as the average did
LEAST, MOST = 0.05, 6.0  # times its given chance that a kind of move has at least and at most


class Ground(NamedTuple):
    """What moves need to know besides the layout."""

    read_start: np.ndarray
    reads: np.ndarray
    producer: np.ndarray
    after_start: np.ndarray
    after: np.ndarray
    group_start: np.ndarray
    group_ops: np.ndarray
    by_mirror: np.ndarray
    mirror_at: np.ndarray  # [ops] place in by_mirror
    within_start: np.ndarray  # [ops + 1]
    within: np.ndarray  # positions of each op in group_ops
    group_at: np.ndarray  # [len(group_ops)] group of each position
    colocate: np.ndarray
    mate_start: np.ndarray  # [colocation groups + 1]
    mates: np.ndarray
    able: np.ndarray  # [ops, devices]
    limits: np.ndarray  # [devices]
    goal: Goal


class Chain(NamedTuple):
    """One walker: where it stands, the best it has seen, and what it did."""

    place: np.ndarray
    rank: np.ndarray
    best_place: np.ndarray
    best_rank: np.ndarray
    score: np.ndarray  # [4] over and value where it stands, over and value of the best
    random: np.ndarray  # [2] state of its generator
    spent: np.ndarray  # [kinds * ways] runs of late, in whole ones
    gained: np.ndarray  # [kinds * ways] how often that made the plan better


@compiled(inline="always")
def _draw(state):
    x, y = state[0], state[1]
    state[0] = y
    x ^= x << np.uint64(23)
    x ^= x >> np.uint64(17)
    x ^= y ^ (y >> np.uint64(26))
    state[1] = x
    return x + y


@compiled(inline="always")
def _below(state, count):
    return np.int64((_draw(state) >> np.uint64(33)) % np.uint64(count))


@compiled(inline="always")
def _unit(state):
    return (np.float64(_draw(state) >> np.uint64(11)) + 0.5) / 9007199254740992.0


@compiled(inline="always")
def _length(state, most):
    """Log-uniform in 1 … most."""
    return max(1, min(most, np.int64(np.exp(_unit(state) * np.log(most + 1.0)))))


@compiled
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


@compiled
def measure_tails(layout, place, top, tail):
    """The longest path from the start of each op to the end of the step, sends included, for ops up to `top`; those
    of later ops are taken as they are. No run can be shorter than when an op starts and its tail."""
    devices, classes, op_ns, send_ns, send_class = (
        layout.devices,
        layout.send_classes,
        layout.op_ns,
        layout.send_ns,
        layout.send_class,
    )
    make_start, makes, reader_start, readers = layout.make_start, layout.makes, layout.reader_start, layout.readers
    next_start, nexts = layout.next_start, layout.nexts
    for op in range(top, -1, -1):
        here, longest = np.int64(place[op]), np.int64(0)
        for make in range(make_start[op], make_start[op + 1]):
            tensor = np.int64(makes[make])
            for at in range(reader_start[tensor], reader_start[tensor + 1]):
                reader = readers[at]
                way = tail[reader]
                if place[reader] != here:
                    way += send_ns[tensor * classes + send_class[here * devices + place[reader]]]
                longest = max(longest, way)
        for at in range(next_start[op], next_start[op + 1]):
            longest = max(longest, tail[nexts[at]])
        tail[op] = op_ns[op * devices + here] + longest


@compiled
def by_critical_path(tail, rank):
    """Ranks by the longest way to the end, over the whole scale so that there is room between them."""
    longest = max(np.int64(1), tail.max())
    scale = np.float64(TOP_RANK - 1) / np.float64(longest)
    for op in range(len(rank)):
        rank[op] = np.int32(np.float64(longest - tail[op]) * scale)


@compiled(inline="always")
def carry(op, target, devices, op_ns, colocate, mate_start, mates, place, load, touched, old, moved):
    """Takes an op, and what is bound to it, to a device; how many ops have moved by now."""
    group = colocate[op]
    first, last = (mate_start[group], mate_start[group + 1]) if group >= 0 else (0, 1)
    for index in range(first, last):
        mate = mates[index] if group >= 0 else op
        touched[moved] = mate
        old[moved] = place[mate]
        moved += 1
        load[place[mate]] -= op_ns[mate * devices + place[mate]]
        load[target] += op_ns[mate * devices + target]
        place[mate] = target
    return moved


@compiled
def put_back(devices, op_ns, place, load, touched, old, moved):
    """Takes the ops that have moved back to where they were, last one first."""
    for index in range(moved - 1, -1, -1):
        op, target = touched[index], np.int64(old[index])
        load[place[op]] -= op_ns[op * devices + place[op]]
        load[target] += op_ns[op * devices + target]
        place[op] = target


@compiled
def critical_ops(layout, ground, place, record, turns, found, queued):
    """How many ops a chain has that ends with the step and in which each op starts because the one before it ended:
    on the same device (then it was queued there), or as the last maker of what it reads. Writes them, last one first,
    and all ops in order of dispatch."""
    ops, devices, classes = len(place), layout.devices, layout.send_classes
    start, end, turn, producer = record.start_ns, record.end_ns, record.turn, ground.producer
    before, last = np.empty(ops, np.int64), np.full(devices, -1, np.int64)
    for op in range(ops):
        turns[turn[op]] = op
    for at in range(ops):
        op = turns[at]
        before[op] = last[place[op]]
        last[place[op]] = op
    op, count = np.int64(end.argmax()), 0
    while op >= 0:
        cause, latest = before[op], np.int64(-1)
        queued[count] = cause >= 0 and end[cause] == start[op]
        found[count] = op
        count += 1
        if not queued[count - 1]:
            cause = np.int64(-1)
            for at in range(ground.read_start[op], ground.read_start[op + 1]):
                tensor = ground.reads[at]
                maker = producer[tensor]
                if maker < 0:
                    continue
                there = end[maker]
                if place[maker] != place[op]:
                    link = layout.send_class[np.int64(place[maker]) * devices + place[op]]
                    there += layout.send_ns[tensor * classes + link]
                if there > latest:
                    cause, latest = maker, there
            for at in range(ground.after_start[op], ground.after_start[op + 1]):
                if end[ground.after[at]] > latest:
                    cause, latest = ground.after[at], end[ground.after[at]]
        op = cause
    return count


@compiled
def overtaking(layout, ground, place, record, found, queued, count, state):
    """An op of the chain that waited for its device, and one that the device ran meanwhile; -1 where none did."""
    at = _below(state, count)
    for _ in range(count):
        if queued[at]:
            break
        at = at + 1 if at + 1 < count else 0
    op, ready, devices, classes = found[at], np.int64(0), layout.devices, layout.send_classes
    for index in range(ground.read_start[op], ground.read_start[op + 1]):
        tensor = ground.reads[index]
        maker = ground.producer[tensor]
        if maker >= 0:
            there = record.end_ns[maker]
            if place[maker] != place[op]:
                link = layout.send_class[np.int64(place[maker]) * devices + place[op]]
                there += layout.send_ns[tensor * classes + link]
            ready = max(ready, there)
    for index in range(ground.after_start[op], ground.after_start[op + 1]):
        ready = max(ready, record.end_ns[ground.after[index]])
    last = at
    while queued[last] and record.start_ns[found[last + 1]] >= ready:
        last += 1
    if last == at:
        return np.int64(-1), np.int64(-1)
    return op, found[last if _below(state, 2) else at + 1 + _below(state, last - at)]


@compiled
def weigh(weights, follow, aim, spent, gained, chances):
    """Chances of every way of every kind: as given, times how much it gained of late for what it cost, against the
    average of all."""
    rate = (gained.sum() + 1.0) / (spent.sum() + TRIAL)
    for arm in range(KINDS * WAYS):
        kind, aimed, anew = arm // WAYS, arm % 2, arm % WAYS // 2
        chance = weights[kind] * (aim if aimed else 1.0 - aim)
        if kind == CRITICAL:
            chance = 0.0 if aimed or anew else weights[kind]
        elif kind == BLOCK:
            chance = weights[kind] if aimed and not anew and aim > 0.0 else 0.0
        elif kind < SHIFT:
            chance *= follow if anew else 1.0 - follow
        elif anew:
            chance = 0.0
        paid = (gained[arm] + TRIAL * rate) / (spent[arm] + TRIAL) / rate
        chances[arm] = chance * min(MOST, max(LEAST, paid))


@compiled
def walk(layout, ground, chain, weights, steps, heat, follow, aim):
    """Takes `steps` moves from where the chain stands, at a heat that is a share of the value.

    `follow`: the chance that ranks are set anew to the critical path after a change of placement. `aim`: the chance
    that a move is about an op that the step waits for; looking those up counts as a move. Both are changed by what
    paid of late. Arrays are taken out of their tuples once, as in the simulator's loop.
    """
    devices, op_ns = layout.devices, layout.op_ns
    make_start, makes, reader_start, readers = layout.make_start, layout.makes, layout.reader_start, layout.readers
    read_start, reads, producer = ground.read_start, ground.reads, ground.producer
    able, limits, goal = ground.able, ground.limits, ground.goal
    by_time = goal.step_price > 0
    group_start, group_ops, by_mirror = ground.group_start, ground.group_ops, ground.by_mirror
    colocate, mate_start, mates = ground.colocate, ground.mate_start, ground.mates
    mirror_at, within_start, within, group_at = ground.mirror_at, ground.within_start, ground.within, ground.group_at
    place, rank, score, state, spent, gained = (
        chain.place,
        chain.rank,
        chain.score,
        chain.random,
        chain.spent,
        chain.gained,
    )
    ops, groups = len(place), len(group_start) - 1
    room, record, no_sends = make_room(layout, True), make_record(0, 0, 0), np.empty(0, np.int64)
    peak, load = np.zeros(devices, np.int64), np.zeros(devices, np.int64)
    tail, old_tail = room.tail, np.empty(ops, np.int64)
    measure_tails(layout, place, ops - 1, tail)
    for op in range(ops):
        load[place[op]] += op_ns[op * devices + place[op]]
    touched, old, old_rank, stamp = (
        np.empty(ops, np.int64),
        np.empty(ops, np.int32),
        np.empty(ops, np.int32),
        np.full(ops, -1, np.int64),
    )
    aims = aim > 0.0 and by_time
    most_sends = len(layout.nbytes) * devices if aims else 0
    whole = make_record(ops, most_sends, 2 * (ops + most_sends) + devices)
    critical, turns, queued = np.empty(ops, np.int64), np.empty(ops, np.int64), np.zeros(ops, np.bool_)
    turn_of, num_critical = whole.turn, 0
    chances, total = np.zeros(KINDS * WAYS), 0.0

    for step in range(steps):
        if step % REFRESH == 0:
            spent *= FADE**REFRESH
            gained *= FADE**REFRESH
            weigh(weights, follow, aim if aims else 0.0, spent, gained, chances)
            total = chances.sum()
            if aims:
                run(layout, place, rank, no_sends, room, FOREVER, FOREVER, peak, True, whole)
                num_critical = critical_ops(layout, ground, place, whole, turns, critical, queued)
                continue
        pick, arm = _unit(state) * total, 0
        while arm < KINDS * WAYS - 1 and pick >= chances[arm]:
            pick -= chances[arm]
            arm += 1
        kind, aimed, anew = arm // WAYS, arm % 2 == 1, arm % WAYS // 2 == 1
        if devices == 1 and kind < SHIFT:
            kind = SHIFT if kind % 2 else BESIDE
        if groups == 0 and (kind == SCOPE or kind == SLICE):
            kind = WINDOW
        # Which ops: positions low … high-1 of the program, of the mirrored order or of the groups.
        low = critical[_below(state, num_critical)] if aimed else _below(state, ops)
        seed = low
        high, listing, device, other_device, only = low, PROGRAM, _below(state, devices), np.int64(-1), np.int64(-1)
        by = np.int64(0)
        in_groups = kind == SCOPE or kind == SLICE or (kind == SHIFT and groups > 0 and _below(state, 3) == 0)
        if aimed and within_start[seed] == within_start[seed + 1]:
            in_groups = False
        if aimed and devices > 2 and _below(state, 2):
            other = _neighbour(read_start, reads, producer, make_start, makes, reader_start, readers, seed, state)
            device = np.int64(place[other]) if other >= 0 else device
        if in_groups:
            listing = GROUPS
            at = within[within_start[seed] + _below(state, within_start[seed + 1] - within_start[seed])] if aimed else 0
            group = group_at[at] if aimed else _below(state, groups)
            low, high = group_start[group], group_start[group + 1]
            if kind == SLICE:
                length = _length(state, high - low)
                low = max(low, at - _below(state, length)) if aimed else low + _below(state, high - low)
                high = min(high, low + length)
        elif kind == WINDOW or kind == SWAP or kind == SCOPE or kind == SLICE or kind == SHIFT:
            length = _length(state, max(1, ops // 2))
            listing = _below(state, 2) if kind == SHIFT else MIRROR if kind == SWAP or _below(state, 4) else PROGRAM
            other_device = _below(state, devices) if kind == SWAP else other_device
            if aimed:
                low = mirror_at[seed] if listing == MIRROR else seed
                if kind == WINDOW and _below(state, 2):
                    listing, only, low = TURNS, np.int64(place[seed]), turn_of[seed]
                low = max(0, low - _below(state, length))
            high = min(ops, low + length)
        elif kind == BORDER:
            listing = MIRROR
            low = mirror_at[seed] if aimed else low
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
        elif kind == BLOCK:
            low, other = overtaking(layout, ground, place, whole, critical, queued, num_critical, state)
            if low >= 0:
                by = np.int64(rank[other]) - np.int64(rank[low]) - 1
                if _below(state, 2):
                    low, by = other, -by
            high = low + 1 if low >= 0 else low
        if kind == SHIFT:
            far = np.int64(np.exp(np.log(float(TOP_RANK // 2)) - _unit(state) * np.log(float(ops) * 2.0)))
            by = far if _below(state, 2) else -far
        anew = anew or kind == CRITICAL
        moved, top = 0, np.int64(-1)
        shifts = high > low and (kind == SHIFT or kind == BESIDE or kind == BLOCK)
        if shifts:
            old_rank[:] = rank
        for at in range(low, high):
            op = np.int64(at)
            if listing == MIRROR:
                op = by_mirror[at]
            elif listing == GROUPS:
                op = group_ops[at]
            elif listing == TURNS:
                op = turns[at]
            if only >= 0 and place[op] != only:
                continue
            if shifts:
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
            before = moved
            moved = carry(op, target, devices, op_ns, colocate, mate_start, mates, place, load, touched, old, moved)
            for index in range(before, moved):
                stamp[touched[index]] = step
                top = max(top, touched[index])
        if moved == 0 and not shifts and kind != CRITICAL:
            continue
        if moved > 0 and by_time:
            old_tail[: top + 1] = tail[: top + 1]
            measure_tails(layout, place, top, tail)
        elif anew and not by_time:
            measure_tails(layout, place, ops - 1, tail)
        if anew:
            old_rank[:] = rank
            by_critical_path(tail, rank)
        over, value = score[0], score[1]
        slack = -np.log(_unit(state)) * heat
        most_ns, most_bytes = FOREVER, FOREVER
        if over == 0:
            most_ns, most_bytes = stops_at(goal, np.int64(value + value * slack))
        room.ahead[:] = load
        time = run(layout, place, rank, no_sends, room, most_ns, most_bytes, peak, False, record)
        spent[arm] += np.float64(room.tally[1]) / ops
        keep = time >= 0
        if keep:
            new_over, new_value = np.int64(0), value_of(goal, time, peak, room.worked)
            for at in range(devices):
                new_over += max(np.int64(0), peak[at] - limits[at])
            if over == 0:
                keep = new_over == 0 and new_value <= value + value * slack
            else:
                keep = new_over < over or (
                    new_over <= over + over * slack and (new_over > over or new_value <= value + value * slack)
                )
            if keep:
                if new_over < over or (new_over == over and new_value < value):
                    gained[arm] += 1.0
                score[0], score[1] = new_over, new_value
                if new_over < score[2] or (new_over == score[2] and new_value < score[3]):
                    score[2], score[3] = new_over, new_value
                    chain.best_place[:] = place
                    chain.best_rank[:] = rank
        if not keep:
            put_back(devices, op_ns, place, load, touched, old, moved)
            if moved > 0 and by_time:
                tail[: top + 1] = old_tail[: top + 1]
            if shifts or anew:
                rank[:] = old_rank
