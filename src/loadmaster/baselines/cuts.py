"""Placements by rules, without a simulation: the program in contiguous shares, or group by group.

The program is laid out in its mirrored order, in which a backward op is beside its forward op, and cut into as many
shares as there are devices, sized by their speed: of equal time, bytes or count, or by what a device holds when most is
alive. Such cuts send little and keep layers whole. For peak memory, groups that share heavy tensors are dealt out, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes.groups import Grouper, group_ops, mirrored_order, scope_slots, turning_point
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.problem import LastFew

STACK = re.compile(r"\d.*", re.DOTALL)  # what is left of a module's name without this is the stack it belongs to
SPREAD = 0.5  # how much the bytes of a dealt group are taken to be off each time, in factors of e


def cuts(problem: Problem) -> list[Ints]:
    """Placements that cut the mirrored order into contiguous shares: of equal time, of equal bytes, of equal count;
    and, where modules are known, their stacks."""
    if problem.num_devices == 1:
        return []
    graph = problem.graph
    order = mirrored_order(problem)
    made = np.zeros(problem.num_ops, np.int64)
    np.add.at(made, graph.producer[graph.is_made], graph.nbytes[graph.is_made])
    placements = []
    for weight in (problem.best_ns, made, np.ones(problem.num_ops, np.int64)):
        share = np.cumsum(weight[order]) - weight[order] / 2
        device = np.empty(problem.num_ops, np.int64)
        device[order] = np.minimum(share * problem.num_devices // max(1, int(weight.sum())), problem.num_devices - 1)
        placements.append(legal(problem, device))
    if any(graph.scope):
        placements += [cut_stacks(problem, weight) for weight in (problem.best_ns + 1.0, np.ones(problem.num_ops))]
    return placements


def cut_by_held(problem: Problem, ways: Sequence[tuple[float, float]]) -> list[Ints]:
    """Placements that cut the mirrored order so that every device holds as much when most is alive. Each of the ways
    is (turn, tilt): the first cut lies so much of a device's share further on, and what is left over at the end belongs
    to the first device; and the first device has so much less than its share, the last one more. What else is alive for
    a moment decides which of them is best."""
    held, devices = held_bytes(problem), problem.num_devices
    order = mirrored_order(problem)
    done = (np.cumsum(held[order]) - held[order] / 2) / max(1.0, float(held.sum())) * (1 - 1e-9)  # the last is under 1
    device, placements = np.empty(problem.num_ops, np.int64), []
    for turn, tilt in ways:
        share = (1 + tilt * np.linspace(-1, 1, devices)) / devices
        device[order] = np.searchsorted(np.cumsum(share)[:-1], (done + turn / devices) % 1.0)
        placements.append(legal(problem, ints(device)))
    return placements


def held_bytes(problem: Problem) -> NDArray[np.float64]:
    """[ops] bytes of residents that each updates or is the first to read, and of what it makes that is alive at the
    turning point."""
    graph, turn = problem.graph, turning_point(problem)
    last = np.maximum(graph.producer, 0)
    np.maximum.at(last, graph.reads, rows_of(graph.read_start))
    own = graph.is_fresh & ~problem.stays
    alive = own & (graph.producer <= turn) & (last >= turn)
    total = resident_bytes(problem)
    np.add.at(total, graph.producer[alive], graph.nbytes[alive])
    return total


def cut_stacks(problem: Problem, weight: NDArray[np.floating]) -> Ints:
    """Every stack of modules ("encoder.layers", "decoder.layers") cut over all devices by itself; small ones, and what
    is in none, go with what lies before them."""
    slot = scope_slots(problem)
    order = np.lexsort((np.arange(problem.num_ops), slot))
    name = {scope: STACK.sub("", scope) for scope in dict.fromkeys(problem.graph.scope)}
    number = {stack: index for index, stack in enumerate(sorted(set(name.values())))}
    stack = np.array([number[name[scope]] for scope in problem.graph.scope])
    known = np.array([bool(scope) for scope in problem.graph.scope])
    share = np.bincount(stack, weight * known) / weight.sum()
    large = (share >= 0.5 / problem.num_devices)[stack] & known
    _, high = fair_share(problem)
    by = device_order(problem)
    device = np.full(problem.num_ops, -1, np.int64)
    for each in np.unique(stack[large]):
        members = order[(stack[order] == each) & large[order]]
        done = np.cumsum(weight[members]) - weight[members] / 2
        device[members] = by[np.minimum(np.searchsorted(high[by], done / weight[members].sum()), len(by) - 1)]
    along = np.where(device[order] >= 0, np.arange(len(order)), -1)
    last = np.maximum.accumulate(along)
    device[order] = np.where(last >= 0, device[order][np.maximum(last, 0)], by[0])
    return legal(problem, ints(device))


def fair_share(problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[devices] (low, high): the part of the whole that falls to each device when it is dealt out in device order."""
    order = device_order(problem)
    part = np.ones(problem.num_devices)
    if not problem.objective.of_memory:
        able_ns = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns)
        part = 1.0 / (able_ns.sum(axis=0) + 1.0)
    high = np.empty(problem.num_devices)
    high[order] = np.cumsum(part[order]) / part.sum()
    return high - part / part.sum(), high


