"""What must run together: as `turns`, with which groups of ops cannot share a device, what leads to an op within its
group, the work of ancestors with what is lost by sending, and pairs of groups that are tried in both ways.

Tables of ops x ops, so for problems of a few thousand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.problem.bounds import crowds, sharing
from loadmaster.problem.bounds.turns import (
    CELLS,
    HALVINGS,
    LOOK_NS,
    MOST,
    ROUNDS,
    EqualDeviceFacts,
    halved,
    in_turn,
    members,
    merged,
)

PROBED = 5  # times that the interval in which the bound lies is halved with pairs that are tried
LARGEST, LONGEST, PAIRS = 48, 8, 12  # groups that are compared with each other; pairs that are tried in both ways
TRIES = 60  # of pairs, for one time
# What work counts, in ns of a quiet core: an op x dependency; a round of conclusions, and a pair of groups in it.
SENT_NS, ROUND_NS, GROUP_NS = 2.7, 1_000_000.0, 3.0
PRODUCT_NS = 0.05  # a product of two numbers in a table of groups x groups
MOST_PROBED = 256  # ops whose pairs are tried: half a second for so many


@dataclass(frozen=True, eq=False)
class Implications:
    """What follows from a step of at most some time.

    Attributes:
        head: [ops] no op starts sooner.
        tail: [ops] the step does not end sooner after its end.
        group: [ops] those of a group share a device.
        apart: [groups, groups] they do not.
    """

    head: Ints
    tail: Ints
    group: Ints  # [ops]
    apart: Bools  # [groups, groups]

    def joined(self, one: Ints, other: Ints) -> Implications | None:
        """With groups made one; none where they are apart."""
        count = len(self.apart)
        new = merged(one, other, count)
        apart = np.zeros((int(new.max()) + 1,) * 2, bool)
        first, second = np.nonzero(self.apart)
        apart[new[first], new[second]] = True
        return None if apart.diagonal().any() else Implications(self.head, self.tail, ints(new[self.group]), apart)

    def kept_apart(self, one: int, other: int) -> Implications:
        apart = self.apart.copy()
        apart[one, other] = apart[other, one] = True
        return Implications(self.head, self.tail, self.group, apart)


def least_step(facts: EqualDeviceFacts, least_ns: int) -> int:
    """No step takes less; at least what was known before. Once its work is up it looks no further."""
    first, most_ns = _first(facts), int(MOST * least_ns)
    least_ns = halved(least_ns, most_ns, HALVINGS, facts.allowed, lambda most: _conclude(facts, first, most) is None)
    if len(facts.time) > MOST_PROBED:
        return least_ns
    return halved(least_ns, most_ns, PROBED, facts.allowed, lambda most: _refuted(facts, first, most))


def _first(facts: EqualDeviceFacts) -> Implications:
    _, group = np.unique(facts.leader, return_inverse=True)
    count = int(group.max()) + 1
    return Implications(facts.head, facts.tail, ints(group), np.zeros((count, count), bool))


def _refuted(facts: EqualDeviceFacts, known: Implications, most: int) -> bool:
    """Whether no plan is left: two groups either share a device or do not, and where one of the two cannot be, the
    other must."""
    now, tries = _conclude(facts, known, most), 0
    while now is not None:
        for one, other in _pairs(facts, now):
            tries += 1
            if facts.allowed.is_up():
                return False
            together = now.joined(ints([one]), ints([other]))
            together = together and _conclude(facts, together, most)
            if together is None:
                now = _conclude(facts, now.kept_apart(one, other), most)
                break
            if _conclude(facts, now.kept_apart(one, other), most) is None:
                now = together
                break
            if tries >= TRIES:
                return False
        else:
            return False
    return True


def _pairs(facts: EqualDeviceFacts, known: Implications) -> list[tuple[int, int]]:
    """Of groups of which it is not known whether they share a device: those that much would be sent between, and the
    largest, which would keep one device busy for long."""
    sender, reader, wide = facts.sends
    one, other = known.group[sender], known.group[reader]
    load = np.bincount(known.group, facts.time, len(known.apart))
    large = np.argsort(-load, kind="stable")[: LONGEST if facts.devices == 2 else 0]
    first, second = (axis.ravel() for axis in np.meshgrid(large, large))
    one, other = np.concatenate([one, first]), np.concatenate([other, second])
    weight = np.concatenate([wide, np.minimum(load[first], load[second]) / 2])
    asked = (one != other) & ~known.apart[one, other]
    low, high = np.minimum(one, other)[asked], np.maximum(one, other)[asked]
    pairs, which = np.unique(low * len(known.apart) + high, return_inverse=True)
    total = np.bincount(which, weight[asked], len(pairs))
    best = pairs[np.argsort(-total, kind="stable")[:PAIRS]]
    return [(int(pair) // len(known.apart), int(pair) % len(known.apart)) for pair in best]


def _conclude(facts: EqualDeviceFacts, known: Implications, most: int) -> Implications | None:
    """All that follows, or none where nothing can be so; once no work is left, less."""
    for _ in range(ROUNDS):
        if facts.allowed.is_up():
            break
        facts.allowed.add(ROUND_NS + GROUP_NS * len(known.apart) ** 2)
        before = known
        narrowed = _narrow(facts, known, most)
        shared = narrowed and _share(facts, narrowed, most)
        if shared is None:
            return None
        known = shared
        same = len(known.apart) == len(before.apart) and np.array_equal(known.apart, before.apart)
        if same and np.array_equal(known.head, before.head) and np.array_equal(known.tail, before.tail):
            break
    return known


def _narrow(facts: EqualDeviceFacts, known: Implications, most: int) -> Implications | None:
    """Later starts and longer ends."""
    head, tail, time, apart = known.head.copy(), known.tail.copy(), facts.time, known.apart.copy()
    rest = (time, known.group, apart)
    looked = sharing.follow(*facts.earlier, *rest, *members(known.group, head), facts.reach[0], head, True)
    looked += sharing.follow(*facts.later, *rest, *members(known.group, tail), facts.reach[1], tail, False)
    facts.allowed.add(LOOK_NS * looked)
    head, tail = in_turn(facts, known.group, head, tail, most, apart)
    if int((head + time + tail).max()) > most:
        return None
    shared = (facts.work, facts.devices, CELLS // 2)
    facts.allowed.add(2 * SENT_NS * len(time) * len(facts.later[1]))
    head = ints(np.maximum(head, crowds.apart(*facts.later, head, *shared, True)))
    tail = ints(np.maximum(tail, crowds.apart(*facts.earlier, tail, *shared, False)))
    return None if facts.too_long(head, tail, most) else Implications(head, tail, known.group, apart)


def _share(facts: EqualDeviceFacts, known: Implications, most: int) -> Implications | None:
    """Groups that sending would make too late are one; those that are too much for one device are apart; and of two
    devices, whoever is apart from the same is together."""
    one, other = known.group[facts.sends[0]], known.group[facts.sends[1]]
    joined = _with(known, (one != other) & facts.late_sends(known.head, known.tail, most), one, other)
    if joined is None:
        return None
    known = joined
    order = members(known.group, known.head)
    shared = np.diff(order[0])
    facts.allowed.add(len(known.group) * int(shared[shared > 1].sum() - (shared > 1).sum()))
    if (
        int(sharing.longest_alone(*order, np.argsort(-known.tail), known.group, facts.time, known.head, known.tail))
        > most
    ):
        return None
    known = _too_much(facts, known, most)
    if facts.devices > 2 or not known.apart.any():
        return known
    facts.allowed.add(PRODUCT_NS * len(known.apart) ** 3)
    both = known.apart.astype(np.float32)
    first, second = np.nonzero(both @ both > 0)
    return _with(known, first != second, ints(first), ints(second))


def _with(known: Implications, asked: Bools, one: Ints, other: Ints) -> Implications | None:
    return known.joined(ints(one[asked]), ints(other[asked])) if asked.any() else known


def _too_much(facts: EqualDeviceFacts, known: Implications, most: int) -> Implications:
    """The largest groups, two of which would take too long one after the other."""
    count = len(known.apart)
    load, first, last = np.bincount(known.group, facts.time, count), *(np.full(count, 2**60) for _ in range(2))
    np.minimum.at(first, known.group, known.head)
    np.minimum.at(last, known.group, known.tail)
    large = np.argsort(-load, kind="stable")[:LARGEST]
    load, first, last = load[large], first[large], last[large]
    span = load[:, None] + load + np.minimum(first[:, None], first) + np.minimum(last[:, None], last)
    apart = known.apart.copy()
    apart[np.ix_(large, large)] |= (span > most) & ~np.eye(len(large), dtype=bool)
    return Implications(known.head, known.tail, known.group, apart)
