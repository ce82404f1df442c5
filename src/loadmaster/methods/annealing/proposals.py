"""Compiled: what a drawn set is to become. Two distributions: by hand (no policy), where a suggested device is taken
and else all are alike; or by the scores of a network (`Policy`). PPO learns from a sample of the draws (`Log`).

The chance of what was taken is written down with it, as it was when drawn: that is what importance ratios need.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Floats, Ints, Ints32, Whole
from loadmaster.methods.annealing.moves.fusion import Fusing, shift
from loadmaster.methods.annealing.moves.order import TOP_RANK, distance
from loadmaster.methods.annealing.sets import ANYWHERE, next_to
from loadmaster.methods.annealing.state import FUSE_SHIFT, FUSE_WINDOW, LEVELS, Chain, Scratch, Terrain, copy
from loadmaster.search.xorshift import RandomState, below, pick, unit
from loadmaster.simulator.state import Layout

DEVICE, LEVEL, FUSION = range(3)  # kinds of decisions that are written down
NOBODY = -1  # a decision that no score was asked for


class Policy(Struct):
    """What the network says of the plan that stood when it was asked.

    Attributes:
        label: [ops] group.
        place: [groups, devices] scores.
        fusion: [ops, levels] or no rows.
        fused: `fusion` as chances.
        uniform: chance of a decision that asks nobody.
    """

    label: np.ndarray  # [ops]
    place: np.ndarray  # [groups, devices]
    level: np.ndarray  # [groups, levels]
    fusion: np.ndarray  # [ops, levels]
    fused: np.ndarray
    uniform: float


class Log(Struct):
    """A sample of what was drawn.

    Attributes:
        share: [rows, groups] of the drawn ops; of a decision on fusion, [rows, ops]
        pick: [rows] device, level or priority.
        chance: [rows] logarithm.
        gain: [rows] share of the value that the draw saved; 0: it was not better.
        every: [1] one in so many draws is written down, besides those that gain.
    """

    kind: np.ndarray  # [rows]
    share: np.ndarray  # [rows, groups]
    pick: np.ndarray  # [rows]
    chance: np.ndarray  # [rows]
    gain: np.ndarray  # [rows]
    filled: np.ndarray  # [1]
    every: np.ndarray  # [1]


def chances(scores: np.ndarray) -> np.ndarray:
    """Scores as chances: softmax of every row."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf)) if len(scores) else scores
    return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def make_log(rows: int, wide: int) -> Log:
    """Room for so many rows of a sample."""
    whole = (np.zeros(rows, np.int64), np.zeros((rows, wide), np.float32), np.zeros(rows, np.int64))
    return Log(*whole, np.zeros(rows), np.zeros(rows), np.zeros(1, np.int64), np.ones(1, np.int64))


@compiled(_nrt=False)
def device_of(
    layout: Layout,
    terrain: Terrain,
    place: Ints32,
    scratch: Scratch,
    policy: Policy | None,
    count: Whole,
    toward: Whole,
    seed: Whole,
    aimed: bool,
    state: RandomState,
) -> Whole:
    """Where a set goes."""
    if policy is None:
        if toward != ANYWHERE:
            return toward
        if aimed and layout.devices > 2 and below(state, 2):
            other = next_to(layout, terrain, seed, state)
            if other >= 0:
                return np.int64(place[other])
        return below(state, layout.devices)
    weigh(policy.label, policy.place, scratch.members, count, toward, policy.uniform, scratch.chance)
    return pick(scratch.chance, 1.0, state)


@compiled(_nrt=False)
def shift_of(
    scratch: Scratch, policy: Policy | None, count: Whole, ops: Whole, state: RandomState
) -> tuple[Whole, Whole]:
    """(how far the ranks of a set are shifted, the level that said so)."""
    if policy is None:
        far = distance(ops, state)
        return (far if below(state, 2) else -far), np.int64(NOBODY)
    weigh(policy.label, policy.level, scratch.members, count, ANYWHERE, policy.uniform, scratch.level_chance)
    level = pick(scratch.level_chance, 1.0, state)
    # A level moves ranks by its distance from the middle squared, on a scale that is drawn.
    middle = LEVELS // 2
    way = (level - middle) / middle
    far = 0.5 * TOP_RANK * np.exp(-unit(state) * np.log(2.0 * ops)) * way * way
    return np.int64(far if way > 0 else -far), level


