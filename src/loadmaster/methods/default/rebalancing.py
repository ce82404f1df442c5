"""Rebalancing: a plan that was simulated is improved along the order in which its ops ran.

In comes a plan, out comes one under which the fullest device holds less. Single ops go to other devices, two of them
change places, or one goes to another place in the order, and it stays so unless that is worse. Nothing is simulated
meanwhile: a move changes when a few tensors come and go, and what devices hold is added up along the order. `balancing`
does that along the program, for starts; but devices run ahead of it where they can, so that what really ran is another
order, and under a new placement another again. So after some thousand moves there is a simulation, and the next moves
go along what that shows (`Rebalancer`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Truth, Whole, from_pairs, ints, inverse, positions, rows_of
from loadmaster.methods.annealing.state import copy
from loadmaster.methods.default.balancing import EFFORT, FEWEST, MOST, OVER, TRIES, Held, held_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.problem import LastFew
from loadmaster.search import Score, Search
from loadmaster.search.xorshift import RandomState, below, seeded_by
from loadmaster.simulator import Timeline

MOVES = 3_000  # of one call; a third of that gains half as much more slowly on generated graphs of 50 to 200 ops
SHARE = 0.1  # of the time so far that it may take, where the clock counts; a quarter and a half are worse


class Rebalancer:
    """Improves plans of one search. Where simulations are counted it takes one for each plan that it makes; where the
    clock counts it waits until it has had a small share of the time: a call takes as long as 10 to 250 simulations."""

    def __init__(self, search: Search) -> None:
        self.search, self.seconds = search, 0.0
        self.state = seeded_by(search.rng)

    def improve(self, score: Score, plan: Plan, patience: int) -> tuple[Score, Plan]:
        """What becomes of a plan until so many in a row were no better."""
        search, failed = self.search, 0
        while failed < patience and self._is_due() and not search.spent:
            line, begun = search.timeline(plan), search.seconds
            other = rebalanced(search.problem, plan.device, line, self.state)
            self.seconds += search.seconds - begun
            failed += 1
            if other is None or search.spent:
                continue
            found = search.score(other)
            if found < score:
                failed = 0
            if found <= score:
                score, plan = found, other
        return score, plan

    def _is_due(self) -> bool:
        return self.search.counts_simulations or self.seconds <= SHARE * self.search.seconds


class Needs(NamedTuple):
    """What devices hold, and what a move has to know of each op."""

    held: Held
    touch_start: np.ndarray  # [ops + 1]
    touches: np.ndarray  # tensors that an op needs, or whose home is where it is
    before_start: np.ndarray  # [ops + 1]
    before: np.ndarray  # ops that it waits for
    after_start: np.ndarray  # [ops + 1]
    after: np.ndarray  # ops that wait for it
    group: np.ndarray  # [ops] the first of those that share its device; most are alone
    mate_start: np.ndarray  # [ops + 1]
    mates: np.ndarray  # ops of the group that it is the first of
    moved_start: np.ndarray  # [ops + 1]
    moved: np.ndarray  # tensors that any of them touches, each once


class Profile(NamedTuple):
    """What devices hold as changes when ops start and end. They stay the same in whichever order ops run, but for who
    is the last to need a tensor."""

    at_first: np.ndarray  # [devices] bytes before the step
    start: np.ndarray  # [devices, ops] bytes more when an op starts
    end: np.ndarray  # [devices, ops] bytes more, or less, when it has ended
    top: np.ndarray  # [devices] the most that each holds
    old_top: np.ndarray  # [devices] the same before a move
    last: np.ndarray  # [devices] scratch: the last op that needs a tensor there


def rebalanced(problem: Problem, device: Ints, line: Timeline, state: RandomState) -> Plan | None:
    """A plan made from a placement and how it ran under which the fullest device holds less, if devices kept to the
    order; None where none is found, or there is no time to look for one."""
    moves = min(MOVES, EFFORT // (problem.num_ops * problem.num_devices))
    if moves < FEWEST or problem.num_devices == 1:
        return None
    order, place = np.argsort(line.turn, kind="stable"), device.copy()
    if not improve(needs_of(problem), order, place, moves, state):
        return None
    return Plan.of(problem, ints(place), positions(ints(order)))


def needs_of(problem: Problem) -> Needs:
    """Made once for each problem."""
    return _NEEDS.of(problem, None, lambda: _needs(problem))


_NEEDS: LastFew[Needs] = LastFew("needs", 1)


def _needs(problem: Problem) -> Needs:
    held, ops = held_of(problem), problem.num_ops
    at_home = np.flatnonzero(held.home >= 0)
    op = np.concatenate([held.users, held.home[at_home]])
    tensor = np.concatenate([rows_of(held.use_start), at_home])
    key = np.unique((op * len(held.home) + tensor)[held.nbytes[tensor] > 0])
    touch_start = ints(np.searchsorted(key, np.arange(ops + 1) * len(held.home)))
    touches = ints(key % max(1, len(held.home)))
    before_start, before = problem.graph.dependencies
    group = problem.leader
    return Needs(
        held,
        touch_start,
        touches,
        before_start,
        before,
        *inverse(before_start, before, ops),
        group,
        *inverse(ints(np.arange(ops + 1)), group, ops),
        *from_pairs(group[rows_of(touch_start)], touches, ops),
    )


@compiled(_nrt=False)
def _add(needs: Needs, profile: Profile, place: Ints, at: Ints, tensor: Whole, times: Whole) -> None:
    """Writes where a tensor lies, or takes it back (times -1). A copy is there from when its tensor is made, since
    sends go as soon as they can, until the last op that reads it."""
    size, born, last = times * needs.held.nbytes[tensor], needs.held.home[tensor], profile.last
    for here in range(len(last)):
        last[here] = -1
    for index in range(needs.held.use_start[tensor], needs.held.use_start[tensor + 1]):
        user = needs.held.users[index]
        here = place[user]
        if last[here] < 0 or at[user] > at[last[here]]:
            last[here] = user
    home = place[born] if born >= 0 else np.int64(-1)
    for here in range(len(last)):
        reader = last[here]
        if here == home:
            if needs.held.resident[tensor]:
                profile.at_first[here] += size
                continue
            profile.start[here, born] += size
            if not needs.held.stays[tensor]:
                profile.end[here, reader if reader >= 0 else born] -= size
        elif reader >= 0:
            if needs.held.resident[tensor]:
                profile.at_first[here] += size
            else:
                profile.end[here, born] += size
            if home >= 0:
                profile.end[here, reader] -= size


@compiled(_nrt=False)
def _touch(needs: Needs, profile: Profile, place: Ints, at: Ints, op: Whole, times: Whole) -> None:
    """The same for all tensors that an op has to do with."""
    for index in range(needs.touch_start[op], needs.touch_start[op + 1]):
        _add(needs, profile, place, at, needs.touches[index], times)


@compiled(_nrt=False)
def _put(needs: Needs, profile: Profile, place: Ints, at: Ints, op: Whole, there: Whole) -> None:
    """An op, and what must be with it, on another device: what they touch is taken back and written once, not for each
    of them."""
    group = needs.group[op]
    for index in range(needs.moved_start[group], needs.moved_start[group + 1]):
        _add(needs, profile, place, at, needs.moved[index], -1)
    for index in range(needs.mate_start[group], needs.mate_start[group + 1]):
        mate = needs.mates[index]
        here, workspace = place[mate], needs.held.workspace[mate]
        profile.start[here, mate] -= workspace
        profile.end[here, mate] += workspace
        profile.start[there, mate] += workspace
        profile.end[there, mate] -= workspace
        place[mate] = there
    for index in range(needs.moved_start[group], needs.moved_start[group + 1]):
        _add(needs, profile, place, at, needs.moved[index], 1)


@compiled(_nrt=False)
def _shift(needs: Needs, profile: Profile, place: Ints, order: Ints, at: Ints, old: Whole, new: Whole) -> None:
    """The op at one place of the order at another; those between make room."""
    op = order[old]
    _touch(needs, profile, place, at, op, -1)
    step = 1 if new > old else -1
    for index in range(old, new, step):
        order[index] = order[index + step]
        at[order[index]] = index
    order[new], at[op] = op, new
    _touch(needs, profile, place, at, op, 1)


@compiled(_nrt=False)
def _measure(profile: Profile, order: Ints, here: Whole) -> None:
    """What a device holds at its fullest."""
    now, top = profile.at_first[here], profile.at_first[here]
    start, end = profile.start[here], profile.end[here]
    for op in order:
        now += start[op]
        top = max(top, now)
        now += end[op]
    profile.top[here] = top


@compiled(_nrt=False)
def _value(needs: Needs, profile: Profile) -> Whole:
    """Less is better: the fullest first of all, but others count, too, so that moves between them are told apart."""
    most, total, over = np.int64(0), np.int64(0), np.int64(0)
    for here in range(len(profile.top)):
        top = profile.top[here]
        most, total = max(most, top), total + top
        over += max(np.int64(0), top - needs.held.memory[here])
    return MOST * most + total // len(profile.top) + OVER * over


@compiled(_nrt=False)
def _able(needs: Needs, op: Whole, there: Whole) -> Truth:
    group = needs.group[op]
    for index in range(needs.mate_start[group], needs.mate_start[group + 1]):
        if not needs.held.able[needs.mates[index], there]:
            return False
    return True


@compiled(_nrt=False)
def _somewhere(needs: Needs, at: Ints, op: Whole, state: RandomState) -> Whole:
    """A place in the order after all that the op waits for and before all that wait for it."""
    low, high = np.int64(0), np.int64(len(at) - 1)
    for index in range(needs.before_start[op], needs.before_start[op + 1]):
        low = max(low, at[needs.before[index]] + 1)
    for index in range(needs.after_start[op], needs.after_start[op + 1]):
        high = min(high, at[needs.after[index]] - 1)
    return low + below(state, high - low + 1)


@compiled(_nrt=False)
def _partner(needs: Needs, place: Ints, here: Whole, there: Whole, state: RandomState) -> Whole:
    """An op there that can run here, if a few draws find one; else -1."""
    for _ in range(TRIES):
        op = below(state, len(place))
        if place[op] == there and _able(needs, op, here):
            return op
    return np.int64(-1)


@compiled(_nrt=False)
def _reorder(
    needs: Needs, profile: Profile, place: Ints, order: Ints, at: Ints, op: Whole, now: Whole, state: RandomState
) -> Whole:
    """An op elsewhere in the order, unless that is worse; what it is worth then."""
    old, new = at[op], _somewhere(needs, at, op, state)
    if old == new:
        return now
    _shift(needs, profile, place, order, at, old, new)
    for here in range(len(profile.top)):
        _measure(profile, order, here)
    value = _value(needs, profile)
    if value <= now:
        return value
    _shift(needs, profile, place, order, at, new, old)
    copy(profile.old_top, 0, len(profile.top), profile.top)
    return now


@compiled(_nrt=False)
def _replace(
    needs: Needs, profile: Profile, place: Ints, order: Ints, at: Ints, op: Whole, now: Whole, state: RandomState
) -> Whole:
    """An op on another device, at times for one of those there, unless that is worse; what it is worth then."""
    here, there = place[op], below(state, len(profile.top) - 1)
    there += there >= here
    if not _able(needs, op, there):
        return now
    other = _partner(needs, place, here, there, state) if below(state, 2) else np.int64(-1)
    _put(needs, profile, place, at, op, there)
    if other >= 0:
        _put(needs, profile, place, at, other, here)
    _measure(profile, order, here)
    _measure(profile, order, there)
    value = _value(needs, profile)
    if value <= now:
        return value
    if other >= 0:
        _put(needs, profile, place, at, other, there)
    _put(needs, profile, place, at, op, here)
    copy(profile.old_top, 0, len(profile.top), profile.top)
    return now


@compiled
def profile_of(needs: Needs, order: Ints, place: Ints, at: Ints) -> Profile:
    """What devices hold along an order; writes the place of each op in it."""
    devices, ops = len(needs.held.memory), len(order)
    for index in range(ops):
        at[order[index]] = index
    none, wide = np.zeros(devices, np.int64), np.zeros((devices, ops), np.int64)
    profile = Profile(none, wide, wide.copy(), none.copy(), none.copy(), none.copy())
    for tensor in range(len(needs.held.home)):
        _add(needs, profile, place, at, tensor, 1)
    for op in range(ops):
        profile.start[place[op], op] += needs.held.workspace[op]
        profile.end[place[op], op] -= needs.held.workspace[op]
    for here in range(devices):
        _measure(profile, order, here)
    return profile


@compiled
def improve(needs: Needs, order: Ints, place: Ints, moves: Whole, state: RandomState) -> Truth:
    """Changes an order and a placement by moves that pay or cost nothing; whether any did pay."""
    at = np.empty(len(order), np.int64)
    profile = profile_of(needs, order, place, at)
    first = _value(needs, profile)
    now = first
    for _ in range(moves):
        op = below(state, len(order))
        copy(profile.top, 0, len(profile.top), profile.old_top)
        if below(state, 2):
            now = _reorder(needs, profile, place, order, at, op, now, state)
        else:
            now = _replace(needs, profile, place, order, at, op, now, state)
    return now < first
