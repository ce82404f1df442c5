"""Compiled: a list schedule in which a network says what each device is worth to the next op.

A score is linear in what the op and the device are to each other, plus a layer of hidden units over that and what is
known of the op alone. All devices have the same weights, so there may be any number of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Floats, Ints, Whole, ints
from loadmaster.optimizers.annealing.xorshift import RandomState, seeded, unit
from loadmaster.optimizers.lists.loop import ListState, account, fresh_state, new_bytes
from loadmaster.optimizers.lists.schedulers import fixed_reads, no_device
from loadmaster.optimizers.lists.steps import arrival, commit, gap, occupy, settle
from loadmaster.optimizers.policy.views import View
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulator import layout, simulate
from loadmaster.simulator.state import Layout

# What an op and a device are to each other, all about 0 to 1: how much later than elsewhere it would end, and its data
# come; the time on links that it costs; how much of what it reads is there, of weights too; how much slower the device
# is; how full it gets, and what is too much; its load and when it is free, against the mean; whether the op's forward
# op, or the op before it in the program, is there; how much of what its readers also need is there; the wait at the way
# out; memory left, against the mean. Of a plan that is to be improved: whether the op is there, which part of its
# readers are, how much more than its share of the work the device has, and how full it was at its peak.
PAIR = 19
LATER, COMES, SENT, THERE, WEIGHTS, SLOWER, FULL, OVER, LOAD, FREE, MIRROR, BEFORE, MATES, WAY_OUT, ROOM = range(15)
STAYED, READERS, BURDEN, PEAK = range(15, PAIR)
LOOKED_AT = 4  # readers, and reads of each, that are looked at


class Net(NamedTuple):
    """The weights: a linear part over what op and device are to each other, and one layer of hidden units.

    Attributes:
        linear: [PAIR] of the score.
        of_pair: [PAIR, hidden] from what op and device are to each other.
        of_op: [CONTEXT, hidden] from what is known of the op alone.
        bias: [hidden]
        out: [hidden] to the score.
    """

    linear: np.ndarray  # [PAIR]
    of_pair: np.ndarray  # [PAIR, hidden]
    of_op: np.ndarray  # [CONTEXT, hidden]
    bias: np.ndarray  # [hidden]
    out: np.ndarray  # [hidden]


class DecodingScratch(NamedTuple):
    """Of one decoding.

    Attributes:
        spans: [devices] how many.
        of_op: [ops, hidden] what hidden units make of the op alone.
        load: [devices] ns.
        speed: [devices] of all work, the share that suits it.
        scores: [ops, devices] written.
    """

    busy_from: np.ndarray  # [devices, ops]
    busy_to: np.ndarray
    spans: np.ndarray  # [devices]
    pair: np.ndarray  # [devices, PAIR]
    finish: np.ndarray  # [devices]
    of_op: np.ndarray  # [ops, hidden]
    hidden: np.ndarray
    load: np.ndarray  # [devices]
    speed: np.ndarray  # [devices]
    scores: np.ndarray  # [ops, devices]


UNABLE = -50.0  # the score of a device that an op cannot go to


class Former(NamedTuple):
    """A plan that is to be improved, or nothing.

    Attributes:
        device: [ops] or -1.
        burden: [devices] how much more than its share of the work it has, -1 to 1.
        peak: [devices] share of its memory that is used at the peak.
        order: [ops] as they start.
    """

    device: np.ndarray  # [ops]
    burden: np.ndarray  # [devices]
    peak: np.ndarray  # [devices]
    order: Ints  # [ops]


def former_of(problem: Problem, plan: Plan | None, search: Search | None = None) -> Former:
    """A plan as what a decoding looks at: where ops were, how loaded and how full devices were; a search of the
    problem, where one is given, counts the simulation that shows it."""
    if plan is None:
        nothing = np.zeros(problem.num_devices)
        return Former(no_device(problem), nothing, nothing, ints(np.arange(problem.num_ops)))
    took = problem.op_ns[np.arange(problem.num_ops), plan.device].astype(np.float64)
    load = np.bincount(plan.device, took, minlength=problem.num_devices) / max(1.0, took.sum())
    line = simulate(problem, plan) if search is None else search.timeline(plan)
    burden = np.tanh((load - _speeds(problem)) * problem.num_devices)
    peak = np.minimum(2.0, line.peak_bytes / (problem.memory_bytes + 1.0))
    return Former(plan.device, burden, peak, ints(np.argsort(line.turn, kind="stable")))


class Decoded(NamedTuple):
    """A list schedule.

    Attributes:
        begin_ns: [ops] planned start.
        scores: [ops, devices] what each device was worth, without noise.
    """

    device: Ints  # [ops]
    begin_ns: Ints  # [ops]
    scores: np.ndarray  # [ops, devices]


def decode(
    problem: Problem,
    view: View,
    net: Net,
    order: Ints,
    former: Former,
    *,
    forced: bool = False,
    noise: float = 0.0,
    seed: int = 1,
) -> Decoded:
    """`forced`: ops go where the former plan has them whatever the scores say, so that these are about that plan. With
    noise, one of many."""
    plain = layout(problem)
    state = fresh_state(plain, problem.graph.colocate, no_device(problem).copy())
    devices, ops = problem.num_devices, problem.num_ops
    scratch = DecodingScratch(
        np.zeros((devices, ops), np.int64),
        np.zeros((devices, ops), np.int64),
        np.zeros(devices, np.int64),
        np.zeros((devices, PAIR)),
        np.zeros(devices),
        view.context @ net.of_op + net.bias,
        np.zeros(len(net.bias)),
        np.zeros(devices),
        _speeds(problem),
        np.full((ops, devices), UNABLE),
    )
    given = (*problem.graph.dependencies, *fixed_reads(problem), problem.graph.colocate)
    able, limits = np.ascontiguousarray(problem.able), problem.memory_bytes.astype(np.float64) + 1.0
    _decode(
        plain, *given, able, order, limits, problem.cluster.contention, state, scratch, view, net, former, forced,
        float(noise), seeded(seed),
    )  # fmt: skip
    return Decoded(ints(state.where), ints(state.begin), scratch.scores)


def _speeds(problem: Problem) -> np.ndarray:
    took = np.where(problem.able, problem.op_ns, problem.best_ns[:, None] * 10).sum(axis=0)
    rate = 1.0 / (took + 1.0)
    share: np.ndarray = rate / rate.sum()
    return share


@compiled(_nrt=False)
def _decode(
    layout: Layout,
    start: Ints,
    before: Ints,
    fixed_start: Ints,
    fixed: Ints,
    colocate: Ints,
    able: Bools,
    order: Ints,
    limits: Floats,
    contention: bool,
    state: ListState,
    scratch: DecodingScratch,
    view: View,
    net: Net,
    former: Former,
    forced: bool,
    noise: float,
    random: RandomState,
) -> None:
    devices, done_ns = layout.devices, 0.0
    for op in order:
        base = np.int64(0)
        for at in range(start[op], start[op + 1]):
            base = max(base, state.end[before[at]])
        only = state.groups[colocate[op]] if colocate[op] >= 0 else np.int64(-1)
        if only < 0:
            only = state.home_of[op]
        chosen, choices = _only(able, op, only, devices)
        if choices > 1:
            _look(layout, op, base, fixed_start, fixed, able, limits, contention, state, scratch, view, former, done_ns)
            chosen = _choose(op, able, scratch, net, noise, random, devices)
            if forced:
                chosen = np.int64(former.device[op])
        comes = commit(
            layout, op, chosen, state.made_ns, state.home, state.there, state.channel_free, contention, state.home_of,
            colocate, state.groups, state.where,
        )  # fmt: skip
        time = layout.op_ns[op * devices + chosen]
        busy_from, busy_to = scratch.busy_from[chosen], scratch.busy_to[chosen]
        begin = gap(busy_from, busy_to, scratch.spans[chosen], max(base, comes), time)
        state.begin[op], state.end[op] = begin, begin + time
        if time > 0:
            scratch.spans[chosen] = occupy(busy_from, busy_to, scratch.spans[chosen], begin, begin + time)
        scratch.load[chosen] += time
        done_ns += time
        settle(
            layout, op, chosen, begin + time, state.made_ns, state.home, state.there, colocate, state.groups,
            state.where,
        )  # fmt: skip
        account(layout, op, chosen, fixed_start, fixed, state.has, state.used, state.left, state.home)


@compiled(_nrt=False)
def _only(able: Bools, op: Whole, only: Whole, devices: Whole) -> tuple[Whole, Whole]:
    """(The one device on which the op can run, how many there are)."""
    if only >= 0 and able[op, only]:
        return only, 1
    chosen, choices = np.int64(-1), 0
    for device in range(devices):
        if able[op, device]:
            chosen, choices = np.int64(device), choices + 1
    return chosen, choices


@compiled(_nrt=False)
def _look(
    layout: Layout,
    op: Whole,
    base: Whole,
    fixed_start: Ints,
    fixed: Ints,
    able: Bools,
    limits: Floats,
    contention: bool,
    state: ListState,
    scratch: DecodingScratch,
    view: View,
    former: Former,
    done_ns: float,
) -> None:
    """Writes what the op and each device are to each other."""
    fastest: float | Whole
    first: float | Whole
    soonest: float | Whole
    devices, pair, scale = layout.devices, scratch.pair, view.scale_ns[op]
    soonest, first, fastest, free_mean, room_mean = np.inf, np.inf, np.inf, 0.0, 0.0
    for device in range(devices):
        if not able[op, device]:
            continue
        comes = max(base, arrival(
            layout, op, device, state.made_ns, state.home, state.there, state.channel_free, state.added, contention
        ))  # fmt: skip
        time = layout.op_ns[op * devices + device]
        spans = scratch.spans[device]
        finish = gap(scratch.busy_from[device], scratch.busy_to[device], spans, comes, time) + time
        pair[device, LATER], pair[device, COMES], pair[device, SLOWER] = finish, comes, time
        pair[device, FREE] = scratch.busy_to[device, spans - 1] if spans > 0 else 0
        soonest, first, fastest = min(soonest, finish), min(first, comes), min(fastest, time)
        _look_at_tensors(layout, op, device, fixed_start, fixed, state, pair, scale)
        size = new_bytes(layout, op, device, fixed_start, fixed, state.there, state.has)
        pair[device, FULL] = (state.used[device] + size) / limits[device]
        pair[device, ROOM] = 1.0 - state.used[device] / limits[device]
        free_mean += pair[device, FREE] / devices
        room_mean += pair[device, ROOM] / devices
        pair[device, WAY_OUT] = _way_out(layout, device, finish, state.channel_free, scale)
        pair[device, MIRROR] = state.where[view.mirror[op]] == device
        pair[device, BEFORE] = op > 0 and state.where[op - 1] == device
        pair[device, MATES] = _mates(layout, op, device, state)
        pair[device, STAYED] = former.device[op] == device
        pair[device, READERS] = _formerly(layout, op, device, former.device)
        pair[device, BURDEN] = former.burden[device]
        pair[device, PEAK] = former.peak[device]
    for device in range(devices):
        pair[device, LATER] = np.log1p((pair[device, LATER] - soonest) / scale)
        pair[device, COMES] = np.log1p((pair[device, COMES] - first) / scale)
        pair[device, SLOWER] = np.log((pair[device, SLOWER] + 1.0) / (fastest + 1.0))
        pair[device, OVER] = min(2.0, max(0.0, 10.0 * (pair[device, FULL] - 1.0)))
        pair[device, FULL] = min(1.5, pair[device, FULL])
        pair[device, ROOM] -= room_mean
        pair[device, FREE] = np.tanh((pair[device, FREE] - free_mean) / view.share_ns * 4.0)
        mine = scratch.speed[device] * done_ns
        pair[device, LOAD] = np.tanh((scratch.load[device] - mine) / view.share_ns * 4.0)


@compiled(_nrt=False)
def _look_at_tensors(
    layout: Layout,
    op: Whole,
    device: Whole,
    fixed_start: Ints,
    fixed: Ints,
    state: ListState,
    pair: Floats,
    scale: float,
) -> None:
    devices, sent, there, all_bytes = layout.devices, np.int64(0), 0.0, 1.0
    for at in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = np.int64(layout.reads[at])
        all_bytes += layout.nbytes[tensor]
        if state.there[tensor * devices + device] >= 0:
            there += layout.nbytes[tensor]
        elif state.home[tensor] >= 0:
            link = layout.send_class[state.home[tensor] * devices + device]
            sent += layout.send_ns[tensor * layout.send_classes + link]
    held, weights = 0.0, 1.0
    for at in range(fixed_start[op], fixed_start[op + 1]):
        weights += layout.nbytes[fixed[at]]
        if state.has[fixed[at] * devices + device] != 0:
            held += layout.nbytes[fixed[at]]
    pair[device, SENT] = np.log1p(sent / scale)
    pair[device, THERE] = there / all_bytes
    pair[device, WEIGHTS] = held / weights


@compiled(_nrt=False)
def _way_out(layout: Layout, device: Whole, finish: Whole, channel_free: Ints, scale: float) -> float:
    """How long what the op makes would wait for a channel, at worst, of those to the next two devices."""
    devices, worst = layout.devices, 0.0
    for step in range(1, min(3, devices)):
        out = layout.channel[device * devices + (device + step) % devices] - devices
        worst = max(worst, float(channel_free[out] - finish))
    return np.log1p(worst / scale)  # type: ignore[no-any-return]


@compiled(_nrt=False)
def _mates(layout: Layout, op: Whole, device: Whole, state: ListState) -> float:
    """Of the other things that readers of the op's first tensor read and that are made, the share that is there."""
    if layout.make_start[op] == layout.make_start[op + 1]:
        return 0.0
    made, here, known = np.int64(layout.makes[layout.make_start[op]]), 0.0, 1e-9
    low, high = layout.reader_start[made], layout.reader_start[made + 1]
    for at in range(low, min(high, low + LOOKED_AT)):
        reader = layout.readers[at]
        first, last = layout.read_start[reader], layout.read_start[reader + 1]
        for index in range(first, min(last, first + LOOKED_AT)):
            home = state.home[layout.reads[index]]
            if home >= 0:
                known += 1.0
                here += home == device
    return here / known


