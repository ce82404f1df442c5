"""The arena of one device: where its blocks lie so far, and the ways in which they come to lie lower."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints
from loadmaster.simulator.arenas.capacity import fit_in
from loadmaster.simulator.arenas.orders import orders_of, peak_of
from loadmaster.simulator.arenas.rounding import eject_in

MOST_IMPROVED = 6_000  # blocks in an arena that is worth packing many times
NEAR = 1000  # a part in so many above the peak is near enough, where the peak itself is not reached


class DeviceArena:
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

        for order in orders_of(self.begin, self.end, self.nbytes):
            if len(self.best) and (effort <= 0 or self.top <= self.peak):
                break
            trial, size, used = packing.pack(order, self.begin, self.end, self.nbytes, self.top)
            effort -= int(used)
            if size < self.top:
                self.offset, self.top, self.best = ints(trial), int(size), order
        return effort

    def eject(self, goal: int, effort: int, seed: int) -> int:
        """Looks for offsets within the goal and keeps the lowest it comes by; returns what is left of the effort."""
        if self.top <= goal or effort <= 0 or len(self.best) > MOST_IMPROVED:
            return effort
        found = eject_in(self.begin, self.end, self.nbytes, goal, work=effort, seed=seed)
        if found.offset is not None and found.top < self.top:
            self.offset, self.top = found.offset, found.top
        return effort - found.work

    def fit(self, goal: int, effort: int) -> int:
        """Looks for offsets within the goal; returns what is left of the effort."""
        if self.top <= goal or effort <= 0 or len(self.best) > MOST_IMPROVED:
            return effort
        found = fit_in(self.begin, self.end, self.nbytes, goal, work=effort)
        if found.offset is not None:
            self.offset, self.top = found.offset, int((found.offset + self.nbytes).max())
        return effort - found.work


def pack_all(arenas: list[DeviceArena], effort: int, seed: int) -> None:
    """The best of a few orders for every device. What is left goes to those that are not near their peak; then, of what
    is left again a part, to the peak itself for the others."""
    last = effort // 10
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


def _come_near(arena: DeviceArena, effort: int, seed: int) -> int:
    """First half of the way, so that something is gained where the goal is out of reach; returns what is left of the
    effort."""
    left = effort
    for way, share in (("half", 16), ("fit", 32), ("near", 1)):
        some = min(left, effort // share)
        if way == "fit":
            left -= some - max(0, arena.fit(arena.near, some))
        else:
            goal = arena.near + (max(0, arena.top - arena.near) // 2 if way == "half" else 0)
            left -= some - max(0, arena.eject(goal, some, seed))
    return left
