# mypy: ignore-errors
"""The compiled loop of annealing over fusion: opens some kernels, merges anew, and runs what comes of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.objective import Goal
from loadmaster.optimizers.annealing.walk import FOREVER, _below, _length, _unit
from loadmaster.optimizers.fusion.merging import make_kernels, merge_on, pairs_within, read_off, reopen
from loadmaster.simulator.contraction import contract
from loadmaster.simulator.loop import MADE, make_record, make_room, run, stops_at, value_of

WINDOW, ALIKE, SOME_ALIKE, SHIFT, ONE, CUT, JOIN = range(7)
KINDS = 7
TRIES = 4  # changes of wishes that may leave the kernels as they are, before a move counts as made
LOOKS = 8  # at pairs, for one that is merged, or that is not
FEWEST = 8  # moves for which it pays to look up what the step waits for
KEEP_APART = 0.2  # chance that a new wish is below 0
AIM = 0.5  # share of moves about ops that the step waits for


class Terrain(NamedTuple):
    """What moves need to know of the problem and of the plan whose ops are fused."""

    pairs: np.ndarray  # pairs of ops on one device that may share a kernel, by producer, then reader
    index: np.ndarray  # [all pairs] where each is among them, -1 where it is not
    alike_start: np.ndarray  # sets of pairs that do the same work
    alike: np.ndarray
    within_start: np.ndarray  # [all pairs + 1] rows of `within`: places of each pair in `alike`
    within: np.ndarray
    alike_at: np.ndarray  # the set of each place
    place: np.ndarray
    rank: np.ndarray
    limits: np.ndarray  # [devices] bytes of memory
    goal: Goal


class Chain(NamedTuple):
    wish: np.ndarray  # [all pairs] which are merged first; below 0: not at all
    kernel: np.ndarray
    at: np.ndarray  # its kernels in an order in which each comes after those it waits for
    best_kernel: np.ndarray
    score: np.ndarray  # over bytes and value of where it stands, and of the best
    random: np.ndarray
    tried: np.ndarray
    gained: np.ndarray


@compiled
def walk(layout, facts, shown, space, rules, terrain, chain, weights, steps, heat):
    """So many moves of one chain."""
    place, rank, limits, goal = terrain.place, terrain.rank, terrain.limits, terrain.goal
    wish, kernel, score, state = chain.wish, chain.kernel, chain.score, chain.random
    kernels, trial, opened = make_kernels(rules), np.empty_like(kernel), np.zeros(len(kernel), np.bool_)
    producers, consumers = np.empty(len(wish), np.int32), np.empty(len(wish), np.int32)
    old, touched = np.empty_like(wish), np.empty(len(wish), np.int64)
    room, record, no_sends = make_room(shown), make_record(0, 0, 0), np.empty(0, np.int64)
    peak = np.zeros(layout.devices, np.int64)
    critical, num_critical = np.empty(len(wish), np.int64), 0
    if goal.step_price > 0 and steps > FEWEST:
        steps -= 1
        contract(layout, facts, space, place, rank, kernel)
        num_critical = _critical(shown, rules, terrain, space.rank, kernel, room, peak, critical)
    for _ in range(steps):
        old[:] = wish
        kind, changed = 0, False
        for _ in range(TRIES):
            kind = _kind(weights, state)
            seed = critical[_below(state, num_critical)] if num_critical and _unit(state) < AIM else -1
            count = _change(rules, terrain, wish, kernel, kind, seed, touched, state)
            for index in range(count):
                opened[kernel[rules.producer[touched[index]]]] = True
                opened[kernel[rules.consumer[touched[index]]]] = True
            reopen(rules, kernel, chain.at, opened, kernels)
            count = pairs_within(rules, place, wish, kernel, opened, producers, consumers)
            merge_on(rules, kernels, producers, consumers, count, False)
            read_off(kernels, trial)
            opened[:] = False
            changed = not np.array_equal(trial, kernel)
            if changed:
                break
        if not changed:
            continue
        chain.tried[kind] += 1
        slack = 1.0 - np.log(_unit(state)) * heat
        bar = np.int64(min(score[1] * slack, 9e18)) if score[0] == 0 else FOREVER
        contract(layout, facts, space, place, rank, trial)
        most_ns, most_bytes = stops_at(goal, bar)
        time = run(shown, place, space.rank, no_sends, room, most_ns, most_bytes, peak, False, record)
        over = np.int64(0)
        for device in range(layout.devices):
            over += max(np.int64(0), peak[device] - limits[device])
        value = value_of(goal, time, peak, room.worked)
        if time < 0 or over > score[0] or (over == score[0] and value > score[1] * slack):
            wish[:] = old
            continue
        kernel[:] = trial
        chain.at[:] = kernels.at
        score[0], score[1] = over, value
        if over < score[2] or (over == score[2] and value < score[3]):
            score[2], score[3] = over, value
            chain.best_kernel[:] = trial
            chain.gained[kind] += 1


@compiled(inline="always")
def _kind(weights, state):
    pick, kind = _unit(state) * weights.sum(), 0
    while kind < KINDS - 1 and pick >= weights[kind]:
        pick -= weights[kind]
        kind += 1
    return kind


@compiled(inline="always")
def _fresh(state):
    return -1.0 if _unit(state) < KEEP_APART else _unit(state)


@compiled
def _change(rules, terrain, wish, kernel, kind, seed, touched, state):
    """New wishes: for a window of the program, for pairs that are alike, for one, or to part or join two kernels; about
    the seed where there is one. Writes whose are new, and returns how many."""
    pairs, alike_start, alike = terrain.pairs, terrain.alike_start, terrain.alike
    within_start, within, alike_at = terrain.within_start, terrain.within, terrain.alike_at
    if kind == WINDOW:
        length = _length(state, len(pairs))
        low = max(0, terrain.index[seed] - _below(state, length)) if seed >= 0 else _below(state, len(pairs))
        high = min(len(pairs), low + length)
        for at in range(low, high):
            wish[pairs[at]] = _fresh(state)
            touched[at - low] = pairs[at]
        return high - low
    if kind == ALIKE or kind == SOME_ALIKE or kind == SHIFT:
        spot = np.int64(0)
        if seed >= 0:
            spot = within[within_start[seed] + _below(state, within_start[seed + 1] - within_start[seed])]
        group = alike_at[spot] if seed >= 0 else _below(state, len(alike_start) - 1)
        low, high = alike_start[group], alike_start[group + 1]
        if kind == SOME_ALIKE:
            length = _length(state, high - low)
            low = max(low, spot - _below(state, length)) if seed >= 0 else low + _below(state, high - low)
            high = min(high, low + length)
        value = _unit(state) - 0.5 if kind == SHIFT else _fresh(state)
        for at in range(low, high):
            pair = alike[at]
            touched[at - low] = pair
            if kind != SHIFT:
                wish[pair] = value
            elif wish[pair] >= 0:
                wish[pair] = max(0.0, wish[pair] + value)
        return high - low
    pair = seed if seed >= 0 else np.int64(pairs[_below(state, len(pairs))])
    if kind == ONE:
        wish[pair] = _fresh(state)
    else:
        for _ in range(LOOKS):
            if (kernel[rules.producer[pair]] == kernel[rules.consumer[pair]]) == (kind == CUT):
                break
            pair = np.int64(pairs[_below(state, len(pairs))])
        wish[pair] = -1.0 if kind == CUT else 1.0 + _unit(state)
    touched[0] = pair
    return 1


@compiled
def _critical(shown, rules, terrain, rank, kernel, room, peak, found):
    """How many pairs have an op in a kernel that the step waits for. Writes them."""
    place, devices = terrain.place, shown.devices
    ops, most_sends = len(place), len(shown.nbytes) * devices
    record = make_record(ops, most_sends, 2 * (ops + most_sends) + devices)
    record.end_ns[:] = -1
    run(shown, place, rank, np.empty(0, np.int64), room, FOREVER, FOREVER, peak, True, record)
    on_chain, count = critical_kernels(shown, place, kernel, record), 0
    for pair in terrain.pairs:
        if on_chain[kernel[rules.producer[pair]]] or on_chain[kernel[rules.consumer[pair]]]:
            found[count] = pair
            count += 1
    return count


@compiled
def critical_kernels(shown, place, kernel, record):
    """[ops] whether the op stands for a kernel of a chain that ends with the step and in which each starts because the
    one before it ended: on the same device, or as the last maker of what it reads."""
    devices, classes, ops = shown.devices, shown.send_classes, len(place)
    start, end, turn = record.start_ns, record.end_ns, record.turn
    turns, last, before = np.full(ops, -1, np.int64), np.full(devices, -1, np.int64), np.full(ops, -1, np.int64)
    for op in range(ops):
        if kernel[op] == op:
            turns[turn[op]] = op
    for at in range(ops):
        if turns[at] >= 0:
            before[turns[at]] = last[place[turns[at]]]
            last[place[turns[at]]] = turns[at]
    on_chain, op = np.zeros(ops, np.bool_), np.int64(end.argmax())
    while op >= 0:
        on_chain[op] = True
        cause, latest = before[op], np.int64(-1)
        if cause < 0 or end[cause] != start[op]:
            cause = np.int64(-1)
            for index in range(shown.read_start[op], shown.read_start[op + 1]):
                tensor = shown.reads[index]
                maker = np.int64(shown.maker[tensor])
                if shown.origin[tensor] != MADE:
                    continue
                there = end[maker]
                if place[maker] != place[op]:
                    link = shown.send_class[np.int64(place[maker]) * devices + place[op]]
                    there += shown.send_ns[np.int64(tensor) * classes + link]
                if there > latest:
                    cause, latest = maker, there
        op = cause
    return on_chain