@compiled(_nrt=False)
def priorities_of(
    policy: Policy,
    fusing: Fusing,
    chain: Chain,
    scratch: Scratch,
    kind: Whole,
    count: Whole,
    toward: Whole,
    state: RandomState,
) -> tuple[Whole, Whole]:
    """(how many members stand for one decision, the priority it took or NOBODY): priorities for pairs by the scores of
    their producers, one for all or one for each, of which one is written down; or those they have are shifted."""
    priority, members, drawn, producer = chain.priority, scratch.members, fusing.drawn, fusing.rules.producer
    copy(priority, 0, len(priority), fusing.old_priority)
    if kind == FUSE_SHIFT:
        shift(priority, drawn, count, state)
        return 0, np.int64(NOBODY)
    if (below(state, 3) > 0) if kind == FUSE_WINDOW else (count > 1 and below(state, 4) == 0):
        return 1, _one_each(policy, fusing, priority, scratch, count, state)
    known = min(count, len(members))
    for at in range(known):
        members[at] = producer[drawn[at]]
    weigh(scratch.itself, policy.fusion, members, known, toward, policy.uniform, scratch.level_chance)
    column = pick(scratch.level_chance, 1.0, state)
    # One place in the order for all, or among equals, or each its own.
    mixed, within = below(state, 3), unit(state)
    for at in range(count):
        if mixed == 0:
            within = unit(state)
        priority[drawn[at]] = column + (within if mixed < 2 else 0.0) if column > 0 else -1.0
    return known, column


@compiled(_nrt=False)
def _one_each(
    policy: Policy, fusing: Fusing, priority: Floats, scratch: Scratch, count: Whole, state: RandomState
) -> Whole:
    column: Whole
    drawn, producer, fused, column = fusing.drawn, fusing.rules.producer, policy.fused, np.int64(0)
    op, mixed = np.int64(0), below(state, 2) == 1
    for at in range(count):
        op = np.int64(producer[drawn[at]])
        column = below(state, LEVELS) if unit(state) < policy.uniform else pick(fused[op], 1.0, state)
        priority[drawn[at]] = column + (unit(state) if mixed else 0.0) if column > 0 else -1.0
    scratch.members[0] = op
    scratch.level_chance[column] = (1.0 - policy.uniform) * fused[op, column] + policy.uniform / LEVELS
    return column


@compiled(_nrt=False)
def weigh(
    label: Ints,
    scores: NDArray[np.floating],
    members: Ints,
    count: Whole,
    toward: Whole,
    uniform: float,
    chance: Floats,
) -> None:
    """Writes the chances of what a set may take: by its ops' mean scores; some are left to a rule or to nobody."""
    wide = len(chance)
    chance[:] = 0.0
    for at in range(count):
        row = label[members[at]]
        for column in range(wide):
            chance[column] += scores[row, column]
    top, total = chance[0] / count, 0.0
    for column in range(1, wide):
        top = max(top, chance[column] / count)
    for column in range(wide):
        chance[column] = np.exp(chance[column] / count - top)
        total += chance[column]
    spare = 0.5 if toward >= 0 else uniform
    for column in range(wide):
        chance[column] *= (1.0 - spare) / total
        if toward < 0:
            chance[column] += spare / wide
    if toward >= 0:
        chance[toward] += spare


@compiled(_nrt=False)
def write_down(
    log: Log,
    policy: Policy | None,
    scratch: Scratch,
    what: Whole,
    count: Whole,
    column: Whole,
    gain: float,
    draw: Whole,
) -> None:
    """A row of the sample, where one is due and there is space."""
    if policy is None or column == NOBODY or (gain <= 0 and draw % log.every[0]) or log.filled[0] == len(log.kind):
        return
    row, members = log.filled[0], scratch.members
    chance = scratch.chance[column] if what == DEVICE else scratch.level_chance[column]
    label = scratch.itself if what == FUSION else policy.label
    share = log.share[row]
    share[:] = 0.0
    for at in range(count):
        share[label[members[at]]] += np.float32(1.0 / count)
    log.kind[row], log.pick[row], log.chance[row], log.gain[row] = what, column, np.log(max(1e-9, chance)), gain
    log.filled[0] += 1
