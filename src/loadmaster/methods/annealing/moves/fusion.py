"""Moves of fusion: priorities of pairs change; kernels that hold them, or ops that moved, are merged anew.

A plan's kernels follow from a priority for every pair of a producer and a reader: merges are tried from the highest
down, by the rules of `fusion.merging`, and those below 0 not at all. A move changes priorities, never kernels, so every
state is one that the rules allow. Only the kernels that hold what changed are opened and merged again.
"""

from __future__ import annotations

import numpy as np

from loadmaster.baselines.fusion.merging import Kernels, Rules, merge_on, pairs_within, read_off, reopen
from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Floats, Ints, Ints32, Whole
from loadmaster.methods.annealing.state import (
    FUSE_ONE,
    FUSE_SHIFT,
    FUSE_SOME,
    FUSE_WINDOW,
    LEVELS,
    Chain,
    Scratch,
    copy,
)
from loadmaster.search.xorshift import RandomState, below, length, unit
from loadmaster.simulator.contraction import Facts, Space, contract
from loadmaster.simulator.state import Layout

LOOKS = 8  # at pairs, for one that may be drawn, or that is merged, or that is not
KEEP_APART = 0.2  # chance that a new priority is below 0
RELIEF = 0.8  # chance that a single pair that is merged is parted and one that is not is joined, else any priority
ANY_PRIORITY, PART, JOIN = -1, 0, LEVELS - 1


class Fusing(Struct):
    """What it takes to judge a plan with kernels, for one chain; None where nothing is fused.

    Attributes:
        shown: the layout of the kernels of a plan.
        pairs: those that are drawn, by producer, then reader.
        index: [all pairs] where each is among them, -1 where it is not.
        alike_start: sets of pairs that do the same work.
        within: positions of each pair in alike.
        alike_at: set of each position.
        merging: scratch for merging.
        trial: [ops] kernels that are tried.
        opened: [ops] kernels whose ops are merged anew.
        drawn: [pairs] those that a move is about.
    """

    rules: Rules
    facts: Facts
    shown: Layout
    space: Space
    pairs: np.ndarray
    index: np.ndarray  # [all pairs]
    alike_start: np.ndarray
    alike: np.ndarray
    within_start: np.ndarray  # [all pairs + 1]
    within: np.ndarray
    alike_at: np.ndarray
    merging: Kernels
    pair_from: np.ndarray
    pair_to: np.ndarray
    trial: np.ndarray  # [ops]
    opened: np.ndarray  # [ops]
    old_priority: np.ndarray
    drawn: np.ndarray  # [pairs]


@compiled(_nrt=False)
def draw_pairs(fusing: Fusing, chain: Chain, kind: Whole, seed: Whole, state: RandomState) -> tuple[Whole, Whole]:
    """(how many pairs a move is about, ANY_PRIORITY or what suggests itself); about an op where there is one."""
    pairs, drawn, starts, alike = fusing.pairs, fusing.drawn, fusing.alike_start, fusing.alike
    pair = _pair_about(fusing, seed, state)
    if kind == FUSE_WINDOW:
        size = length(state, len(pairs))
        low = max(0, fusing.index[pair] - below(state, size))
        high = min(len(pairs), low + size)
        copy(pairs, low, high, drawn)
        return high - low, ANY_PRIORITY
    if kind == FUSE_ONE:
        return 1, _one(fusing, chain, seed, pair, state)
    first, last = fusing.within_start[pair], fusing.within_start[pair + 1]
    # Without an op, sets are drawn alike: by their pairs, large ones would be drawn far more often.
    group = below(state, len(starts) - 1)
    spot = starts[group] + below(state, starts[group + 1] - starts[group])
    if seed >= 0:
        spot = fusing.within[first + below(state, last - first)]
    low, high = starts[fusing.alike_at[spot]], starts[fusing.alike_at[spot] + 1]
    if kind == FUSE_SOME:
        size = length(state, high - low)
        low = max(low, spot - below(state, size))
        high = min(high, low + size)
    copy(alike, low, high, drawn)
    return high - low, ANY_PRIORITY


@compiled(_nrt=False)
def _pair_about(fusing: Fusing, seed: Whole, state: RandomState) -> Whole:
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


