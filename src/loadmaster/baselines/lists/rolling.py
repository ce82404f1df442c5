"""Rolling: a list schedule made a few ops at a time, in several ways each, of which the one that leads on best is kept.

One rule for a whole graph wins here and loses there, and over many ops that evens out. Chosen anew every few ops, by
how the ops after them would go, the good luck adds up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadmaster.baselines.lists.loop import FAR, arrival, commit, gap, occupy, settle, thrifty
from loadmaster.baselines.lists.schedulers import mean_times, upward_rank
from loadmaster.compiled import compiled
from loadmaster.graph.columns import Floats, Ints, Whole, ints, positions
from loadmaster.plans import Plan
from loadmaster.search import Search
from loadmaster.search.xorshift import RandomState, seeded, unit
from loadmaster.simulator import layout
from loadmaster.simulator.state import Layout

SPANS = 64  # busy spans of a device that are known; of too many, the last five of eight are left
THRIFTS = (0.5, 0.25, 1.0, 0.0)  # of the first ways; of later ones any between
SLICE, FIRST_WAYS = 4096, 2  # ops between two looks at the clock, and ways before the first
CHUNK_PER_DEVICE, AHEAD = 2, 1.0  # ops that are decided at once, and how many times as many are looked ahead


@dataclass(frozen=True)
class Rolling:
    """A list schedule as HEFT's (Topcuoglu, Hariri and Wu, 2002), decided a chunk of ops at a time: each in several
    ways, which differ in their thrift with links and in the order of ops, and each looked at with the ops that come
    after it. In the manner of rollouts (Bertsekas, Tsitsiklis and Wu, 1997).

    Attributes:
        ways: fewer where time is short.
    """

    ways: int = 8

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        level = upward_rank(problem)
        order = np.lexsort((np.arange(problem.num_ops), -level))
        many = np.random.default_rng(search.seed).random(max(0, self.ways - len(THRIFTS)))
        thrifts, state = np.array((*THRIFTS, *many)), make_state(layout(problem), problem.graph.colocate)
        given = RollingColumns(
            *problem.graph.dependencies, problem.graph.colocate, np.ascontiguousarray(problem.able), order, level,
            mean_times(problem),
        )  # fmt: skip
        chunk, random = max(8, CHUNK_PER_DEVICE * problem.num_devices), seeded(search.seed + 1)
        pace = WaysPace(search, problem.num_ops, self.ways)
        for low, high in pairwise([*range(0, problem.num_ops, max(1, SLICE // chunk) * chunk), problem.num_ops]):
            ways = pace.ways(low)
            roll(
                layout(problem), given, problem.cluster.contention, chunk, int(AHEAD * chunk), thrifts[:ways], random,
                state, low, high,
            )  # fmt: skip
        return Plan.of(problem, ints(state.where), positions(np.lexsort((-level, state.begin))))


class WaysPace:
    """In how many ways there is time for, from how long those before took. Where simulations alone are counted, in as
    many as were asked for."""

    def __init__(self, search: Search, ops: int, most: int) -> None:
        self.search, self.ops, self.most, self.now = search, ops, max(1, most), min(max(1, most), FIRST_WAYS)
        self.begun, self.low, self.each_s = time.perf_counter(), 0, 0.0

    def ways(self, low: int) -> int:
        if self.search.counts_simulations:
            return self.most
        if low > self.low:
            took = (time.perf_counter() - self.begun) / ((low - self.low) * (2 * self.now + 1))
            self.each_s = max(took, self.each_s * 0.7)
            left = self.search.seconds_left / max(1e-12, (self.ops - low) * self.each_s)
            self.now = int(np.clip((left - 1) / 2, 1, self.most))
        self.begun, self.low = time.perf_counter(), low
        return self.now


class RollingColumns(NamedTuple):
    """Columns of the problem.

    Attributes:
        start: [ops + 1] of before.
        before: ops that each op waits for.
        order: [ops] by upward rank.
        level: [ops] upward rank.
        mean: [ops] mean time.
    """

    start: np.ndarray  # [ops + 1]
    before: np.ndarray
    colocate: np.ndarray  # [ops]
    able: np.ndarray  # [ops, devices]
    order: np.ndarray  # [ops]
    level: np.ndarray  # [ops]
    mean: np.ndarray  # [ops]


class RollingState(NamedTuple):
    """What is decided so far, and where devices and channels stand.

    Attributes:
        home: [tensors] device, -1: nowhere yet.
        there: [tensors * devices] when it is on the device, -1: it is not.
        groups: [colocation groups] device.
        home_of: [ops] device that an update is bound to.
        spans: [devices] how many.
    """

    made_ns: np.ndarray  # [tensors]
    home: np.ndarray  # [tensors]
    there: np.ndarray  # [tensors * devices]
    channel_free: np.ndarray
    where: np.ndarray  # [ops]
    begin: np.ndarray  # [ops]
    end: np.ndarray  # [ops]
    groups: np.ndarray  # [colocation groups]
    home_of: np.ndarray  # [ops]
    busy_from: np.ndarray  # [devices, spans]
    busy_to: np.ndarray
    spans: np.ndarray  # [devices]


def make_state(plain: Layout, colocate: Ints, spans: int = SPANS) -> RollingState:
    """Nothing is decided; with room for so many busy spans of a device."""
    ops, tensors, devices = len(plain.waits), len(plain.nbytes), plain.devices
    return RollingState(
        np.zeros(tensors, np.int64),
        np.full(tensors, -1, np.int64),
        np.full(tensors * devices, -1, np.int64),
        np.zeros(plain.channels + 1, np.int64),
        np.full(ops, -1, np.int64),
        np.zeros(ops, np.int64),
        np.zeros(ops, np.int64),
        np.full(max(1, int(colocate.max(initial=-1)) + 1), -1, np.int64),
        np.full(ops, -1, np.int64),
        np.zeros((devices, spans), np.int64),
        np.zeros((devices, spans), np.int64),
        np.zeros(devices, np.int64),
    )


THERE, HOME, HOME_OF, GROUP, WHERE = range(5)  # columns of the state that a log names


class UndoLog(NamedTuple):
    """What deciding ops wrote over, so that it can be taken back. Spans and channels are copied whole instead.

    Attributes:
        used: [1] entries.
    """

    column: np.ndarray
    at: np.ndarray
    was: np.ndarray
    used: np.ndarray  # [1]


@compiled
def make_log(size: Whole) -> UndoLog:
    """Room for so many entries."""
    return UndoLog(np.empty(size, np.int8), np.empty(size, np.int64), np.empty(size, np.int64), np.zeros(1, np.int64))


@compiled
def roll(
    layout: Layout,
    given: RollingColumns,
    contention: bool,
    chunk: Whole,
    ahead: Whole,
    thrifts: Floats,
    random: RandomState,
    state: RollingState,
    low: Whole,
    stop_at: Whole,
) -> None:
    """Decides the ops from low-th to the one before stop_at; ways look beyond it."""
    ops, added, log = len(given.order), np.zeros(layout.channels + 1, np.int64), make_log(0)
    saved = (state.busy_from.copy(), state.busy_to.copy(), state.spans.copy(), state.channel_free.copy())
    trial, best_order = np.empty(chunk + ahead, np.int64), np.empty(chunk, np.int64)
    while low < stop_at:
        high, far = min(stop_at, low + chunk), min(ops, low + chunk + ahead)
        room = _most_written(layout, given.order[low:far])
        if room > len(log.at):
            log = make_log(room)
        saved[0][:], saved[1][:], saved[2][:], saved[3][:] = (
            state.busy_from, state.busy_to, state.spans, state.channel_free,
        )  # fmt: skip
        best_way, best_value, near = 0, np.inf, high - low
        for way in range(len(thrifts) if near > 1 else 1):
            _draw_order(given, low, high, far, way >= len(THRIFTS), random, trial)
            value = _try(
                layout, given, contention, added, trial[: far - low], near, thrifts[way], thrifts[0], state, log
            )
            if value < best_value:
                best_value, best_way = value, way
                best_order[:near] = trial[:near]
            take_back(state, log)
            state.busy_from[:], state.busy_to[:], state.spans[:], state.channel_free[:] = saved
        for at in range(near):
            decide(layout, given, contention, added, best_order[at], thrifts[best_way], state, log)
        log.used[0] = 0
        low = high


@compiled
def _most_written(layout: Layout, ops: Ints) -> Whole:
    """How many entries of a log these ops make at most."""
    total = 0
    for op in ops:
        total += 4 * (layout.read_start[op + 1] - layout.read_start[op])
        total += 2 * (layout.make_start[op + 1] - layout.make_start[op]) + 2
    return total


@compiled
def _draw_order(
    given: RollingColumns, low: Whole, high: Whole, far: Whole, shuffled: bool, random: RandomState, trial: Ints
) -> None:
    """Those to be decided by upward rank, some a little later than theirs; those after them as they are."""
    key = np.empty(high - low)
    for at in range(high - low):
        op = given.order[low + at]
        shift = unit(random) if shuffled else 0.0
        key[at] = shift * given.mean[op] - given.level[op]
    trial[: high - low] = given.order[low:high][np.argsort(key, kind="mergesort")]
    trial[high - low : far - low] = given.order[high:far]


@compiled
def _try(
    layout: Layout,
    given: RollingColumns,
    contention: bool,
    added: Ints,
    trial: Ints,
    near: Whole,
    thrift: float,
    thrift_after: float,
    state: RollingState,
    log: UndoLog,
) -> float:
    """How long the way is on which these ops lead on: at worst, and on the mean of them."""
    worst: Whole
    worst, total = np.int64(0), 0.0
    for at in range(len(trial)):
        chosen = thrift if at < near else thrift_after
        length = decide(layout, given, contention, added, trial[at], chosen, state, log)
        worst = max(worst, length)
        total += length
    return worst + total / len(trial)


@compiled
def decide(
    layout: Layout,
    given: RollingColumns,
    contention: bool,
    added: Ints,
    op: Whole,
    thrift: float,
    state: RollingState,
    log: UndoLog,
) -> Whole:
    """Gives the op the device and the gap where it ends first. Returns the length of the way through it: when it
    begins, and its upward rank."""
    base = np.int64(0)
    for at in range(given.start[op], given.start[op + 1]):
        base = max(base, state.end[given.before[at]])
    device = _best_device(layout, given, contention, added, op, base, thrift, state)
    _note(layout, given.colocate, op, device, state, log)
    ready = max(
        base,
        commit(
            layout, op, device, state.made_ns, state.home, state.there, state.channel_free, contention, state.home_of,
            given.colocate, state.groups, state.where,
        ),
    )  # fmt: skip
    time = layout.op_ns[op * layout.devices + device]
    begin = gap(state.busy_from[device], state.busy_to[device], state.spans[device], ready, time)
    state.begin[op], state.end[op] = begin, begin + time
    if time > 0:
        _occupy(state, device, begin, begin + time)
    settle(
        layout, op, device, begin + time, state.made_ns, state.home, state.there, given.colocate, state.groups,
        state.where,
    )  # fmt: skip
    return begin + given.level[op]  # type: ignore[no-any-return]


@compiled
def _best_device(
    layout: Layout,
    given: RollingColumns,
    contention: bool,
    added: Ints,
    op: Whole,
    base: Whole,
    thrift: float,
    state: RollingState,
) -> Whole:
    only = state.groups[given.colocate[op]] if given.colocate[op] >= 0 else -1
    if only < 0:
        only = state.home_of[op]
    best, chosen = FAR, -1
    for device in range(layout.devices):
        if not given.able[op, device] or (only >= 0 and device != only and given.able[op, only]):
            continue
        comes = arrival(
            layout, op, device, state.made_ns, state.home, state.there, state.channel_free, added, contention
        )
        time = layout.op_ns[op * layout.devices + device]
        spans = state.busy_from[device], state.busy_to[device], state.spans[device]
        finish = gap(spans[0], spans[1], spans[2], max(base, comes), time) + time
        if thrift > 0:
            finish = thrifty(layout, op, device, finish, state.home, state.there, state.channel_free, thrift)
        if finish < best:
            best, chosen = finish, device
    return chosen


@compiled
def _occupy(state: RollingState, device: Whole, begin: Whole, end: Whole) -> None:
    """Adds a busy span to the few that are known; a gap that is forgotten holds no later op."""
    busy_from, busy_to = state.busy_from[device], state.busy_to[device]
    if state.spans[device] == len(busy_from):
        kept = 5 * len(busy_from) // 8
        busy_from[:kept] = busy_from[-kept:].copy()
        busy_to[:kept] = busy_to[-kept:].copy()
        state.spans[device] = kept
        if begin < busy_from[0]:
            busy_from[0] = begin
            return
    state.spans[device] = occupy(busy_from, busy_to, state.spans[device], begin, end)


@compiled
def _note(layout: Layout, colocate: Ints, op: Whole, device: Whole, state: RollingState, log: UndoLog) -> None:
    """Logs what `commit` and `settle` are about to write over."""
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = np.int64(layout.reads[at])
        _write(log, THERE, tensor * layout.devices + device, state.there)
        if state.home[tensor] < 0:  # an updated weight, whose update is bound to the device
            updater = np.int64(layout.maker[tensor])
            _write(log, HOME, tensor, state.home)
            _write(log, HOME_OF, updater, state.home_of)
            if colocate[updater] >= 0:
                _write(log, GROUP, colocate[updater], state.groups)
    for at in range(layout.make_start[op], layout.make_start[op + 1]):
        tensor = np.int64(layout.makes[at])
        _write(log, THERE, tensor * layout.devices + device, state.there)
        _write(log, HOME, tensor, state.home)
    _write(log, WHERE, op, state.where)
    if colocate[op] >= 0:
        _write(log, GROUP, colocate[op], state.groups)


@compiled
def _write(log: UndoLog, column: Whole, at: Whole, values: Ints) -> None:
    here = log.used[0]
    log.column[here], log.at[here], log.was[here] = column, at, values[at]
    log.used[0] = here + 1


@compiled
def take_back(state: RollingState, log: UndoLog) -> None:
    """The state as it was before what is logged, the last first; the log is empty then."""
    for here in range(log.used[0] - 1, -1, -1):
        column, at, was = log.column[here], log.at[here], log.was[here]
        if column == THERE:
            state.there[at] = was
        elif column == HOME:
            state.home[at] = was
        elif column == HOME_OF:
            state.home_of[at] = was
        elif column == GROUP:
            state.groups[at] = was
        else:
            state.where[at] = was
    log.used[0] = 0
