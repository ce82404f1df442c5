"""Lodging: what is there before the step lives on a host, comes for its readers, and goes back where it is updated.

ZeRO-Offload's idea (Ren et al., 2021) op by op: a weight or an optimizer's state need not lie on the device between its
uses. Visits are planned over links that carry one thing at a time (`trips`), as early as there is room; an update is
moved to just after its gradient (`early_updates`), so that its state has the rest of the step to go back. The draft is
charged for what is here while it is here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from loadmaster.graph.columns import Ints, positions, rows_of
from loadmaster.methods.memory.draft import Draft, Job, Version
from loadmaster.methods.memory.trips import NEVER, SLACK_NS, Trip, back_starts, begin_positions, out_ends, waited_ns
from loadmaster.plans import Plan
from loadmaster.plans.additions import may_live_elsewhere
from loadmaster.problem import Problem

APART = 2  # transfers between two uses, for which it is worth leaving in between
SHARE = 10_000  # what is a smaller part of a device's memory is not worth a thought
OVERLAPPED = 20  # a transfer beside compute counts as one part in so many of its time


class Visit(NamedTuple):
    """From one position on, until the last of its uses."""

    uses: list[tuple[int, int]]
    begin: int
    trip: Trip


class Lodging(NamedTuple):
    """A tensor that lives on a host: when it is here; where it is updated, its way back, and when that has ended.

    Attributes:
        left: position.
    """

    visits: list[Visit]
    back: Trip | None
    left: int
    cost_ns: int


def lodgers(draft: Draft, hosts: dict[int, int], limits: Ints) -> list[int]:
    """Tensors that may live on the host of the one device that reads and updates them."""
    able, nbytes = may_live_elsewhere(draft.problem.graph), draft.problem.graph.nbytes
    found = []
    for tensor in np.flatnonzero(able & (nbytes > 0)).tolist():
        device = draft.home_of(tensor)
        here = all(draft.reader_device(reader) == device for _, reader in draft.given[tensor])
        if device in hosts and here and nbytes[tensor] * SHARE >= limits[device]:
            found.append(tensor)
    return found


def lodging_of(draft: Draft, tensor: int, host: int) -> Lodging:
    """How it would come and go beside what the links carry already."""
    here, update = draft.home_of(tensor), int(draft.updates[tensor])
    ways = ((here, host), (host, here))
    out, back = (int(draft.problem.send_ns[tensor, draft.problem.send_class[way]]) for way in ways)
    groups = _stretches(draft, tensor, APART * back + 2 * SLACK_NS)
    trips = [Trip(0, 0, int(draft.start_ns[group[0][0]]) - SLACK_NS, back) for group in groups]
    way_back = None
    if update >= 0:
        way_back = Trip(int(draft.end_ns[draft.at[draft.producer[update]]]), out, NEVER, 0)
    before = list(draft.trips.values())
    every = [*before, *trips, *([] if way_back is None else [way_back])]
    begins = begin_positions(draft, every)[len(before) :]
    ends = out_ends(every) if way_back is not None else []
    left = int(np.searchsorted(draft.start_ns, ends[-1])) - 1 if ends else -1
    visits = [Visit(group, min(at, group[0][0]), trip) for group, at, trip in zip(groups, begins, trips, strict=False)]
    held_up = _held_up(draft, every, ends) - _held_up(draft, before, out_ends(before) if ends else [])
    cost = max(0, held_up) + (len(groups) * back + (out if ends else 0)) // OVERLAPPED
    return Lodging(visits, way_back, left, cost)


def least_cost_ns(draft: Draft, tensor: int, host: int) -> int:
    """Of living on the host, if it comes once and nobody waits."""
    problem, here = draft.problem, draft.home_of(tensor)
    back = int(problem.send_ns[tensor, problem.send_class[host, here]])
    out = int(problem.send_ns[tensor, problem.send_class[here, host]]) if draft.updates[tensor] >= 0 else 0
    return (back + out) // OVERLAPPED


def _held_up(draft: Draft, trips: list[Trip], ends: list[int]) -> int:
    """How long the step waits for what cannot come in time, and at its end for what must go back."""
    end = int(draft.end_ns[-1])
    return waited_ns(trips, draft.lead) + max([end, *ends]) - end


def _stretches(draft: Draft, tensor: int, apart_ns: int) -> list[list[tuple[int, int]]]:
    """Its uses, in groups that are so far apart."""
    groups: list[list[tuple[int, int]]] = []
    for use in sorted(draft.given[tensor]):
        if groups and int(draft.start_ns[use[0]] - draft.end_ns[groups[-1][-1][0]]) <= apart_ns:
            groups[-1].append(use)
        else:
            groups.append([use])
    return groups


def lodge(draft: Draft, tensor: int, host: int, lodging: Lodging) -> Callable[[], None]:
    """Lets it live on the host, with the way back."""
    nbytes, device, last = draft.nbytes[tensor], draft.home_of(tensor), len(draft.heads) - 1
    jobs, uses = len(draft.jobs), draft.given[tensor]
    draft.hold_bytes(device, 0, last, -nbytes)
    spans = []
    for visit in lodging.visits:
        job = _add_job(draft, tensor, visit.begin, host, visit.trip)
        copy = Version(tensor, visit.begin, job)
        number = draft.add(copy)
        for at, reader in visit.uses:
            copy.uses.append((at, reader))
            draft.source[reader, tensor] = number
        spans.append((visit.begin, copy.last()))
        draft.jobs[job].makes = (number,)
    if lodging.back is not None:
        update = int(draft.updates[tensor])
        job = _add_job(draft, update, last, host, lodging.back)
        draft.jobs[job].left = lodging.left
        spans.append((draft.at[draft.producer[update]] + 1, lodging.left))
    for first, end in spans:
        draft.hold_bytes(device, first, end, nbytes)
    draft.lodged.add(tensor)
    before = _follow_links(draft) if draft.follows else {}

    def undo() -> None:
        _put(draft, before)
        draft.lodged.remove(tensor)
        for first, end in spans:
            draft.hold_bytes(device, first, end, -nbytes)
        draft.hold_bytes(device, 0, last, nbytes)
        for _, reader in uses:
            del draft.source[reader, tensor]
        for _ in lodging.visits:
            draft.versions.pop()
        del draft.of[tensor]
        while len(draft.jobs) > jobs:
            job = len(draft.jobs) - 1
            del draft.trips[job], draft.hosts[job]
            draft.jobs.pop()

    return undo


def bring_home(draft: Draft, tensor: int, limit: float = inf) -> None:
    """Lets what lives on a host live here after all, if that fits."""
    device, nbytes, last = draft.home_of(tensor), draft.nbytes[tensor], len(draft.heads) - 1
    jobs = [job for job in draft.trips if draft.jobs[job].given >= 0 and draft.owner[draft.jobs[job].given] == tensor]
    spans = [_span_of(draft, job) for job in jobs]
    more = np.full(last + 1, nbytes)
    for first, end in spans:
        more[first : end + 1] -= nbytes
    if (draft.memory[device] + more > limit).any():
        return
    for first, end in spans:
        draft.hold_bytes(device, first, end, -nbytes)
    draft.hold_bytes(device, 0, last, nbytes)
    for job in jobs:
        for number in draft.jobs[job].makes:
            for _, reader in draft.versions[number].uses:
                del draft.source[reader, tensor]
        del draft.trips[job]
    draft.lodged.remove(tensor)
    if draft.follows:
        _follow_links(draft)


def set_out_early(draft: Draft, limits: Ints) -> None:
    """Lets what may only come shortly before it is needed set out sooner, as far as there is room for it."""
    jobs = list(draft.trips)
    starts = dict(zip(jobs, back_starts([draft.trips[job] for job in jobs]), strict=True))
    for job in sorted(jobs, key=lambda job: draft.trips[job].due_ns):
        own = draft.jobs[job]
        if own.given < 0 or not own.makes:
            continue
        version = draft.versions[own.makes[0]]
        device, nbytes = draft.home(version), draft.nbytes[version.tensor]
        wanted = int(np.searchsorted(draft.end_ns, max(0, starts[job])))
        full = np.flatnonzero(draft.memory[device, wanted : version.made] + nbytes > limits[device])
        begin = wanted + int(full[-1]) + 1 if len(full) else wanted
        _put(draft, {job: (min(begin, version.made), own.left)})


def heaviest(draft: Draft) -> list[int]:
    """What lives on a host, that of which links carry most first, then what is read first."""
    carried = dict.fromkeys(draft.lodged, 0)
    for job in draft.trips:
        if draft.jobs[job].given >= 0:
            root = draft.owner[draft.jobs[job].given]
            carried[root] += draft.nbytes[root]
    return sorted(carried, key=lambda tensor: (-carried[tensor], min(draft.given[tensor]), tensor))


def _span_of(draft: Draft, job: int) -> tuple[int, int]:
    """Positions from which on and until which it is here, beside the visit before that a way back ends."""
    own = draft.jobs[job]
    if own.makes:
        version = draft.versions[own.makes[0]]
        return version.made, version.last()
    return draft.at[draft.producer[own.given]] + 1, own.left


def _follow_links(draft: Draft) -> dict[int, tuple[int, int]]:
    """Moves all that travels to when the links carry it, now that there is more of it. Job -> where it was."""
    jobs = list(draft.trips)
    trips = [draft.trips[job] for job in jobs]
    now: dict[int, tuple[int, int]] = {}
    for job, begin, end in zip(jobs, begin_positions(draft, trips), out_ends(trips), strict=True):
        own = draft.jobs[job]
        if own.makes:
            version = draft.versions[own.makes[0]]
            now[job] = min(begin, min((at for at, _ in version.uses), default=begin)), own.left
        else:
            now[job] = own.at, int(np.searchsorted(draft.start_ns, end)) - 1
    return _put(draft, now)


def _put(draft: Draft, places: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Lets what travels be there from, or be gone at, those positions. Job -> where it was."""
    before = {}
    for job, (begin, left) in places.items():
        own = draft.jobs[job]
        before[job] = own.at, own.left
        if own.makes:
            version = draft.versions[own.makes[0]]
            draft.hold(version, begin, version.made - 1, 1)
            draft.hold(version, version.made, begin - 1, -1)
            version.made = begin
        else:
            root = draft.owner[own.given]
            device, nbytes = draft.home_of(root), draft.nbytes[root]
            written = draft.at[draft.producer[own.given]]
            draft.hold_bytes(device, max(own.left, written) + 1, left, nbytes)
            draft.hold_bytes(device, max(left, written) + 1, own.left, -nbytes)
        own.at, own.left = begin, left
    return before


