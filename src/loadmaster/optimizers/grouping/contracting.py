"""Contracting: a smaller problem in which small ops that belong together are one, so that search moves faster on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.columns import Ints, ints, rows_of
from loadmaster.optimizers.grouping.joining import contract
from loadmaster.optimizers.simple import allowed
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.simulator import Lift, coarse

SMALL = 5e-4  # of an equal share of all work: the most that ops which are joined may take together
PAYS = 0.75  # of the ops, and fewer, must be left


@dataclass(frozen=True, eq=False)
class Contracted:
    """The smaller problem, and the way there and back. It runs the ops of a group one after another: its step is about
    that of the plan it stands for."""

    full: Problem
    problem: Problem
    lift: Lift

    @staticmethod
    def of(problem: Problem, small: float = SMALL) -> Contracted | None:
        """None where too few ops can be joined for it to pay."""
        label = groups_in_a_row(problem, small)
        if len(np.unique(label)) > PAYS * problem.num_ops:
            return None
        fused = coarse(problem, label)
        lift = Lift.of(problem, fused, label)
        return Contracted(problem, replace(fused, op_ns=_together_ns(problem, lift)), lift)

    def down(self, plan: Plan) -> Plan:
        return Plan.of(self.problem, self.lift.down(plan.device), self.lift.lowest(plan.rank))

    def up(self, plan: Plan) -> Plan:
        return Plan.of(self.full, self.lift.up(plan.device), self.lift.up(plan.rank))


def groups_in_a_row(problem: Problem, small: float = SMALL) -> Ints:
    """[ops] the lowest op of each one's group. An op joins the only reader it has, or the only op it reads, while both
    together stay small. No way leads out of such a group and back in."""
    graph = problem.graph
    made = graph.producer[graph.reads] >= 0
    before = np.concatenate([graph.producer[graph.reads][made], graph.after])
    later = np.concatenate([rows_of(graph.read_start)[made], rows_of(graph.after_start)])
    _, able = np.unique(allowed(problem), axis=0, return_inverse=True)
    most_ns = small * problem.best_ns.sum() / problem.num_devices
    label = contract(ints(before), ints(later), problem.best_ns, graph.colocate, ints(able.reshape(-1)), most_ns)
    lowest = np.full(problem.num_ops, problem.num_ops, np.int64)
    np.minimum.at(lowest, label, np.arange(problem.num_ops))
    return ints(lowest[label])


def _together_ns(problem: Problem, lift: Lift) -> Ints:
    """[coarse ops, devices] the times of the members of each, one after another."""
    times = np.zeros((len(lift.heads), problem.num_devices), np.int64)
    np.add.at(times, lift.kernel_of, np.where(problem.op_ns == CANNOT, 0, problem.op_ns))
    cannot = np.zeros(times.shape, bool)
    np.logical_or.at(cannot, lift.kernel_of, problem.op_ns == CANNOT)
    return ints(np.where(cannot, CANNOT, times))
