"""The compiled loop of every search that anneals: propose a change of placement, order or fusion, simulate, keep it or
take it back.

A walk may stop after any simulation and go on later as if it had not: what it needs to know is in the chain and its
scratch space. So the clock decides how far a walk gets, and nothing else.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Ints32, Truth, Whole
from loadmaster.methods.annealing import choice
from loadmaster.methods.annealing.acceptance import cooled, slack_of
from loadmaster.methods.annealing.critical import critical_kernels, critical_ops, measure_tails, overtaking
from loadmaster.methods.annealing.moves import fusion, order, place
from loadmaster.methods.annealing.moves.fusion import Fusing
from loadmaster.methods.annealing.proposals import (
    DEVICE,
    FUSION,
    LEVEL,
    NOBODY,
    Log,
    Policy,
    device_of,
    priorities_of,
    shift_of,
    write_down,
)
from loadmaster.methods.annealing.sets import ANYWHERE, draw_set, next_to
from loadmaster.methods.annealing.state import (
    BESIDE,
    CRITICAL,
    FUSE_WINDOW,
    IDLE,
    LOOK_AT,
    RAN,
    ROOMY,
    SHIFT,
    SWAP,
    WAITED,
    WAYS,
    Chain,
    Scratch,
    Terrain,
    copy,
)
from loadmaster.search.xorshift import RandomState, below, pick
from loadmaster.simulator.loop import run, stops_at, value_of
from loadmaster.simulator.quick import step_time
from loadmaster.simulator.state import Layout

FOREVER = np.iinfo(np.int64).max
REFRESH = 64  # simulations after which what the step waits for is looked up again, and what paid
LOOKS = 16  # draws of an op on a device that is too full
# Of the memory of a device, that a plan may take without a look at it after every move: few moves take a fifth of a
# device, and what becomes the best plan is looked at anyway.
AMPLE = 0.8
MOST_IDLE = 64  # draws in a row that changed nothing and then count as a simulation: a walk always ends


class Habits(Struct):
    """How a chain walks.

    Attributes:
        weights: [KINDS] how often each kind of move is tried at first.
        follow: chance that ranks are set anew by the critical path after a change of placement, at first.
        aim: chance that a move is about an op that the step waits for, at first.
        hot: first temperature, as a share of the value.
        cold: last temperature.
        begun: simulations of the chain when cooling began.
        length: simulations of the chain that cooling takes.
        evict: where memory is short, half of the moves are about devices that are too full.
    """

    weights: np.ndarray  # [KINDS]
    follow: float
    aim: float
    hot: float
    cold: float
    begun: int
    length: int
    evict: bool = False


@compiled(_nrt=False)
def temperature(habits: Habits, ran: Whole) -> float:
    """Geometric cooling: from hot to cold over the length, then cold."""
    if habits.hot <= 0.0:
        return 0.0
    share = min(1.0, (ran - habits.begun) / max(1, habits.length))
    return cooled(habits.hot, habits.cold, share)


@compiled(_nrt=False)
def walk(
    layout: Layout,
    terrain: Terrain,
    chain: Chain,
    scratch: Scratch,
    policy: Policy | None,
    fusing: Fusing | None,
    habits: Habits,
    simulations: Whole,
    log: Log | None,
) -> None:
    """Moves until so many simulations are run."""
    counts, state = chain.counts, chain.random
    measure(layout, chain, scratch)
    last = counts[RAN] + simulations
    while counts[RAN] < last:
        if counts[RAN] >= counts[LOOK_AT]:
            _look(layout, terrain, chain, scratch, fusing, habits)
            continue
        arm = pick(scratch.arms, scratch.total[0], state)
        evicting = habits.evict and chain.score[0] > 0
        what, count, column, moved, top, pairs, ranked = _move(
            layout, terrain, chain, scratch, policy, fusing, arm, evicting, state
        )
        changed = moved > 0 or pairs > 0 or ranked
        if changed and not fusion.merge_anew(fusing, chain, scratch, moved, pairs):
            changed = moved > 0 or ranked  # priorities that give the same kernels change nothing
            if not changed:
                _undo(layout, terrain, chain, scratch, fusing, moved, top, pairs, ranked)
        if not changed:
            counts[IDLE] += 1
            if counts[IDLE] == MOST_IDLE:
                counts[IDLE] = 0
                counts[RAN] += 1
            continue
        counts[IDLE] = 0
        slack = slack_of(temperature(habits, counts[RAN]), state)
        keep, gain = _judge(layout, terrain, chain, scratch, fusing, slack)
        chain.spent[arm] += np.float64(scratch.running.tally[1]) / len(chain.place)
        chain.gained[arm] += gain > 0.0
        counts[RAN] += 1
        write_down(log, policy, scratch, what, count, column, gain, counts[RAN])  # type: ignore[arg-type]  # None only without a policy
        if not keep:
            _undo(layout, terrain, chain, scratch, fusing, moved, top, pairs, ranked)


@compiled(_nrt=False)
def measure(layout: Layout, chain: Chain, scratch: Scratch) -> None:
    """Loads and tails of where the chain stands, from nothing."""
    place, load, devices, op_ns = chain.place, scratch.load, layout.devices, layout.op_ns
    measure_tails(layout, place, len(place) - 1, scratch.tail)
    load[:] = 0
    for op in range(len(place)):
        load[place[op]] += op_ns[op * devices + place[op]]


@compiled(_nrt=False)
def _look(
    layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, fusing: Fusing | None, habits: Habits
) -> None:
    """Looks up what the step waits for, which counts as a simulation, and what kinds of moves paid."""
    counts, aims = chain.counts, habits.aim > 0.0 and terrain.goal.step_price > 0
    choice.fade(chain.spent, chain.gained, REFRESH)
    aim = habits.aim if aims else 0.0
    given = (habits.weights, habits.follow, aim, fusing is not None, chain.spent, chain.gained)
    scratch.total[0] = choice.choose(*given, scratch.arms)
    counts[LOOK_AT] = counts[RAN] + REFRESH
    if aims:
        counts[WAITED] = _critical(layout, terrain, chain, scratch, fusing)
        counts[RAN] += 1


@compiled(_nrt=False)
def _critical(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, fusing: Fusing | None) -> Whole:
    """How many ops the step waits for; writes them, and all ops in order of dispatch."""
    place, record, peak = chain.place, scratch.record, scratch.peak
    given = (scratch.no_sends, scratch.running, FOREVER, FOREVER, peak, True, record)
    if fusing is None:
        run(layout, place, chain.rank, *given)
        _note_memory(terrain, chain, scratch)
        copy(record.turn, 0, len(place), scratch.turn_of)
        return critical_ops(layout, terrain, place, scratch)
    record.end_ns[:] = -1
    fusion.contract_ranked(layout, chain, fusing, chain.kernel)
    run(fusing.shown, place, fusing.space.rank if len(chain.rank) > 0 else chain.rank, *given)
    _note_memory(terrain, chain, scratch)
    critical_kernels(fusing.shown, place, chain.kernel, scratch)
    _turns_of_members(chain.kernel, scratch)
    count = 0
    for op in range(len(place)):
        if scratch.queued[chain.kernel[op]]:
            scratch.critical[count] = op
            count += 1
    return count


@compiled(_nrt=False)
def _note_memory(terrain: Terrain, chain: Chain, scratch: Scratch) -> None:
    """Writes down what the plan that was just run takes of each device."""
    full, peak, limits, counts, over = scratch.full, scratch.peak, terrain.limits, chain.counts, np.int64(0)
    counts[ROOMY] = 1
    for at in range(len(limits)):
        full[at] = peak[at]
        over += max(np.int64(0), peak[at] - limits[at])
        if peak[at] > AMPLE * limits[at]:
            counts[ROOMY] = 0
    if chain.score[0] == 0:  # what was not looked at move by move
        chain.score[0] = over


@compiled(_nrt=False)
def _turns_of_members(kernel: Ints32, scratch: Scratch) -> None:
    """Ops in order of dispatch of their kernels, then of the program."""
    turn, turns, turn_of, first = scratch.record.turn, scratch.turns, scratch.turn_of, scratch.old_tail
    first[:] = 0
    for op in range(len(kernel)):
        first[turn[kernel[op]]] += 1
    filled = 0
    for at in range(len(kernel)):
        first[at], filled = filled, filled + first[at]
    for op in range(len(kernel)):
        at = turn[kernel[op]]
        turns[first[at]], turn_of[op] = op, first[at]
        first[at] += 1


@compiled(_nrt=False, apart=True, no_cpython_wrapper=True)
def _move(
    layout: Layout,
    terrain: Terrain,
    chain: Chain,
    scratch: Scratch,
    policy: Policy | None,
    fusing: Fusing | None,
    arm: Whole,
    evicting: bool,
    state: RandomState,
) -> tuple[Whole, Whole, Whole, Whole, Whole, Whole, Truth]:
    """Draws a move and applies it. (What was decided, about how many members, what was taken, ops moved, the last of
    them, pairs with new priorities, whether ranks changed.)"""
    kind, anew, ops, waited = arm // WAYS, arm % WAYS >= 2, len(chain.place), chain.counts[WAITED]
    aimed = arm % 2 == 1 and waited > 0
    seed = scratch.critical[below(state, waited)] if aimed else below(state, ops)
    nothing = np.int64(-1)
    if evicting and below(state, 2):
        seed = _crowded(terrain, chain, scratch, seed, state)
    if kind < SHIFT:
        count, toward = draw_set(layout, terrain, chain.place, scratch, kind, seed, aimed, state)
        column = device_of(layout, terrain, chain.place, scratch, policy, count, toward, seed, aimed, state)
        if evicting and toward == ANYWHERE and below(state, 2):
            column = _roomiest(terrain, scratch)
        swapped = below(state, layout.devices) if kind == SWAP else np.int64(ANYWHERE)
        moved, top = place.apply(layout, terrain, chain, scratch, count, column, swapped)
        ranked = anew and moved > 0 and len(chain.rank) > 0
        if ranked:
            order.follow(layout, terrain, chain, scratch)
        return DEVICE, count, column, moved, top, 0, ranked
    if kind >= FUSE_WINDOW:
        if fusing is None:
            return FUSION, 0, nothing, 0, nothing, 0, False
        pairs, toward = fusion.draw_pairs(fusing, chain, kind, seed if aimed else nothing, state)
        if policy is None:
            fusion.apply(fusing, chain, kind, pairs, toward, state)
            return FUSION, 0, nothing, 0, nothing, pairs, False
        count, column = priorities_of(policy, fusing, chain, scratch, kind, pairs, toward, state)
        return FUSION, count, column, 0, nothing, pairs, False
    if kind == CRITICAL:
        order.follow(layout, terrain, chain, scratch)
        return LEVEL, 0, nothing, 0, nothing, 0, True
    count, by, column = _order_move(layout, terrain, chain, scratch, policy, kind, seed, aimed, state)
    if by == 0 or count == 0:
        return LEVEL, 0, nothing, 0, nothing, 0, False
    order.apply(chain, scratch, count, by)
    return LEVEL, count, column, 0, nothing, 0, True


@compiled(_nrt=False)
def _crowded(terrain: Terrain, chain: Chain, scratch: Scratch, seed: Whole, state: RandomState) -> Whole:
    """An op on a device that is too full, if a few draws find one."""
    full, limits, op = scratch.full, terrain.limits, seed
    for _ in range(LOOKS):
        if full[chain.place[op]] > limits[chain.place[op]]:
            return op
        op = below(state, len(chain.place))
    return seed


@compiled(_nrt=False)
def _roomiest(terrain: Terrain, scratch: Scratch) -> Whole:
    """The device with the most memory left."""
    full, limits, best = scratch.full, terrain.limits, np.int64(0)
    for device in range(len(limits)):
        if limits[device] - full[device] > limits[best] - full[best]:
            best = np.int64(device)
    return best


@compiled(_nrt=False)
def _order_move(
    layout: Layout,
    terrain: Terrain,
    chain: Chain,
    scratch: Scratch,
    policy: Policy | None,
    kind: Whole,
    seed: Whole,
    aimed: bool,
    state: RandomState,
) -> tuple[Whole, Whole, Whole]:
    """(How many members, by how much their ranks are shifted, the level that said so)."""
    op: Whole
    other: Whole
    rank, members, op, other, nobody = chain.rank, scratch.members, seed, np.int64(-1), np.int64(NOBODY)
    if kind == SHIFT:
        count, _ = draw_set(layout, terrain, chain.place, scratch, kind, seed, aimed, state)
        by, level = shift_of(scratch, policy, count, len(rank), state)
        return count, by, level
    if kind == BESIDE:
        other = next_to(layout, terrain, seed, state)
    elif aimed:
        waited = chain.counts[WAITED]
        given = (scratch.record, scratch.critical, scratch.queued, waited)
        op, other = overtaking(layout, terrain, chain.place, *given, state)
    if op < 0 or other < 0:
        return 0, np.int64(0), nobody
    members[0] = op
    by = np.int64(rank[other]) - np.int64(rank[op])
    if kind == BESIDE:
        return (1 if by != 0 else 0), by + (1 if below(state, 2) else -1), nobody
    if below(state, 2):  # the one goes before the other, or the other after it
        members[0] = other
        return 1, 1 - by, nobody
    return 1, by - 1, nobody


@compiled(_nrt=False)
def _undo(
    layout: Layout,
    terrain: Terrain,
    chain: Chain,
    scratch: Scratch,
    fusing: Fusing | None,
    moved: Whole,
    top: Whole,
    pairs: Whole,
    ranked: Truth,
) -> None:
    place.undo(layout, terrain, chain, scratch, moved, top)
    if ranked:
        order.undo(chain, scratch)
    if pairs > 0 and fusing is not None:
        fusion.undo(fusing, chain)


@compiled(_nrt=False)
def _judge(
    layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, fusing: Fusing | None, slack: float
) -> tuple[Truth, float]:
    """Simulates what stands now; (whether it is kept, the share of the value, or of the bytes over, that it saves)."""
    most_bytes: Whole
    most_ns: Whole
    score, limits, goal, peak = chain.score, terrain.limits, terrain.goal, scratch.peak
    over, value = score[0], score[1]
    bar = np.int64(min(value + value * slack, 9e18))
    most_ns, most_bytes = FOREVER, FOREVER
    if over == 0:
        most_ns, most_bytes = stops_at(goal, bar)
    if fusing is not None:
        fusion.contract_ranked(layout, chain, fusing, fusing.trial)
    time = _run(layout, terrain, chain, scratch, fusing, most_ns, most_bytes)
    if time < 0:
        return False, 0.0
    new_over, new_value = np.int64(0), value_of(goal, time, peak, scratch.running.worked)
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
    if keep:
        if fusing is not None:
            fusion.take(fusing, chain)
        score[0], score[1] = new_over, new_value
        copy(peak, 0, len(peak), scratch.full)
        if new_over < score[2] or (new_over == score[2] and new_value < score[3]):
            _remember(chain)
    return keep, gain


@compiled(_nrt=False)
def _run(
    layout: Layout,
    terrain: Terrain,
    chain: Chain,
    scratch: Scratch,
    fusing: Fusing | None,
    most_ns: Whole,
    most_bytes: Whole,
) -> Whole:
    """Simulates what stands now; its time, or -1 where that is too long. Where the time decides it is told without
    what devices hold, which then counts as it was at the last look: as long as much is left, what becomes the best
    plan is looked at, and every few moves where the walk stands."""
    score, running, rank = chain.score, scratch.running, chain.rank
    if fusing is not None and len(rank) > 0:
        rank = fusing.space.rank
    if terrain.quick and most_ns < FOREVER and len(rank) > 0:
        copy(scratch.load, 0, len(scratch.load), running.ahead)
        if fusing is None:
            time = step_time(layout, chain.place, rank, running, most_ns)
        else:
            time = step_time(fusing.shown, chain.place, rank, running, most_ns)
        best = score[2] > 0 or time * terrain.goal.step_price < score[3]
        if time < 0 or terrain.always_fits or (chain.counts[ROOMY] > 0 and not best):
            copy(scratch.full, 0, len(scratch.full), scratch.peak)
            return time
    copy(scratch.load, 0, len(scratch.load), running.ahead)
    given = (scratch.no_sends, running, most_ns, most_bytes, scratch.peak, False, scratch.empty)
    if fusing is None:
        return run(layout, chain.place, rank, *given)
    return run(fusing.shown, chain.place, rank, *given)


@compiled(_nrt=False)
def _remember(chain: Chain) -> None:
    """Where the chain stands is the best it has seen."""
    score = chain.score
    score[2], score[3] = score[0], score[1]
    copy(chain.place, 0, len(chain.place), chain.best_place)
    copy(chain.rank, 0, len(chain.rank), chain.best_rank)
    copy(chain.priority, 0, len(chain.priority), chain.best_priority)
    copy(chain.kernel, 0, len(chain.kernel), chain.best_kernel)
    copy(chain.sequence, 0, len(chain.sequence), chain.best_sequence)
