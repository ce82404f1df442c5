"""Chaining: a coarser problem in which small ops in a row are one, so that search moves faster on it.

Real steps are full of small ops in chains that no good plan takes apart. `chain_small_ops` joins an op with its only
reader or only maker while both stay a small part of an equal share of the work (`SMALL`); nothing is fused: the group
runs its ops one after another, launches and all. What the coarser step takes is about, not exactly, what the plan takes
above, so whoever uses it judges the plan again there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes.coarse import Coarse, coarsen
from loadmaster.passes.groups import join_in_a_row
from loadmaster.problem import CANNOT, Problem

SMALL = 5e-4  # of an equal share of all work: the most that ops which are joined may take together
PAYS = 0.75  # of the ops, and fewer, must be left


def chain_small_ops(problem: Problem, small: float = SMALL) -> Coarse | None:
    """The coarser problem; None where too few ops can be joined for it to pay. It runs the ops of a group one after
    another: its step is about that of the plan it stands for, which fuses nothing."""
    label = groups_in_a_row(problem, small)
    if len(np.unique(label)) > PAYS * problem.num_ops:
        return None
    return in_a_row(problem, label)


def in_a_row(problem: Problem, label: Ints) -> Coarse:
    """The problem in which ops of one label (the lowest of them) are one, which runs them one after another."""
    fused = coarsen(problem, label)
    return replace(fused, problem=replace(fused.problem, op_ns=together_ns(problem, fused)), fused=False)


def groups_in_a_row(problem: Problem, small: float = SMALL) -> Ints:
    """[ops] the lowest op of each one's group. An op joins the only reader it has, or the only op it reads, while both
    together stay small. No way leads out of such a group and back in."""
    graph = problem.graph
    made = graph.is_made[graph.reads]
    before = np.concatenate([graph.producer[graph.reads][made], graph.after])
    later = np.concatenate([rows_of(graph.read_start)[made], rows_of(graph.after_start)])
    _, able = np.unique(problem.able, axis=0, return_inverse=True)
    most_ns = small * problem.best_ns.sum() / problem.num_devices
    label = join_in_a_row(ints(before), ints(later), problem.best_ns, graph.colocate, ints(able.reshape(-1)), most_ns)
    lowest = np.full(problem.num_ops, problem.num_ops, np.int64)
    np.minimum.at(lowest, label, np.arange(problem.num_ops))
    return ints(lowest[label])


def together_ns(problem: Problem, coarse: Coarse) -> Ints:
    """[coarse ops, devices] the times of the members of each, one after another."""
    times = np.zeros((len(coarse.heads), problem.num_devices), np.int64)
    np.add.at(times, coarse.kernel_of, np.where(problem.op_ns == CANNOT, 0, problem.op_ns))
    cannot = np.zeros(times.shape, bool)
    np.logical_or.at(cannot, coarse.kernel_of, problem.op_ns == CANNOT)
    return ints(np.where(cannot, CANNOT, times))
