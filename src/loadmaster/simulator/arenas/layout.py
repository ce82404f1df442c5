"""Static addresses: an offset for every tensor of a settled plan, in one arena per device.

Lives are half-open in rounds (rule 11 of the simulator): what is freed in a round makes way for what starts in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import Timeline
from loadmaster.simulator.arenas.capacity import fit_in
from loadmaster.simulator.lives import last_needed, residents

# Where no reason is given, chosen by hand.
EFFORT = 1_200_000_000  # comparisons of two blocks over all devices: about three seconds, where it is hard
MOST_IMPROVED = 6_000  # blocks in an arena that is worth packing many times
SQUEEZED = (4, 5, 6)  # of the orders, those in which blocks that do not fit are brought forward
NEAR = 1000  # a part in so many above the peak is near enough, where the peak itself is not reached


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
    """Offsets for all that the step keeps in memory: first fit in several orders, the best of them improved.

    Args:
        problem, plan, timeline: the plan, settled, and what it gives.
        effort: limits the search by comparisons made, not by the clock, so that equal input gives equal addresses.
        seed: of random changes of the order.
    """
    coarse = coarsen(problem, plan.kernel)
    step = Step(coarse, plan, timeline)
    tensor, op, device, begin, end = (np.concatenate(parts) for parts in zip(*step.blocks(), strict=True))
    nbytes = np.where(
        tensor >= 0, _take(coarse.problem.graph.nbytes, tensor), _take(coarse.problem.graph.workspace_bytes, op)
    )
    keep = (nbytes > 0) | (tensor >= 0)
    tensor, op, device, begin, end, nbytes = (ints(column[keep]) for column in (tensor, op, device, begin, end, nbytes))
    arenas = [_Arena(begin, end, nbytes, np.flatnonzero(device == number)) for number in range(problem.num_devices)]
    _pack_all(arenas, effort, seed)
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
        base=ints(np.where(problem.graph.producer >= 0, problem.graph.alias_of, -1)),
        maker_device=_take(plan.device, problem.graph.producer),
    )


def _take(column: Ints, index: Ints) -> Ints:
    """The entries at those indices; -1 where the index is."""
    return ints(np.append(column, -1)[index])


class _Arena:
    """The blocks of one device and the best offsets so far. What is there all the time lies at the bottom."""

    def __init__(self, begin: Ints, end: Ints, nbytes: Ints, blocks: NDArray[np.int64]) -> None:
        self.blocks, size = blocks, nbytes[blocks]
        self.always = (begin[blocks] == 0) & (end[blocks] == end[blocks].max(initial=0))
        self.resident = size[self.always]
        self.begin, self.end, self.nbytes = (ints(c[blocks][~self.always]) for c in (begin, end, nbytes))
        self.peak = peak_of(self.begin, self.end, self.nbytes)
        self.offset, self.top = ints(np.zeros(len(self.nbytes))), np.iinfo(np.int64).max // 2
        self.best = ints([])  # the order that gave the offsets

    @property
    def size_bytes(self) -> int:
        return int(self.resident.sum()) + self.top

    @property
    def peak_bytes(self) -> int:
        return int(self.resident.sum()) + self.peak

    @property
    def near(self) -> int:
        """What is near enough to the peak."""
        return self.peak + self.peak_bytes // NEAR

    @property
    def is_near(self) -> bool:
        return self.top <= self.near

    def places(self) -> Ints:
        offset = np.zeros(len(self.blocks), np.int64)
        offset[self.always] = np.cumsum(self.resident) - self.resident
        offset[~self.always] = int(self.resident.sum()) + self.offset
        return ints(offset)

    def in_orders(self, effort: int) -> int:
        """First fit in several orders, at least one; returns what is left of the effort."""
        from loadmaster.simulator.arenas import packing

        for order in _orders(self.begin, self.end, self.nbytes):
            if len(self.best) and (effort <= 0 or self.top <= self.peak):
                break
            trial, size, used = packing.pack(order, self.begin, self.end, self.nbytes, self.top)
            effort -= int(used)
            if size < self.top:
                self.offset, self.top, self.best = ints(trial), int(size), order
        return effort

    def squeeze(self, effort: int, seed: int) -> int:
        """Orders in which what does not fit comes earlier each time; half of the effort is for the one that has come
        nearest. Returns what is left."""
        orders, each = _orders(self.begin, self.end, self.nbytes), effort // (2 * len(SQUEEZED))
        tries = list[tuple[int, Ints]]()
        for at in SQUEEZED:
            effort -= each - self._squeezed(orders[at], each, seed, tries)
        return self._squeezed(min(tries, key=lambda one: one[0])[1], effort, seed + 1, tries) if tries else effort

    def _squeezed(self, order: Ints, effort: int, seed: int, tries: list[tuple[int, Ints]]) -> int:
        from loadmaster.simulator.arenas import packing

        if self.is_near or effort <= 0 or len(self.best) > MOST_IMPROVED:
            return effort
        given = (self.begin, self.end, self.nbytes, self.near, effort, seed)
        offset, top, best, left = packing.squeeze(order, *given)
        tries.append((int(top), ints(best)))
        if top < self.top:
            self.offset, self.top, self.best = ints(offset), int(top), ints(best)
        return max(0, int(left))

    def fit(self, goal: int, effort: int) -> int:
        """Looks for offsets within the goal; returns what is left of the effort."""
        if self.top <= goal or effort <= 0 or len(self.best) > MOST_IMPROVED:
            return effort
        found = fit_in(self.begin, self.end, self.nbytes, goal, work=effort)
        if found.offset is not None:
            self.offset, self.top = found.offset, int((found.offset + self.nbytes).max())
        return effort - found.work

    def improve(self, effort: int, seed: int) -> None:
        from loadmaster.simulator.arenas import packing

        if not self.is_near and effort > 0 and len(self.best) <= MOST_IMPROVED:
            given = (self.begin, self.end, self.nbytes, self.top, self.peak, effort, seed)
            offset, top = packing.improve(self.best, self.offset, *given)
            self.offset, self.top = ints(offset), int(top)


def _pack_all(arenas: list[_Arena], effort: int, seed: int) -> None:
    """The best of a few orders for every device. What is left goes to those that are not near their peak; then, of what
    is left again a part, to the peak itself for all."""
    last = effort // 3
    for number, arena in enumerate(arenas):
        share = effort // (len(arenas) - number)
        effort -= share - max(0, arena.in_orders(share))
    hard = [arena for arena in arenas if not arena.is_near]
    for number, arena in enumerate(hard):
        share = effort // (len(hard) - number)
        effort -= share - _come_near(arena, share, seed)
    effort = min(effort, last)
    for number, arena in enumerate(arenas):
        if arena.is_near:
            share = effort // (len(arenas) - number)
            effort -= share - max(0, arena.fit(arena.peak, share))


def _come_near(arena: _Arena, effort: int, seed: int) -> int:
    """In turn the ways that succeed at once or take long, each on other arenas; returns what is left of the effort."""
    left = effort
    for way, share in (("squeeze", 16), ("fit", 4), ("squeeze", 2), ("improve", 1)):
        if not arena.is_near:
            some = min(left, effort // share)
            if way == "fit":
                left -= some - max(0, arena.fit(arena.near, some))
            elif way == "squeeze":
                left -= some - max(0, arena.squeeze(some, seed))
            else:
                arena.improve(some, seed)
                left -= some
    return left


def peak_of(begin: Ints, end: Ints, nbytes: Ints) -> int:
    """Most bytes alive at once."""
    instant = np.concatenate([begin, end])
    change = np.concatenate([nbytes, -nbytes])
    order = np.lexsort((change, instant))  # what ends at an instant ends before anything begins
    return int(np.cumsum(change[order]).max(initial=0))


def _orders(begin: Ints, end: Ints, nbytes: Ints) -> list[Ints]:
    """Blocks by size, by size x life, by life, and by first use; the same with blocks of the fullest times before all
    others, and with those first that end last."""
    life = (end - begin).astype(np.float64)
    full = _fullest(begin, end, nbytes)
    keys = [
        (begin, -life, -nbytes),
        (begin, -life * nbytes),
        (begin, -nbytes, -life),
        (-nbytes, begin),
        (begin, -life, -nbytes, -full),
        (begin, -np.sqrt(life) * nbytes),
        (-nbytes, -end),
        (-end, -life, -nbytes),
        (begin, -nbytes, -life, -full),
    ]
    return [ints(np.lexsort(key)) for key in keys]


def _fullest(begin: Ints, end: Ints, nbytes: Ints) -> Ints:
    """[blocks] most bytes alive at once while the block is."""
    times, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
    change = np.zeros(len(times) + 1, np.int64)
    np.add.at(change, place, np.concatenate([nbytes, -nbytes]))
    most = [np.cumsum(change)[: len(times)]]  # [k][i]: of the 2^k times from i on
    while 2 ** len(most) <= len(times):
        half = 2 ** (len(most) - 1)
        most.append(np.maximum(most[-1][:-half], most[-1][half:]))
    low, high = place[: len(begin)], np.maximum(place[len(begin) :], place[: len(begin)] + 1)
    level = np.log2(high - low).astype(np.int64)
    found = np.zeros(len(begin), np.int64)
    for k, table in enumerate(most):
        mine = level == k
        found[mine] = np.maximum(table[low[mine]], table[high[mine] - 2**k])
    return ints(found)


class Step:
    """The simulated step in rounds, of the problem whose ops are kernels."""

    def __init__(self, coarse: Coarse, plan: Plan, timeline: Timeline) -> None:
        self.problem = coarse.problem
        self.device = coarse.first(plan.device)
        index = np.full(int(coarse.tensors.max(initial=-1)) + 1, -1, np.int64)
        index[coarse.tensors] = np.arange(len(coarse.tensors))
        self.send_tensor, self.send_dst = ints(index[timeline.send_tensor]), timeline.send_dst
        start = np.concatenate([coarse.first(timeline.start_ns), timeline.send_start_ns])
        end = np.concatenate([coarse.first(timeline.end_ns), timeline.send_end_ns])
        begun, ended = self._rounds(timeline, coarse.first(timeline.turn), ints(start), ints(end))
        instants, which = np.unique(np.concatenate([[0], start, end]), return_inverse=True)
        wide = int(ended.max(initial=0)) + 2
        keys = which * wide + np.concatenate([[0], begun, ended])
        known, number = np.unique(keys, return_inverse=True)
        count = len(start)
        self.round_ns = ints(instants[known // wide])
        self.forever = len(known)
        self.begin, self.end = ints(number[1 : 1 + count]), ints(number[1 + count :])  # [ops + sends]

    def _rounds(self, timeline: Timeline, turn: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
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
        )
        channels = int(channel.max(initial=-1)) + 1
        begun, ended = packing.rounds(steps, problem.num_devices, channels)
        return ints(begun), ints(ended)

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
        made = np.flatnonzero((graph.producer >= 0) & (graph.alias_of < 0))
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
