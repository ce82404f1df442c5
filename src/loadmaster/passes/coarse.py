"""Coarse: a coarser problem, the way there and the way back.

All passes that join ops end in one: kernels (`coarsen`), chains, blocks, groups. A method plans the coarser problem and
brings its plan `up`; a plan of the whole goes `down` to be improved there. Where a group is a kernel (`fused`) both
ways cost the same by the rules of the simulator; where it is only a group whose ops run in a row, the coarser one is a
model, and a plan must be judged again above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.passes.fusing import fuse, inner_tensors
from loadmaster.plans import Plan, without_additions
from loadmaster.plans.additions import same_additions
from loadmaster.problem import Problem
from loadmaster.problem.problem import LastFew


@dataclass(frozen=True, eq=False)
class Coarse:
    """A problem in which groups of another one's ops are single ops. Plans go down to it and back up.

    Attributes:
        problem: the coarser one.
        kernel_of: [ops] coarse op of each op.
        heads: [coarse ops] lowest member.
        tensors: [coarse tensors] the tensor it is; those inside a kernel are in none.
        num_tensors: of the finer problem.
        fused: the ops of a group are one kernel; else each runs by itself, in a row.
    """

    problem: Problem
    kernel_of: Ints  # [ops]
    heads: Ints  # [coarse ops]
    tensors: Ints  # [coarse tensors]
    num_tensors: int
    fused: bool = True

    def down(self, plan: Plan) -> Plan:
        """The plan for the coarser problem: a group is where its lowest op is, and as urgent as its most urgent one."""
        sends = None if plan.send_rank is None else ints(plan.send_rank[self.tensors])
        return replace(Plan.of(self.problem, self.first(plan.device), self.lowest(plan.rank)), send_rank=sends)

    def up(self, plan: Plan) -> Plan:
        """The plan of the coarser problem as one of the whole. A group may hold kernels that were fused further. What
        the plan adds to the coarser graph is left out: a group does not run again."""
        if not same_additions(self.problem.added, plan.added):
            plan = without_additions(self.problem, plan)
        kernel = self._kernels(plan) if self.fused else np.arange(len(self.kernel_of))
        sends = None
        if plan.send_rank is not None:
            sends = np.full((self.num_tensors, plan.send_rank.shape[1]), -1, np.int64)
            sends[self.tensors] = plan.send_rank
        device, rank = self.each(plan.device), self.each(plan.rank)
        return replace(
            plan, kernel=ints(kernel), device=device, rank=rank, send_rank=None if sends is None else ints(sends)
        )

    def _kernels(self, plan: Plan) -> Ints:
        """[ops] the lowest op of each kernel: groups stand in topological order, not in that of their lowest ops."""
        group = plan.kernel[self.kernel_of]
        low = np.full(len(self.heads), np.iinfo(np.int64).max)
        np.minimum.at(low, group, np.arange(len(group)))
        return ints(low[group])

    def first(self, column: Ints) -> Ints:
        """[coarse ops] that of the lowest member."""
        return ints(column[self.heads])

    def lowest(self, column: Ints) -> Ints:
        """[coarse ops] the lowest of the members'."""
        low = np.full(len(self.heads), np.iinfo(np.int64).max)
        np.minimum.at(low, self.kernel_of, column)
        return ints(low)

    def each(self, column: Ints) -> Ints:
        """[ops] that of the group."""
        return ints(column[self.kernel_of])


_REMEMBERED: LastFew[Coarse] = LastFew("coarser", 8)  # searches come back to the last few kernels


def coarsen(problem: Problem, kernel: Ints) -> Coarse:
    """The problem with each kernel one op, and the way back; remembered for the last few kernels asked for."""
    own = np.arange(problem.num_ops)
    if np.array_equal(kernel, own):
        every, tensors = ints(own), ints(np.arange(problem.graph.num_tensors))
        return Coarse(problem, every, every, tensors, len(tensors))
    return _REMEMBERED.of(problem, kernel.tobytes(), lambda: _coarsened(problem, kernel))


def _coarsened(problem: Problem, kernel: Ints) -> Coarse:
    small = fuse(problem, kernel)
    index = np.empty(problem.num_ops, np.int64)
    index[small.heads] = np.arange(small.num_ops)
    kept = np.flatnonzero(~inner_tensors(problem, kernel))
    return Coarse(small, ints(index[kernel]), small.heads, ints(kept), problem.graph.num_tensors)
