"""Trips: a tensor leaves for a host and comes back, one after the other over each link.

A small schedule of its own: ways out in the order in which tensors are made, ways back as late as all can still be in
time, worked out from the last backwards. What would have to set out before it can makes the step wait, and that is the
price `dropping` and `lodging` weigh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.methods.memory.draft import Draft, Job, Version

SLACK_NS = 20_000  # that a tensor is back before it is read
NEVER = 1 << 61  # when what goes home is due


class Trip(NamedTuple):
    """A tensor to a host and back, in ns of the draft.

    Attributes:
        since_ns: when it can leave.
        out_ns: what the way there takes.
        due_ns: when it must be back.
        back_ns: what the way back takes.
    """

    since_ns: int
    out_ns: int
    due_ns: int
    back_ns: int


def out_ends(trips: Sequence[Trip]) -> list[int]:
    """[trips] when each has left, one after the other as they are made."""
    ends, free = [0] * len(trips), 0
    for i in sorted(range(len(trips)), key=lambda i: trips[i].since_ns):
        free = ends[i] = max(free, trips[i].since_ns) + trips[i].out_ns
    return ends


def back_starts(trips: Sequence[Trip], lead: float = inf) -> list[int]:
    """[trips] when each must set out at the latest, so that all are back in time; none sooner than so many times its
    own way before it is due (`lead`), though the step may then wait for it."""
    starts, free = [0] * len(trips), 1 << 62
    for i in sorted(range(len(trips)), key=lambda i: -trips[i].due_ns):
        free = min(free, trips[i].due_ns) - trips[i].back_ns
        if lead < inf:
            free = max(free, trips[i].due_ns - int(lead * trips[i].back_ns))
        starts[i] = free
    return starts


def waited_ns(trips: Sequence[Trip], lead: float) -> int:
    """How long the step waits for what comes later than it is due."""
    starts = back_starts(trips, lead)
    waited, free = 0, 0
    for i in sorted(range(len(trips)), key=lambda i: trips[i].due_ns):
        if trips[i].back_ns:
            free = max(free, max(starts[i], 0) + waited) + trips[i].back_ns
            waited = max(waited, free - trips[i].due_ns)
    return waited


def begin_positions(draft: Draft, trips: list[Trip]) -> list[int]:
    """[trips] the position from which on each is on its way here: as late as it can be; where that would have to be
    before the step, once what comes before it is awaited."""
    starts, first = back_starts(trips, draft.lead), [0] * len(trips)
    before = 0
    for i in sorted(range(len(trips)), key=lambda i: trips[i].due_ns):
        if trips[i].due_ns < NEVER:
            first[i] = before if starts[i] < 0 else int(np.searchsorted(draft.end_ns, starts[i]))
            before = int(np.searchsorted(draft.start_ns, trips[i].due_ns + SLACK_NS))
    return first


def send_away(
    draft: Draft, number: int, later: list[tuple[int, int]], host: int, trip: Trip, gone: int, back: int
) -> Callable[[], None]:
    """Lets a version stay on another device, gone from one position on and back at another."""
    version, job = draft.versions[number], len(draft.jobs)
    old_last = version.last()
    draft.jobs.append(Job(-1, back, stay=number, trigger=max(back - 1, version.made)))
    copy = Version(version.tensor, back, job)
    for use in later:
        version.uses.remove(use)
        copy.uses.append(use)
    made = draft.add(copy)
    draft.jobs[job].makes = (made,)
    for _, reader in later:
        draft.source[reader, version.tensor] = made
    draft.source[len(draft.at) + job, version.tensor] = number
    draft.trips[job] = trip
    draft.hosts[job] = host
    kept = max(version.last(), gone)
    draft.hold(version, kept + 1, old_last, -1)
    draft.hold(copy, back, copy.last(), 1)

    def undo() -> None:
        draft.hold(copy, back, copy.last(), -1)
        draft.hold(version, kept + 1, old_last, 1)
        for use in later:
            version.uses.append(use)
            draft.source[use[1], version.tensor] = number
        del draft.source[len(draft.at) + job, version.tensor], draft.trips[job]
        draft.of[version.tensor].pop()
        draft.versions.pop()
        draft.jobs.pop()

    return undo


def time_returns(draft: Draft) -> None:
    """Each stay ends as late as it can, now that all are known."""
    stays = list(draft.trips)
    trips = [draft.trips[job] for job in stays]
    begins = begin_positions(draft, trips)
    for job, start, begin in zip(stays, back_starts(trips, draft.lead), begins, strict=True):
        position = int(np.searchsorted(draft.end_ns, start, side="right")) - 1
        own = draft.jobs[job]
        if own.given < 0:
            own.trigger = max(min(position, own.at - 1), draft.versions[own.stay].made)
        elif draft.trips[job].back_ns:
            own.trigger = min(position if start >= 0 else begin - 1, own.at - 1)


def hosts_of(cluster: Cluster) -> dict[int, int]:
    """Device -> the host it may send to and receive from: the first, since every two devices have links."""
    hosts = [d for d, device in enumerate(cluster.devices) if device.kind == "cpu"]
    return {device: hosts[0] for device in range(cluster.num_devices) if device not in hosts} if hosts else {}
