"""Offsets within a goal, where sizes are rounded at first: `eject_in`.

Most blocks of a step have one of few sizes, or a multiple of it; what is a little larger, and the many small ones,
would break up the arena where large ones should lie. So sizes are rounded down to whole quanta, what is less than one
is left out, and the rest is put under the goal by ejection. From the bottom up, that is an order in which first fit
puts the blocks of a smaller quantum nearly as low, new ones last into what is left over; what then ends above the goal
is placed by ejection again, and so on down to single bytes. Where rounded blocks do not fit, the others do not either.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.simulator.arenas.orders import fullest_time, orders_of

if TYPE_CHECKING:
    from loadmaster.simulator.arenas.ejection import Mates

LOST = (200, 2000)  # a part in so many of what is alive at the fullest time may be lost by rounding
COMMON = 32  # one in so many blocks has the size of a quantum
WAYS = ((0.5, 0.75, 3), (0.5, 0.5, 1), (0.25, 0.5, 3), (0.5, 0.5, 3))  # weights: powers of size and life; their growth
STARTS = 3  # of the layouts by first fit, the best
FIRST_RUN = 12  # times the square of the number of blocks: comparisons in the first runs, some for each of a few moves
GROWTH = 2  # of the runs, each time that all ways have had their turn
SCALE = 1000  # of weights

Way = tuple[float, float, int]


class Ejected(NamedTuple):
    """The lowest offsets that were found, if any."""

    offset: Ints | None
    top: int
    work: int  # comparisons


def eject_in(begin: Ints, end: Ints, nbytes: Ints, goal: int, *, work: int, seed: int = 0) -> Ejected:
    """Looks for offsets within the goal until it has them or the work is done; else the best that it came by."""
    return _Rounding(begin, end, nbytes, goal).search(work, seed)


def quanta_of(begin: Ints, end: Ints, nbytes: Ints) -> list[int]:
    """Sizes of many blocks, in multiples of which little is lost at the fullest time; the largest first, the last is
    1."""
    now = fullest_time(begin, end, nbytes)
    alive = nbytes[(begin <= now) & (now < end)]
    sizes, count = np.unique(nbytes[nbytes > 0], return_counts=True)
    common = sizes[count * COMMON >= len(nbytes)][::-1].tolist()
    quanta = {1}
    for part in LOST:
        quanta.add(next((size for size in common if int((alive % size).sum()) * part <= int(alive.sum())), 1))
    return sorted(quanta, reverse=True)


class _Level:
    """The blocks of at least one quantum, in whole quanta."""

    def __init__(self, begin: Ints, end: Ints, nbytes: Ints, goal: int, quantum: int) -> None:
        self.blocks = np.flatnonzero(nbytes >= (quantum if quantum > 1 else 0))
        self.begin, self.end, self.size = (ints(column[self.blocks]) for column in (begin, end, nbytes // quantum))
        self.goal = goal // quantum

    @cached_property
    def mates(self) -> Mates:
        from loadmaster.simulator.arenas.ejection import mates_of

        return mates_of(self.begin, self.end, self.size)

    def weights(self, of_size: float, of_life: float) -> Ints:
        life = self.end - self.begin
        share = (self.size / self.size.max(initial=1)) ** of_size * (life / life.max(initial=1)) ** of_life
        return ints(1 + np.rint(SCALE * share))


class _Rounding:
    """The search of `eject_in`, and the best it came by."""

    def __init__(self, begin: Ints, end: Ints, nbytes: Ints, goal: int) -> None:
        self.levels = [_Level(begin, end, nbytes, goal, quantum) for quantum in quanta_of(begin, end, nbytes)]
        self.whole = self.levels[-1]
        self.by_life = np.argsort(np.lexsort((-nbytes, begin - end)))
        self.best, self.top, self.used = ints([]), np.iinfo(np.int64).max, 0

    def search(self, work: int, seed: int) -> Ejected:
        starts, run, turn = self._starts(), FIRST_RUN * len(self.whole.size) ** 2, 0
        while self.used < work and self.top > self.whole.goal:
            start, way = starts[turn % len(starts)], WAYS[turn // STARTS % len(WAYS)]
            self._descend(start, way, min(run, work - self.used), seed + turn)
            turn += 1
            run *= GROWTH if turn % (STARTS * len(WAYS)) == 0 else 1
        return Ejected(self.best if len(self.best) else None, self.top, self.used)

    def _starts(self) -> list[Ints]:
        level = self.levels[0]
        layouts = [self._packed(level, order) for order in orders_of(level.begin, level.end, level.size)]
        tops = [int((offset + level.size).max(initial=0)) for offset in layouts]
        return [layouts[number] for number in np.argsort(tops, kind="stable")[:STARTS]]

    def _descend(self, offset: Ints, way: Way, run: int, seed: int) -> None:
        """From the largest quantum to the smallest, as long as what is rounded comes under the goal; `run` limits the
        work at each."""
        for number, level in enumerate(self.levels):
            found = self._ejected(level, offset, way, run, seed)
            if found is None:
                return
            self._keep(found if level is self.whole else self._refined(level, found, self.whole))
            if self.top <= self.whole.goal:
                return
            offset = self._refined(level, found, self.levels[number + 1])

    def _refined(self, level: _Level, offset: Ints, finer: _Level) -> Ints:
        """Blocks in the order of the rounded ones, from the bottom up; those that are new last, by their lives."""
        rank = np.full(len(self.by_life), len(self.by_life))
        rank[level.blocks[np.argsort(offset, kind="stable")]] = np.arange(len(level.blocks))
        return self._packed(finer, ints(np.lexsort((self.by_life[finer.blocks], rank[finer.blocks]))))

    def _packed(self, level: _Level, order: Ints) -> Ints:
        from loadmaster.simulator.arenas import packing

        offset, _, used = packing.pack(order, level.begin, level.end, level.size, packing.FAR)
        self.used += int(used)
        return ints(offset)

    def _ejected(self, level: _Level, start: Ints, way: Way, work: int, seed: int) -> Ints | None:
        from loadmaster.simulator.arenas import ejection

        offset, (of_size, of_life, growth) = np.array(start, np.int64), way
        given = (level.goal, level.weights(of_size, of_life), growth, work, seed)
        waiting, left = ejection.eject(level.mates, offset, *given)
        self.used += work - int(left)
        return None if waiting else ints(offset)

    def _keep(self, offset: Ints) -> None:
        top = int((offset + self.whole.size).max(initial=0))
        if top < self.top:
            self.best, self.top = offset, top
