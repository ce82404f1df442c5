"""Which tensors the forward pass saves so that a joint graph keeps a limit: fewest seconds of ops run again.

Start from what torch's partitioner saves. Drop tensors one by one, cheapest byte first: what a drop costs is what the
backward pass must run again in addition. Keep the shortest sequence of drops whose peak is under the limit, then take
back every drop that the limit does not need. The peak is that of both passes, not the sum of what is saved.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

from loadmaster.runtime.joint import CutOutcome, Joint

LOOKS = 24  # peaks looked at along the drops
TRIES = 48  # drops that are tried without


@dataclass(frozen=True)
class SavedChoice:
    """What is saved, with what it leads to."""

    saved: frozenset[int]
    outcome: CutOutcome


class Drops:
    """Tensors dropped one after the other, the one with the least cost for a byte next."""

    def __init__(self, joint: Joint, saved: frozenset[int]) -> None:
        self.joint, self.saved = joint, set(saved)
        self.again = set(joint.again(saved))
        self.order: list[int] = []
        self.behind: dict[int, list[int]] = defaultdict(list)
        self.heap: list[tuple[float, int]] = []
        self.cost: dict[int, float] = {}
        for index in sorted(saved):
            self._offer(index)
        while self.heap:
            ratio, index = heapq.heappop(self.heap)
            if index in self.saved and ratio == self.cost[index]:
                self._drop(index)

    def _offer(self, index: int) -> None:
        joint = self.joint
        size = joint.nbytes[joint.root[index]]
        needed = self._needed(index)
        if size == 0 or needed is None:
            self.cost.pop(index, None)
            return
        for other in needed:
            self.behind[other].append(index)
        cost = sum(joint.cost_again(other, self.again | {index}) for other in needed)
        ratio = round(cost / size, 3)
        if self.cost.get(index) != ratio:
            self.cost[index] = ratio
            heapq.heappush(self.heap, (ratio, index))

    def _needed(self, index: int) -> list[int] | None:
        """What would be run again besides; None where something behind it may not run twice."""
        joint, found, ask = self.joint, list[int](), [index]
        seen = {index}
        while ask:
            at = ask.pop()
            if joint.fixed[at]:
                return None
            found.append(at)
            for read in joint.reads[at]:
                known = read in seen or read in self.saved or read in self.again
                if not (known or joint.given[read] or joint.late[read]):
                    seen.add(read)
                    ask.append(read)
        return found

    def _drop(self, index: int) -> None:
        needed = self._needed(index)
        if needed is None:
            return
        self.saved.discard(index)
        self.again.update(needed)
        self.order.append(index)
        touched = {other for made in needed for other in self.behind.pop(made, ())}
        for other in sorted(touched & self.saved):
            self._offer(other)


def least(joint: Joint, start: frozenset[int]) -> SavedChoice:
    """The smallest peak that drops lead to."""
    return min(_along(joint, start, Drops(joint, start).order), key=lambda one: one.outcome.peak_bytes)


def cheapest(joint: Joint, start: frozenset[int], room: int) -> SavedChoice | None:
    """The saving of least cost whose peak is at most `room` bytes; None where none was found."""
    order = Drops(joint, start).order
    fits = [one for one in _along(joint, start, order) if one.outcome.peak_bytes <= room]
    if not fits:
        return None
    first = _earliest(joint, start, order, min(fits, key=lambda one: one.outcome.cost), room)
    return _taken_back(joint, start, first, room)


def _along(joint: Joint, start: frozenset[int], order: list[int]) -> list[SavedChoice]:
    """After none, some and all of the drops."""
    counts = sorted({round(part * len(order) / LOOKS) for part in range(LOOKS + 1)})
    return [_after(joint, start, order[:count]) for count in counts]


def _after(joint: Joint, start: frozenset[int], dropped: list[int]) -> SavedChoice:
    saved = start.difference(dropped)
    return SavedChoice(saved, joint.evaluate(saved))


def _earliest(joint: Joint, start: frozenset[int], order: list[int], found: SavedChoice, room: int) -> SavedChoice:
    """Fewer drops than were looked at, by halving."""
    high = len(start) - len(found.saved)
    low = max(0, high - len(order) // LOOKS - 1)
    while low < high:
        middle = (low + high) // 2
        tried = _after(joint, start, order[:middle])
        if tried.outcome.peak_bytes <= room:
            found, high = tried, middle
        else:
            low = middle + 1
    return found


def _taken_back(joint: Joint, start: frozenset[int], found: SavedChoice, room: int) -> SavedChoice:
    """With tensors saved after all, where that costs less and fits: first many at once, then one by one."""
    dropped = sorted(start - found.saved, key=lambda index: -joint.heavy_cost[index])
    tries, size = TRIES, max(1, len(dropped) // 2)
    while tries and dropped:
        group = dropped[:size]
        dropped = dropped[size:]
        saved = found.saved.union(group)
        tried = SavedChoice(saved, joint.evaluate(saved))
        tries -= 1
        if tried.outcome.peak_bytes <= room and tried.outcome.cost <= found.outcome.cost:
            found = tried
        elif size > 1:
            dropped = group + dropped
            size = max(1, size // 2)
    return found
