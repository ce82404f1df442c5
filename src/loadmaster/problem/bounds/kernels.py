"""What fusing can take off a problem at most: time of each op, and tensors that are never stored.

Rule 12 of the simulator, read as a bound. An op in a kernel adds at least its arithmetic, or the traffic that no kernel
spares it; launches may all be saved but one. With a `Sharing`, which says which ops a method would ever fuse, more
tensors are known to be stored and the bound is higher; it then holds for plans that keep to it (`Sharing.allows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import Bools, Ints, digest, ints, rows_of
from loadmaster.problem import CANNOT, Problem


@dataclass(frozen=True, eq=False)
class Sharing:
    """Which ops may share a kernel: those between which pairs lead from one to the other, and of every tensor that is
    made and read in a kernel, maker and reader are a pair.

    Methods that fuse by rules set `Search.fusing` to one; `solve` looks whether the plan that came out keeps to it.

    Attributes:
        producers, consumers: [pairs] an op and one that reads what it makes.
        most: ops of a kernel.
        alone: [ops] that share no kernel, also not where a plan adds copies of them; None: not known.
        copied: plans may add copies of ops: of one tensor some readers may be in a kernel with its maker.
    """

    producers: Ints  # [pairs]
    consumers: Ints
    most: int
    alone: Bools | None = None  # [ops]
    copied: bool = False

    def copying(self, graph: Graph) -> Sharing | AnyKernels:
        """What plans that add copies of ops may share: a pair of every two ops of which one reads what the other makes
        and neither is alone, as a copy may be read by fewer. Any kernels, where it is not known what is alone."""
        if self.alone is None:
            return AnyKernels(copied=True)
        maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
        light = (maker >= 0) & ~self.alone[maker] & ~self.alone[reader]
        return Sharing(ints(maker[light]), ints(reader[light]), self.most, self.alone, True)

    @cached_property
    def digest(self) -> str:
        """Equal where what may be shared is."""
        alone = ints([]) if self.alone is None else ints(self.alone)
        limits = ints([self.most, self.alone is None, self.copied])
        return digest("sharing/1", self.producers, self.consumers, limits, alone)

    def allows(self, graph: Graph, kernel: Ints) -> bool:
        """Whether kernels (of a plan) keep to that."""
        size = np.bincount(kernel, minlength=len(kernel))
        lead = self._groups(len(kernel), kernel[self.producers] == kernel[self.consumers])
        maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
        within = (maker >= 0) & (kernel[maker] == kernel[reader])
        paired = self.paired(graph)[within].all()
        return bool(size.max(initial=0) <= self.most and (lead == lead[kernel]).all() and paired)

    def paired(self, graph: Graph) -> Bools:
        """[reads] it may be read in the kernel that makes it."""
        maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
        known = self.producers * graph.num_ops + self.consumers
        found: Bools = np.isin(maker * graph.num_ops + reader, known)
        return found

    def allows_copies(self, graph: Graph, kernel: Ints, op: Ints) -> bool:
        """The same of a plan that adds copies; `op`: that of the graph which each runs, -1 for none."""
        known, size = self.copying(graph), np.bincount(kernel, minlength=len(kernel))
        if isinstance(known, AnyKernels) or known.alone is None or size.max(initial=0) > self.most:
            return False
        shared, group = size[kernel] > 1, known.groups(graph.num_ops)
        alone = (op < 0) | known.alone[op]
        return not (shared & alone).any() and bool((group[op] == group[op[kernel]])[shared].all())

    def groups(self, ops: int) -> Ints:
        """[ops] numbered: kernels lie within them."""
        return self._groups(ops, np.ones(len(self.producers), bool))

    def _groups(self, ops: int, some: Bools) -> Ints:
        ends = (self.producers[some], self.consumers[some])
        joined = coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(ops, ops))
        return ints(connected_components(joined, directed=False)[1])


@dataclass(frozen=True)
class AnyKernels:
    """Any ops may share a kernel. True means the same where no ops are added.

    Attributes:
        copied: plans may add copies of ops.
    """

    copied: bool = False


Fusing = bool | Sharing | AnyKernels  # whether plans may fuse, by any kernels or by those that are allowed


@dataclass(frozen=True, eq=False)
class Saving:
    """What kernels may save in a problem: any that there can be (`sharing` is None), or those that are allowed.

    Columns are worked out when a bound first asks for them, and hold for every plan of that kind.
    """

    problem: Problem
    sharing: Sharing | None
    copied: bool = False  # plans may add copies of ops

    @cached_property
    def never_inner(self) -> Bools:
        """[tensors] no fusion hides it: kept to the end, read by nobody, written over in place (rule 12), or read by an
        op that shares no kernel with its maker."""
        graph = self.problem.graph
        never: Bools = graph.role != ACTIVATION
        unread = np.ones(graph.num_tensors, bool)
        unread[graph.reads] = False
        never |= unread | graph.is_base
        if self.sharing is not None:
            never[graph.reads[~self._paired]] = True
        return never

    @cached_property
    def _paired(self) -> Bools:
        """[reads] it may be read in the kernel that makes it."""
        graph = self.problem.graph
        return np.ones(len(graph.reads), bool) if self.sharing is None else self.sharing.paired(graph)

    @property
    def read_stored(self) -> Bools:
        """[reads] what is read there lies in memory, whatever the kernel."""
        graph = self.problem.graph
        if not self.copied:
            return self.never_inner[graph.owner[graph.reads]]
        # What lives to the end is stored, but a copy of it that is read in its place need not be.
        single: Bools = ~graph.is_made | graph.is_alias | graph.is_base
        return single[graph.reads] | ~self._paired

    @property
    def made_stored(self) -> Bools:
        """[makes] likewise of what is made there. Where ops are copied, one reader that may share the kernel is enough
        to hide it: the others may read a copy."""
        graph = self.problem.graph
        if not self.copied:
            return self.never_inner[graph.owner[graph.makes]]
        stored: Bools = (graph.role != ACTIVATION) | ~self._hidden_copy
        return stored[graph.makes]

    @cached_property
    def _hidden_copy(self) -> Bools:
        """[tensors] where ops are copied, one of those that make it may have it inner to its kernel."""
        graph = self.problem.graph
        hidden = np.zeros(graph.num_tensors, bool)
        hidden[graph.reads[self._paired]] = True
        hidden &= ~(graph.is_alias | graph.is_base)
        return hidden

    @cached_property
    def least_ns(self) -> Ints:
        """[ops, devices] what each op adds to the time of its kernel at least; CANNOT where it cannot run."""
        problem = self.problem
        if self.sharing is None:
            least = self._work(problem.compute_ns, np.zeros(problem.num_ops, np.int64))
            return ints(np.where(problem.op_ns == CANNOT, CANNOT, least))
        group = self.sharing.groups(problem.num_ops)
        size = np.bincount(group)[group]
        # A kernel takes its arithmetic or its traffic, whichever is more: in each group all ops count by one of them.
        either = ints(np.where(self._larger(group), problem.compute_ns, self._traffic_ns))
        least = problem.launches // np.minimum(size, self.sharing.most)[:, None] + self._work(either, group)
        alone = np.where((size == 1)[:, None], problem.op_ns, least)
        return ints(np.where(problem.op_ns == CANNOT, CANNOT, alone))

    @property
    def least_launch_ns(self) -> int:
        """That is in no op's time: however much is fused, at least one kernel is launched."""
        if self.sharing is not None:
            return 0
        return int(self.problem.launches[self.problem.op_ns != CANNOT].min())

    def _work(self, counted_ns: Ints, group: Ints) -> Ints:
        """[ops, devices] what of its arithmetic or traffic an op adds to a kernel of its group beside the launch. Ops
        that were measured to take less than what is counted take up to that off the kernel, and copies ever more."""
        problem = self.problem
        work = counted_ns + problem.fixed_ns
        off = np.zeros((int(group.max(initial=0)) + 1, problem.num_devices), np.int64)
        np.add.at(off, group, np.where(problem.op_ns == CANNOT, 0, np.maximum(-work, 0)))
        left = np.maximum(work - off[group], 0)
        return ints(np.where(self.copied & (off[group] > 0), 0, left))

    @cached_property
    def _traffic_ns(self) -> Ints:
        """[ops, devices] of the bytes that no kernel saves, rounded down."""
        problem, graph = self.problem, self.problem.graph
        saved = np.zeros(problem.num_ops, np.int64)
        np.add.at(saved, rows_of(graph.read_start), np.where(self.read_stored, 0, problem.read_bytes))
        made_stored = self.made_stored
        if self.copied:  # a copy of what lives to the end may be inner; a path may lead through that copy alone
            made_stored = made_stored & ~self._hidden_copy[graph.makes]
        np.add.at(saved, rows_of(graph.make_start), np.where(made_stored, 0, graph.nbytes[graph.makes]))
        left = np.maximum(problem.traffic_bytes - saved, 0).astype(np.float64)
        return ints(np.floor(left[:, None] * (1e9 * (1 - 1e-12)) / problem.bytes_per_s[None, :]))

    def _larger(self, group: Ints) -> Bools:
        """[ops, devices] whether the arithmetic of an op's group takes longer than its traffic."""
        total = np.zeros((2, int(group.max(initial=0)) + 1, self.problem.num_devices), np.int64)
        for part, column in zip(total, (self.problem.compute_ns, self._traffic_ns), strict=True):
            np.add.at(part, group, np.where(self.problem.op_ns == CANNOT, 0, column))
        larger: Bools = (total[0] >= total[1])[group]
        return larger


def least_times(problem: Problem, fusing: Fusing) -> Ints:
    """[ops, devices] the least an op adds to a device's work."""
    return saving_of(problem, fusing).least_ns if fusing else problem.op_ns


def saving_of(problem: Problem, fusing: Fusing) -> Saving:
    """What kernels may save: those of a Sharing, or any."""
    copied = not isinstance(fusing, bool) and fusing.copied
    return Saving(problem, fusing if isinstance(fusing, Sharing) else None, copied)


def copying(problem: Problem, fusing: Fusing) -> Fusing:
    """What plans that add copies may fuse: a tensor that is made again may be inner to a kernel where it was not."""
    if isinstance(fusing, Sharing):
        return fusing.copying(problem.graph)
    return AnyKernels(copied=True) if fusing else False
