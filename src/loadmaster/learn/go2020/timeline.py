"""What GO sees of the timeline of a plan that was simulated: when groups run, what they wait for, who is idle then.

Means by time over the ops of each group, times as shares of the step. So a pass sees what its last decisions led to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.go2020 import slack
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline

Floats = NDArray[np.float32]
SEEN_WIDTH = 8  # of a group; the last column is 1 where a timeline was seen
SEEN_PAIRS = 5  # of a group and a device


@dataclass(frozen=True, eq=False)
class Seen:
    """A timeline in numbers."""

    groups: Floats  # [groups, SEEN_WIDTH]
    pairs: Floats  # [groups, devices, SEEN_PAIRS]


def seen_of(problem: Problem, label: Ints, device: Ints, line: Timeline) -> Seen:
    """Means by time over the ops of each group. Times are shares of the step."""
    step = float(max(1, line.step_ns))
    made_ns, there_ns, late_ns = _arrivals(problem, device, line)
    start, end, slack = line.start_ns / step, line.end_ns / step, (late_ns - line.end_ns) / step
    sending, queueing = _small((there_ns - made_ns) / step), _small((line.start_ns - there_ns) / step)
    columns = [start, end, np.minimum(1.0, 4 * slack), slack < 0.005, sending, queueing]
    own = np.stack([*columns, _small(_idle_before(device, line) / step)], axis=1)
    pairs = np.stack([_pair(problem, device, line, d, made_ns, late_ns) for d in range(problem.num_devices)], axis=1)
    groups = _means(problem, label, own)
    known = np.ones((len(groups), 1))
    wide = _means(problem, label, pairs.reshape(problem.num_ops, -1)).reshape(len(groups), problem.num_devices, -1)
    return Seen(np.concatenate([groups, known], 1).astype(np.float32), wide.astype(np.float32))


def _arrivals(problem: Problem, device: Ints, line: Timeline) -> tuple[Ints, Ints, Ints]:
    graph = problem.graph
    columns = (graph.read_start, graph.reads, graph.producer, graph.after_start, graph.after)
    order = np.lexsort((np.arange(problem.num_ops), line.turn))
    made, there, late = slack.arrivals(
        *columns, ints(device), line.start_ns, line.end_ns, problem.send_ns, problem.send_class, order
    )
    return made, np.minimum(there, line.start_ns), np.maximum(late, line.end_ns)


def _small(column: NDArray[np.floating]) -> NDArray[np.float64]:
    """Waits are short against the step: the root spreads them."""
    return np.asarray(np.sqrt(np.maximum(0.0, column)))


def _idle_before(device: Ints, line: Timeline) -> NDArray[np.float64]:
    """[ops] how long its device had nothing to do before it."""
    idle = np.zeros(len(device))
    for d in np.unique(device):
        ops = np.flatnonzero(device == d)
        ops = ops[np.argsort(line.start_ns[ops], kind="stable")]
        idle[ops] = np.maximum(0, line.start_ns[ops] - np.concatenate([[0], line.end_ns[ops][:-1]]))
    return idle


def _pair(problem: Problem, device: Ints, line: Timeline, d: int, made_ns: Ints, late_ns: Ints) -> NDArray[np.float64]:
    """[ops, SEEN_PAIRS] how busy a device is from when the op could have started to when it must end; in all; and
    before; and how its free time then compares to what the op would take there."""
    ops = np.flatnonzero(device == d)
    ops = ops[np.argsort(line.start_ns[ops], kind="stable")]
    edges = np.stack([line.start_ns[ops], line.end_ns[ops]], 1).reshape(-1).astype(float)
    busy = np.repeat(np.cumsum(line.end_ns[ops] - line.start_ns[ops]), 2).astype(float)
    busy[::2] -= line.end_ns[ops] - line.start_ns[ops]
    if not len(ops):
        edges, busy = np.array([0.0]), np.array([0.0])

    def until(ns: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.asarray(np.interp(ns.astype(float), edges, busy))

    step = float(max(1, line.step_ns))
    took = np.maximum(1.0, problem.op_ns[:, d])
    before = until(line.start_ns)
    soon, window = until(line.start_ns + took) - before, until(late_ns) - until(made_ns)
    free = np.maximum(0.0, late_ns - made_ns - window)
    total = np.full(len(device), busy[-1] / step)
    span = np.maximum(1.0, late_ns - made_ns)
    columns = [soon / took, window / span, np.log2(0.1 + free / took) / 4, before / step, total]
    return np.asarray(np.minimum(np.stack(columns, axis=1), 2))


def _means(problem: Problem, label: Ints, columns: NDArray[np.float64]) -> NDArray[np.float64]:
    count = int(label.max()) + 1
    time = problem.best_ns + 1.0
    share = csr_array((time, (label, np.arange(len(label)))), shape=(count, len(label)))
    return np.asarray(share @ columns.astype(np.float64) / np.bincount(label, time, count)[:, None])
