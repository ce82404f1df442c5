# mypy: ignore-errors
"""Compiled: draws of GO about fusion, and the kernels that come of a draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.learn.go2020.sets import below, length_of, take, unit, weigh
from loadmaster.optimizers.fusion.merging import merge_on, pairs_within, read_off, reopen
from loadmaster.optimizers.fusion.walk import critical_kernels
from loadmaster.simulator.contraction import contract

LEVELS = 20  # as in `decoding`
ALL, EACH, SHIFTED = range(3)  # drawn pairs take one priority, one each, or keep theirs but for a shift
LOOKS = 8  # at pairs of an op, for one that may be drawn


class Fusing(NamedTuple):
    """What it takes to judge a plan with kernels; None where nothing is fused."""

    rules: object
    facts: object
    shown: object  # the layout of the kernels of a plan
    space: object
    pairs: np.ndarray  # those that are drawn, by producer, then reader
    index: np.ndarray  # [all pairs] where each is among them, -1 where it is not
    alike_start: np.ndarray  # sets of pairs that do the same work
    alike: np.ndarray
    within_start: np.ndarray  # [pairs + 1]
    within: np.ndarray  # positions of each pair in alike
    alike_at: np.ndarray  # set of each position
    room: object  # scratch for merging
    pair_from: np.ndarray
    pair_to: np.ndarray
    trial: np.ndarray  # [ops] kernels that are tried
    opened: np.ndarray  # [ops] kernels whose ops are merged anew
    old_wish: np.ndarray
    drawn: np.ndarray  # [pairs] those that are drawn


@compiled
def merge_anew(fusing, chain, desk, moved, pairs):
    """Merges anew what holds ops that moved or pairs that were drawn; whether other kernels come of it."""
    if fusing is None:
        return True
    rules, opened, kernel = fusing.rules, fusing.opened, chain.kernel
    touched, drawn = desk.touched, fusing.drawn
    opened[:] = False
    for index in range(moved):
        opened[kernel[touched[index]]] = True
    for index in range(pairs):
        opened[kernel[rules.producer[drawn[index]]]] = True
        opened[kernel[rules.consumer[drawn[index]]]] = True
    reopen(rules, kernel, chain.at, opened, fusing.room)
    given = (chain.place, chain.wish, kernel, opened, fusing.pair_from, fusing.pair_to)
    count = pairs_within(rules, *given)
    merge_on(rules, fusing.room, fusing.pair_from, fusing.pair_to, count, False)
    read_off(fusing.room, fusing.trial)
    return not np.array_equal(fusing.trial, kernel)


@compiled
def contracted(layout, chain, fusing, kernel):
    """Ranks of the kernels; their layout is in the space."""
    ranked = len(chain.rank) > 0
    contract(layout, fusing.facts, fusing.space, chain.place, chain.rank if ranked else kernel, kernel)
    return fusing.space.rank if ranked else chain.rank


@compiled
def critical_members(shown, chain, record, desk):
    """How many ops are in kernels that the step waits for; writes them."""
    critical, count = critical_kernels(shown, chain.place, chain.kernel, record), 0
    for op in range(len(chain.place)):
        if critical[chain.kernel[op]]:
            desk.critical[count] = op
            count += 1
    return count


@compiled
def _pair_about(fusing, seed, state):
    """A pair, about an op if there is one and it has one to draw."""
    rules, pairs, index = fusing.rules, fusing.pairs, fusing.index
    if seed >= 0:
        first, made = rules.pair_start[seed], rules.pair_start[seed + 1] - rules.pair_start[seed]
        start, given = rules.given_start[seed], rules.given_start[seed + 1] - rules.given_start[seed]
        for _ in range(min(LOOKS, made + given)):
            at = below(state, made + given)
            pair = np.int64(first + at if at < made else rules.given[start + at - made])
            if index[pair] >= 0:
                return pair
    return np.int64(pairs[below(state, len(pairs))])


@compiled
def fusion_set(fusing, place, kernel, seed, state):
    """(how many pairs are drawn, in which way, a priority that suggests itself or -1): a window of the program, pairs
    that do the same work, all or some of them, or one, which might part or join; about an op, if there is one."""
    rules, pairs, drawn, starts, alike = fusing.rules, fusing.pairs, fusing.drawn, fusing.alike_start, fusing.alike
    which, pair = below(state, 14), _pair_about(fusing, seed, state)
    if which < 2:
        length = length_of(state, len(pairs))
        low = max(0, fusing.index[pair] - below(state, length))
        high = min(len(pairs), low + length)
        drawn[: high - low] = pairs[low:high]
        return high - low, ALL if below(state, 3) == 0 else EACH, np.int64(-1)
    if which < 10:
        first, last = fusing.within_start[pair], fusing.within_start[pair + 1]
        # Without an op, sets are drawn alike: by their pairs, large ones would be drawn far more often.
        group = below(state, len(starts) - 1)
        spot = starts[group] + below(state, starts[group + 1] - starts[group])
        if seed >= 0:
            spot = fusing.within[first + below(state, last - first)]
        low, high = starts[fusing.alike_at[spot]], starts[fusing.alike_at[spot] + 1]
        if which < 5:
            length = length_of(state, high - low)
            low = max(low, spot - below(state, length))
            high = min(high, low + length)
        drawn[: high - low] = alike[low:high]
        return high - low, SHIFTED if which >= 8 else EACH if below(state, 4) == 0 else ALL, np.int64(-1)
    drawn[0], op, reader = pair, rules.producer[pair], rules.consumer[pair]
    if place[reader] != place[op]:
        return 1, ALL, np.int64(-1)
    return 1, ALL, np.int64(0) if kernel[op] == kernel[reader] else np.int64(LEVELS - 1)


@compiled
def fuse(policy, fusing, wish, desk, count, way, toward, uniform, state):
    """(how many members stand for one decision, the priority it took or -1): draws priorities for pairs by the scores
    of their producers, one for all or one for each, of which one is written down; or moves those they have."""
    members, chance, drawn, producer = desk.members, desk.level_chance, fusing.drawn, fusing.rules.producer
    fusing.old_wish[:] = wish
    if way == SHIFTED:
        by = (unit(state) - 0.5) * LEVELS
        for at in range(count):
            if wish[drawn[at]] >= 0:
                wish[drawn[at]] = min(LEVELS - 1e-3, max(1.0, wish[drawn[at]] + by))
        return 0, np.int64(-1)
    if way == EACH:
        return 1, _fuse_each(policy.fused, fusing, wish, desk, count, uniform, state)
    known = min(count, len(members))
    for at in range(known):
        members[at] = producer[drawn[at]]
    weigh(desk.itself, policy.fusion, members, known, toward, uniform, chance)
    column = take(chance, state)
    # One place in the order for all, or among equals, or each its own.
    mixed, within = below(state, 3), unit(state)
    for at in range(count):
        if mixed == 0:
            within = unit(state)
        wish[drawn[at]] = column + (within if mixed < 2 else 0.0) if column > 0 else -1.0
    return known, column


@compiled
def _fuse_each(fused, fusing, wish, desk, count, uniform, state):
    drawn, producer, levels, column = fusing.drawn, fusing.rules.producer, fused.shape[1], np.int64(0)
    op, mixed = np.int64(0), below(state, 2) == 1
    for at in range(count):
        op = np.int64(producer[drawn[at]])
        column = np.int64(below(state, levels)) if unit(state) < uniform else take(fused[op], state)
        wish[drawn[at]] = column + (unit(state) if mixed else 0.0) if column > 0 else -1.0
    desk.members[0] = op
    desk.level_chance[column] = (1.0 - uniform) * fused[op, column] + uniform / levels
    return column
