"""Compiled: how late ops could start for the step to end when it does, devices and channels kept in their order.

One walk backwards over ops and sends in the order of dispatch. A window is told by it how long the step goes on after
each of its ops because of what is not in it.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints, Whole
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline, layout
from loadmaster.simulator.state import Layout


def latest_starts(problem: Problem, device: np.ndarray, line: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """[ops] the latest start of each, and the op that its device runs next or -1."""
    start = np.concatenate([line.start_ns, line.send_start_ns])
    order = np.argsort(start, kind="stable")[::-1]  # of those that start together, sends first
    channel = problem.cluster.channel[line.send_src, line.send_dst]
    sends = (line.send_tensor, line.send_dst, channel, line.send_end_ns - line.send_start_ns)
    return _latest(layout(problem), device, line.end_ns - line.start_ns, line.step_ns, order, line.turn, *sends)


@compiled
def _latest(
    layout: Layout,
    device: Ints,
    took_ns: Ints,
    step_ns: Whole,
    order: Ints,
    turn: Ints,
    send_tensor: Ints,
    send_dst: Ints,
    send_channel: Ints,
    send_ns: Ints,
) -> tuple[Ints, Ints]:
    op: Whole
    ops, reader_start, readers, nexts = len(device), layout.reader_start, layout.readers, layout.nexts
    latest, needed = np.full(ops, step_ns, np.int64), np.full(len(layout.nbytes), step_ns, np.int64)
    of_device, of_channel = np.full(layout.devices, step_ns), np.full(layout.channels + 1, step_ns)
    for at in order:
        if at >= ops:
            send = at - ops
            tensor, where = send_tensor[send], send_dst[send]
            end = of_channel[send_channel[send]] if layout.contention else np.int64(step_ns)
            for index in range(reader_start[tensor], reader_start[tensor + 1]):
                if device[readers[index]] == where:
                    end = min(end, latest[readers[index]])
            of_channel[send_channel[send]] = end - send_ns[send]
            needed[tensor] = min(needed[tensor], end - send_ns[send])
            continue
        end = of_device[device[at]]
        for make in range(layout.make_start[at], layout.make_start[at + 1]):
            end = min(end, needed[layout.makes[make]])  # where it is sent; readers here come later on the device anyway
        for index in range(layout.next_start[at], layout.next_start[at + 1]):
            end = min(end, latest[nexts[index]])
        latest[at] = end - took_ns[at]
        of_device[device[at]] = latest[at]
    follower, last, turns = np.full(ops, -1), np.full(layout.devices, -1), np.empty(ops, np.int64)
    for op in range(ops):
        turns[turn[op]] = op
    for op in turns:
        if last[device[op]] >= 0:
            follower[last[device[op]]] = op
        last[device[op]] = op
    return latest, follower
