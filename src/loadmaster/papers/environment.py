"""What a policy acts in: placements of groups go in, measured times come out; the simulator is one such environment.

Methods that learn on a graph know nothing else of the world, so that real devices could stand in for the simulator.
Noise and failures of real measurements can be drawn here, to see whether a method bears them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Bools, Ints, ints
from loadmaster.papers.decoding import critical_ranks, device_of_groups
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search
from loadmaster.simulator import simulate_many

Order = Literal["critical", "fifo", "program"]
# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
PENALTY = 10.0  # as the root of a step 100 times as long as one device takes
AT_ONCE = 1 << 22  # entries of placements and ranks made at a time: what is asked for at once does not set the memory


@dataclass(frozen=True, eq=False)
class Measurements:
    """What came back for each placement.

    Attributes:
        step_ns: [n] as the policy sees it, noise included; bytes where peak memory is the objective.
        over_bytes: [n] beyond the memory of the devices.
        failed: [n] nothing was measured: the run failed, or the budget had ended.
    """

    step_ns: NDArray[np.float64]  # [n]
    over_bytes: Ints  # [n]
    failed: Bools  # [n]

    @property
    def valid(self) -> Bools:
        """[n] ran and fitted."""
        fits: Bools = ~self.failed & (self.over_bytes == 0)
        return fits


@dataclass(eq=False)
class Simulated:
    """The simulator as an environment; real devices could stand in for it. `measure` answers for each of [n, groups]
    devices, in order: what failed or came after the budget is marked, not raised. Every placement counts as one
    simulation of the search, failed ones too, and the best plan stays with the search.

    Noise and failures are drawn for the policy alone: a plan that ran is kept by its true value, one that failed is not
    kept.

    Attributes:
        search: that counts, and keeps the best plan.
        label: [ops] group of each op.
        order: in which order a device takes its ops under a placement.
        noise: deviation of the logarithm of the measured time.
        failures: chance that a measurement fails.
        rng: of noise and failures alone.
    """

    search: Search
    label: Ints  # [ops]
    order: Order = "critical"
    noise: float = 0.0
    failures: float = 0.0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        if self.noise < 0 or not 0 <= self.failures < 1:
            what = f"noise {self.noise} and failures {self.failures}"
            raise InvalidSetting(what, "environment", "give noise of 0 or more and failures of 0 to under 1")
        self.rng = np.random.default_rng([self.search.seed, 1])

    @property
    def problem(self) -> Problem:
        return self.search.problem

    @cached_property
    def num_groups(self) -> int:
        return int(self.label.max(initial=-1)) + 1

    @property
    def num_devices(self) -> int:
        return self.problem.num_devices

    @property
    def measurements_left(self) -> int:
        return 0 if self.search.spent else self.search.simulations_left

    @cached_property
    def unit_ns(self) -> float:
        """A step with every op on its best device, one after the other; all bytes, where memory is the objective."""
        of_memory = self.problem.objective.of_memory
        return float(max(1, (self.problem.graph.nbytes if of_memory else self.problem.best_ns).sum()))

    def measure(self, group_device: NDArray[np.integer]) -> Measurements:
        """Of placements [n, groups]. Those beyond the budget come back as failed."""
        count = min(len(group_device), self.measurements_left)
        step, over = np.full(len(group_device), np.nan), np.zeros(len(group_device), np.int64)
        failed = np.ones(len(group_device), bool)
        failed[:count] = self.rng.random(count) < self.failures
        run = np.flatnonzero(~failed)
        self.search.count(count - len(run))
        at_once = max(1, AT_ONCE // max(1, self.problem.num_ops))
        for first in range(0, len(run), at_once):
            part = run[first : first + at_once]
            over[part], step[part] = self._score(group_device[part])
        noisy = step * np.exp(self.noise * self.rng.standard_normal(len(step)))
        return Measurements(noisy, over, failed)

    def starts(self, group_device: NDArray[np.integer]) -> tuple[Measurements, Ints]:
        """Of one placement [groups]: how long its step takes, and when each group starts, in ns; one simulation."""
        device = device_of_groups(self.problem, self.label, group_device)
        plan = Plan.of(self.problem, device, critical_ranks(self.problem, device[None])[0])
        score = self.search.score(plan)
        first = np.full(self.num_groups, np.iinfo(np.int64).max)
        np.minimum.at(first, self.label, self.search.timeline(plan).start_ns)
        step = score.value * np.exp(self.noise * self.rng.standard_normal(1))
        return Measurements(step, ints([score.over_bytes]), self.rng.random(1) < self.failures), ints(first)

    def _score(self, group_device: NDArray[np.integer]) -> tuple[Ints, Ints]:
        device = device_of_groups(self.problem, self.label, group_device)
        if self.order == "fifo":
            return self._score_first_come(device)
        ranks = critical_ranks(self.problem, device) if self.order == "critical" else None
        return self.search.score_many(device, ranks)

    def _score_first_come(self, device: Ints) -> tuple[Ints, Ints]:
        """Ready queues in order of arrival have no ranks before they ran; the best plan gets those it ran by."""
        scores = simulate_many(self.problem, device, np.empty((1, 0), np.int64))
        value, over = scores.objective(self.problem), scores.over_bytes
        self.search.count(len(device))
        best = int(np.lexsort((value, over))[0])
        score = Score(int(over[best]), int(value[best]))
        if score < self.search.best_score:
            self.search.offer(self.search.first_come(device[best]), score)
        return over, value


def reward(measured: Measurements, unit_ns: float, root: bool = True, penalty: float = PENALTY) -> NDArray[np.float64]:
    """[n] minus the root of the step time in units, or minus the time itself; what failed or did not fit costs the
    penalty (its square, without the root), and nothing costs more."""
    most = penalty if root else penalty**2
    cost = np.where(measured.valid, measured.step_ns / unit_ns, np.inf)
    gained: NDArray[np.float64] = -np.minimum(np.sqrt(cost) if root else cost, most)
    return gained
