"""Lower bounds: what no plan can beat. Each holds for every placement, order and, when asked, fusion.

`lower_bound` is put together by the objective (`Objective.bound`) from parts that are worked out only if it asks. Wider
sets of plans have lower bounds: where kernels may be fused, ops take what is left of them in the best kernel; where ops
may be added, sends are free, since a copy needs none. What was worked out is kept by problem and by what was asked;
where time ran out on the way, for whoever allows no more of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import CANNOT, Problem, check_problem
from loadmaster.problem.bounds.allowed import Time
from loadmaster.problem.bounds.kernels import Fusing, Sharing, least_times
from loadmaster.problem.bounds.kinds import kinds_of, work_of
from loadmaster.problem.bounds.peak import EFFORT, copying, peak_bound
from loadmaster.problem.bounds.step import step_bound

# The bound, and the seconds that it was allowed: any number of them where nothing was left out.
_known: WeakKeyDictionary[Problem, dict[tuple[str, bool, bool], tuple[int, float]]] = WeakKeyDictionary()


def lower_bound(
    problem: Problem,
    *,
    fusing: Fusing = False,
    fitting: bool = False,
    adding: bool = False,
    seconds: float | None = None,
) -> int:
    """What no plan can beat, of the problem's objective and in its unit. Of an expanded problem, that of the one it was
    made from.

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(3)]
    >>> lower_bound(price(g.build(), "2xp100-pcie"))  # all work, shared out exactly: no plan of whole ops gets there
    150

    Args:
        problem: whatever it says of fusing and limits, plans are those that the other arguments allow.
        fusing: over plans that may fuse ops, too: True for any kernels, or a Sharing that says which ops may share one.
        fitting: only over plans that fit the memory; the bound may then be higher.
        adding: over plans in which ops are recomputed and tensors offloaded, too.
        seconds: about how long it may take, where a lower one will do; None: as long as it needs.
    """
    check_problem(problem, "lower_bound")
    if not (seconds is None or isinstance(seconds, float | int)):
        raise InvalidSetting.instead_of("number of seconds", seconds, "lower_bound", "give seconds, or None")
    if problem.expansion is not None:
        problem, adding = _unexpanded(problem, problem.expansion.base), True
    if adding:
        fusing = copying(problem, fusing)
    known, key = _known.setdefault(problem, {}), (_name(fusing), fitting, adding)
    allowed = Time(seconds)
    before, had = known.get(key, (0, -1.0))
    if allowed.seconds > had:
        # A stay may take a way that is faster than the link between two devices, and copies need no sends.
        judged = replace(problem, send_ns=ints(np.zeros_like(problem.send_ns))) if adding else problem
        parts = _Parts(judged, fusing, fitting and not adding, adding, allowed)
        bound = max(before, problem.objective.bound(problem.goal, parts))
        known[key] = bound, allowed.seconds if allowed.left_out else float("inf")
    return known[key][0]


def _name(fusing: Fusing) -> str:
    return fusing.digest if isinstance(fusing, Sharing) else str(bool(fusing))


def _unexpanded(problem: Problem, base: Problem) -> Problem:
    """The problem it was made from, judged as it is; that itself where nothing else tells them apart, which keeps its
    bounds."""
    if base.objective == problem.objective and np.array_equal(base.memory_bytes, problem.memory_bytes):
        return base
    return replace(base, objective=problem.objective, memory_bytes=problem.memory_bytes)


@dataclass(frozen=True, eq=False)
class _Parts:
    """What objectives put their bounds together from (`objective.Least`)."""

    problem: Problem
    fusing: Fusing
    fitting: bool
    adding: bool = False
    allowed: Time = field(default_factory=Time)

    def step_ns(self) -> int:
        return step_bound(self.problem, fusing=self.fusing, fitting=self.fitting, allowed=self.allowed)

    def peak_bytes(self) -> int:
        effort = self.allowed.effort(EFFORT)
        return peak_bound(self.problem, fusing=self.fusing, adding=self.adding, effort=effort)

    def shared_ns(self) -> int:
        times = least_times(self.problem, self.fusing)
        work, share = work_of(kinds_of(self.problem, self.fusing, self.fitting))
        together = np.zeros_like(times)
        np.add.at(together, self.problem.leader, np.where(times == CANNOT, 0, times))
        cannot = np.zeros(times.shape, bool)
        np.logical_or.at(cannot, self.problem.leader, times == CANNOT)
        alone = np.where(cannot, np.iinfo(np.int64).max, together).min(axis=1)
        return max(-(-int(work.sum()) // share), int(alone.max()), self._held_up_ns(times))

    def _held_up_ns(self, times: Ints) -> int:
        """Where devices are busy while they send and receive."""
        if self.adding or not self.problem.goal.held_up.any():
            return 0
        from loadmaster.problem.bounds.held_up import least_load

        return least_load(self.problem, times)

    def work(self, price: Ints) -> int:
        times = least_times(self.problem, self.fusing)
        cost = np.where(times == CANNOT, np.iinfo(np.int64).max, times * price[None, :])
        return int(cost.min(axis=1).sum())
