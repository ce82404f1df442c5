"""What rehearsals of pipelines need of a step: times and bytes of every slot of a line, added up from the left.

With sums over all slots before each, what a stage takes or holds is a difference of two numbers, so that a cut is
rehearsed without looking at ops.
"""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.pipelines.rehearsal import Slots
from loadmaster.pipelines.stages import BACKWARD, FORWARD, UPDATE, settle_stages, weight_ops
from loadmaster.problem import CANNOT, Problem

NEVER_NS = 2**44  # of an op that a device cannot run: five hours, and sums of them stay whole


def slots_of(problem: Problem, slot: Ints, phase: Ints) -> Slots:
    """Of one microbatch, with ops in the slots given."""
    size = int(slot.max()) + 1
    slot = settle_stages(problem, slot, phase)
    apart = weight_ops(problem, slot, phase)
    times = np.where(problem.op_ns == CANNOT, NEVER_NS, problem.op_ns)

    def added(rows: Bools) -> Ints:
        return _summed(np.where(rows[:, None], times, 0), slot, size)

    gradients = _gradients(problem, slot, size)
    adding = np.array([-(-3 * gradients * 10**9 // rate) for rate in problem.bytes_per_s.tolist()]).T
    adding = np.concatenate([np.zeros((1, problem.num_devices), np.int64), np.cumsum(adding, axis=0)])
    return Slots(
        added(phase == FORWARD),
        added((phase == BACKWARD) & ~apart),
        ints(added(apart) + adding),
        added(phase == UPDATE),
        _summed_bytes(_resident(problem, slot, size) + gradients),
        _summed_bytes(_saved(problem, slot, phase, size)),
        _crossing(problem, slot, phase, FORWARD, size),
        _crossing(problem, slot, phase, BACKWARD, size),
        problem.memory_bytes,
    )


def _summed(column: Ints, slot: Ints, size: int) -> Ints:
    total = np.zeros((size + 1, *column.shape[1:]), np.int64)
    np.add.at(total, slot + 1, column)
    return ints(np.cumsum(total, axis=0))


def _summed_bytes(per_slot: Ints) -> Ints:
    return ints(np.concatenate([[0], np.cumsum(per_slot)]))


def _gradients(problem: Problem, slot: Ints, size: int) -> Ints:
    """[slots] bytes of the sums of gradients: what an optimizer's op reads that is made in the step."""
    graph = problem.graph
    reader = rows_of(graph.read_start)
    update = np.array([kind.startswith("optim.") for kind in graph.kind])
    read = np.flatnonzero(update[reader] & graph.is_made[graph.reads])
    total = np.zeros(size, np.int64)
    np.add.at(total, slot[reader[read]], graph.nbytes[graph.reads[read]])
    return ints(total)


def _resident(problem: Problem, slot: Ints, size: int) -> Ints:
    """[slots] bytes of weights and states, where they are updated or else first read; inputs come and go."""
    graph = problem.graph
    first = np.full(graph.num_tensors, size - 1)
    np.minimum.at(first, graph.reads, slot[rows_of(graph.read_start)])
    there = np.flatnonzero(problem.resident)
    where = np.where(problem.is_updated[there], slot[problem.updater[there]], first[there])
    total = np.zeros(size, np.int64)
    np.add.at(total, where, graph.nbytes[there])
    return ints(total)


def _saved(problem: Problem, slot: Ints, phase: Ints, size: int) -> Ints:
    """[slots] bytes that forward ops make and backward ops read."""
    graph = problem.graph
    reader = rows_of(graph.read_start)
    later = np.zeros(graph.num_tensors, bool)
    later[graph.reads[phase[reader] == BACKWARD]] = True
    made = graph.producer
    kept = np.flatnonzero(later & graph.is_fresh & (phase[made] == FORWARD))
    total = np.zeros(size, np.int64)
    np.add.at(total, slot[made[kept]], graph.nbytes[kept])
    return ints(total)


def _crossing(problem: Problem, slot: Ints, phase: Ints, which: int, size: int) -> Ints:
    """[slots + 1] ns of sending what ops of a phase make on one side of an edge and read on the other."""
    graph = problem.graph
    made = graph.producer
    own = graph.is_fresh & (phase[made] == which)
    low, high = np.full(graph.num_tensors, size), np.full(graph.num_tensors, -1)
    low[own] = high[own] = slot[made[own]]
    reader = rows_of(graph.read_start)
    within = (phase[reader] == which) & own[graph.reads]
    np.minimum.at(low, graph.reads[within], slot[reader[within]])
    np.maximum.at(high, graph.reads[within], slot[reader[within]])
    change = np.zeros(size + 2, np.int64)
    ns = problem.send_ns.max(axis=1, initial=0)
    np.add.at(change, low[own] + 1, ns[own])
    np.add.at(change, high[own] + 1, -ns[own])
    return ints(np.cumsum(change)[: size + 1])