def device_order(problem: Problem) -> Ints:
    """Devices from fast to slow, then by memory, then by number: the order in which shares are dealt out."""
    able_ns = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns)
    return ints(np.lexsort((np.arange(problem.num_devices), -problem.memory_bytes, able_ns.sum(axis=0))))


def dealt(problem: Problem, often: Mapping[int, int]) -> Iterator[Ints]:
    """Placements: for each number of groups so many, alike for every seed. Which groups share a device decides how much
    is alive there at once, and no rule knows that, so they differ: the largest group goes first to the device with the
    least, and sizes are only about right."""
    size = bytes_of(problem)
    room = np.maximum(1, problem.memory_bytes).astype(np.float64)
    for groups, times in often.items():
        label = group_ops(problem, groups)
        total = np.bincount(label, size).astype(np.float64)
        drawn = np.random.default_rng(groups)
        for turn in range(times):
            noise = drawn.standard_normal(len(total)) * (SPREAD if turn else 0.0)
            yield legal(problem, ints(_deal(total * np.exp(noise), room)[label]))


def bytes_of(problem: Problem) -> NDArray[np.float64]:
    """[ops] bytes that each makes, and of residents that it updates or is the first to read."""
    graph = problem.graph
    total = resident_bytes(problem)
    own = graph.is_fresh
    np.add.at(total, graph.producer[own], graph.nbytes[own])
    return total


def resident_bytes(problem: Problem) -> NDArray[np.float64]:
    """[ops] bytes of residents that each updates, or is the first to read."""
    graph, total = problem.graph, np.zeros(problem.num_ops)
    start, readers = graph.readers
    holder = problem.updater.copy()
    first = problem.resident & (holder < 0) & (np.diff(start) > 0)
    holder[first] = readers[start[:-1][first]]
    mine = problem.resident & (holder >= 0)
    np.add.at(total, holder[mine], graph.nbytes[mine])
    return total


def _deal(total: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.int64]:
    """[groups] devices: the largest group that is left goes to the device that is least full with it."""
    load, device = np.zeros(len(room)), np.zeros(len(total), np.int64)
    for group in np.argsort(-total, kind="stable").tolist():
        device[group] = ((load + total[group]) / room).argmin()
        load[device[group]] += total[group]
    return device


# Grouped lists: groups of ops, one by one along the program, each to the device where it would be done soonest.
#
# A list schedule of single ops sees one op ahead and spreads what belongs together; a group takes its backward pass
# along and counts all that it sends.

Rule = Literal["finish", "load"]
Floats = NDArray[np.float64]


class Way(NamedTuple):
    """How groups are made, and where each goes.

    Attributes:
        by, most: how ops are grouped, and how many groups at most.
        rule: what is least where a group goes: when it ends, or how much its device has to do then.
        sends: so many times what it sends and is sent is added to that.
    """

    by: Grouper
    most: int
    rule: Rule
    sends: float


