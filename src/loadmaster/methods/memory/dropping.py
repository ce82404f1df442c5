"""Dropping: one pass over a draft, which does without tensors until nothing is over the limits, or nothing helps.

Greedy, as XLA's rematerialization: where a device is furthest over its limit the version is dropped that frees most
bytes times positions over the limit for the least time, by whichever way is best (`Dropping.choice`); then where it is
furthest over by then. At the end, what later drops have made needless is taken back, dearest first. Nothing is
simulated here: the draft's sums say what is held, and `recompute` has the simulator judge what comes out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loadmaster.graph.columns import Bools, Ints
from loadmaster.methods.memory.changes import make_again, reuse
from loadmaster.methods.memory.closures import Closure, closure_of
from loadmaster.methods.memory.draft import Draft
from loadmaster.methods.memory.lodging import (
    OVERLAPPED,
    Lodging,
    bring_home,
    heaviest,
    least_cost_ns,
    lodge,
    lodgers,
    lodging_of,
    set_out_early,
)
from loadmaster.methods.memory.trips import SLACK_NS, Trip, back_starts, hosts_of, out_ends, send_away, waited_ns

if TYPE_CHECKING:
    from loadmaster.methods.memory.recompute import Recompute

FLOOR_NS = 50  # what is free is not better than what nearly is


class Act(NamedTuple):
    """One part of a drop: those readers read another version.

    Attributes:
        closure: None: another version that is there, or a stay.
        other: version.
        gone: position from which on a tensor that was sent away is no longer here.
    """

    later: list[tuple[int, int]]
    at: int
    closure: Closure | None
    other: int = -1
    host: int = -1
    gone: int = -1
    trip: Trip | None = None


class Choice(NamedTuple):
    """What to do about a version, and what that is worth: bytes times positions over the limit, for the time.

    Attributes:
        lodging: of what is there before the step.
    """

    worth: float
    acts: list[Act]
    lodging: Lodging | None = None


class Dropping:
    """One pass: drops until nothing is over the limits, or nothing helps.

    `run` goes from the position that is furthest over to the next, `choice` finds the best way to do without a version
    there, `do` does it.
    """

    def __init__(
        self,
        settings: Recompute,
        draft: Draft,
        limits: Ints,
        kept: set[int],
        rng: np.random.Generator | None,
        noise: float,
        is_up: Callable[[], bool] = lambda: False,  # whether no time is left
    ) -> None:
        self.is_up = is_up
        self.settings, self.draft, self.limits, self.kept = settings, draft, limits, kept
        self.rng, self.noise = rng, noise
        self.stuck, self.stuck_at = False, -1  # position
        self.dropped: set[int] = set()
        self.sent: set[int] = set()  # those of them that go to a host
        self.hosts = hosts_of(draft.problem.cluster) if settings.offload else {}
        self.lodgers = lodgers(draft, self.hosts, limits) if self.hosts and settings.residents else []
        self.over_until = np.zeros(0)
        every = np.ones(draft.problem.num_ops, bool)
        self.allowed = (every & ~draft.heavy, ~every, every)  # to make what a tensor is made from

    def run(self) -> set[int]:
        """The tensors that it dropped."""
        draft = self.draft
        while not (self.stuck or self.is_up()):
            over = draft.memory - self.limits[:, None]
            device, at = np.unravel_index(int(over.argmax()), over.shape)
            if over[device, at] <= 0:
                break
            self._relieve(int(device), int(at))
        if not (self.stuck or self.is_up()):
            self._take_back()
        if draft.lead < inf:
            set_out_early(draft, self.limits)
        return self.dropped

    def _take_back(self) -> None:
        """Keeps tensors after all where later drops have left room for them, those that cost most first."""
        for tensor in heaviest(self.draft) if self.draft.follows else ():
            bring_home(self.draft, tensor, int(self.limits[self.draft.home_of(tensor)]))
        draft, copies = self.draft, list[tuple[int, int]]()
        for number, version in enumerate(draft.versions):
            if version.uses and version.job >= 0 and draft.jobs[version.job].op >= 0:
                copies.append((-max(version.cost_ns, draft.op_ns(version.tensor)), number))
        for _, copy in sorted(copies):
            version = draft.versions[copy]
            before = draft.latest(version.tensor, version.made)
            if before >= 0 and version.tensor not in self.sent:
                self._read_again(copy, before)

    def _read_again(self, copy: int, number: int) -> None:
        """Lets the readers of a copy read the version that it stands for, unless that does not fit."""
        draft = self.draft
        device, uses = draft.home(draft.versions[number]), list(draft.versions[copy].uses)
        first, last = draft.versions[number].made, max(where for where, _ in uses)
        back = reuse(draft, copy, number, uses)
        if (draft.memory[device, first : last + 1] > self.limits[device]).any():
            back()

    def _relieve(self, device: int, at: int) -> None:
        """Drops what is there at a position of a device, until that is no longer over the limit."""
        draft = self.draft
        self._measure(device)
        heap = []
        for number, version in enumerate(draft.versions):
            if version.made < at and draft.home(version) == device and self._may(number, at):
                choice = self.choice(number, at)
                if choice is not None:
                    heap.append((-choice.worth, number))
        for tensor in self.lodgers:
            if draft.home_of(tensor) == device and self._may_lodge(tensor, at):
                heap.append((-self._lodging_worth(tensor), -1 - tensor))  # at most: looked at when its turn comes
        heapq.heapify(heap)
        while draft.memory[device, at] > self.limits[device] and not self.is_up():
            if not heap:
                self.stuck, self.stuck_at = True, at
                return
            _, number = heapq.heappop(heap)
            may = self._may(number, at) if number >= 0 else self._may_lodge(-1 - number, at)
            if not may:
                continue
            choice = self.choice(number, at) if number >= 0 else self._lodged(-1 - number, at)
            if choice is None:
                continue
            if heap and -choice.worth > heap[0][0]:
                heapq.heappush(heap, (-choice.worth, number))
                if heap[0][1] != number:
                    continue
                heapq.heappop(heap)
            self._take(number, choice, device)

    def _may(self, number: int, at: int) -> bool:
        return self.draft.versions[number].tensor not in self.kept and self.draft.droppable(number, at)

    def _measure(self, device: int) -> None:
        """[positions + 1] how many positions before each are over the limit."""
        over = self.draft.memory[device] > self.limits[device]
        self.over_until = np.concatenate([[0], np.cumsum(over)])

    def _take(self, number: int, choice: Choice, device: int) -> None:
        """Does it, unless that puts more over the limit than it takes away."""
        before = self._over(device)
        draft, undo = self.draft, []
        for act in choice.acts:
            undo.append(self.do(number, act))
        if choice.lodging is not None:
            undo.append(lodge(draft, -1 - number, self.hosts[device], choice.lodging))
        if self._over(device) >= before:
            for back in reversed(undo):
                back()
            return
        if number < 0:
            self.dropped.add(-1 - number)
            return
        self.dropped.add(draft.versions[number].tensor)
        if any(act.trip is not None for act in choice.acts):
            self.sent.add(draft.versions[number].tensor)

    def _over(self, device: int) -> int:
        return int(np.maximum(self.draft.memory[device] - self.limits[device], 0).sum())

    def do(self, number: int, act: Act) -> Callable[[], None]:
        if act.closure is not None:
            return make_again(self.draft, [(number, act.later)], act.closure, act.at)
        if act.trip is not None:
            return send_away(self.draft, number, act.later, act.host, act.trip, act.gone, act.at)
        return reuse(self.draft, number, act.other, act.later)

    # What to do about a version

    def choice(self, number: int, at: int) -> Choice | None:
        """The best of: another version that is there, making it again in several ways, sending it away."""
        version = self.draft.versions[number]
        later = [use for use in version.uses if use[0] >= at]
        here = any(where == at for where, _ in later)
        ways = [] if here else [self._reused(number, later, at)]
        if self.settings.again and self.draft.able[self.draft.producer[version.tensor]]:
            ways += [self.again(number, later, allowed, at) for allowed in self.allowed[: 2 if here else 3]]
        if not here and version.job < 0 and self.draft.home(version) in self.hosts:
            ways.append(self._away(number, later, at))
        found = [self._valued(number, acts, at, cost) for acts, cost in ways if acts]
        best = max((choice for choice in found if choice.worth > 0), key=lambda c: c.worth, default=None)
        if best is None or self.rng is None:
            return best
        return best._replace(worth=best.worth * float(np.exp(self.noise * self.rng.standard_normal())))

    def _reused(self, number: int, later: list[tuple[int, int]], at: int) -> tuple[list[Act], int]:
        draft, version = self.draft, self.draft.versions[number]
        first = min(where for where, _ in later)
        for other in reversed(draft.of[version.tensor]):
            mate = draft.versions[other]
            if other != number and not mate.inner and at < mate.made <= first:
                return [Act(later, first, None, other)], 0
        return [], 0

    def again(self, number: int, later: list[tuple[int, int]], allowed: Bools, at: int) -> tuple[list[Act], int]:
        """In each light kernel that reads it, and once for all other readers, before the first of them."""
        draft, tensor = self.draft, self.draft.versions[number].tensor
        acts, rest, cost = [], [], 0
        for where in sorted({where for where, _ in later}):
            mine = [use for use in later if use[0] == where]
            plain = all(reader < len(draft.at) for _, reader in mine)
            closure = closure_of(draft, (tensor,), where, allowed, True) if draft.open[where] and plain else None
            alone = closure_of(draft, (tensor,), where, allowed, False) if closure is not None else None
            if where == at and closure is None:
                return [], 0  # it would be there all the same
            if closure is None or (where > at and alone is not None and alone.cost_ns < closure.cost_ns):
                rest += mine
            else:
                acts.append(Act(mine, where, closure))
                cost += closure.cost_ns
        if rest:
            first = min(where for where, _ in rest)
            closure = closure_of(draft, (tensor,), first, allowed, False)
            if closure is None:
                return [], 0
            acts.append(Act(rest, first, closure))
            cost += closure.cost_ns
        return acts, cost

    def _away(self, number: int, later: list[tuple[int, int]], at: int) -> tuple[list[Act], int]:
        """To the host once it is made, and back in time for its next reader, as far as links carry it beside what they
        carry already."""
        draft, version = self.draft, self.draft.versions[number]
        here, problem = draft.home(version), draft.problem
        host, first = self.hosts[here], min(where for where, _ in later)
        ways = ((here, host), (host, here))
        out, back = (int(problem.send_ns[version.tensor, problem.send_class[way]]) for way in ways)
        trip = Trip(int(draft.end_ns[version.made]), out, int(draft.start_ns[first]) - SLACK_NS, back)
        trips = [*draft.trips.values(), trip]
        gone = int(np.searchsorted(draft.start_ns, out_ends(trips)[-1]))
        returns = min(int(np.searchsorted(draft.end_ns, back_starts(trips, draft.lead)[-1])), first)
        if gone > at or returns <= at:
            return [], 0
        cost = (out + back) // OVERLAPPED
        if draft.lead < inf:
            cost += waited_ns(trips, draft.lead) - waited_ns(trips[:-1], draft.lead)
        return [Act(later, returns, None, host=host, gone=gone, trip=trip)], cost

    def _may_lodge(self, tensor: int, at: int) -> bool:
        """It lives here, and nobody needs it at the position."""
        draft = self.draft
        free = tensor not in self.kept and tensor not in draft.lodged
        return free and all(where != at for where, _ in draft.given[tensor])

    def _lodging_worth(self, tensor: int) -> float:
        """At most: here for no time, and never waited for."""
        here = self.draft.home_of(tensor)
        cost = least_cost_ns(self.draft, tensor, self.hosts[here])
        return float(self.draft.nbytes[tensor] * self.over_until[-1]) / max(FLOOR_NS, cost)

    def _lodged(self, tensor: int, at: int) -> Choice | None:
        """On the host of its device, and here for its readers."""
        draft, until = self.draft, self.over_until
        found = lodging_of(draft, tensor, self.hosts[draft.home_of(tensor)])
        spans = [(visit.begin, max(where for where, _ in visit.uses)) for visit in found.visits]
        if found.back is not None:
            spans.append((draft.at[draft.producer[draft.updates[tensor]]] + 1, found.left))
        if any(first <= at <= last for first, last in spans):
            return None
        over = until[-1] - sum(until[last + 1] - until[first] for first, last in spans if first <= last)
        worth = float(draft.nbytes[tensor] * over) / max(FLOOR_NS, found.cost_ns)
        if self.rng is not None:
            worth *= float(np.exp(self.noise * self.rng.standard_normal()))
        return Choice(worth, [], found) if worth > 0 else None

    def _valued(self, number: int, acts: list[Act], at: int, cost: int) -> Choice:
        draft, version = self.draft, self.draft.versions[number]
        size, until = draft.nbytes[version.tensor], self.over_until
        before = max((where for where, _ in version.uses if where < at), default=version.made)
        last = version.last()
        gain = float(size * (until[last + 1] - until[before + 1]))
        for act in acts:
            end = max(where for where, _ in act.later)
            if act.closure is None or not act.closure.joined:
                gain -= size * (until[end + 1] - until[act.at])
            if act.host >= 0:
                gain -= size * (until[max(act.gone, before) + 1] - until[before + 1])
            for kept in act.closure.keeps if act.closure is not None else ():
                held = draft.versions[kept]
                gain -= draft.nbytes[held.tensor] * (until[act.at + 1] - until[min(held.last(), act.at) + 1])
        return Choice(gain / max(FLOOR_NS, cost), acts)
