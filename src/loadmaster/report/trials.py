"""Trials: the same plan with some of its kernels elsewhere, simulated exactly, many at a time.

To say what one decision is worth, all others must stay as they are, the order too: sends that the plan does not have
get a place in it, so that with nothing moved the step is that of the plan to the nanosecond.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem
from loadmaster.report.schedule import Schedule
from loadmaster.simulator import NO_LIMIT, Scores, layout, loop, spread, state

NS_PER_READ = 80  # what simulating one op or read takes, about; only decides how many trials are made
Move = tuple[Ints, int]  # kernels, and the device they go to


@dataclass(frozen=True, eq=False)
class Trials:
    """A problem and an order of its ops and sends that gives the step under study when nothing is moved.

    Attributes:
        problem: whose ops are the plan's kernels.
        rank: [ops] order of dispatch.
        send_rank: [tensors * devices] order of sends, those too that the plan does not have.
    """

    problem: Problem
    rank: Ints  # [ops]
    send_rank: Ints  # [tensors * devices]

    @staticmethod
    def of(schedule: Schedule) -> Trials:
        """The order in which things were dispatched, made so that a send the plan does not have finds its place in it.

        Sends of the plan keep their order on each wire, but stand beside the op that they are for; a new send is put
        beside the first op that reads it there (rule 4), on the same scale.
        """
        count, devices = len(schedule.send_tensor), schedule.num_devices
        urgent = _running_maximum(_first_turn(schedule), schedule.send_channel)
        keys = np.concatenate([schedule.turn * (count + 1), urgent * (count + 1) + 1 + np.arange(count)])
        dense = np.unique(keys, return_inverse=True)[1]
        send_rank = np.full(schedule.problem.graph.num_tensors * devices, -1, np.int64)
        send_rank[schedule.send_tensor * devices + schedule.timeline.send_dst] = dense[schedule.num_kernels :]
        return Trials(schedule.problem, ints(dense[: schedule.num_kernels]), ints(send_rank))

    def score(self, place: Ints, moves: Sequence[Sequence[Move]]) -> Scores:
        """What the step costs with the kernels at `place`, after each set of moves on its own."""
        plain, devices = layout(self.problem), self.problem.num_devices
        step, peaks = np.empty(len(moves), np.int64), np.zeros((len(moves), devices), np.int64)
        busy = np.zeros((len(moves), 2 * devices + plain.channels), np.int64)
        base, rank = (np.ascontiguousarray(column, np.int32) for column in (place, self.rank))

        def part(low: int, high: int) -> None:
            scratch, record = state.make_run_scratch(plain, False), state.NO_RECORD
            for trial in range(low, high):
                here = base.copy()
                for kernels, device in moves[trial]:
                    here[kernels] = device
                given = (plain, here, rank, self.send_rank, scratch, NO_LIMIT, NO_LIMIT, peaks[trial])
                step[trial] = loop.run(*given, False, record)
                busy[trial] = scratch.worked

        spread(part, len(moves))
        over = np.maximum(peaks - self.problem.memory_bytes[None, :], 0).sum(axis=1)
        return Scores(ints(step), ints(peaks), ints(busy), ints(over))


def affordable(problem: Problem, seconds: float) -> int:
    """How many simulations about so many seconds are enough for on two or more cores; the same on every machine."""
    each_ns = NS_PER_READ * (problem.num_ops + len(problem.graph.reads))
    return max(1, int(seconds * 1e9 * min(2, os.cpu_count() or 1) / each_ns))


def _first_turn(schedule: Schedule) -> Ints:
    """[sends] turn of the first kernel that needs it."""
    first = np.full(len(schedule.send_tensor), np.iinfo(np.int64).max)
    sends = schedule.read_send
    reader = np.repeat(schedule.turn, np.diff(schedule.problem.graph.read_start))
    np.minimum.at(first, sends[sends >= 0], reader[sends >= 0])
    return first


def _running_maximum(values: Ints, group: Ints) -> Ints:
    """[rows] the largest value so far among rows of the same group."""
    running = values.copy()
    for member in np.unique(group):
        mine = group == member
        running[mine] = np.maximum.accumulate(values[mine])
    return running
