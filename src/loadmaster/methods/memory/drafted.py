"""Drafted: the plan that a draft stands for.

Jobs that somebody still reads become additions, with the readers they serve; ranks follow the row of kernels, and each
addition is told which op it comes after, since an idle device would otherwise make a copy long before it is needed.
"""

from __future__ import annotations

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.methods.memory.draft import Draft, Job
from loadmaster.methods.memory.passing import in_turn
from loadmaster.methods.memory.trips import time_returns
from loadmaster.plans import Plan, kernel_order
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import expand
from loadmaster.problem import Problem


def plan_of(draft: Draft) -> Plan:
    """The plan with what was added; of the same order and kernels."""
    if not draft.jobs:
        return draft.plan
    time_returns(draft)
    ops, jobs = len(draft.at), draft.jobs
    redirected = [
        (reader, tensor, draft.versions[version].job)
        for (reader, tensor), version in sorted(draft.source.items())
        if draft.versions[version].job >= 0
    ]
    used = _used(draft, redirected)
    number = {job: i for i, job in enumerate(sorted(used))}
    rows = [_row(draft, jobs[job]) for job in sorted(used)]
    named = [
        (reader if reader < ops else ops + number[reader - ops], tensor, number[job])
        for reader, tensor, job in redirected
        if reader < ops or reader - ops in used
    ]
    if not rows:
        return draft.plan
    try:
        return _columns(draft, _additions(rows, named), sorted(used))
    except InvalidPlan:  # one is told to come after an op that waits for it
        return _columns(draft, _additions([(op, tensor, -1) for op, tensor, _ in rows], named), sorted(used))


def _additions(rows: list[tuple[int, int, int]], named: list[tuple[int, int, int]]) -> Additions:
    return Additions(*(ints(column) for column in (*zip(*rows, strict=True), *zip(*named, strict=True))))


def _used(draft: Draft, redirected: list[tuple[int, int, int]]) -> set[int]:
    """Jobs that somebody reads, in the end an op of the graph, or that bring home what was updated."""
    ops = len(draft.at)
    used: set[int] = set()
    waiting = [job for reader, _, job in redirected if reader < ops]
    reads: dict[int, list[int]] = {}
    for reader, _, job in redirected:
        reads.setdefault(reader, []).append(job)
    waiting += [job for job in draft.trips if draft.producer[draft.jobs[job].given] >= 0 and draft.jobs[job].given >= 0]
    while waiting:
        job = waiting.pop()
        if job not in used:
            used.add(job)
            waiting += reads.get(ops + job, [])
    return used


def _row(draft: Draft, job: Job) -> tuple[int, int, int]:
    if job.op < 0:
        tensor = job.given if job.given >= 0 else draft.versions[job.stay].tensor
        return -1, tensor, _last_op(draft, job.trigger)
    return job.op, -1, _before(draft, job) if draft.problem.num_devices > 1 and not job.joined else -1


def _last_op(draft: Draft, position: int) -> int:
    return int(draft.heads[position]) if position >= 0 else -1


def _before(draft: Draft, job: Job) -> int:
    """The kernel that runs there just before: without it, an idle device would make the copy too early."""
    for position in range(job.at - 1, max(-1, job.at - 40), -1):
        if draft.device[int(draft.heads[position])] == draft.device[job.op]:
            return int(draft.heads[position]) if draft.at[job.op] <= position else -1
    return -1


def _columns(draft: Draft, added: Additions, used: list[int]) -> Plan:
    problem, ops = expand(draft.problem, added), len(draft.at)
    assert problem.expansion is not None
    place = problem.expansion.place
    count = problem.num_ops
    device, rank, kernel = (np.zeros(count, np.int64) for _ in range(3))
    width = len(draft.jobs) + 2
    nodes = place[:ops]
    device[nodes] = draft.plan.device
    rank[nodes] = np.array(draft.at) * width + width - 1
    label = np.array(draft.at)  # [nodes] kernels as labels
    labels = list(label)
    groups: dict[tuple[int, int], int] = {}
    turns = [job for at in sorted(draft.chains) for jobs in in_turn(draft, at) for job in jobs]
    turn = {job: number for number, job in enumerate(turns, 1)}
    for i, number in enumerate(used):
        job, node = draft.jobs[number], int(place[ops + i])
        if job.op < 0:
            device[node] = draft.hosts[number]
            label_of = len(draft.heads) + len(groups)
            groups[-1, i] = label_of
        else:
            device[node] = draft.device[job.op]
            key = (job.at, draft.at[job.op])
            label_of = job.at if job.joined else groups.setdefault(key, len(draft.heads) + len(groups))
        labels.append(label_of)
        rank[node] = job.at * width + (width - 1 if job.joined else turn.get(number, 0))
    kernel = _kernels(place, labels)
    if not _is_acyclic(problem, kernel):  # a copy shares a kernel with what waits for something that waits for it
        labels[ops:] = range(max(labels) + 1, max(labels) + 1 + len(used))
        kernel = _kernels(place, labels)
    return Plan.of(problem, device, positions(np.argsort(rank, kind="stable")), kernel)


def _kernels(place: Ints, labels: list[int]) -> Ints:
    """[ops] the lowest op with the same label."""
    by_place = np.empty(len(place), np.int64)
    by_place[place] = labels
    first = np.full(int(by_place.max()) + 1, len(place))
    np.minimum.at(first, by_place, np.arange(len(place)))
    return ints(first[by_place])


def _is_acyclic(problem: Problem, kernel: Ints) -> bool:
    try:
        kernel_order(problem, kernel)
    except InvalidPlan:
        return False
    return True
