"""Static addresses: an offset for every tensor of a settled plan, in one arena per device.

Lives are half-open in rounds (rule 11 of the simulator): what is freed in a round makes way for what starts in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline
from loadmaster.simulator.arenas.arena import DeviceArena, pack_all
from loadmaster.simulator.lives import last_needed, residents

EFFORT = 6_000_000_000  # comparisons of two blocks over all devices: about ten seconds where it is hard


@dataclass(frozen=True, eq=False)
class Arenas:
    """Where every block of memory lies. A block is a tensor on one device, or the workspace of an op.

    Attributes:
        tensor: [blocks] or -1: workspace.
        op: [blocks] whose workspace it is, or -1.
        device, nbytes: [blocks]
        begin: [blocks] first round in which it is there; 0 for residents.
        end: [blocks] first round in which it is not; the number of rounds: alive to the end.
        offset: [blocks] bytes from the start of the device's arena.
        round_ns: [rounds] instant of each round.
        size_bytes: [devices] arena.
        peak_bytes: [devices] most bytes alive at once.
        base: [tensors] what it is written over in place, on the device that does; or -1.
        maker_device: [tensors] or -1: resident.
    """

    tensor: Ints  # [blocks]
    op: Ints  # [blocks]
    device: Ints  # [blocks]
    nbytes: Ints  # [blocks]
    begin: Ints  # [blocks]
    end: Ints  # [blocks]
    offset: Ints  # [blocks]
    round_ns: Ints  # [rounds]
    size_bytes: Ints  # [devices]
    peak_bytes: Ints  # [devices]
    base: Ints  # [tensors]
    maker_device: Ints  # [tensors]

    @property
    def ratio(self) -> float:
        """Arena ÷ peak of the device where it is largest: 1 is perfect."""
        used = self.peak_bytes > 0
        return float((self.size_bytes[used] / self.peak_bytes[used]).max(initial=1.0))

    def block_of(self, tensor: int, device: int) -> int:
        """The block in which the tensor lies on that device, or -1."""
        while self.base[tensor] >= 0 and self.maker_device[tensor] == device:
            tensor = int(self.base[tensor])
        found = np.flatnonzero((self.tensor == tensor) & (self.device == device))
        return int(found[0]) if len(found) else -1


def assign_addresses(
    problem: Problem, plan: Plan, timeline: Timeline, *, effort: int = EFFORT, seed: int = 0
) -> Arenas:
    """Offsets for all that the step keeps in memory: first fit in several orders, and a search where that is far from
    the peak.

    Args:
        problem, plan, timeline: the plan, settled, and what it gives.
        effort: limits the search by comparisons made, not by the clock, so that equal input gives equal addresses.
        seed: of choices by lot.
    """
    coarse = coarsen(problem, plan.kernel)
    step = LaidStep(coarse, plan, timeline)
    tensor, op, device, begin, end = (np.concatenate(parts) for parts in zip(*step.blocks(), strict=True))
    nbytes = np.where(
        tensor >= 0, _take(coarse.problem.graph.nbytes, tensor), _take(coarse.problem.graph.workspace_bytes, op)
    )
    keep = (nbytes > 0) | (tensor >= 0)
    tensor, op, device, begin, end, nbytes = (ints(column[keep]) for column in (tensor, op, device, begin, end, nbytes))
    arenas = [
        DeviceArena(begin, end, nbytes, np.flatnonzero(device == number)) for number in range(problem.num_devices)
    ]
    pack_all(arenas, effort, seed)
    offset = np.zeros(len(tensor), np.int64)
    for arena in arenas:
        offset[arena.blocks] = arena.places()
    size, peak = ([getattr(arena, name) for arena in arenas] for name in ("size_bytes", "peak_bytes"))
    return Arenas(
        tensor=_take(coarse.tensors, tensor),
        op=_take(coarse.heads, op),
        device=device,
        nbytes=nbytes,
        begin=begin,
        end=end,
        offset=ints(offset),
        round_ns=step.round_ns,
        size_bytes=ints(size),
        peak_bytes=ints(peak),
        base=ints(np.where(problem.graph.is_made, problem.graph.alias_of, -1)),
        maker_device=_take(plan.device, problem.graph.producer),
    )


def _take(column: Ints, index: Ints) -> Ints:
    """The entries at those indices; -1 where the index is."""
    return ints(np.append(column, -1)[index])


class LaidStep:
    """The simulated step in rounds, of the problem whose ops are kernels."""

    def __init__(self, coarse: Coarse, plan: Plan, timeline: Timeline) -> None:
        self.problem = coarse.problem
        self.device = coarse.first(plan.device)
        index = np.full(int(coarse.tensors.max(initial=-1)) + 1, -1, np.int64)
        index[coarse.tensors] = np.arange(len(coarse.tensors))
        self.send_tensor, self.send_dst = ints(index[timeline.send_tensor]), timeline.send_dst
        start = np.concatenate([coarse.first(timeline.start_ns), timeline.send_start_ns])
        end = np.concatenate([coarse.first(timeline.end_ns), timeline.send_end_ns])
        begun, ended, asked_ns = self._rounds(timeline, coarse.first(timeline.turn), ints(start), ints(end))
        count, asking_ns = len(start), asked_ns - self.problem.dispatch_ns
        start, end = np.concatenate([start, asking_ns]), np.concatenate([end, asked_ns])
        instants, which = np.unique(np.concatenate([[0], start, end]), return_inverse=True)
        wide = int(ended.max(initial=0)) + 2
        keys = which * wide + np.concatenate([[0], begun, ended])
        known, number = np.unique(keys, return_inverse=True)
        self.round_ns = ints(instants[known // wide])
        self.forever = len(known)
        begin, end = np.split(number[1:], 2)
        self.begin, self.end = ints(begin[:count]), ints(end[:count])  # [ops + sends]

    def _rounds(self, timeline: Timeline, turn: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        from loadmaster.simulator.arenas import packing

        problem, ops = self.problem, self.problem.num_ops
        maker = np.where(problem.resident[self.send_tensor], -1, problem.graph.producer[self.send_tensor])
        channel = problem.cluster.channel[timeline.send_src, timeline.send_dst]
        if not problem.cluster.contention:  # as if each send had a wire of its own
            channel = np.arange(timeline.num_sends)
        wait_start, waits = self.waits()
        steps = packing.Steps(
            self.device,
            start[:ops],
            end[:ops],
            ints(np.argsort(turn, kind="stable")),
            ints(maker),
            ints(channel),
            start[ops:],
            end[ops:],
            wait_start,
            waits,
            problem.dispatch_ns,
        )
        channels = int(channel.max(initial=-1)) + 1
        begun, ended, asked_ns = packing.rounds(steps, problem.num_devices, channels)
        return ints(begun), ints(ended), ints(asked_ns)

    def waits(self) -> tuple[Ints, Ints]:
        """(start, items) what each op waits for: op i as i, send j as ops + j."""
        problem, graph = self.problem, self.problem.graph
        reader = rows_of(graph.read_start)
        item = self._arrivals(graph.reads, self.device[reader])
        rows = np.concatenate([reader[item >= 0], rows_of(graph.after_start)])
        items = np.concatenate([item[item >= 0], graph.after])
        order = np.argsort(rows, kind="stable")
        start = np.zeros(problem.num_ops + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=problem.num_ops), out=start[1:])
        return ints(start), ints(items[order])

    def _arrivals(self, tensor: Ints, device: Ints) -> Ints:
        """The op or send (as ops + send) that brings each tensor to each device; -1: it is there from the start."""
        problem = self.problem
        slot = np.full(problem.graph.num_tensors * problem.num_devices, -1, np.int64)
        slot[self.send_tensor * problem.num_devices + self.send_dst] = np.arange(len(self.send_tensor))
        sent = slot[tensor * problem.num_devices + device]
        return ints(np.where(sent >= 0, problem.num_ops + sent, problem.graph.producer[tensor]))

    def blocks(self) -> list[tuple[Ints, Ints, Ints, Ints, Ints]]:
        """(tensor, op, device, begin, end) of workspaces, residents, made tensors and received copies."""
        graph, ops = self.problem.graph, self.problem.num_ops
        none, every = np.full(ops, -1, np.int64), np.arange(ops)
        workspace = (none, every, self.device, self.begin[:ops], self.end[:ops])
        updated, fixed = residents(self.problem, self.device)
        tensor, device = (np.concatenate(columns) for columns in zip(fixed, updated, strict=True))
        whole = np.zeros(len(tensor), np.int64)
        there = (tensor, whole - 1, device, whole, whole + self.forever)
        sends = (self.send_tensor, self.end[ops:])
        end = last_needed(self.problem, self.device, self.end[:ops], sends, self.forever)
        made = np.flatnonzero(graph.is_fresh)
        home = self.device[graph.producer[made]]
        makes = (made, np.full(len(made), -1), home, self.begin[graph.producer[made]], end[made, home])
        copies = (
            self.send_tensor,
            np.full(len(self.send_tensor), -1),
            self.send_dst,
            self.begin[ops:],
            end[self.send_tensor, self.send_dst],
        )
        return [tuple(map(ints, part)) for part in (workspace, there, makes, copies)]  # type: ignore[misc]
