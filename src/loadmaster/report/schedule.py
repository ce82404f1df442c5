"""Schedule: a plan as it ran, kernel by kernel; what every other part of a report reads.

A fused plan is looked at as its coarser problem, in which a kernel is an op, with the ways back to ops and tensors. Who
ran before whom, and which send a read waited for, is worked out once and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline


@dataclass(frozen=True, eq=False)
class Schedule:
    """One step. An op that is fused with none is a kernel of its own.

    Attributes:
        whole: as planned, op by op.
        timeline: of `plan` on `whole`.
        problem: its ops are the kernels of the plan.
        kernel_of: [ops of whole] its kernel.
        heads: [kernels] lowest op of each.
        tensors: [tensors] index in `whole` of each tensor that is left.
        device, start_ns, end_ns: [kernels]
        turn: [kernels] order of dispatch.
        send_tensor: [sends] in order of dispatch.
    """

    whole: Problem
    plan: Plan
    timeline: Timeline
    problem: Problem
    kernel_of: Ints  # [ops of whole]
    heads: Ints  # [kernels]
    tensors: Ints  # [tensors]
    device: Ints  # [kernels]
    start_ns: Ints  # [kernels]
    end_ns: Ints  # [kernels]
    turn: Ints  # [kernels]
    send_tensor: Ints  # [sends]

    @staticmethod
    def of(problem: Problem, plan: Plan, timeline: Timeline) -> Schedule:
        """Of a plan and its timeline; a plan that fuses is looked at as its coarser problem."""
        problem = whole(problem, plan)
        coarse = coarsen(problem, plan.kernel)
        columns = (plan.device, timeline.start_ns, timeline.end_ns, timeline.turn)
        device, start_ns, end_ns, turn = (coarse.first(column) for column in columns)
        sent = ints(np.searchsorted(coarse.tensors, timeline.send_tensor))
        return Schedule(
            problem,
            plan,
            timeline,
            coarse.problem,
            coarse.kernel_of,
            coarse.heads,
            coarse.tensors,
            device,
            start_ns,
            end_ns,
            turn,
            sent,
        )

    @property
    def step_ns(self) -> int:
        return self.timeline.step_ns

    @property
    def num_kernels(self) -> int:
        return self.problem.num_ops

    @property
    def num_devices(self) -> int:
        return self.problem.num_devices

    @cached_property
    def send_channel(self) -> Ints:
        """[sends]"""
        line = self.timeline
        return ints(self.problem.cluster.channel[line.send_src, line.send_dst])

    @cached_property
    def members(self) -> Ints:
        """[kernels] how many ops each has."""
        return ints(np.bincount(self.kernel_of, minlength=self.num_kernels))

    @cached_property
    def maker(self) -> Ints:
        """[tensors] kernel that makes it, or overwrites it when it is there before the step; -1 for the rest."""
        problem = self.problem
        return ints(np.where(problem.resident, problem.updater, problem.graph.producer))

    @cached_property
    def made_ns(self) -> Ints:
        """[tensors] when it can first be sent."""
        producer = self.problem.graph.producer
        return ints(np.where(producer >= 0, self.end_ns[np.maximum(producer, 0)], 0))

    @cached_property
    def previous(self) -> Ints:
        """[kernels] the one that ran before it on its device, or -1."""
        return _previous(self.device, self.turn)

    @cached_property
    def previous_send(self) -> Ints:
        """[sends] the one before it on its channel, or -1."""
        return _previous(self.send_channel, np.arange(len(self.send_tensor)))

    @cached_property
    def send_of(self) -> Ints:
        """[tensors * devices] the send that brings the tensor to the device, or -1."""
        table = np.full(self.problem.graph.num_tensors * self.num_devices, -1, np.int64)
        table[self.send_tensor * self.num_devices + self.timeline.send_dst] = np.arange(len(self.send_tensor))
        return ints(table)

    @cached_property
    def read_send(self) -> Ints:
        """[reads] the send that the read waits for, or -1: the tensor is made or kept on the device."""
        graph = self.problem.graph
        reader = self.device[rows_of(graph.read_start)]
        return ints(self.send_of[graph.reads * self.num_devices + reader])

    def label(self, kernel: int) -> str:
        """The name of a kernel: that of its first op, and how many more it has."""
        more = int(self.members[kernel]) - 1
        return self.problem.graph.op_name[kernel] + (f" (+{more} fused)" if more else "")

    def tensor_label(self, tensor: int) -> str:
        """The name of a tensor; one without a name of its own is called after the op that makes it."""
        graph = self.problem.graph
        name = graph.tensor_name[tensor]
        made_by = int(graph.producer[tensor])
        return f"output of {graph.op_name[made_by]}" if name.isdigit() and made_by >= 0 else name


def _previous(resource: Ints, order: Ints) -> Ints:
    """For each row the one of next lower order with the same resource, or -1."""
    by = np.lexsort((order, resource))
    previous = np.full(len(resource), -1, np.int64)
    same = resource[by][1:] == resource[by][:-1]
    previous[by[1:][same]] = by[:-1][same]
    return ints(previous)
