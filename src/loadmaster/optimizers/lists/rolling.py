# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
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

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.optimizers.annealing.xorshift import seeded, unit
from loadmaster.optimizers.lists.loop import FAR, _arrival, _gap, _occupy, _thrifty
from loadmaster.optimizers.lists.schedulers import mean_times, upward_rank
from loadmaster.plans import Plan
from loadmaster.search import Search
from loadmaster.simulator import layout
from loadmaster.simulator.loop import Layout

# Where no reason is given, chosen by hand.
SPANS, KEPT = 64, 40  # busy spans of a device that are known, and that are left when they are too many
THRIFTS = (0.5, 0.25, 1.0, 0.0)  # of the first ways; of later ones any between
SLICE, FIRST_WAYS = 4096, 2  # ops between two looks at the clock, and ways before the first
CHUNK_PER_DEVICE, AHEAD = 2, 1.0  # ops that are decided at once, and how many times as many are looked ahead


@dataclass(frozen=True)
class Rolling:
    """A list schedule as HEFT's (Topcuoglu, Hariri and Wu, 2002), decided a chunk of ops at a time: each in several
    ways, which differ in their thrift with links and in the order of ops, and each looked at with the ops that come
    after it. In the manner of rollouts (Bertsekas, Tsitsiklis and Wu, 1997)."""

    ways: int = 8  # fewer where time is short

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        level = upward_rank(problem)
        order = np.lexsort((np.arange(problem.num_ops), -level))
        many = np.random.default_rng(search.seed).random(max(0, self.ways - len(THRIFTS)))
        thrifts, state = np.array((*THRIFTS, *many)), make_state(layout(problem), problem.graph.colocate)
        given = (problem.graph.colocate, np.ascontiguousarray(problem.able), order, level, mean_times(problem))
        chunk, random = max(8, CHUNK_PER_DEVICE * problem.num_devices), seeded(search.seed + 1)
        pace = Pace(search, problem.num_ops, self.ways)
        for low, high in pairwise([*range(0, problem.num_ops, max(1, SLICE // chunk) * chunk), problem.num_ops]):
            ways = pace.ways(low)
            roll(
                layout(problem), *problem.graph.dependencies, *given, problem.cluster.contention, chunk,
                int(AHEAD * chunk), thrifts[:ways], random, state, low, high,
            )  # fmt: skip
        return Plan.of(problem, ints(state.where), positions(np.lexsort((-level, state.begin))))


class Pace:
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


class State(NamedTuple):
    """What is decided so far, and where devices and channels stand."""

    made_ns: np.ndarray  # [tensors]
    home: np.ndarray  # [tensors] device, -1: nowhere yet
    there: np.ndarray  # [tensors * devices] when it is on the device, -1: it is not
    channel_free: np.ndarray
    where: np.ndarray  # [ops]
    begin: np.ndarray  # [ops]
    end: np.ndarray  # [ops]
    groups: np.ndarray  # [colocation groups] device
    home_of: np.ndarray  # [ops] device that an update is bound to
    busy_from: np.ndarray  # [devices, SPANS]
    busy_to: np.ndarray
    spans: np.ndarray  # [devices] how many


def make_state(plain: Layout, colocate: Ints) -> State:
    ops, tensors, devices = len(plain.waits), len(plain.nbytes), plain.devices
    return State(
        np.zeros(tensors, np.int64),
        np.full(tensors, -1, np.int64),
        np.full(tensors * devices, -1, np.int64),
        np.zeros(plain.channels + 1, np.int64),
        np.full(ops, -1, np.int64),
        np.zeros(ops, np.int64),
        np.zeros(ops, np.int64),
        np.full(max(1, int(colocate.max(initial=-1)) + 1), -1, np.int64),
        np.full(ops, -1, np.int64),
        np.zeros((devices, SPANS), np.int64),
        np.zeros((devices, SPANS), np.int64),
        np.zeros(devices, np.int64),
    )


@compiled
def roll(
    layout, start, before, colocate, able, order, level, mean, contention, chunk, ahead, thrifts, random, state, low,
    stop_at,
):  # fmt: skip
    """Decides the ops from low-th to the one before stop_at; ways look beyond it."""
    devices, ops = layout.devices, len(order)
    made_ns, home, there, channel_free = state.made_ns, state.home, state.there, state.channel_free
    where, begin, end, groups, home_of = state.where, state.begin, state.end, state.groups, state.home_of
    busy_from, busy_to, count = state.busy_from, state.busy_to, state.spans
    added, saved_count = np.zeros(layout.channels + 1, np.int64), np.zeros(devices, np.int64)
    saved_from, saved_to, saved_free = busy_from.copy(), busy_to.copy(), channel_free.copy()
    # What a way wrote, to be taken back: kind 0 there, 1 home, 2 the place an update is bound to, 3 a group.
    log_kind, log_at, logged = np.empty(1024, np.int8), np.empty(1024, np.int64), 0
    key, trial = np.empty(chunk + ahead), np.empty(chunk + ahead, np.int64)
    best_order = np.empty(chunk, np.int64)
    while low < stop_at:
        high, far = min(stop_at, low + chunk), min(ops, low + chunk + ahead)
        saved_from[:], saved_to[:], saved_count[:], saved_free[:] = busy_from, busy_to, count, channel_free
        best_way, best_value = 0, np.inf
        ways = len(thrifts) if high - low > 1 else 1
        for way in range(ways + 1):
            last = way == ways  # the best way again, for good, and without a look ahead
            chosen_way, until = (best_way, high) if last else (way, far)
            stop = high - low
            if last:
                trial[:stop] = best_order[:stop]
            else:
                for at in range(stop):
                    op = order[low + at]
                    shift = unit(random) if way >= len(THRIFTS) else 0.0
                    key[at] = shift * mean[op] - level[op]
                trial[:stop] = order[low:high][np.argsort(key[:stop], kind="mergesort")]
                trial[stop : far - low] = order[high:far]
            worst, total = np.int64(0), 0.0
            for at in range(until - low):
                op, thrift = trial[at], thrifts[chosen_way] if at < stop else thrifts[0]
                base = np.int64(0)
                for index in range(start[op], start[op + 1]):
                    base = max(base, end[before[index]])
                only = groups[colocate[op]] if colocate[op] >= 0 else -1
                if only < 0:
                    only = home_of[op]
                best, chosen = FAR, -1
                for device in range(devices):
                    if not able[op, device] or (only >= 0 and device != only and able[op, only]):
                        continue
                    ready = max(
                        base, _arrival(layout, op, device, made_ns, home, there, channel_free, added, contention)
                    )
                    time = layout.op_ns[op * devices + device]
                    finish = _gap(busy_from[device], busy_to[device], count[device], ready, time) + time
                    if thrift > 0:
                        finish = _thrifty(layout, op, device, finish, home, there, channel_free, thrift)
                    if finish < best:
                        best, chosen = finish, device
                if logged + 4 * (layout.read_start[op + 1] - layout.read_start[op]) + 64 > len(log_kind):
                    log_kind = np.concatenate((log_kind, np.empty(len(log_kind), np.int8)))
                    log_at = np.concatenate((log_at, np.empty(len(log_at), np.int64)))
                # What it reads comes to the device.
                latest = base
                for index in range(layout.read_start[op], layout.read_start[op + 1]):
                    tensor = np.int64(layout.reads[index])
                    slot = tensor * devices + chosen
                    if there[slot] < 0:
                        log_kind[logged], log_at[logged] = 0, slot
                        logged += 1
                        source = home[tensor]
                        if source < 0:  # an updated weight stays where it is first read, and its update goes there
                            home[tensor], there[slot] = chosen, 0
                            log_kind[logged], log_at[logged] = 1, tensor
                            logged += 1
                            updater = np.int64(layout.maker[tensor])
                            if where[updater] < 0 and home_of[updater] < 0:
                                home_of[updater] = chosen
                                log_kind[logged], log_at[logged] = 2, updater
                                logged += 1
                                if colocate[updater] >= 0 and groups[colocate[updater]] < 0:
                                    groups[colocate[updater]] = chosen
                                    log_kind[logged], log_at[logged] = 3, colocate[updater]
                                    logged += 1
                        else:
                            pair = source * devices + chosen
                            channel = layout.channel[pair] - devices
                            ready = made_ns[tensor]
                            if contention:
                                ready = max(ready, channel_free[channel])
                            there[slot] = ready + layout.send_ns[tensor * layout.send_classes + layout.send_class[pair]]
                            channel_free[channel] = max(channel_free[channel], there[slot])
                    latest = max(latest, there[slot])
                time = layout.op_ns[op * devices + chosen]
                begin[op] = _gap(busy_from[chosen], busy_to[chosen], count[chosen], latest, time)
                end[op] = begin[op] + time
                if time > 0:
                    if count[chosen] == SPANS:
                        busy_from[chosen, :KEPT] = busy_from[chosen, SPANS - KEPT :].copy()
                        busy_to[chosen, :KEPT] = busy_to[chosen, SPANS - KEPT :].copy()
                        count[chosen] = KEPT
                        if begin[op] < busy_from[chosen, 0]:  # a gap that is forgotten: no op comes there again
                            busy_from[chosen, 0] = begin[op]
                        else:
                            count[chosen] = _occupy(
                                busy_from[chosen], busy_to[chosen], count[chosen], begin[op], end[op]
                            )
                    else:
                        count[chosen] = _occupy(busy_from[chosen], busy_to[chosen], count[chosen], begin[op], end[op])
                where[op] = chosen
                if colocate[op] >= 0 and groups[colocate[op]] < 0:
                    groups[colocate[op]] = chosen
                    log_kind[logged], log_at[logged] = 3, colocate[op]
                    logged += 1
                for index in range(layout.make_start[op], layout.make_start[op + 1]):
                    tensor = np.int64(layout.makes[index])
                    made_ns[tensor], home[tensor] = end[op], chosen
                    there[tensor * devices + chosen] = end[op]
                    if logged + 1 >= len(log_kind):
                        log_kind = np.concatenate((log_kind, np.empty(len(log_kind), np.int8)))
                        log_at = np.concatenate((log_at, np.empty(len(log_at), np.int64)))
                    log_kind[logged], log_at[logged] = 0, tensor * devices + chosen
                    logged += 1
                way_on = end[op] - time + level[op]
                worst = max(worst, way_on)
                total += way_on
            if last:
                logged = 0
                break
            value = worst + total / (until - low)
            if value < best_value:
                best_value, best_way = value, way
                best_order[:stop] = trial[:stop]
            for at in range(until - low):
                op = trial[at]
                where[op] = -1
                for index in range(layout.make_start[op], layout.make_start[op + 1]):
                    home[layout.makes[index]] = -1
            for at in range(logged):
                if log_kind[at] == 0:
                    there[log_at[at]] = -1
                elif log_kind[at] == 1:
                    home[log_at[at]] = -1
                elif log_kind[at] == 2:
                    home_of[log_at[at]] = -1
                else:
                    groups[log_at[at]] = -1
            logged = 0
            busy_from[:], busy_to[:], count[:], channel_free[:] = saved_from, saved_to, saved_count, saved_free
        low = high
