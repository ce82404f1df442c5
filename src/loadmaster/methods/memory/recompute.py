"""Recompute: fits a plan into memory by making tensors again, and by sending them to a host and back.

As XLA's rematerialization pass does: where memory is over the limit, the tensor that frees most bytes for the least
time is dropped and made again before its next reader, by the ops that made it. Here that may be any chain of them,
inside the kernel that reads it where that is possible, from what is there or is kept for it; or the tensor goes to a
host and comes back. What comes out is simulated; with time left, other tensors are kept and the rest is chosen anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from loadmaster.baselines.fusion.greedy import GreedyFusion, Merges, simple_orders
from loadmaster.baselines.simple import OneDevice, one_computes
from loadmaster.graph.columns import ints
from loadmaster.methods.memory.cutting import make_light_again, saved_by_cut, turning_point
from loadmaster.methods.memory.delaying import delayed
from loadmaster.methods.memory.draft import Draft, draft_of
from loadmaster.methods.memory.drafted import plan_of
from loadmaster.methods.memory.dropping import Dropping
from loadmaster.methods.memory.inlining import inline_light
from loadmaster.methods.memory.lodging import bring_home, early_updates, heaviest
from loadmaster.methods.memory.trips import hosts_of
from loadmaster.plans import Plan
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.search import WORST, Method, Score, Search

TRIES = 5  # times the limit is lowered by what the simulator still finds over it
PARTED = 12  # kernels that may be taken apart
REFUSED = 3  # times that a plan is fused anew
# How what lives on a host comes, the next where that does not fit: see `Draft.follows` and `Draft.lead`.
COMING = ((False, inf), (True, inf), (True, 3.0), (True, 1.0))
HALVINGS = 7  # of the limit, where the least memory is wanted
KEPT = 0.25  # share of the dropped tensors that a new choice keeps at most
NOISE = 0.3  # of the logarithm of what a drop is worth, in a new choice


# Before anything is dropped: what a minimum cut need not keep is, or light ops go into the kernels that read them.
First = Literal["nothing", "inline", "cut"]


class Fitted(NamedTuple):
    """A plan made to fit the limits.

    Attributes:
        score: of the plan, simulated.
        plan: with what it runs again and what it sends to a host.
        dropped: tensors that are not held until their last reader.
        base: the plan it was made from.
    """

    score: Score
    plan: Plan
    dropped: set[int]
    base: Plan


@dataclass(frozen=True)
class Recompute:
    """Plans with `inner`, then drops what does not fit: tensors are made again, or go to a host and come back, and
    weights, state and inputs may live there.

    Where the objective is one of memory, the least limit that can be kept is looked for by halving; else a plan that
    fits is kept and other choices are tried while the budget lasts.

    Attributes:
        inner: by default greedy fusion; where one device computes all there in program order, else as HEFT places it.
        again: tensors are made again.
        offload: they go to a host (a device of kind cpu) and come back.
        fuse: other kernels than those of `inner` are tried.
        residents: weights, state and inputs may live on a host, too.
    """

    inner: Method | None = None
    again: bool = True
    offload: bool = True
    fuse: bool = True
    residents: bool = True

    def optimize(self, search: Search) -> Plan:
        search.adding = True
        starts = self._starts(search)
        if search.spent:
            return search.best or starts[0]
        if search.problem.objective.of_memory:
            for plan in starts:
                self._least(search, plan)
        elif search.best_score.over_bytes > 0:
            fitted = list[tuple[Fitted, First]]()
            for plan, first in self._ways(search, starts):
                if not (fitted and search.spent):
                    fitted.append((self._fitted(search, plan, set(), 0.0, first), first))
            best, first = min(fitted, key=lambda way: way[0].score)
            self._refuse(search, best, first)
            self._vary(search, best, first)
        assert search.best is not None
        return search.best

    def _ways(self, search: Search, starts: list[Plan]) -> Iterator[tuple[Plan, First]]:
        """Each start as it is, then, where that is another, in the order in which results wait."""
        yield from ((plan, first) for plan in starts for first in self._firsts(plan))
        for plan in starts:
            late = delayed(search, plan)
            if late is not plan:
                yield from ((late, first) for first in self._firsts(late))

    def _firsts(self, plan: Plan) -> tuple[First, ...]:
        if not self.again:
            return ("nothing",)
        return ("nothing", "inline", "cut") if plan.fuses else ("nothing", "cut")

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
        starts = [first, fast, self._fused(search, fast) if self.fuse else fast, plain]
        if self.offload and self.residents and hosts_of(problem.cluster):
            starts = [early_updates(problem, plan) for plan in starts]
        for plan in starts:
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
        alone = part.problem.num_devices == 1 or one_computes(part.problem)
        simple = GreedyFusion(OneDevice()) if alone else GreedyFusion()
        found = (self.inner or simple).optimize(part)
        if part.simulations_left:
            part.score(found)
        return part.best or found

    def _fitted(
        self, search: Search, plan: Plan, kept: set[int], noise: float, first: First = "nothing", less: int = 0
    ) -> Fitted:
        """The best plan found for the limits of the problem, less so many bytes. A kernel that needs more than the
        limit by itself is taken apart."""
        lowered = search.problem.memory_bytes.astype(np.int64) - less
        best: Fitted | None = None
        tries, parted, coming = 0, 0, list(COMING)
        while tries < TRIES:
            draft = self._drafted(search, plan, first, kept)
            draft.follows, draft.lead = coming[0]
            pass_ = Dropping(self, draft, lowered, kept, search.rng if noise else None, noise, lambda: search.spent)
            dropped = pass_.run()
            if search.spent:
                return best or Fitted(WORST, plan_of(draft), dropped, plan)
            if pass_.stuck and draft.lodged and len(coming) > 1:
                del coming[0]
                continue
            if pass_.stuck_at >= 0 and draft.members[pass_.stuck_at] > 1 and parted < PARTED:
                plan, parted = apart(search.problem, plan, int(draft.heads[pass_.stuck_at])), parted + 1
                continue
            tries += 1
            made = plan_of(draft)
            score = search.score(made)
            if best is None or score < best.score:
                best = Fitted(score, made, dropped, plan)
            if score.over_bytes == 0 and draft.lodged and not search.spent:
                best = min(best, self._brought_home(search, draft, best), key=lambda found: found.score)
            if score.over_bytes == 0 or pass_.stuck or not draft.jobs:
                break
            if draft.lodged and not draft.follows:
                del coming[0]
                continue
            lowered = lowered - max(1, score.over_bytes)
        assert best is not None
        return best

    @staticmethod
    def _brought_home(search: Search, draft: Draft, found: Fitted) -> Fitted:
        """With what lives on a host here after all, as far as a plan that fits has left room for it."""
        room = search.problem.memory_bytes - search.timeline(found.plan).peak_bytes
        homes = [tensor for tensor in heaviest(draft) if draft.nbytes[tensor] <= room[draft.home_of(tensor)]]
        for tensor in homes:
            device = draft.home_of(tensor)
            if draft.nbytes[tensor] <= room[device]:
                bring_home(draft, tensor)
                room[device] -= draft.nbytes[tensor]
        if not homes or search.spent:
            return found
        made = plan_of(draft)
        return Fitted(search.score(made), made, found.dropped, found.base)

    @staticmethod
    def _drafted(search: Search, plan: Plan, first: First, kept: set[int]) -> Draft:
        draft = draft_of(search.problem, plan, search)
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
                self._refuse(search, found, first)
            if search.simulations == used:
                return

    def _refuse(self, search: Search, found: Fitted, first: First) -> None:
        """Fuses a plan's ops and copies anew. Where the fastest of that needs more than there is, as much more is made
        again from the start."""
        less = 0
        for _ in range(REFUSED if self.fuse else 0):
            scores = list(self._refused(search, found.plan))
            fastest = min(scores, key=lambda score: score.value, default=found.score)
            if fastest.over_bytes == 0 or fastest.value >= search.best_score.value or search.spent:
                return
            less += fastest.over_bytes
            found = self._fitted(search, found.base, set(), 0.0, first, less)

    @staticmethod
    def _refused(search: Search, plan: Plan) -> Iterator[Score]:
        """By the rule of compilers, and by all that is legal from the last op on."""
        problem = whole(search.problem, plan)
        merges = Merges.of(problem)
        if plan.added is None or not len(merges.producers):
            return
        program = np.arange(problem.num_ops) / problem.num_ops
        for kernel in (merges.greedy(plan.device), merges.kernels(plan.device, program)[0]):
            if search.spent:
                return
            yield search.score(Plan.of(problem, plan.device, plan.rank, ints(kernel)))

    def _least(self, search: Search, plan: Plan) -> None:
        """The least limit that can be kept, by halving."""
        draft = draft_of(search.problem, plan, search)
        high = int(draft.line.peak_bytes.max())
        low = int(draft.line.peak_bytes.max() - (draft.memory.max() - draft.memory.min()))
        for _ in range(HALVINGS):
            if search.spent or low >= high:
                return
            middle = (low + high) // 2
            limits = ints(np.minimum(search.problem.memory_bytes, middle))
            part = search.part(problem=replace(search.problem, memory_bytes=limits))
            found = self._fitted(part, plan, set(), 0.0).plan
            if search.simulations_left:
                search.score(found)
            else:  # the part had the last simulation
                search.offer(found, Score.of(search.problem, search.timeline(found)))
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