def _add_job(draft: Draft, tensor: int, at: int, host: int, trip: Trip) -> int:
    job = len(draft.jobs)
    draft.jobs.append(Job(-1, at, given=tensor))
    draft.trips[job] = trip
    draft.hosts[job] = host
    return job


def early_updates(problem: Problem, plan: Plan) -> Plan:
    """The plan with each update of what is there before the step just after what it waits for: what it reads is then
    needed no longer, and its state has the rest of the step to go back."""
    graph, kernel = problem.graph, plan.kernel
    start, _ = graph.readers
    made = np.diff(graph.make_start) > 0
    ends = np.ones(problem.num_ops, bool)  # all it makes lies over what was there before, and nobody reads it
    last = problem.is_updated[graph.owner[graph.makes]] & (np.diff(start)[graph.makes] == 0)
    np.logical_and.at(ends, rows_of(graph.make_start), last)
    alone = (np.bincount(kernel, minlength=problem.num_ops) == 1)[kernel]
    turn = np.empty(problem.num_ops, np.int64)
    turn[np.lexsort((np.arange(problem.num_ops), plan.rank[kernel]))] = 2 * np.arange(problem.num_ops)
    lowest = np.full(problem.num_ops, 2 * problem.num_ops)
    np.minimum.at(lowest, kernel, turn)
    turn = lowest[kernel]
    wait_start, waits = graph.dependencies
    for op in np.flatnonzero(made & ends & alone).tolist():
        before = waits[wait_start[op] : wait_start[op + 1]]
        turn[op] = min(turn[op], int(turn[before].max(initial=-1)) + 1)
    return Plan.of(problem, plan.device, positions(np.lexsort((np.arange(problem.num_ops), turn))), kernel)