def grouped(problem: Problem, way: Way) -> Plan:
    """The plan of one way, in the order of the critical path."""
    groups = _REMEMBERED.of(problem, way[:2], lambda: Groups.of(problem, group_ops(problem, way.most, way.by)))
    device = legal(problem, ints(_listed(groups, way.rule, way.sends)[groups.label]))
    return Plan.of(problem, device, critical_rank(problem, device))


@dataclass(frozen=True, eq=False)
class Groups:
    """What a rule needs to know of groups.

    Attributes:
        time_ns: [groups, devices] all members one after the other.
        link: [devices, devices] class of each link; the last: none.
        start: [groups + 1] of the neighbours of each.
        other: group that it sends to, or is sent from.
        before: whether it is sent from there.
        send_ns: [neighbours, classes + 1] all that is sent between the two, one after the other.
    """

    label: Ints  # [ops]
    time_ns: Floats  # [groups, devices]
    link: Ints  # [devices, devices]
    start: Ints  # [groups + 1]
    other: Ints
    before: NDArray[np.bool_]
    send_ns: Floats  # [neighbours, classes + 1]

    @staticmethod
    def of(problem: Problem, label: Ints) -> Groups:
        count, classes = int(label.max()) + 1, problem.send_ns.shape[1]
        time_ns = np.zeros((count, problem.num_devices))
        np.add.at(time_ns, label, np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns))
        maker, reader, tensor = _sent(problem, label)
        pairs, which = np.unique(maker * count + reader, return_inverse=True)
        send_ns = np.zeros((len(pairs), classes + 1))
        np.add.at(send_ns[:, :classes], which, np.maximum(0, problem.send_ns[tensor]))
        ends = np.concatenate([pairs // count, pairs % count])
        order = np.argsort(ends, kind="stable")
        other = np.concatenate([pairs % count, pairs // count])[order]
        before = np.repeat([False, True], len(pairs))[order]
        start = np.searchsorted(ends[order], np.arange(count + 1))
        link = problem.send_class.copy()
        np.fill_diagonal(link, classes)
        return Groups(label, time_ns, ints(link), ints(start), ints(other), before, np.tile(send_ns, (2, 1))[order])


_REMEMBERED: LastFew[Groups] = LastFew("grouped", 8)


def _sent(problem: Problem, label: Ints) -> tuple[Ints, Ints, Ints]:
    """(maker's group, reader's group, tensor), each once: what is sent where the two lie apart."""
    graph = problem.graph
    home = np.where(problem.resident, problem.updater, graph.producer)[graph.reads]
    there = home >= 0
    maker, reader, tensor = label[home[there]], label[rows_of(graph.read_start)[there]], graph.reads[there]
    apart = np.unique(np.stack([maker, reader, tensor], axis=1)[maker != reader], axis=0)
    return ints(apart[:, 0]), ints(apart[:, 1]), ints(apart[:, 2])


def _listed(groups: Groups, rule: Rule, sends: float) -> NDArray[np.int64]:
    """[groups] devices. A group waits for those before it that have a device, and sends back what they read of it."""
    count, devices = groups.time_ns.shape
    place, end = np.full(count, -1), np.zeros(count)
    free, load = np.zeros(devices), np.zeros(devices)
    for group in range(count):
        some = slice(groups.start[group], groups.start[group + 1])
        known = place[groups.other[some]] >= 0
        other, before = groups.other[some][known], groups.before[some][known]
        cost = groups.send_ns[some][known][np.arange(len(other))[:, None], groups.link[place[other]]]
        arrives = (end[other, None] + cost)[before].max(axis=0, initial=0.0)
        finish = np.maximum(free, arrives) + groups.time_ns[group]
        after = finish if rule == "finish" else load + groups.time_ns[group]
        device = int((after + sends * cost.sum(axis=0)).argmin())
        place[group], end[group], free[device] = device, finish[device], finish[device]
        load[device] += groups.time_ns[group, device]
    return place
