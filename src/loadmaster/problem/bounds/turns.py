"""What runs in turn: if a step is to take no longer than some time, a send that would make it longer does not happen,
so its two ends share a device. What else reads the same either waits for a send, too, or has that device after those
that cannot wait. From that it follows when ops can start at the soonest; and where no plan is left, the step takes
longer. The least time that cannot be refuted in this way is a bound (a destructive one: Klein and Scholl, 1999).

On equal devices, for plans that fuse nothing. This much is cheap enough for large problems; `together` draws further
conclusions for small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.problem.bounds import crowds, levels, sharing
from loadmaster.problem.bounds.among import Work

MOST = 1.25  # times the bound so far that is tried
HALVINGS = 8  # of the interval in which the bound lies
ROUNDS = 40  # of drawing conclusions
CELLS = 128  # of the grid over (start, what must follow)
LOOK_NS, CELL_NS, OP_NS = 3.0, 1.5, 20.0  # what work counts, in ns of a quiet core: an op looked at, a cell, an op
NOTHING = np.zeros((0, 0), bool)


@dataclass(frozen=True, eq=False)
class EqualDeviceFacts:
    """What is known of a problem of equal devices.

    Attributes:
        time: [ops] on any device.
        work: [ops] that time, as the sets that share all devices count it.
        share: what the work of a set is divided by, for how long it keeps all devices busy.
        devices: how many.
        leader: [ops] the first of those that must share its device.
        later: (start, ops, ns): what follows each op, and how long it takes to send it there.
        earlier: what comes before.
        head: [ops] no op starts sooner.
        tail: [ops] the step does not end sooner after its end.
        allowed: what work is left.
        path_ns: of one walk of `levels`.
    """

    time: Ints  # [ops]
    work: Ints  # [ops]
    share: int
    devices: int
    leader: Ints  # [ops]
    later: tuple[Ints, Ints, Ints]
    earlier: tuple[Ints, Ints, Ints]
    ahead: levels.Ways
    behind: levels.Ways
    head: Ints  # [ops]
    tail: Ints  # [ops]
    allowed: Work = field(default_factory=Work)
    path_ns: float = 0.0

    @cached_property
    def sends(self) -> tuple[Ints, Ints, Ints]:
        """(sender, reader, ns) of every way."""
        return ints(rows_of(self.later[0])), self.later[1], self.later[2]

    @cached_property
    def reach(self) -> tuple[Bools, Bools]:
        """[ops, ops] whether the second comes before the first, and after it."""
        before = sharing.reach(*self.earlier[:2])
        return before, np.ascontiguousarray(before.T)

    def late_sends(self, head: Ints, tail: Ints, most: int) -> Bools:
        """[ways] sending that would make the step longer."""
        sender, reader, wide = self.sends
        ends = head[sender] + self.time[sender] + wide + self.time[reader] + tail[reader]
        late: Bools = ends > most
        return late

    def too_long(self, head: Ints, tail: Ints, most: int) -> bool:
        """Whether an op, or ops that share the time between, would end too late."""
        if int((head + self.time + tail).max()) > most:
            return True
        self.allowed.add(CELL_NS * CELLS**2 + OP_NS * len(self.time))
        start, left, times = (np.ascontiguousarray(column[:, None]) for column in (head, tail, self.time))
        return crowds.least_span(start, left, times, self.work, self.share, CELLS) > most


def least_step(facts: EqualDeviceFacts, least_ns: int) -> int:
    """No step takes less; at least what was known before. Once its work is up it looks no further."""
    return halved(least_ns, int(MOST * least_ns), HALVINGS, facts.allowed, lambda most: _refuted(facts, most))


def halved(low: int, high: int, times: int, allowed: Work, refuted: Callable[[int], bool]) -> int:
    """One more than the largest time that was refuted."""
    for _ in range(times):
        if allowed.is_up():
            break
        middle = (low + high) // 2
        if refuted(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _refuted(facts: EqualDeviceFacts, most: int) -> bool:
    """Whether no plan is left."""
    (sender, reader, _), head, tail = facts.sends, facts.head, facts.tail
    group = ints(np.unique(facts.leader, return_inverse=True)[1])
    for _ in range(ROUNDS):
        if facts.allowed.is_up():
            return False
        before = int(head.sum() + tail.sum())
        head, tail = in_turn(facts, group, head, tail, most)
        if facts.too_long(head, tail, most):
            return True
        one, other = group[sender], group[reader]
        joined = (one != other) & facts.late_sends(head, tail, most)
        if joined.any():
            group = ints(merged(one[joined], other[joined], int(group.max()) + 1)[group])
        elif int(head.sum() + tail.sum()) == before:
            break
    return False


def merged(one: Ints, other: Ints, count: int) -> np.ndarray:
    """[groups] number of each when those of every pair are made one."""
    pairs = coo_array((np.ones(len(one)), (one, other)), (count, count))
    found: np.ndarray = connected_components(pairs, directed=False)[1]
    return found


def in_turn(
    facts: EqualDeviceFacts, group: Ints, head: Ints, tail: Ints, most: int, apart: Bools = NOTHING
) -> tuple[Ints, Ints]:
    """Later starts and longer ends, by what shares a device; `apart`: which groups do not, if it is kept, and then what
    is found out is marked there."""
    head, tail, common = head.copy(), tail.copy(), (facts.time, group, apart)
    looked = sharing.in_turn(*facts.earlier, *common, *members(group, head), head, tail, most, True)
    head = np.maximum(head, levels.soonest(facts.ahead, ints(head))[:, 0])
    looked += sharing.in_turn(*facts.later, *common, *members(group, tail), tail, head, most, False)
    facts.allowed.add(LOOK_NS * looked + 2 * facts.path_ns)
    tail = np.maximum(tail, levels.soonest(facts.behind, ints(tail))[:, 0])
    return ints(head), ints(tail)


def members(group: Ints, early: Ints) -> tuple[Ints, Ints]:
    """(start, ops) of the groups, those that start latest first."""
    order = np.lexsort((-early, group))
    return ints(np.searchsorted(group[order], np.arange(int(group.max()) + 2))), ints(order)
