# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# mypy: disable-error-code="assignment,arg-type"
"""Groups of ops, one by one along the program, each to the device that a small network favours.

As `grouped`, which this is before anything is learned, but what decides is a score: linear in what a group and a device
are to each other, plus a layer of hidden units over that and what is known of the group alone. All devices have the
same weights, so there may be any number of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, ints
from loadmaster.optimizers.annealing.xorshift import seeded, unit
from loadmaster.optimizers.dealing import bytes_of
from loadmaster.optimizers.grouped import Groups
from loadmaster.optimizers.lists.schedulers import upward_rank
from loadmaster.problem import Problem

Floats = NDArray[np.float64]
# What a group and a device are to each other: how much later than elsewhere it would end, and what it waits for come;
# how much the device would have to do, beside the least, and beside its fair share; what is sent; how much slower it
# is; how full it gets, and what is too much; memory left, beside the mean; which share of what is exchanged with
# groups that have a device stays there; whether the group before is there; how far it is from where an even cut of the
# program has the group, and whether that is it; whether nothing is there yet.
PAIR = 15
LATER, COMES, LOAD, SHARE, SENT, SLOWER, FULL, OVER, ROOM, NEAR, BEFORE, CUT, INSIDE, EMPTY, STEADY = range(PAIR)
CONTEXT = 12
HIDDEN = 12
SIZE = PAIR + HIDDEN * (PAIR + CONTEXT + 2)


class Net(NamedTuple):
    linear: np.ndarray  # [PAIR]
    of_pair: np.ndarray  # [PAIR, HIDDEN]
    of_group: np.ndarray  # [CONTEXT, HIDDEN]
    bias: np.ndarray  # [HIDDEN]
    out: np.ndarray  # [HIDDEN]


def net_of(weights: Floats) -> Net:
    """The network of a vector of weights. They are what is added to a rule: with none, a group goes where it ends
    first, and what it sends counts."""
    sizes = (PAIR, PAIR * HIDDEN, CONTEXT * HIDDEN, HIDDEN, HIDDEN)
    linear, of_pair, of_group, bias, out = np.split(np.array(weights, np.float64), np.cumsum(sizes)[:-1])
    linear[LATER] -= 1.0
    linear[SENT] -= 1.0
    linear[OVER] -= 4.0
    return Net(linear, of_pair.reshape(PAIR, HIDDEN), of_group.reshape(CONTEXT, HIDDEN), bias, out)


def first_weights(seed: int) -> Floats:
    """Hidden units that look at something, and count for nothing yet."""
    weights, inner = np.zeros(SIZE), slice(PAIR, PAIR + HIDDEN * (PAIR + CONTEXT))
    weights[inner] = np.random.default_rng(seed).standard_normal(HIDDEN * (PAIR + CONTEXT)) * 0.3
    return weights


class View(NamedTuple):
    """What the loop reads of groups."""

    time_ns: np.ndarray  # [groups, devices]
    link: np.ndarray
    start: np.ndarray
    other: np.ndarray
    before: np.ndarray
    send_ns: np.ndarray
    size: np.ndarray  # [groups] bytes that are made, or are weights
    limit: np.ndarray  # [devices] bytes; where all that is made does not fit at once, the fair share of it
    context: np.ndarray  # [groups, CONTEXT]
    middle: np.ndarray  # [groups] of all work along the program, the share before it and half of its own
    centre: np.ndarray  # [devices] of a cut by speed
    speed: np.ndarray  # [devices] share of all work that suits it
    unit_ns: float  # mean time of a group
    share_ns: float  # an equal share of all work


def view_of(problem: Problem, groups: Groups) -> View:
    time_ns = np.ascontiguousarray(groups.time_ns)
    count, devices = time_ns.shape
    best = time_ns.min(axis=1)
    rate = 1.0 / (time_ns.sum(axis=0) + 1.0)
    speed = rate / rate.sum()
    size = np.bincount(groups.label, bytes_of(problem), minlength=count)
    limit = problem.memory_bytes.astype(np.float64) + 1.0
    limit = limit * max(1.0, size.sum() / limit.sum())  # not all is alive at once; full is then what is a fair share
    worst = groups.send_ns[:, :-1].max(axis=1, initial=0.0) if groups.send_ns.shape[1] > 1 else np.zeros(len(groups.other))
    rows = np.repeat(np.arange(count), np.diff(groups.start))
    sent = np.bincount(rows, worst, minlength=count)
    back = np.bincount(rows, worst * ~groups.before, minlength=count)
    total = best.sum() + 1.0
    middle = (np.cumsum(best) - best / 2) / total
    path = float(upward_rank(problem).max()) + 1.0
    common = (
        ratio(total / devices, path), ratio(size.sum(), problem.memory_bytes.sum()), ratio(sent.sum() / 2, total),
        np.log2(devices) / 4, np.log2(count) / 10,
    )  # fmt: skip
    own = (
        ratio(best * count, total), ratio(sent, best), ratio(back, sent - back), ratio(size * count, limit.sum()),
        ratio(size * total, best * size.sum()), middle, np.log1p(np.diff(groups.start)) / 4,
    )  # fmt: skip
    context = np.stack([*own, *(np.full(count, value) for value in common)], axis=1)
    return View(
        time_ns, groups.link, groups.start, groups.other, groups.before, np.ascontiguousarray(groups.send_ns), size,
        limit, np.ascontiguousarray(context), middle, np.cumsum(speed) - speed / 2, speed, total / count,
        total / devices,
    )  # fmt: skip


def ratio(one: Floats | float, other: Floats | float) -> Floats:
    """The logarithm of a ratio, as a number from -1 to 1."""
    found: Floats = np.tanh(np.log((np.asarray(one, np.float64) + 1) / (np.asarray(other, np.float64) + 1)) / 3)
    return found


def listed(view: View, net: Net, noise: float = 0.0, seed: int = 1) -> Ints:
    """[groups] devices; with noise, one of many."""
    count, devices = view.time_ns.shape
    scratch = (np.full(count, -1), np.zeros(count), np.zeros((devices, PAIR)), np.zeros((4, devices)), np.zeros(len(net.bias)))
    _list(view, net, view.context @ net.of_group + net.bias, *scratch, float(noise), seeded(seed))
    return ints(scratch[0])


@compiled(_nrt=False)
def _list(view, net, of_group, place, end, pair, sums, hidden, noise, random):
    devices = view.time_ns.shape[1]
    free, load, used, sent = sums[0], sums[1], sums[2], sums[3]
    done = 0.0
    for group in range(len(place)):
        _look(view, group, place, end, free, load, used, sent, done, pair)
        chosen = _choose(of_group, group, net, pair, hidden, noise, random)
        place[group] = chosen
        end[group] = max(free[chosen], pair[chosen, STEADY]) + view.time_ns[group, chosen]
        pair[:, STEADY] = 0.0
        free[chosen] = end[group]
        load[chosen] += view.time_ns[group, chosen]
        used[chosen] += view.size[group]
        done += view.time_ns[group, chosen]
    return devices


@compiled(_nrt=False)
def _look(view, group, place, end, free, load, used, sent, done, pair):
    """Writes what the group and each device are to each other. STEADY holds when what it waits for comes."""
    devices, classes = view.time_ns.shape[1], view.send_ns.shape[1]
    known, latest = 1e-9, 0.0
    for device in range(devices):
        sent[device], pair[device, NEAR], pair[device, STEADY] = 0.0, 0.0, 0.0
    for at in range(view.start[group], view.start[group + 1]):
        other = view.other[at]
        if place[other] < 0:
            continue
        whole = 0.0
        for index in range(classes):
            whole = max(whole, view.send_ns[at, index])
        known += whole
        pair[place[other], NEAR] += whole
        for device in range(devices):
            cost = view.send_ns[at, view.link[place[other], device]]
            sent[device] += cost
            if view.before[at]:
                pair[device, STEADY] = max(pair[device, STEADY], end[other] + cost)
    soonest, first, least, fastest, roomy = np.inf, np.inf, np.inf, np.inf, 0.0
    for device in range(devices):
        time = view.time_ns[group, device]
        soonest = min(soonest, max(free[device], pair[device, STEADY]) + time)
        first = min(first, pair[device, STEADY])
        least = min(least, load[device] + time)
        fastest = min(fastest, time)
        roomy += (1.0 - used[device] / view.limit[device]) / devices
    for device in range(devices):
        time = view.time_ns[group, device]
        pair[device, LATER] = (max(free[device], pair[device, STEADY]) + time - soonest) / view.unit_ns
        pair[device, COMES] = np.log1p((pair[device, STEADY] - first) / view.unit_ns)
        pair[device, LOAD] = (load[device] + time - least) / view.unit_ns
        mine = view.speed[device] * (done + time)
        pair[device, SHARE] = np.tanh((load[device] + time - mine) / view.share_ns * 2.0)
        pair[device, SENT] = sent[device] / view.unit_ns
        pair[device, SLOWER] = np.log((time + 1.0) / (fastest + 1.0))
        full = (used[device] + view.size[group]) / view.limit[device]
        pair[device, FULL] = min(1.5, full)
        pair[device, OVER] = min(2.0, max(0.0, 10.0 * (full - 1.0)))
        pair[device, ROOM] = 1.0 - used[device] / view.limit[device] - roomy
        pair[device, NEAR] /= known
        pair[device, BEFORE] = group > 0 and place[group - 1] == device
        away = abs(view.middle[group] - view.centre[device]) / view.speed[device]
        pair[device, CUT] = np.tanh(away / 2.0)
        pair[device, INSIDE] = away <= 0.5
        pair[device, EMPTY] = load[device] == 0.0


@compiled(_nrt=False)
def _choose(of_group, group, net, pair, hidden, noise, random):
    """The device with the highest score; with noise, a draw."""
    best, chosen = -np.inf, 0
    for device in range(len(pair)):
        score = 0.0
        for at in range(len(hidden)):
            hidden[at] = of_group[group, at]
        for seen in range(PAIR - 1):
            value = pair[device, seen]
            score += net.linear[seen] * value
            small = value if abs(value) < 4.0 else 4.0 * value / abs(value)
            for at in range(len(hidden)):
                hidden[at] += net.of_pair[seen, at] * small
        for at in range(len(hidden)):
            score += net.out[at] * max(0.0, hidden[at])
        if noise > 0.0:
            score -= noise * np.log(-np.log(max(1e-12, unit(random))))
        if score > best:
            best, chosen = score, device
    return chosen
