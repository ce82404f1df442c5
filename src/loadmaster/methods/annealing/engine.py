"""The compiled loop of every search that anneals: propose a change of placement or order, simulate, keep it or take it
back.

A walk may stop after any simulation and go on later as if it had not: what it needs to know is in the chain and its
scratch space. So the clock decides how far a walk gets, and nothing else.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import Struct, compiled
from loadmaster.graph.columns import Truth, Whole
from loadmaster.methods.annealing import choice
from loadmaster.methods.annealing.choice import cooled, critical_ops, measure_tails, slack_of
from loadmaster.methods.annealing.moves import (
    ANYWHERE,
    device_of,
    distance,
    draw_set,
    follow_path,
    place_ops,
    shift_ranks,
    unplace_ops,
)
from loadmaster.methods.annealing.state import (
    CRITICAL,
    IDLE,
    LOOK_AT,
    RAN,
    ROOMY,
    SHIFT,
    WAITED,
    WAYS,
    Chain,
    Scratch,
    Terrain,
    copy,
)
from loadmaster.search.xorshift import RandomState, below, pick
from loadmaster.simulator.loop import run, step_time, stops_at, value_of
from loadmaster.simulator.state import Layout

FOREVER = np.iinfo(np.int64).max
FAR = float(FOREVER // 2)  # a float of the whole would round up to what int64 has not
REFRESH = 64  # simulations after which what the step waits for is looked up again, and what paid
LOOKS = 16  # draws of an op on a device that is too full
# Of the memory of a device, that a plan may take without a look at it after every move: few moves take a fifth of a
# device, and what becomes the best plan is looked at anyway.
AMPLE = 0.8


class Habits(Struct):
    """How a chain walks.

    Attributes:
        kinds: [KINDS] which kinds of moves may be made.
        hot: first temperature, as a share of the value.
        cold: last temperature.
        begun: simulations of the chain when cooling began.
        length: simulations of the chain that cooling takes.
    """

    kinds: np.ndarray  # [KINDS]
    hot: float
    cold: float
    begun: int
    length: int


@compiled(_nrt=False)
def temperature(habits: Habits, ran: Whole) -> float:
    """Geometric cooling: from hot to cold over the length, then cold."""
    if habits.hot <= 0.0:
        return 0.0
    share = min(1.0, (ran - habits.begun) / max(1, habits.length))
    return cooled(habits.hot, habits.cold, share)


@compiled(_nrt=False)
def walk(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, habits: Habits, simulations: Whole) -> None:
    """Moves until so many simulations are run."""
    counts, state = chain.counts, chain.random
    measure(layout, chain, scratch)
    last = counts[RAN] + simulations
    while counts[RAN] < last:
        if counts[RAN] >= counts[LOOK_AT]:
            _look(layout, terrain, chain, scratch, habits)
            continue
        arm = pick(scratch.arms, scratch.total[0], state)
        moved, top, ranked = _move(layout, terrain, chain, scratch, arm, state)
        if moved == 0 and not ranked:
            counts[IDLE] += 1
            if counts[IDLE] == REFRESH:  # a walk always ends
                counts[IDLE] = 0
                counts[RAN] += 1
            continue
        counts[IDLE] = 0
        slack = slack_of(temperature(habits, counts[RAN]), state)
        keep, gained = _judge(layout, terrain, chain, scratch, slack)
        chain.spent[arm] += np.float64(scratch.running.tally[1]) / len(chain.place)
        chain.gained[arm] += gained
        counts[RAN] += 1
        if not keep:
            unplace_ops(layout, terrain, chain, scratch, moved, top)
            if ranked:
                copy(scratch.old_rank, 0, len(chain.rank), chain.rank)


@compiled(_nrt=False)
def measure(layout: Layout, chain: Chain, scratch: Scratch) -> None:
    """Loads and tails of where the chain stands, from nothing."""
    place, load, devices, op_ns = chain.place, scratch.load, layout.devices, layout.op_ns
    measure_tails(layout, place, len(place) - 1, scratch.tail)
    load[:] = 0
    for op in range(len(place)):
        load[place[op]] += op_ns[op * devices + place[op]]


@compiled(_nrt=False)
def _look(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, habits: Habits) -> None:
    """Looks up what the step waits for, which counts as a simulation, and what kinds of moves paid."""
    counts, aims = chain.counts, terrain.goal.step_price > 0
    choice.fade(chain.spent, chain.gained, REFRESH)
    scratch.total[0] = choice.choose(habits.kinds, aims, chain.spent, chain.gained, scratch.arms)
    counts[LOOK_AT] = counts[RAN] + REFRESH
    if aims:
        record = scratch.record
        given = (scratch.no_sends, scratch.running, FOREVER, FOREVER, scratch.peak, True, record)
        run(layout, chain.place, chain.rank, *given)
        _note_memory(terrain, chain, scratch)
        copy(record.turn, 0, len(chain.place), scratch.turn_of)
        counts[WAITED] = critical_ops(layout, terrain, chain.place, scratch)
        counts[RAN] += 1


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


@compiled(_nrt=False, apart=True, no_cpython_wrapper=True)
def _move(
    layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, arm: Whole, state: RandomState
) -> tuple[Whole, Whole, Truth]:
    """Draws a move and applies it; where memory is short, half of them are about devices that are too full. (Ops moved,
    the last of them, whether ranks changed.)"""
    evicting = chain.score[0] > 0
    kind, anew, ops, waited = arm // WAYS, arm % WAYS >= 2, len(chain.place), chain.counts[WAITED]
    aimed = arm % 2 == 1 and waited > 0
    seed = scratch.critical[below(state, waited)] if aimed else below(state, ops)
    if evicting and below(state, 2):
        seed = _crowded(terrain, chain, scratch, seed, state)
    if kind < SHIFT:
        count, toward = draw_set(layout, terrain, chain.place, scratch, kind, seed, aimed, state)
        device = device_of(layout, terrain, chain.place, toward, seed, aimed, state)
        if evicting and toward == ANYWHERE and below(state, 2):
            device = _roomiest(terrain, scratch)
        moved, top = place_ops(layout, terrain, chain, scratch, count, device)
        ranked = anew and moved > 0
        if ranked:
            follow_path(layout, terrain, chain, scratch)
        return moved, top, ranked
    if kind == CRITICAL:
        follow_path(layout, terrain, chain, scratch)
        return 0, np.int64(-1), True
    count, _ = draw_set(layout, terrain, chain.place, scratch, kind, seed, aimed, state)
    by = distance(ops, state)
    if by != 0:
        shift_ranks(chain, scratch, count, by)
    return 0, np.int64(-1), by != 0


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
def _judge(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, slack: float) -> tuple[Truth, Truth]:
    """Simulates what stands now; (whether it is kept, whether it is better)."""
    most_bytes: Whole
    most_ns: Whole
    score, limits, goal, peak = chain.score, terrain.limits, terrain.goal, scratch.peak
    over, value = score[0], score[1]
    bar = np.int64(min(value + value * slack, FAR))
    most_ns, most_bytes = FOREVER, FOREVER
    if over == 0:
        most_ns, most_bytes = stops_at(goal, bar)
    time = _run(layout, terrain, chain, scratch, most_ns, most_bytes)
    if time < 0:
        return False, False
    new_over, new_value = np.int64(0), value_of(goal, time, peak, scratch.running.worked)
    for at in range(len(limits)):
        new_over += max(np.int64(0), peak[at] - limits[at])
    keep = new_over == 0 and new_value <= bar
    if over > 0:
        keep = new_over < over or (new_over <= over + over * slack and (new_over > over or new_value <= bar))
    if keep:
        score[0], score[1] = new_over, new_value
        copy(peak, 0, len(peak), scratch.full)
        if new_over < score[2] or (new_over == score[2] and new_value < score[3]):
            score[2], score[3] = new_over, new_value
            copy(chain.place, 0, len(chain.place), chain.best_place)
            copy(chain.rank, 0, len(chain.rank), chain.best_rank)
    return keep, new_over < over or (new_over == over and new_value < value)


@compiled(_nrt=False)
def _run(layout: Layout, terrain: Terrain, chain: Chain, scratch: Scratch, most_ns: Whole, most_bytes: Whole) -> Whole:
    """Simulates what stands now; its time, or -1 where that is too long. Where the time decides it is told without
    what devices hold, which then counts as it was at the last look: as long as much is left, what becomes the best
    plan is looked at, and every few moves where the walk stands."""
    score, running, rank = chain.score, scratch.running, chain.rank
    copy(scratch.load, 0, len(scratch.load), running.ahead)
    if terrain.quick and most_ns < FOREVER:
        time = step_time(layout, chain.place, rank, running, most_ns)
        best = score[2] > 0 or time * terrain.goal.step_price < score[3]
        if time < 0 or terrain.always_fits or (chain.counts[ROOMY] > 0 and not best):
            copy(scratch.full, 0, len(scratch.full), scratch.peak)
            return time
        copy(scratch.load, 0, len(scratch.load), running.ahead)
    given = (scratch.no_sends, running, most_ns, most_bytes, scratch.peak, False, scratch.empty)
    return run(layout, chain.place, rank, *given)
