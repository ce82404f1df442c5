"""Lives: what lies in the memory of each device, from when to when (rules 7 to 9 of the simulator).

Worked out from the timeline afterwards (`simulator.lives`), not taken from the simulator's own count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.report.schedule import Schedule
from loadmaster.simulator.lives import last_needed, residents

FOREVER = np.iinfo(np.int64).max
BEFORE = -1


@dataclass(frozen=True, eq=False)
class Moments:
    """When things begin and end, as numbers that order rounds within one instant, too (rule 11).

    Attributes:
        begin, finish: [kernels] moments.
        send_begin, send_finish: [sends] moments.
        instant_ns: [instants] moment m lies in instant m // rounds.
        rounds: moments of an instant.
    """

    begin: Ints  # [kernels]
    finish: Ints  # [kernels]
    send_begin: Ints  # [sends]
    send_finish: Ints  # [sends]
    instant_ns: Ints  # [instants]
    rounds: int

    def ns(self, moment: int) -> int:
        return 0 if moment < 0 else int(self.instant_ns[moment // self.rounds])


@dataclass(frozen=True, eq=False)
class Lives:
    """Alive at moment m: those with begin <= m < finish.

    Attributes:
        device: where it lies.
        nbytes: its size.
        begin, finish: moments.
        tensor: -1: workspace.
        kernel: that needs the workspace, or makes the tensor; of what is there before the step, its first reader.
        received: a copy that was sent.
    """

    device: Ints
    nbytes: Ints
    begin: Ints
    finish: Ints
    tensor: Ints
    kernel: Ints
    received: Bools


def moments(schedule: Schedule) -> Moments:
    """When things happen, in the order in which the simulator counts memory at one instant."""
    line, kernels = schedule.timeline, schedule.num_kernels
    start = np.concatenate([schedule.start_ns, line.send_start_ns])
    end = np.concatenate([schedule.end_ns, line.send_end_ns])
    begun = _begin_round(schedule, start, end)
    ended = np.where(start == end, begun + 1, 0)
    rounds = int(ended.max(initial=0)) + 1
    instants = np.unique(np.concatenate([start, end]))
    begin = np.searchsorted(instants, start) * rounds + begun
    finish = np.searchsorted(instants, end) * rounds + ended
    return Moments(
        begin=ints(begin[:kernels]),
        finish=ints(finish[:kernels]),
        send_begin=ints(begin[kernels:]),
        send_finish=ints(finish[kernels:]),
        instant_ns=ints(instants),
        rounds=rounds,
    )


def _begin_round(schedule: Schedule, start: Ints, end: Ints) -> Ints:
    """[kernels and sends] the round of its instant in which each begins: after all of no length that it waited for."""
    before, after = _waits(schedule)
    brief = (start[before] == end[before]) & (end[before] == start[after])
    before, after = before[brief], after[brief]
    begun = np.zeros(len(start), np.int64)
    while True:
        later = begun.copy()
        np.maximum.at(later, after, begun[before] + 1)
        if (later == begun).all():
            return begun
        begun = later


def _waits(schedule: Schedule) -> tuple[Ints, Ints]:
    """Pairs (earlier, later) of all that waits for something; sends are numbered after the kernels."""
    graph, kernels = schedule.problem.graph, schedule.num_kernels
    reader, maker, sends = rows_of(graph.read_start), graph.producer[graph.reads], schedule.read_send
    here, far = (sends < 0) & (maker >= 0), sends >= 0
    sent_maker = graph.producer[schedule.send_tensor]
    made = np.flatnonzero(sent_maker >= 0)
    follows, sends_after = np.flatnonzero(schedule.previous >= 0), np.flatnonzero(schedule.previous_send >= 0)
    pairs = (
        (maker[here], reader[here]),
        (kernels + sends[far], reader[far]),
        (graph.after, rows_of(graph.after_start)),
        (schedule.previous[follows], follows),
        (sent_maker[made], kernels + made),
        (kernels + schedule.previous_send[sends_after], kernels + sends_after),
    )
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def lives(schedule: Schedule, when: Moments) -> Lives:
    """From when to when each tensor is on each device."""
    problem, graph = schedule.problem, schedule.problem.graph
    sends = (schedule.send_tensor, when.send_finish)
    last = last_needed(problem, schedule.device, when.finish, sends, FOREVER)
    made = np.flatnonzero(graph.is_fresh)
    home = schedule.device[graph.producer[made]]
    sent = schedule.send_tensor
    works = np.flatnonzero(graph.workspace_bytes)
    kept, where = (np.concatenate(columns) for columns in zip(*residents(problem, schedule.device), strict=True))
    maker = np.where(schedule.maker[kept] >= 0, schedule.maker[kept], _first_reader(schedule)[kept])
    parts = (
        (
            home,
            graph.nbytes[made],
            when.begin[graph.producer[made]],
            last[made, home],
            made,
            graph.producer[made],
        ),
        (
            schedule.timeline.send_dst,
            graph.nbytes[sent],
            when.send_begin,
            last[sent, schedule.timeline.send_dst],
            sent,
            schedule.maker[sent],
        ),
        (where, graph.nbytes[kept], _same(kept, BEFORE), _same(kept, FOREVER), kept, maker),
        (
            schedule.device[works],
            graph.workspace_bytes[works],
            when.begin[works],
            when.finish[works],
            _same(works, -1),
            works,
        ),
    )
    device, nbytes, begin, finish, tensor, kernel = (np.concatenate([part[i] for part in parts]) for i in range(6))
    received = np.zeros(len(device), bool)
    received[len(made) : len(made) + len(sent)] = True
    some = nbytes > 0
    return Lives(
        device=ints(device[some]),
        nbytes=ints(nbytes[some]),
        begin=ints(begin[some]),
        finish=ints(finish[some]),
        tensor=ints(tensor[some]),
        kernel=ints(kernel[some]),
        received=received[some],
    )


def _same(like: Ints, value: int) -> Ints:
    return np.full(len(like), value, np.int64)


def _first_reader(schedule: Schedule) -> Ints:
    """[tensors] -1 where nobody reads it."""
    start, readers = schedule.problem.graph.readers
    read = np.flatnonzero(np.diff(start) > 0)
    first = np.full(len(start) - 1, -1, np.int64)
    first[read] = readers[start[read]]
    return first
