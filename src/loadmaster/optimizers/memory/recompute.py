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
from typing import NamedTuple

import numpy as np

from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.optimizers.fusion.greedy import GreedyFusion, Merges
from loadmaster.optimizers.fusion.starts import simple_orders
from loadmaster.optimizers.memory.cutting import make_light_again, saved_by_cut, turning_point
from loadmaster.optimizers.memory.draft import Closure, Draft, Trip, back_starts, draft_of, out_ends
from loadmaster.optimizers.memory.exact_again import least_time
from loadmaster.optimizers.simple import OneDevice
from loadmaster.plans import Plan
from loadmaster.search import WORST, Optimizer, Score, Search

# Where no reason is given, chosen by hand.
FLOOR_NS = 50  # what is free is not better than what nearly is
TRIES = 5  # times the limit is lowered by what the simulator still finds over it
HALVINGS = 7  # of the limit, where the least memory is wanted
KEPT = 0.25  # share of the dropped tensors that a new choice keeps at most
NOISE = 0.3  # of the logarithm of what a drop is worth, in a new choice
EXACT_SHARE = 0.3  # of the time left, for the exact model of a small graph
PER_SIMULATION, MOST_EFFORT = 0.02, 10.0  # of CP-SAT's own deterministic seconds, where the budget counts simulations
SLACK_NS = 20_000  # that a tensor is back before it is read


class Act(NamedTuple):
    """One part of a drop: those readers read another version."""

    later: list[tuple[int, int]]
    at: int
    closure: Closure | None  # None: another version that is there, or a stay
    other: int = -1  # version
    host: int = -1
    gone: int = -1  # position from which on a tensor that was sent away is no longer here
    trip: Trip | None = None


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
            ways = [(plan, cut) for plan in starts for cut in ((False, True) if self.again else (False,))]
            fitted = [self._fitted(search, plan, set(), 0.0, cut) for plan, cut in ways]
            best = min(range(len(ways)), key=lambda i: fitted[i][0])
            self._vary(search, *ways[best], fitted[best][2])
        assert search.best is not None
        return search.best

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

    def _fitted(
        self, search: Search, plan: Plan, kept: set[int], noise: float, cut: bool = False
    ) -> tuple[Score, Plan, set[int]]:
        """The best plan found for the limits of the problem, with its score and the tensors that it drops; `cut`: what
        a minimum cut need not keep is dropped first."""
        limits = search.problem.memory_bytes.astype(np.int64)
        lowered = limits.copy()
        best: tuple[Score, Plan, set[int]] | None = None
        for _ in range(TRIES):
            draft = draft_of(search.problem, plan)
            if cut:
                make_light_again(draft, saved_by_cut(draft, turning_point(draft)) | kept)
            pass_ = Dropping(self, draft, lowered, kept, search.rng if noise else None, noise)
            dropped = pass_.run()
            made = draft.plan_of()
            if search.spent:
                return best or (WORST, made, dropped)
            score = search.score(made)
            if best is None or score < best[0]:
                best = (score, made, dropped)
            if score.over_bytes == 0 or pass_.stuck or not draft.jobs:
                break
            lowered = lowered - max(1, score.over_bytes)
        assert best is not None
        return best

    def _vary(self, search: Search, plan: Plan, cut: bool, dropped: set[int]) -> None:
        """Keeps some of the tensors that the best plan drops, and chooses the others anew."""
        while not search.spent and dropped:
            share = search.rng.uniform(0, KEPT)
            kept = {t for t in sorted(dropped) if search.rng.random() < share}
            before, used = search.best_score, search.simulations
            _, _, found = self._fitted(search, plan, kept, NOISE * search.rng.random(), cut)
            if search.best_score < before:
                dropped = found
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
            _, found, _ = self._fitted(part, plan, set(), 0.0)
            search.score(found)
            if part.best_score.over_bytes == 0:
                high = middle
            else:
                low = middle + 1


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
        self.stuck = False
        self.dropped: set[int] = set()
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
        return self.dropped

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
                self.stuck = True
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
