"""What a policy acts in: placements of groups go in, measured times come out; the simulator is one such environment.

Methods that learn on a graph know nothing else of the world, so that real devices could stand in for the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.papers.decoding import critical_ranks, device_of_groups
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Search

PENALTY = 10.0  # as the root of a step 100 times as long as one device takes
AT_ONCE = 1 << 22  # entries of placements and ranks made at a time: what is asked for at once does not set the memory


@dataclass(frozen=True, eq=False)
class Measurements:
    """What came back for each placement.

    Attributes:
        step_ns: [n] bytes where peak memory is the objective; not a number where the budget had ended.
        over_bytes: [n] beyond the memory of the devices.
    """

    step_ns: NDArray[np.float64]  # [n]
    over_bytes: Ints  # [n]

    @property
    def valid(self) -> Bools:
        """[n] ran and fitted."""
        fits: Bools = ~np.isnan(self.step_ns) & (self.over_bytes == 0)
        return fits


@dataclass(eq=False)
class Simulated:
    """The simulator as an environment; a device takes its ops by the critical path. Every placement counts as one
    simulation of the search, which keeps the best plan.

    Attributes:
        search: that counts, and keeps the best plan.
        label: [ops] group of each op.
    """

    search: Search
    label: Ints  # [ops]

    @property
    def problem(self) -> Problem:
        return self.search.problem

    @cached_property
    def num_groups(self) -> int:
        return int(self.label.max(initial=-1)) + 1

    @property
    def measurements_left(self) -> int:
        return 0 if self.search.spent else self.search.simulations_left

    @cached_property
    def unit_ns(self) -> float:
        """A step with every op on its best device, one after the other; all bytes, where memory is the objective."""
        of_memory = self.problem.objective.of_memory
        return float(max(1, (self.problem.graph.nbytes if of_memory else self.problem.best_ns).sum()))

    def measure(self, group_device: NDArray[np.integer]) -> Measurements:
        """Of placements [n, groups], in order. Those beyond the budget are marked, not raised."""
        count = min(len(group_device), self.measurements_left)
        step, over = np.full(len(group_device), np.nan), np.zeros(len(group_device), np.int64)
        at_once = max(1, AT_ONCE // max(1, self.problem.num_ops))
        for first in range(0, count, at_once):
            part = slice(first, min(count, first + at_once))
            device = device_of_groups(self.problem, self.label, group_device[part])
            over[part], step[part] = self.search.score_many(device, critical_ranks(self.problem, device))
        return Measurements(step, over)

    def starts(self, group_device: NDArray[np.integer]) -> tuple[float, int, Ints]:
        """Of one placement [groups]: its step time in ns, its bytes over the memory, and when each group starts."""
        device = device_of_groups(self.problem, self.label, group_device)
        plan = Plan.of(self.problem, device, critical_ranks(self.problem, device[None])[0])
        score = self.search.score(plan)
        first = np.full(self.num_groups, np.iinfo(np.int64).max)
        np.minimum.at(first, self.label, self.search.timeline(plan).start_ns)
        return float(score.value), score.over_bytes, ints(first)


def reward(measured: Measurements, unit_ns: float) -> NDArray[np.float64]:
    """[n] minus the root of the step time in units; what did not run or fit costs the penalty, and nothing more."""
    cost = np.where(measured.valid, measured.step_ns / unit_ns, np.inf)
    gained: NDArray[np.float64] = -np.minimum(np.sqrt(cost), PENALTY)
    return gained
