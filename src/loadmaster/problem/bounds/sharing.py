"""Compiled walks for bounds by what shares a device, and so runs one after the other: raised starts, and what must
follow.

The propagation behind `turns` and `together`: groups of ops that are known to share a device are a machine that does
one thing at a time, and scheduling on one machine knows rules for that (detectable precedences, Vilim 2004). Walks
raise starts in place, and callers repeat them while that helps.
"""

from __future__ import annotations

import numpy as np

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Ints, Whole
from loadmaster.problem.bounds.levels import FAR

MEMBERS = 1_024  # of a group, after which an op may have to wait


@compiled
def reach(start: Ints, before: Ints) -> Bools:
    """[ops, ops] whether the second comes before the first."""
    ops = len(start) - 1
    above = np.zeros((ops, ops), np.bool_)
    for op in range(ops):
        for at in range(start[op], start[op + 1]):
            other = before[at]
            above[op, other] = True
            for further in range(other):
                above[op, further] |= above[other, further]
    return above


@compiled(_nrt=False)
def follow(
    start: Ints,
    near: Ints,
    wide: Ints,
    time: Ints,
    group: Ints,
    apart: Bools,
    first: Ints,
    members: Ints,
    reach: Bools,
    early: Ints,
    forward: bool,
) -> Whole:
    """Raises `early`, when each op can start at the soonest: after those it waits for, with a send from groups that are
    apart; and after all that lead to it in its own group, which share its device and run one after the other.
    `first`, `members`: the ops of each group. Backwards: what must follow. Returns how many ops it looked at."""
    looked, ops = len(near), len(time)
    for turn in range(ops):
        op = turn if forward else ops - 1 - turn
        mine, soonest = group[op], early[op]
        for at in range(start[op], start[op + 1]):
            other = near[at]
            lost = wide[at] if apart[mine, group[other]] else 0
            soonest = max(soonest, early[other] + time[other] + lost)
        total, least = np.int64(0), FAR
        looked += first[mine + 1] - first[mine]
        for at in range(first[mine], first[mine + 1]):
            other = members[at]
            if reach[op, other]:
                total += time[other]
                least = min(least, early[other])
                soonest = max(soonest, least + total)
        early[op] = soonest
    return looked


@compiled(_nrt=False)
def in_turn(
    start: Ints,
    near: Ints,
    wide: Ints,
    time: Ints,
    group: Ints,
    apart: Bools,
    first: Ints,
    members: Ints,
    early: Ints,
    late: Ints,
    most: Whole,
    forward: bool,
) -> Whole:
    """Raises `early`, when each op can start at the soonest if the step takes `most`, by what shares a device and so
    runs in turn. Either an op does not share the device of one that it waits for, and waits for a send; or it does, and
    comes after all of that one's group that it cannot come before (Vilim, 2004: detectable precedences). `late`: what
    must follow each op; `first`, `members`: the ops of each group, the latest start first. `apart`: [groups, groups]
    they do not share a device; more is marked, unless it is empty. Backwards: what must follow, given when each can
    start. Returns how many ops it looked at."""
    here: Whole
    looked, ops = len(near), len(time)
    for turn in range(ops):
        op = turn if forward else ops - 1 - turn
        mine = group[op]
        if first[mine + 1] - first[mine] > 1:
            looked += min(first[mine + 1] - first[mine], MEMBERS)
            early[op] = max(early[op], _after_group(mine, op, time, first, members, early, late, most))
        for at in range(start[op], start[op + 1]):
            other = near[at]
            theirs, there = group[other], early[other] + time[other] + wide[at]
            if theirs == mine or there <= early[op]:
                continue
            here = FAR
            if len(apart) == 0 or not apart[mine, theirs]:
                looked += min(first[theirs + 1] - first[theirs], MEMBERS)
                here = _after_group(theirs, op, time, first, members, early, late, most)
                if len(apart) > 0 and here + time[op] + late[op] > most:
                    apart[mine, theirs] = apart[theirs, mine] = True
            early[op] = max(early[op], min(here, there))
    return looked


@compiled(_nrt=False)
def _after_group(
    which: Whole, op: Whole, time: Ints, first: Ints, members: Ints, early: Ints, late: Ints, most: Whole
) -> Whole:
    """When the op can start at the soonest on the device of the group; of large groups only some are looked at."""
    soonest, total, least = np.int64(0), np.int64(0), FAR
    end = early[op] + time[op]
    for at in range(first[which], min(first[which + 1], first[which] + MEMBERS)):
        other = members[at]
        if other != op and end + time[other] + late[other] > most:
            total += time[other]
            least = min(least, early[other])
            soonest = max(soonest, least + total)
    return soonest


@compiled(_nrt=False)
def longest_alone(first: Ints, members: Ints, by_tail: Ints, group: Ints, time: Ints, head: Ints, tail: Ints) -> Whole:
    """The largest, over groups and sets of their ops that all start late and all have much after them, of the least
    start, the time of all, one after the other, and the least that follows. `members`: those of each group, the latest
    start first; `by_tail`: all ops, those with most after them first."""
    longest = np.int64(0)
    for which in range(len(first) - 1):
        low, high = first[which], first[which + 1]
        for at in range(low + 1, high):
            if at + 1 < high and head[members[at + 1]] == head[members[at]]:
                continue
            begin, total = head[members[at]], np.int64(0)
            for index in range(len(by_tail)):
                op = by_tail[index]
                if group[op] == which and head[op] >= begin:
                    total += time[op]
                    longest = max(longest, begin + total + tail[op])
    return longest
