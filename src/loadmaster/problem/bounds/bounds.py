"""Lower bounds: what no plan of a class can beat. Each holds for every placement and order, and says for which kernels
and additions.

`lower_bound` is put together by the objective (`Objective.bound`) from parts that are worked out only if it asks. Wider
sets of plans have lower bounds: where kernels may be fused, ops take what is left of them in the best kernel; where ops
may be added, sends are free, since a copy needs none. What was worked out is kept by problem and by what was asked;
where work was cut short, for whoever allows as much of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import CANNOT, Problem, check_problem
from loadmaster.problem.bounds.among import Among, Bound, Work
from loadmaster.problem.bounds.kernels import Fusing, Sharing, copying, least_times
from loadmaster.problem.bounds.kinds import kinds_of, work_of
from loadmaster.problem.bounds.step import step_bound

# Of each problem and class of plans: the bound and the work it took, one entry for each amount of work that cut it.
_Asked = tuple[str, bool, bool]
_known: WeakKeyDictionary[Problem, dict[_Asked, dict[float, tuple[Bound, float]]]] = WeakKeyDictionary()


def lower_bound(
    problem: Problem,
    *,
    fusing: Fusing = False,
    fitting: bool = False,
    adding: bool = False,
    seconds: float | None = None,
) -> int:
    """What no plan of a class can beat, of the problem's objective and in its unit: `bound_of` without saying which.

    >>> from loadmaster import GraphBuilder, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(3)]
    >>> lower_bound(price(g.build(), "2xp100-pcie"))  # all work, shared out exactly: no plan of whole ops gets there
    150
    """
    return bound_of(problem, fusing=fusing, fitting=fitting, adding=adding, seconds=seconds).value


def bound_of(
    problem: Problem,
    *,
    fusing: Fusing = False,
    fitting: bool = False,
    adding: bool = False,
    seconds: float | None = None,
) -> Bound:
    """What no plan of a class can beat, and which class that is. Of an expanded problem, that of the one it was made
    from. The same arguments give the same bound, on any machine and at any load.

    Args:
        problem: whatever it says of fusing and limits, plans are those that the other arguments allow.
        fusing: over plans that may fuse ops, too: True for any kernels, or a Sharing that says which ops may share one.
        fitting: only over plans that fit the memory; the bound may then be higher.
        adding: over plans in which ops are recomputed and tensors offloaded, too.
        seconds: about how long it may take on a quiet core, where a lower one will do. They are counted as work, so
            that no clock has a say. None: as long as it needs.
    """
    check_problem(problem, "lower_bound")
    if not (seconds is None or isinstance(seconds, float | int)):
        raise InvalidSetting.instead_of("number of seconds", seconds, "lower_bound", "give seconds, or None")
    if problem.expansion is not None:
        problem, adding = _unexpanded(problem, problem.expansion.base), True
    among = Among.of(fusing, adding=adding, fitting=fitting, parts=problem.source.is_split)
    if adding:
        fusing = copying(problem, fusing)
    known = _known.setdefault(problem, {}).setdefault((_name(fusing), fitting, adding), {})
    work = Work(seconds)
    for most_ns, (bound, took_ns) in known.items():
        if most_ns == work.most_ns or (not bound.cut and took_ns < work.most_ns):
            return replace(bound, among=among)
    # A stay may take a way that is faster than the link between two devices, and copies need no sends.
    judged = replace(problem, send_ns=ints(np.zeros_like(problem.send_ns))) if adding else problem
    parts = _Parts(judged, fusing, fitting and not adding, adding, work)
    bound = Bound(problem.objective.bound(problem.goal, parts), among, work.left_out)
    known[work.most_ns] = bound, work.done_ns
    return bound


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
    allowed: Work = field(default_factory=Work)

    def step_ns(self) -> int:
        limits = {"fitting": self.fitting, "adding": self.adding}
        return step_bound(self.problem, fusing=self.fusing, allowed=self.allowed, **limits)

    def peak_bytes(self) -> int:
        from loadmaster.problem.bounds.peak import peak_bound

        return peak_bound(self.problem, fusing=self.fusing, adding=self.adding, allowed=self.allowed)

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
