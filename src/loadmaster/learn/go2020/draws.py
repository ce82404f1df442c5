# mypy: ignore-errors
"""The compiled loop of GO's draws: a set of ops is drawn by a rule, where it goes by the network's scores; then the
simulator judges.

Every draw starts from what stands then: a chain. A sample of the draws is written down for PPO.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.learn.go2020.kernels import contracted, critical_members, fuse, fusion_set, merge_anew
from loadmaster.learn.go2020.sets import (
    BESIDE,
    FUSE,
    SHIFT,
    SINGLE,
    below,
    draw_kind,
    draw_set,
    make_desk,
    next_to,
    reach,
    shift,
    take,
    unit,
    weigh,
)
from loadmaster.optimizers.annealing.walk import by_critical_path, carry, critical_ops, measure_tails, put_back
from loadmaster.simulator.loop import make_record, make_room, run, stops_at, value_of

FOREVER = np.iinfo(np.int64).max
DEVICE, LEVEL, FUSION = range(3)  # kinds of decisions
REDRAWS = 16  # sets that are drawn before one is given up: the network would leave each as it is
FEWEST = 8  # draws for which it pays to look up what the step waits for


class Policy(NamedTuple):
    """What the network says of the plan that stood when it was asked."""

    label: np.ndarray  # [ops] group
    place: np.ndarray  # [groups, devices] scores
    level: np.ndarray  # [groups, levels]
    fusion: np.ndarray  # [ops, levels] or no rows
    fused: np.ndarray  # the same as chances


def chances(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf)) if len(scores) else scores
    return raised / raised.sum(axis=1, keepdims=True)


class Habits(NamedTuple):
    """How a chain draws and what it takes."""

    weights: np.ndarray  # [KINDS] how often each kind of set is drawn
    heat: float  # how much worse a plan may be and still be taken, in the mean, as a share of its value
    follow: float  # chance that the order becomes that of the critical path after a change of devices
    aim: float  # chance that a set is drawn about an op that the step waits for
    uniform: float  # chance of a decision that asks nobody
    every: int  # one in so many draws is written down, besides those that gain


class Chain(NamedTuple):
    """Where one walker stands, and the best it has seen."""

    place: np.ndarray
    rank: np.ndarray  # empty: first come, first served
    wish: np.ndarray  # [pairs] which merges are tried first, below 0: not at all; empty: nothing is fused
    kernel: np.ndarray
    at: np.ndarray  # kernels in an order in which each comes after those it waits for
    best_place: np.ndarray
    best_rank: np.ndarray
    best_wish: np.ndarray
    best_kernel: np.ndarray
    best_at: np.ndarray
    score: np.ndarray  # [4] over and value where it stands, over and value of the best
    random: np.ndarray  # [2]
    ran: np.ndarray  # [1] simulations


class Log(NamedTuple):
    """A sample of what was drawn."""

    kind: np.ndarray  # [rows]
    share: np.ndarray  # [rows, groups] of the drawn ops; of a decision on fusion, [rows, ops]
    pick: np.ndarray  # [rows] device, level or priority
    chance: np.ndarray  # [rows] logarithm
    gain: np.ndarray  # [rows] share of the value that the draw saved; 0: it was not better
    filled: np.ndarray  # [1]


def make_log(rows: int, wide: int) -> Log:
    whole = (np.zeros(rows, np.int64), np.zeros((rows, wide), np.float32), np.zeros(rows, np.int64))
    return Log(*whole, np.zeros(rows), np.zeros(rows), np.zeros(1, np.int64))


@compiled
def move(layout, ground, place, desk, count, target):
    """(ops moved, the last of them): the members that may run there go there, with what is bound to them."""
    devices, op_ns, colocate, able = layout.devices, layout.op_ns, ground.colocate, ground.able
    mate_start, mates = ground.mate_start, ground.mates
    members, touched, old, load = desk.members, desk.touched, desk.old, desk.load
    moved, top = 0, np.int64(-1)
    for at in range(count):
        op = members[at]
        if place[op] == target or not able[op, target]:
            continue
        before = moved
        moved = carry(op, target, devices, op_ns, colocate, mate_start, mates, place, load, touched, old, moved)
        for index in range(before, moved):
            top = max(top, touched[index])
    return moved, top


@compiled
def _look(layout, ground, chain, room, desk, fusing):
    """How many ops the step waits for, written to the desk; the simulation that tells counts."""
    place, no_sends = chain.place, np.empty(0, np.int64)
    ops, most_sends = len(place), len(layout.nbytes) * layout.devices
    whole = make_record(ops, most_sends, 2 * (ops + most_sends) + layout.devices)
    chain.ran[0] += 1
    if fusing is None:
        run(layout, place, chain.rank, no_sends, room, FOREVER, FOREVER, desk.peak, True, whole)
        desk.turn_of[:] = whole.turn
        return critical_ops(layout, ground, place, whole, desk.turns, desk.critical, desk.queued)
    whole.end_ns[:] = -1
    rank = contracted(layout, chain, fusing, chain.kernel)
    run(fusing.shown, place, rank, no_sends, room, FOREVER, FOREVER, desk.peak, True, whole)
    for op in range(ops):
        desk.turn_of[op] = whole.turn[chain.kernel[op]]
    desk.turns[:] = np.argsort(desk.turn_of, kind="mergesort")
    desk.turn_of[desk.turns] = desk.itself
    return critical_members(fusing.shown, chain, whole, desk)


@compiled
def _write(log, label, members, count, kind, column, chance, gain):
    row = log.filled[0]
    share = log.share[row]
    share[:] = 0.0
    for at in range(count):
        share[label[members[at]]] += np.float32(1.0 / count)
    log.kind[row], log.pick[row], log.chance[row], log.gain[row] = kind, column, np.log(max(1e-9, chance)), gain
    log.filled[0] += 1


@compiled
def _simulate(layout, chain, room, fusing, most_ns, most_bytes, peak, record):
    no_sends = np.empty(0, np.int64)
    if fusing is None:
        return run(layout, chain.place, chain.rank, no_sends, room, most_ns, most_bytes, peak, False, record)
    rank = contracted(layout, chain, fusing, fusing.trial)
    return run(fusing.shown, chain.place, rank, no_sends, room, most_ns, most_bytes, peak, False, record)


@compiled
def _judge(layout, ground, chain, room, desk, record, slack, fusing):
    """Simulates what stands now; (whether it is taken, the share of the value that it saves)."""
    score, limits, goal, peak = chain.score, ground.limits, ground.goal, desk.peak
    over, value = score[0], score[1]
    bar = np.int64(value + value * slack)
    most_ns, most_bytes = stops_at(goal, bar if over == 0 else FOREVER)
    room.ahead[:] = desk.load
    time = _simulate(layout, chain, room, fusing, most_ns, most_bytes, peak, record)
    chain.ran[0] += 1
    if time < 0:
        return False, 0.0
    new_over, new_value = np.int64(0), value_of(goal, time, peak, room.worked)
    for at in range(len(limits)):
        new_over += max(np.int64(0), peak[at] - limits[at])
    keep = new_over == 0 and new_value <= bar
    if over > 0:
        keep = new_over < over or (new_over <= over + over * slack and (new_over > over or new_value <= bar))
    gain = 0.0
    if new_over < over:
        gain = (over - new_over) / over
    elif new_over == over and new_value < value:
        gain = (value - new_value) / value
    if keep and fusing is not None:
        chain.kernel[:], chain.at[:] = fusing.trial, fusing.room.at
    if keep:
        score[0], score[1] = new_over, new_value
        if new_over < score[2] or (new_over == score[2] and new_value < score[3]):
            score[2], score[3] = new_over, new_value
            chain.best_place[:] = chain.place
            chain.best_rank[:] = chain.rank
            chain.best_wish[:] = chain.wish
            chain.best_kernel[:], chain.best_at[:] = chain.kernel, chain.at
    return keep, gain


@compiled
def walk(layout, ground, chain, policy, habits, steps, log, fusing):
    """Draws and judges until so many simulations are run; a few less where nothing can be drawn."""
    label, uniform, place, rank, state = policy.label, habits.uniform, chain.place, chain.rank, chain.random
    ops, devices, levels = len(place), layout.devices, policy.level.shape[1]
    by_time, ranked = ground.goal.step_price > 0, len(rank) > 0
    desk, record = make_desk(ops, devices, levels), make_record(0, 0, 0)
    room = make_room(layout, fusing is None)  # kernels take less time than their ops: no bound can be told
    tail = room.tail if fusing is None else np.empty(ops, np.int64)
    members, chance, level_chance = desk.members, desk.chance, desk.level_chance
    measure_tails(layout, place, ops - 1, tail)
    for op in range(ops):
        desk.load[place[op]] += layout.op_ns[op * devices + place[op]]
    last, waited = chain.ran[0] + steps, 0
    if habits.aim > 0.0 and by_time and steps >= FEWEST:
        waited = _look(layout, ground, chain, room, desk, fusing)
    for draw in range(REDRAWS * steps):
        if chain.ran[0] >= last:
            break
        kind, aimed = draw_kind(habits.weights, state), waited > 0 and unit(state) < habits.aim
        seed = desk.critical[below(state, waited)] if aimed else below(state, ops)
        moved, pairs, top, column, anew, what = 0, 0, np.int64(-1), np.int64(-1), False, DEVICE
        if kind == BESIDE:
            other = next_to(layout, ground, seed, state)
            if other < 0 or rank[other] == rank[seed]:
                continue
            members[0], count = seed, 1
            desk.old_rank[:] = rank
            shift(rank, members, 1, np.int64(rank[other]) - np.int64(rank[seed]) + (1 if below(state, 2) else -1))
        elif kind == SHIFT:
            what = LEVEL
            count, _ = draw_set(layout, ground, place, desk, below(state, SINGLE + 1), seed, aimed, state)
            weigh(label, policy.level, members, count, np.int64(-1), uniform, level_chance)
            column = take(level_chance, state)
            by = reach(column, levels, ops, state)
            if by == 0:
                continue
            desk.old_rank[:] = rank
            shift(rank, members, count, by)
        elif kind == FUSE:
            what = FUSION
            if fusing is None:
                continue
            pairs, way, toward = fusion_set(fusing, place, chain.kernel, seed if aimed else np.int64(-1), state)
            count, column = fuse(policy, fusing, chain.wish, desk, pairs, way, toward, uniform, state)
        else:
            count, toward = draw_set(layout, ground, place, desk, kind, seed, aimed, state)
            weigh(label, policy.place, members, count, toward, uniform, chance)
            column = take(chance, state)
            moved, top = move(layout, ground, place, desk, count, column)
            if moved == 0:
                continue
            anew = ranked and unit(state) < habits.follow
            if anew:
                desk.old_rank[:] = rank
            top = top if by_time else np.int64(ops - 1)  # tails are not kept up where nothing asks for them
            if by_time or anew:
                desk.old_tail[: top + 1] = tail[: top + 1]
                measure_tails(layout, place, top, tail)
            if anew:
                by_critical_path(tail, rank)
        if not merge_anew(fusing, chain, desk, moved, pairs) and kind == FUSE:
            if fusing is not None:
                chain.wish[:] = fusing.old_wish
            continue
        slack = -np.log(unit(state)) * habits.heat
        keep, gain = _judge(layout, ground, chain, room, desk, record, slack, fusing)
        if column >= 0 and (gain > 0 or draw % habits.every == 0) and log.filled[0] < len(log.kind):
            said = chance[column] if what == DEVICE else level_chance[column]
            _write(log, desk.itself if what == FUSION else label, members, count, what, column, said, gain)
        if not keep:
            put_back(layout.devices, layout.op_ns, place, desk.load, desk.touched, desk.old, moved)
            if moved > 0 and (by_time or anew):
                tail[: top + 1] = desk.old_tail[: top + 1]
            if anew or kind == SHIFT or kind == BESIDE:
                rank[:] = desk.old_rank
            if kind == FUSE and fusing is not None:
                chain.wish[:] = fusing.old_wish
