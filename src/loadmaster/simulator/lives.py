"""Where tensors lie and until when (rules 7 and 8), for whoever looks at a simulated step afterwards; `loop` keeps
count of the same as it goes."""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.problem import Problem


def residents(problem: Problem, device: Ints) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """(tensor, device) of all that is there before the step (rule 7): those that are overwritten in place, on their
    updaters' devices; then the others, on every device that reads them."""
    graph, devices = problem.graph, problem.num_devices
    updated = ints(np.flatnonzero(problem.is_updated))
    fixed = problem.is_fixed[graph.reads]
    spots = np.unique(graph.reads[fixed] * devices + device[rows_of(graph.read_start)[fixed]])
    return (updated, ints(device[problem.updater[updated]])), (ints(spots // devices), ints(spots % devices))


def last_needed(problem: Problem, device: Ints, end: Ints, sends: tuple[Ints, Ints], forever: int) -> Ints:
    """[tensors, devices] when what the step makes or sends is no longer needed there (rule 8); -1: it never is.

    `end`: [ops] when each ends; `sends`: the tensor of each and when it ends; `forever` stands for the end of the step.
    """
    graph, (send_tensor, send_end) = problem.graph, sends
    last = np.full((graph.num_tensors, problem.num_devices), -1, np.int64)
    reader = rows_of(graph.read_start)
    np.maximum.at(last, (graph.reads, device[reader]), end[reader])
    made = np.flatnonzero(graph.is_made)
    home = device[graph.producer[made]]
    np.maximum.at(last, (made, home), np.where(problem.stays[made], forever, end[graph.producer[made]]))
    away = ~problem.resident[send_tensor]
    source = device[graph.producer[send_tensor[away]]]
    np.maximum.at(last, (send_tensor[away], source), send_end[away])
    written = np.flatnonzero(graph.is_in_place)
    # The newest first: each keeps alive what it was written over. A kernel may write one over the other.
    for tensor in written[np.lexsort((-depth_of(graph.alias_of)[written], -graph.producer[written]))].tolist():
        under, place = graph.alias_of[tensor], device[graph.producer[tensor]]
        last[under, place] = max(last[under, place], last[tensor, place])
    return ints(last)


def depth_of(alias_of: Ints) -> Ints:
    """[tensors] how many others each was written over, one after another."""
    depth, under = np.zeros(len(alias_of), np.int64), alias_of
    while (under >= 0).any():
        depth += under >= 0
        under = np.where(under >= 0, alias_of[under], -1)
    return ints(depth)
