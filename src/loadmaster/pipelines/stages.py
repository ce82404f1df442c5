"""Stages: a training step as a line of stages, each with a forward pass, a backward pass and an update.

What a stage does in one pass becomes one op, an *action*: its time is that of its ops one after another, its workspace
the most that its own tensors take at once, and what it makes for other actions is sent at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.graph import OUTPUT
from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.passes.chaining import together_ns
from loadmaster.passes.coarse import Coarse, coarsen
from loadmaster.passes.fusing import inner_tensors
from loadmaster.problem import Problem

FORWARD, BACKWARD, WEIGHT, UPDATE, REDUCE = range(5)
# Of phases. W: the gradients of weights, where they are apart from the rest of the backward pass; R: they are added up
# over the replicas of a stage.
LETTERS = "FBWUR"


@dataclass(frozen=True, eq=False)
class Staged:
    """One microbatch as actions. `coarse.problem` has one op for each, with times on every device.

    Attributes:
        coarse: the way from ops to actions and back.
        stage: [actions] from 0, the first that the inputs come to.
        phase: [actions] FORWARD, BACKWARD, WEIGHT, UPDATE or REDUCE.
        num_stages: of the line; a device may have several.
    """

    coarse: Coarse
    stage: Ints  # [actions]
    phase: Ints  # [actions]
    num_stages: int

    @property
    def problem(self) -> Problem:
        return self.coarse.problem


def phases_of(problem: Problem) -> Ints:
    """[ops] FORWARD: what the outputs need; UPDATE: the optimizer's; BACKWARD: the rest."""
    graph = problem.graph
    update = np.array([kind.startswith("optim.") for kind in graph.kind])
    if not update.any():
        return ints(np.full(problem.num_ops, FORWARD))
    needed = np.zeros(problem.num_ops, bool)
    outputs = (graph.role == OUTPUT) & graph.is_made
    needed[graph.producer[outputs]] = True
    start, before = graph.dependencies
    for op in range(problem.num_ops - 1, -1, -1):
        if needed[op]:
            needed[before[start[op] : start[op + 1]]] = True
    return ints(np.where(update, UPDATE, np.where(needed, FORWARD, BACKWARD)))


def settle_stages(problem: Problem, wanted: Ints, phase: Ints) -> Ints:
    """[ops] stages near those wanted, such that forward passes go up the line and backward passes down it."""
    start, before = problem.graph.dependencies
    stage = wanted.copy()
    for op in range(problem.num_ops):
        waits = before[start[op] : start[op + 1]]
        same = stage[waits[phase[waits] == phase[op]]]
        if phase[op] == UPDATE:
            stage[op] = _update_stage(problem, stage, phase, op)
        elif len(same):
            stage[op] = max(stage[op], same.max()) if phase[op] == FORWARD else min(stage[op], same.min())
    return ints(stage)


def _update_stage(problem: Problem, stage: Ints, phase: Ints, op: int) -> int:
    """That of the gradient."""
    makers = problem.graph.producer[problem.graph.reads_of(op)]
    makers = makers[makers >= 0]
    return int(stage[makers[phase[makers] != UPDATE][0]]) if (phase[makers] != UPDATE).any() else int(stage[op])


def weight_ops(problem: Problem, stage: Ints, phase: Ints) -> Bools:
    """[ops] backward ops that no other stage waits for, before the update: gradients of the stage's own weights."""
    graph = problem.graph
    start, before = graph.dependencies
    own: Bools = phase == BACKWARD
    for op in range(problem.num_ops - 1, -1, -1):
        if phase[op] == UPDATE:
            continue
        waits = before[start[op] : start[op + 1]]
        if not own[op]:
            own[waits] = False
        else:
            own[waits[stage[waits] != stage[op]]] = False
    return own


def in_stages(problem: Problem, stage: Ints, phase: Ints, *, split_backward: bool) -> Staged:
    """The problem of one microbatch with an op for each stage and phase."""
    phase = phase.copy()
    if split_backward:
        phase[weight_ops(problem, stage, phase)] = WEIGHT
    count = int(stage.max()) + 1
    label = phase * count + stage
    lowest = np.full(len(LETTERS) * count, problem.num_ops)
    np.minimum.at(lowest, label, np.arange(problem.num_ops))
    kernel = ints(lowest[label])
    try:
        coarse = coarsen(problem, kernel)
    except InvalidPlan as error:
        what = "the stages wait for each other in a circle"
        raise InvalidSetting(
            what, error.where, "capture the step with an optimizer, or plan without microbatches"
        ) from error
    graph = replace(coarse.problem.graph, workspace_bytes=_workspace(problem, kernel, coarse))
    timed = replace(coarse.problem, graph=graph, op_ns=together_ns(problem, coarse))
    heads = coarse.heads
    return Staged(replace(coarse, problem=timed), ints(stage[heads]), ints(phase[heads]), count)


def _workspace(problem: Problem, kernel: Ints, coarse: Coarse) -> Ints:
    """[actions] the most bytes that tensors of its own and workspaces take at once, in program order."""
    graph = problem.graph
    inner = inner_tensors(problem, coarse.kernel_of)
    last = np.zeros(graph.num_tensors, np.int64)  # of what is inside: all of that is read
    np.maximum.at(last, graph.reads, rows_of(graph.read_start))
    made, gone = np.zeros(problem.num_ops, np.int64), np.zeros(problem.num_ops, np.int64)
    own = np.flatnonzero(inner)
    np.add.at(made, graph.producer[own], graph.nbytes[own])
    np.add.at(gone, last[own], graph.nbytes[own])
    most, held = np.zeros(len(coarse.heads), np.int64), np.zeros(len(coarse.heads), np.int64)
    for op, action in enumerate(coarse.kernel_of.tolist()):
        held[action] += made[op]
        most[action] = max(most[action], held[action] + graph.workspace_bytes[op])
        held[action] -= gone[op]
    return ints(most)