@compiled(_nrt=False)
def _one(fusing: Fusing, chain: Chain, seed: Whole, pair: Whole, state: RandomState) -> Whole:
    """A pair to part or to join, as a coin says; what that means for its priority."""
    rules, kernel, place = fusing.rules, chain.kernel, chain.place
    parts = below(state, 2) == 1
    for _ in range(LOOKS):
        if (kernel[rules.producer[pair]] == kernel[rules.consumer[pair]]) == parts:
            break
        pair = _pair_about(fusing, seed, state)
    fusing.drawn[0], maker, reader = pair, rules.producer[pair], rules.consumer[pair]
    if place[reader] != place[maker]:
        return ANY_PRIORITY
    return PART if kernel[maker] == kernel[reader] else JOIN


@compiled(_nrt=False)
def fresh(state: RandomState) -> float:
    return -1.0 if unit(state) < KEEP_APART else 1.0 + unit(state) * (LEVELS - 1)


@compiled(_nrt=False)
def apply(fusing: Fusing, chain: Chain, kind: Whole, count: Whole, toward: Whole, state: RandomState) -> None:
    """New priorities for the pairs drawn, by hand: one each in a window, one for all that are alike, or a shift."""
    priority, drawn = chain.priority, fusing.drawn
    copy(priority, 0, len(priority), fusing.old_priority)
    if kind == FUSE_SHIFT:
        shift(priority, drawn, count, state)
        return
    value = fresh(state)
    if toward != ANY_PRIORITY and unit(state) < RELIEF:
        value = -1.0 if toward == PART else toward + unit(state)
    for at in range(count):
        priority[drawn[at]] = fresh(state) if kind == FUSE_WINDOW else value


@compiled(_nrt=False)
def shift(priority: Floats, drawn: Ints, count: Whole, state: RandomState) -> None:
    by = (unit(state) - 0.5) * LEVELS
    for at in range(count):
        if priority[drawn[at]] >= 0:
            priority[drawn[at]] = min(LEVELS - 1e-3, max(1.0, priority[drawn[at]] + by))


@compiled(_nrt=False)
def undo(fusing: Fusing, chain: Chain) -> None:
    copy(fusing.old_priority, 0, len(chain.priority), chain.priority)


@compiled(_nrt=False)
def merge_anew(fusing: Fusing | None, chain: Chain, scratch: Scratch, moved: Whole, pairs: Whole) -> bool:
    """Merges anew what holds ops that moved or pairs that were drawn; whether other kernels come of it."""
    if fusing is None:
        return True
    rules, opened, kernel = fusing.rules, fusing.opened, chain.kernel
    touched, drawn = scratch.touched, fusing.drawn
    opened[:] = False
    for index in range(moved):
        opened[kernel[touched[index]]] = True
    for index in range(pairs):
        opened[kernel[rules.producer[drawn[index]]]] = True
        opened[kernel[rules.consumer[drawn[index]]]] = True
    reopen(rules, kernel, chain.sequence, opened, fusing.merging)
    given = (chain.place, chain.priority, kernel, opened, fusing.pair_from, fusing.pair_to)
    count = pairs_within(rules, fusing.merging, *given)
    merge_on(rules, fusing.merging, fusing.pair_from, fusing.pair_to, count)
    read_off(fusing.merging, fusing.trial)
    trial, same = fusing.trial, 0
    while same < len(kernel) and trial[same] == kernel[same]:
        same += 1
    return same < len(kernel)


@compiled(_nrt=False)
def take(fusing: Fusing, chain: Chain) -> None:
    """The kernels that were tried are the chain's."""
    copy(fusing.trial, 0, len(chain.kernel), chain.kernel)
    copy(fusing.merging.at, 0, len(chain.sequence), chain.sequence)


@compiled(_nrt=False)
def contract_ranked(layout: Layout, chain: Chain, fusing: Fusing, kernel: Ints32) -> None:
    """Writes the layout of the kernels into the space, with their ranks where there are any."""
    rank = chain.rank if len(chain.rank) > 0 else kernel
    contract(layout, fusing.facts, fusing.space, chain.place, rank, kernel)
