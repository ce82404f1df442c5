"""Grouped lists: groups of ops, one by one along the program, each to the device where it would be done soonest.

A list schedule of single ops sees one op ahead and spreads what belongs together; a group takes its backward pass along
and counts all that it sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.lists.schedulers import critical_rank
from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes.groups import Grouper, group_ops
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.problem.problem import LastFew

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
