"""What runs in turn on a device that groups share, against sets of ops gone through one by one."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.graph.columns import Bools, Ints, ints, inverse
from loadmaster.problem.bounds import sharing
from loadmaster.problem.bounds.levels import FAR
from loadmaster.problem.bounds.turns import members


class Lanes:
    """Ops in groups that share a device, with ways between them that take so long to send on."""

    def __init__(self, rng: np.random.Generator, ops: int = 8) -> None:
        self.before = [
            sorted({int(one) for one in rng.integers(0, op, rng.integers(0, 3))}) if op else [] for op in range(ops)
        ]
        self.wide = {(one, op): int(rng.integers(0, 30)) for op in range(ops) for one in self.before[op]}
        self.time: Ints = ints(rng.integers(0, 20, ops))
        self.group: Ints = ints(np.unique(rng.integers(0, 4, ops), return_inverse=True)[1])
        count = int(self.group.max()) + 1
        apart = rng.random((count, count)) < 0.3
        self.apart: Bools = (apart | apart.T) & ~np.eye(count, dtype=bool)
        self.early: Ints = ints(rng.integers(0, 25, ops))
        self.late: Ints = ints(rng.integers(0, 25, ops))
        self.above = [set[int]() for _ in range(ops)]
        for op in range(ops):
            self.above[op] = {*self.before[op], *(further for one in self.before[op] for further in self.above[one])}

    @property
    def earlier(self) -> tuple[Ints, Ints, Ints]:
        ways = [(one, op) for op, row in enumerate(self.before) for one in row]
        start = ints(np.cumsum([0, *map(len, self.before)]))
        return start, ints([one for one, _ in ways]), ints([self.wide[way] for way in ways])

    @property
    def later(self) -> tuple[Ints, Ints, Ints]:
        start, near, _ = self.earlier
        after_start, after = inverse(start, near, len(self.time))
        rows = np.repeat(np.arange(len(self.time)), np.diff(after_start))
        return after_start, after, ints([self.wide[int(one), int(op)] for one, op in zip(rows, after, strict=True)])

    def near(self, op: int, *, forward: bool) -> list[tuple[int, int]]:
        """(op, ns of the send) of each that it waits for, or backwards that waits for it."""
        ends = [(one, way) for way in self.wide for one in [way[0] if forward else way[1]] if way[forward] == op]
        return [(one, self.wide[way]) for one, way in ends]

    def leads(self, other: int, op: int, *, forward: bool) -> bool:
        return other in self.above[op] if forward else op in self.above[other]

    def after(self, order: tuple[Ints, Ints], which: int, op: int, early: list[int], most: int) -> int:
        """After all of the group that the op cannot come before, by the starts there are by now."""
        time, end, start = self.time.tolist(), early[op] + int(self.time[op]), order[0]
        row = order[1][start[which] : start[which + 1]].tolist()
        some = [one for one in row if one != op and end + time[one] + int(self.late[one]) > most]
        firsts = [some[:count] for count in range(1, len(some) + 1)]
        return max((min(early[one] for one in few) + sum(time[one] for one in few) for few in firsts), default=0)


def test_which_come_before_which() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        lanes = Lanes(rng)
        found = sharing.reach(*lanes.earlier[:2])
        assert [set(np.flatnonzero(row).tolist()) for row in found] == lanes.above


@pytest.mark.parametrize("forward", [True, False])
def test_ops_follow_what_leads_to_them_in_their_group(forward: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        lanes = Lanes(rng)
        wanted = lanes.early.tolist()
        order = members(lanes.group, lanes.early)
        for op in range(8) if forward else reversed(range(8)):
            mine = lanes.group[op]
            for other, wide in lanes.near(op, forward=forward):
                lost = wide if lanes.apart[mine, lanes.group[other]] else 0
                wanted[op] = max(wanted[op], wanted[other] + int(lanes.time[other]) + lost)
            # Those of its group that lead to it, in the order that they were given in, by the starts there are by now.
            some = [
                one for one in order[1].tolist() if lanes.group[one] == mine and lanes.leads(one, op, forward=forward)
            ]
            for count in range(1, len(some) + 1):
                begun = min(wanted[one] for one in some[:count])
                wanted[op] = max(wanted[op], begun + sum(int(lanes.time[one]) for one in some[:count]))
        reach = sharing.reach(*lanes.earlier[:2])
        early = lanes.early.copy()
        ways = lanes.earlier if forward else lanes.later
        sharing.follow(
            *ways, lanes.time, lanes.group, lanes.apart, *order, reach if forward else reach.T, early, forward
        )
        assert early.tolist() == wanted


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_ops_run_in_turn_or_wait_for_a_send(forward: bool, kept: bool) -> None:
    rng, marked = np.random.default_rng(12), 0
    for _ in range(80):
        lanes, most = Lanes(rng), int(rng.integers(50, 90))
        wanted, apart = lanes.early.tolist(), lanes.apart.copy()
        late, time, group = lanes.late.tolist(), lanes.time.tolist(), lanes.group.tolist()
        order = members(lanes.group, lanes.early)

        for op in range(8) if forward else reversed(range(8)):
            wanted[op] = max(wanted[op], lanes.after(order, group[op], op, wanted, most))
            for other, wide in lanes.near(op, forward=forward):
                there, theirs = wanted[other] + time[other] + wide, group[other]
                if theirs == group[op] or there <= wanted[op]:
                    continue
                known = kept and apart[group[op], theirs]
                here = FAR if known else lanes.after(order, theirs, op, wanted, most)
                if kept and not known and here + time[op] + late[op] > most:
                    apart[group[op], theirs] = apart[theirs, group[op]] = True
                wanted[op] = max(wanted[op], min(here, there))
        early, table = lanes.early.copy(), lanes.apart.copy() if kept else np.zeros((0, 0), bool)
        ways = lanes.earlier if forward else lanes.later
        sharing.in_turn(*ways, lanes.time, lanes.group, table, *order, early, lanes.late, most, forward)
        assert early.tolist() == wanted
        assert not kept or (table == apart).all()
        marked += kept and bool((table != lanes.apart).any())
    assert marked > 5 or not kept


def test_of_large_groups_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ops of a group that all come before the fourth; two of them are looked at, the latest first."""
    time, early, late = ints([3, 4, 5, 1]), ints([0, 7, 9, 2]), ints([0, 0, 0, 90])
    given = (0, 3, time, ints([0, 4]), ints([2, 1, 0, 3]), early, late, 5)
    assert sharing._after_group(*given) == max(9 + 5, 7 + 9, 0 + 12)
    monkeypatch.setattr(sharing, "MEMBERS", 1)
    if not hasattr(sharing._after_group, "py_func"):  # constants are frozen into compiled code
        assert sharing._after_group(*given) == 9 + 5


def test_the_longest_set_of_a_group_alone() -> None:
    rng = np.random.default_rng(13)
    for _ in range(80):
        lanes = Lanes(rng)
        head, tail, time = lanes.early, lanes.late, lanes.time
        longest = 0
        for which in range(int(lanes.group.max()) + 1):
            mine = np.flatnonzero(lanes.group == which)
            for begin in set(head[mine].tolist()):
                for rest in set(tail[mine].tolist()):
                    some = [one for one in mine.tolist() if head[one] >= begin and tail[one] >= rest]
                    if some and (head[mine] >= begin).sum() > 1:
                        longest = max(longest, begin + int(time[some].sum()) + min(int(tail[one]) for one in some))
        start, order = members(lanes.group, head)
        found = sharing.longest_alone(start, order, np.argsort(-tail), lanes.group, time, head, tail)
        assert found == longest
