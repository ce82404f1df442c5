"""Every timeline that a placement allows: all orders in which devices can take ops and channels sends.

A timeline is a sequence of decisions: which of the ops, or sends, that wait takes the device, or channel, that is free.
The simulator follows ranks, so a prefix of decisions is a plan whose ranks come in that order; how it goes on shows
where else it could have gone. Plans that differ only in ranks that never compete are met once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline, simulate
from loadmaster.simulator.arenas.layout import LaidStep

Decision = tuple[int, int]  # (device, op), or (devices + channel, tensor x devices + destination)


def every_timeline(
    problem: Problem, device: Ints, run: Callable[[Plan], Timeline | None] | None = None
) -> Iterator[tuple[Plan, Timeline]]:
    """A plan for each, with what it gives; nothing is fused. `run` simulates, and ends it where it gives nothing."""
    run = run or partial(simulate, problem)
    begun: list[tuple[Decision, ...]] = [()]
    while begun:
        prefix = begun.pop()
        plan = _plan(problem, device, prefix)
        line = run(plan)
        if line is None:
            return
        made = _Decisions(problem, plan, line)
        if tuple(made.taken[: len(prefix)]) != prefix:  # what the last decision wants did not wait yet
            continue
        yield plan, line
        for at in range(len(prefix), len(made.taken)):
            others = made.others(at)
            begun += [(*made.taken[:at], (made.taken[at][0], other)) for other in others]


def _plan(problem: Problem, device: Ints, prefix: tuple[Decision, ...]) -> Plan:
    """What was decided comes first, in that order; then ops as in the program, sends by tensor."""
    ops, devices, tensors = problem.num_ops, problem.num_devices, problem.graph.num_tensors
    rank = len(prefix) + np.arange(ops)
    send_rank = len(prefix) + np.arange(tensors * devices)
    for turn, (resource, what) in enumerate(prefix):
        (rank if resource < devices else send_rank)[what] = turn
    return replace(Plan.of(problem, device, rank), send_rank=ints(send_rank.reshape(tensors, devices)))


class _Decisions:
    """The decisions of one timeline in the order they were made, and what waited at each."""

    def __init__(self, problem: Problem, plan: Plan, line: Timeline) -> None:
        devices, ops = problem.num_devices, problem.num_ops
        step = LaidStep(coarsen(problem, plan.kernel), plan, line)
        channel = problem.cluster.channel[line.send_src, line.send_dst]
        resource = np.concatenate([plan.device, devices + channel])
        what = np.concatenate([np.arange(ops), line.send_tensor * devices + line.send_dst])
        order = np.lexsort((resource, step.begin))  # of one round, all on different resources
        # Where links do not contend no send waits, and only devices decide.
        self.deciding = devices if not problem.cluster.contention else devices + int(channel.max(initial=0)) + 1
        self.begin, self.ready = step.begin[order], _ready(problem, step, line)[order]
        self.taken: list[Decision] = list(zip(resource[order].tolist(), what[order].tolist(), strict=True))

    def others(self, at: int) -> list[int]:
        """What else waited when decision `at` was made."""
        later = range(at + 1, len(self.taken) if self.taken[at][0] < self.deciding else 0)
        same = (other for other in later if self.taken[other][0] == self.taken[at][0])
        return [self.taken[other][1] for other in same if self.ready[other] <= self.begin[at]]


def _ready(problem: Problem, step: LaidStep, line: Timeline) -> Ints:
    """[ops + sends] the round from which each waits for nothing but its turn."""
    wait_start, waits = step.waits()
    ready = np.zeros(problem.num_ops + line.num_sends, np.int64)
    np.maximum.at(ready, rows_of(wait_start), step.end[waits])
    made = np.flatnonzero(problem.graph.is_made[line.send_tensor])
    ready[problem.num_ops + made] = step.end[problem.graph.producer[line.send_tensor[made]]]
    return ints(ready)
