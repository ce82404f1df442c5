"""Recompute: fits a plan into memory by making tensors again, and by sending them to a host and back.

As XLA's rematerialization pass does: where memory is over the limit, the tensor that frees most bytes for the least
time is dropped and made again before its next reader, by the ops that made it. Here that may be any chain of them,
inside the kernel that reads it where that is possible, from what is there or is kept for it; or the tensor goes to a
host and comes back. What comes out is simulated; with time left, other tensors are kept and the rest is chosen anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.optimizers.fusion.greedy import GreedyFusion, Merges
from loadmaster.optimizers.fusion.starts import simple_orders
from loadmaster.optimizers.memory.cutting import make_light_again, saved_by_cut, turning_point
from loadmaster.optimizers.memory.draft import Closure, Draft, Trip, back_starts, draft_of, out_ends
from loadmaster.optimizers.memory.exact_again import least_time
from loadmaster.optimizers.memory.inlining import inline_light
from loadmaster.optimizers.simple import OneDevice
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Optimizer, Score, Search

# Where no reason is given, chosen by hand.
FLOOR_NS = 50  # what is free is not better than what nearly is
TRIES = 5  # times the limit is lowered by what the simulator still finds over it
PARTED = 12  # kernels that may be taken apart
HALVINGS = 7  # of the limit, where the least memory is wanted
KEPT = 0.25  # share of the dropped tensors that a new choice keeps at most
NOISE = 0.3  # of the logarithm of what a drop is worth, in a new choice
EXACT_SHARE = 0.3  # of the time left, for the exact model of a small graph
PER_SIMULATION, MOST_EFFORT = 0.02, 10.0  # of CP-SAT's own deterministic seconds, where the budget counts simulations
SLACK_NS = 20_000  # that a tensor is back before it is read


# Before anything is dropped: what a minimum cut need not keep is, or light ops go into the kernels that read them.
First = Literal["nothing", "inline", "cut"]


class Act(NamedTuple):
    """One part of a drop: those readers read another version."""

    later: list[tuple[int, int]]
    at: int
    closure: Closure | None  # None: another version that is there, or a stay
    other: int = -1  # version
    host: int = -1
    gone: int = -1  # position from which on a tensor that was sent away is no longer here
    trip: Trip | None = None


class Fitted(NamedTuple):
    """A plan for the limits, the tensors that it drops, and the plan it was made from."""

    score: Score
    plan: Plan
    dropped: set[int]
    base: Plan


class Choice(NamedTuple):
    """What to do about a version, and what that is worth: bytes times positions over the limit, for the time."""

    worth: float
    acts: list[Act]


@dataclass(frozen=True)
class Recompute:
    """Plans with `inner`, then drops what does not fit. `again`: tensors are made again; `offload`: they go to a host
    (a device of kind cpu) and come back; `fuse`: other kernels than those of `inner` are tried."""

    inner: Optimizer | None = None  # by default greedy fusion; on one device in program order, else as HEFT places it
    again: bool = True
    offload: bool = True
    fuse: bool = True

    def optimize(self, search: Search) -> Plan:
        starts = self._starts(search)
        if search.spent:
            return search.best or starts[0]
        if search.problem.objective.of_memory:
            for plan in starts:
                self._least(search, plan)
        elif search.best_score.over_bytes > 0:
            self._exactly(search)
            ways = [(plan, first) for plan in starts for first in self._firsts(plan)]
            fitted = list[Fitted]()
            for plan, first in ways:
                if not (fitted and search.spent):
                    fitted.append(self._fitted(search, plan, set(), 0.0, first))
            best = min(range(len(fitted)), key=lambda i: fitted[i].score)
            self._vary(search, fitted[best], ways[best][1])
        assert search.best is not None
        return search.best

    def _firsts(self, plan: Plan) -> tuple[First, ...]:
        if not self.again:
            return ("nothing",)
        return ("nothing", "inline", "cut") if plan.fuses else ("nothing", "cut")

    def _exactly(self, search: Search) -> None:
        """Of a small graph on one device, the best plan without kernels, by CP-SAT where that is installed."""
        if not self.again or search.simulations_left < 2:
            return
        counted = search.counts_simulations
        effort = min(MOST_EFFORT, PER_SIMULATION * search.simulations_left) if counted else MOST_EFFORT
        seconds = None if counted else EXACT_SHARE * search.seconds_left
        found = least_time(search.problem, seconds, effort, search.seed)
        if found is not None and not search.spent:
            search.score(found)

    def _starts(self, search: Search) -> list[Plan]:
        """The plan of `inner` under the limits; where that does not fit, also its plan without limits, and its
        placement with nothing fused, in program order."""
        problem = search.problem
        with search.keeping(1.0 if self.inner is None else 0.3) as part:
            first = self.inner_plan(part)
        if search.spent or (search.best_score.over_bytes == 0 and not problem.objective.of_memory):
            return [first]
        wide = replace(problem, memory_bytes=ints(np.full(problem.num_devices, 2**60)))
        fast = first if self.inner is None else self.inner_plan(search.part(0.3, problem=wide))
        plain = Plan.of(problem, fast.device)
        unlike: dict[bytes, Plan] = {}
        for plan in (first, fast, self._fused(search, fast) if self.fuse else fast, plain):
            unlike.setdefault(b"".join(c.tobytes() for c in (plan.kernel, plan.device, plan.rank)), plan)
        return list(unlike.values())

    @staticmethod
    def _fused(search: Search, plan: Plan) -> Plan:
        """The placement of a plan in program order, with the kernels of the simple rule that suit the limits best."""
        problem, merges = search.problem, Merges.of(search.problem)
        if not len(merges.producers):
            return plan
        kernels = merges.kernels(plan.device, np.stack(simple_orders(problem)))[: search.simulations_left // 2]
        if not len(kernels):
            return plan
        device, rank = (np.broadcast_to(c, kernels.shape) for c in (plan.device, np.arange(problem.num_ops)))
        over, value = search.score_fused(device, rank, kernels)
        best = int(np.lexsort((value, over))[0])
        return Plan.of(problem, plan.device, None, ints(kernels[best]))

    def inner_plan(self, part: Search) -> Plan:
        """The best that `inner` finds; of a plan that adds ops itself, without them there would be nothing to add."""
        simple = GreedyFusion(OneDevice()) if part.problem.num_devices == 1 else GreedyFusion()
        found = (self.inner or simple).optimize(part)
        if part.simulations_left:
            part.score(found)
        return part.best or found

    def _fitted(self, search: Search, plan: Plan, kept: set[int], noise: float, first: First = "nothing") -> Fitted:
        """The best plan found for the limits of the problem. A kernel that needs more than the limit by itself is taken
        apart."""
        lowered = search.problem.memory_bytes.astype(np.int64)
        best: Fitted | None = None
        tries, parted = 0, 0
        while tries < TRIES:
            draft = self._drafted(search.problem, plan, first, kept)
            pass_ = Dropping(self, draft, lowered, kept, search.rng if noise else None, noise)
            dropped = pass_.run()
            if pass_.stuck_at >= 0 and draft.members[pass_.stuck_at] > 1 and parted < PARTED:
                plan, parted = apart(search.problem, plan, int(draft.heads[pass_.stuck_at])), parted + 1
                continue
            tries += 1
            made = draft.plan_of()
            if search.spent:
                return best or Fitted(WORST, made, dropped, plan)
            score = search.score(made)
            if best is None or score < best.score:
                best = Fitted(score, made, dropped, plan)
            if score.over_bytes == 0 or pass_.stuck or not draft.jobs:
                break
            lowered = lowered - max(1, score.over_bytes)
        assert best is not None
        return best

    @staticmethod
    def _drafted(problem: Problem, plan: Plan, first: First, kept: set[int]) -> Draft:
        draft = draft_of(problem, plan)
        if first == "cut":
            make_light_again(draft, saved_by_cut(draft, turning_point(draft)) | kept)
        elif first == "inline":
            inline_light(draft)
        return draft

    def _vary(self, search: Search, start: Fitted, first: First) -> None:
        """Keeps some of the tensors that the best plan drops, and chooses the others anew."""
        dropped = start.dropped
        while not search.spent and dropped:
            share = search.rng.uniform(0, KEPT)
            kept = {t for t in sorted(dropped) if search.rng.random() < share}
            before, used = search.best_score, search.simulations
            found = self._fitted(search, start.base, kept, NOISE * search.rng.random(), first)
            if search.best_score < before:
                dropped = found.dropped
            if search.simulations == used:
                return

    def _least(self, search: Search, plan: Plan) -> None:
        """The least limit that can be kept, by halving."""
        draft = draft_of(search.problem, plan)
        high = int(draft.line.peak_bytes.max())
        low = int(draft.line.peak_bytes.max() - (draft.memory.max() - draft.memory.min()))
        for _ in range(HALVINGS):
            if search.spent or low >= high:
                return
            middle = (low + high) // 2
            limits = ints(np.minimum(search.problem.memory_bytes, middle))
            part = search.part(problem=replace(search.problem, memory_bytes=limits))
            search.score(self._fitted(part, plan, set(), 0.0).plan)
            if part.best_score.over_bytes == 0:
                high = middle
            else:
                low = middle + 1


def apart(problem: Problem, plan: Plan, head: int) -> Plan:
    """The plan with the members of a kernel, which its lowest op names, as kernels of their own."""
    inside = plan.kernel == head
    order = np.argsort(np.lexsort((np.arange(problem.num_ops), plan.rank[plan.kernel])))
    kernel = np.where(inside, np.arange(problem.num_ops), plan.kernel)
    return Plan.of(problem, plan.device, order, kernel)


class Dropping:
    """One pass: drops until nothing is over the limits, or nothing helps."""

    def __init__(
        self,
        settings: Recompute,
        draft: Draft,
        limits: Ints,
        kept: set[int],
        rng: np.random.Generator | None,
        noise: float,
    ) -> None:
        self.settings, self.draft, self.limits, self.kept = settings, draft, limits, kept
        self.rng, self.noise = rng, noise
        self.stuck, self.stuck_at = False, -1  # position
        self.dropped: set[int] = set()
        self.sent: set[int] = set()  # those of them that go to a host
        self.hosts = self._hosts() if settings.offload else {}
        self.over_until = np.zeros(0)
        every = np.ones(draft.problem.num_ops, bool)
        self.allowed = (every & ~draft.heavy, ~every, every)  # to make what a tensor is made from

    def _hosts(self) -> dict[int, int]:
        """Device -> the host it may send to and receive from."""
        cluster = self.draft.problem.cluster
        hosts = [d for d, device in enumerate(cluster.devices) if device.kind == "cpu"]
        near = {}
        for device in range(cluster.num_devices):
            ways = [h for h in hosts if h != device and (device, h) in cluster.links and (h, device) in cluster.links]
            if ways and device not in hosts:
                near[device] = ways[0]
        return near

    def run(self) -> set[int]:
        """The tensors that it dropped."""
        draft = self.draft
        while not self.stuck:
            over = draft.memory - self.limits[:, None]
            device, at = np.unravel_index(int(over.argmax()), over.shape)
            if over[device, at] <= 0:
                break
            self._relieve(int(device), int(at))
        if not self.stuck:
            self._take_back()
        return self.dropped

    def _take_back(self) -> None:
        """Keeps tensors after all where later drops have left room for them, those that cost most first."""
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
        back = draft.reuse(copy, number, uses)
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
        heapq.heapify(heap)
        while draft.memory[device, at] > self.limits[device]:
            if not heap:
                self.stuck, self.stuck_at = True, at
                return
            _, number = heapq.heappop(heap)
            if not self._may(number, at):
                continue
            choice = self.choice(number, at)
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
        if self._over(device) >= before:
            for back in reversed(undo):
                back()
            return
        self.dropped.add(draft.versions[number].tensor)
        if any(act.trip is not None for act in choice.acts):
            self.sent.add(draft.versions[number].tensor)

    def _over(self, device: int) -> int:
        return int(np.maximum(self.draft.memory[device] - self.limits[device], 0).sum())

    def do(self, number: int, act: Act) -> Callable[[], None]:
        if act.closure is not None:
            return self.draft.make_again([(number, act.later)], act.closure, act.at)
        if act.trip is not None:
            return self.draft.send_away(number, act.later, act.host, act.trip, act.gone, act.at)
        return self.draft.reuse(number, act.other, act.later)

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
            closure = draft.closure((tensor,), where, allowed, True) if draft.open[where] and plain else None
            alone = draft.closure((tensor,), where, allowed, False) if closure is not None else None
            if where == at and closure is None:
                return [], 0  # it would be there all the same
            if closure is None or (where > at and alone is not None and alone.cost_ns < closure.cost_ns):
                rest += mine
            else:
                acts.append(Act(mine, where, closure))
                cost += closure.cost_ns
        if rest:
            first = min(where for where, _ in rest)
            closure = draft.closure((tensor,), first, allowed, False)
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
        returns = min(int(np.searchsorted(draft.end_ns, back_starts(trips)[-1])), first)
        if gone > at or returns <= at:
            return [], 0
        return [Act(later, max(returns, 1), None, host=host, gone=gone, trip=trip)], (out + back) // 20

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
            if act.host >= 0 and act.gone > before:
                gain -= size * (until[act.gone + 1] - until[before + 1])
            for kept in act.closure.keeps if act.closure is not None else ():
                held = draft.versions[kept]
                gain -= draft.nbytes[held.tensor] * (until[act.at + 1] - until[min(held.last(), act.at) + 1])
        return Choice(gain / max(FLOOR_NS, cost), acts)