@compiled(_nrt=False)
def _formerly(layout: Layout, op: Whole, device: Whole, former: Ints) -> float:
    """Of the readers of the op's first tensor, the share that the plan to be improved has on the device."""
    if layout.make_start[op] == layout.make_start[op + 1]:
        return 0.0
    made, here = np.int64(layout.makes[layout.make_start[op]]), 0.0
    low, high = layout.reader_start[made], layout.reader_start[made + 1]
    high = min(high, low + 2 * LOOKED_AT)
    for at in range(low, high):
        here += former[layout.readers[at]] == device
    return here / max(1, high - low)  # type: ignore[no-any-return]


@compiled(_nrt=False)
def _choose(
    op: Whole, able: Bools, scratch: DecodingScratch, net: Net, noise: float, random: RandomState, devices: Whole
) -> Whole:
    """The device with the highest score; with noise, a draw: the larger the noise, the less scores count."""
    hidden, pair, best, chosen = scratch.hidden, scratch.pair, -np.inf, np.int64(-1)
    for device in range(devices):
        if not able[op, device]:
            continue
        score = 0.0
        for unit_at in range(len(hidden)):
            hidden[unit_at] = scratch.of_op[op, unit_at]
        for at in range(PAIR):
            seen = pair[device, at]
            score += net.linear[at] * seen
            for unit_at in range(len(hidden)):
                hidden[unit_at] += net.of_pair[at, unit_at] * seen
        for unit_at in range(len(hidden)):
            score += net.out[unit_at] * max(0.0, hidden[unit_at])
        scratch.scores[op, device] = score
        if noise > 0.0:
            score -= noise * np.log(-np.log(max(1e-12, unit(random))))
        if score > best or chosen < 0:  # also where no score is a number
            best, chosen = score, np.int64(device)
    return chosen
