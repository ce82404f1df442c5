"""Chains of draws between two passes of GO's network: the engine of annealing, with the network's scores as what it
proposes from.

Two walkers on one problem are kept between passes (`PolicyChains`), how long and how warm they walk is `DrawPace`'s.
The same compiled loop as `anneal`, so that what learning adds can be told from what searching does (`controls`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.fusion.greedy import Merges
from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.go2020.input import Floats, GoInput
from loadmaster.methods.annealing.chains import Chains, ChainStart, Decisions, epochs, spread_ranks
from loadmaster.methods.annealing.fusion_starts import FusionStart, fusing_for, simple_fusions
from loadmaster.methods.annealing.proposals import Policy, make_log
from loadmaster.methods.annealing.state import LEVELS, NEAR, SWAP
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Score, Search

if TYPE_CHECKING:
    from loadmaster.learn.go2020.method import Go

CHAINS = 2  # two cores; the number is part of what a seed means, so it does not follow the machine
NEARBY = 2.0  # how often neighbourhoods are drawn; the network has seen no other sets that follow edges
ROWS = 192  # draws of each chain that are written down between two passes
COLD = 0.01  # the last temperature, as a share of the first
FUSING_ALONE = 0.06  # of the temperature, where kernels alone change: a plan changes less
FEWEST, EIGHTH = 16, 8  # draws between two passes: at least so many, and so many times fewer than there were
FIRST_EPOCH = 1_024  # simulations until draws are cold for the first time
DEAR, DEAR_SHARE = 200, 0.9  # draws that a step of learning costs, from which on draws get that share of the time
SLICE_S = 0.1  # between two looks at the clock
NOTHING_FUSED = FusionStart(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32))


class DrawPace:
    """How much is drawn between two passes of the network, and how warm. Where the budget is one of simulations, that
    depends on how many there were and not on the budget: more of them go on where fewer end. Else simulating takes a
    share of the time, and a given number of steps all of it."""

    def __init__(self, search: Search, settings: Go, steps: int | None, hot: float) -> None:
        self.search, self.time_share, self.hot, self.steps = search, settings.share, hot, steps
        self.rollouts = settings.rollouts
        self.begun, self.first, self.clock = search.progress, search.simulations, 0.0
        self.network_s: list[float] = []

    def __enter__(self) -> None:
        self.clock = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.network_s = [*self.network_s, time.perf_counter() - self.clock][-2:]

    def next(self, step: int, draw_s: float) -> tuple[float | None, int]:
        """Seconds, or none and the number of draws, of which one takes `draw_s`."""
        if self.search.counts_simulations:
            return None, min(self.rollouts, max(FEWEST, self.search.simulations // EIGHTH))
        # Of the first step, learning is not known yet; it takes about twice as long as the rest.
        network_s = sum(self.network_s) if len(self.network_s) == 2 else 3 * sum(self.network_s)
        left = self.search.seconds_left
        dear = self.steps is None and network_s > DEAR * draw_s  # with a number of steps, these are wanted
        share = max(self.time_share, DEAR_SHARE) if dear else self.time_share
        seconds = network_s * share / (1 - share)
        if self.steps is not None:
            seconds = max(seconds, left / (self.steps - step) - network_s)
        return (left if left < seconds + 2 * network_s else seconds), 2**31

    def share(self, step: int) -> float:
        """How far cooling has come, 0 to 1: again and again, each time for longer, or once over time or steps."""
        if self.steps is not None:
            return step / self.steps
        if not self.search.counts_simulations:
            return (self.search.progress - self.begun) / max(1e-9, 1 - self.begun)
        used = self.search.simulations - self.first
        for length in epochs(FIRST_EPOCH):
            if used < length:
                return used / length
            used -= length
        raise AssertionError("epochs have no end")

    def temperature(self, step: int) -> float:
        """How much worse a plan may be and still be gone on from, in the mean, as a share of its value."""
        return float(self.hot * COLD ** self.share(step))


@dataclass(frozen=True, eq=False)
class Sample:
    """Some of what was drawn between two passes, each row one decision.

    Attributes:
        share: [rows, groups] of the drawn ops; of a decision on fusion, [rows, ops]
        pick: [rows] device, level or fusion priority.
        chance: [rows] logarithm.
        gain: [rows] share of the value saved, 0 where nothing was.
    """

    kind: Ints  # [rows]
    share: Floats  # [rows, groups]
    pick: Ints  # [rows]
    chance: NDArray[np.float64]  # [rows]
    gain: NDArray[np.float64]  # [rows]


@dataclass(frozen=True)
class Manner:
    """Which decisions chains draw, and how.

    Attributes:
        placing, ordering, fusing: decisions that are drawn.
        fifo: first come, first served: there is no order to draw.
        uniform: chance of a draw that asks nobody.
    """

    placing: bool
    ordering: bool
    fusing: bool
    fifo: bool
    uniform: float

    @property
    def decisions(self) -> Decisions:
        """Without an order to draw, it follows the critical path after every change of devices."""
        follow = 0.0 if self.fifo else 0.5 if self.ordering else 1.0
        return Decisions(self.placing, self.ordering, self.fusing, follow)

    @property
    def warmth(self) -> float:
        """The first temperature as a share of what is set."""
        return 1.0 if self.placing or self.ordering else FUSING_ALONE


class PolicyChains:
    """Two walkers on one problem, kept between the passes of the network."""

    def __init__(self, search: Search, one: GoInput, manner: Manner, plans: list[Plan]) -> None:
        self.search, self.problem, self.manner = search, search.problem, manner
        fusions = [self._fusions(plan) for plan in plans[:CHAINS]]
        turns = [divmod(number, len(fusions)) for number in range(CHAINS)]
        starts = [self._start(plans[which], fusions[which][turn : turn + 1]) for turn, which in turns]
        device = None if manner.placing else plans[0].device
        fusing = fusing_for(self.problem, CHAINS, device) if manner.fusing else []
        whole = coarsen(self.problem, ints(np.arange(self.problem.num_ops)))
        self.walking = Chains(search, whole, manner.decisions, starts, fusing, manner.fifo)
        if manner.placing and self.problem.num_devices > 1:
            self.walking.weights[[NEAR, SWAP]] = NEARBY, 0.0  # of two devices that swap, no score was asked
        self.logs = [make_log(ROWS, max(one.num_groups, len(one.single))) for _ in range(CHAINS)]

    @property
    def chains(self) -> list[Any]:
        return self.walking.chains

    def _fusions(self, plan: Plan) -> list[tuple[FusionStart, Score]]:
        if not self.manner.fusing or not self.search.simulations_left:
            return []
        rank = ints(np.arange(len(plan.device))) if self.manner.fifo else self._rank(plan)
        return simple_fusions(self.search, Plan.of(self.problem, plan.device, rank), CHAINS, self.manner.fifo)

    def _rank(self, plan: Plan) -> Ints:
        if self.manner.fifo:
            return ints([])
        return spread_ranks(self.search, plan) if self.manner.ordering else plan.rank

    def _start(self, plan: Plan, fusion: list[tuple[FusionStart, Score]]) -> ChainStart:
        rank, (kernels, score) = self._rank(plan), fusion[0] if fusion else (NOTHING_FUSED, WORST)
        if not fusion and self.search.simulations_left:
            fifo = self.manner.fifo
            ordered = self.search.first_come(plan.device) if fifo else Plan.of(self.problem, plan.device, rank)
            score = self.search.score(ordered)
        return ChainStart(plan.device, rank, score, tuple(kernels))

    def standing(self) -> tuple[Plan, Ints, Score]:
        """The plan of the chain that stands best, how ops are fused in it, what it is worth."""
        chain = min(self.chains, key=lambda chain: (chain.score[0], chain.score[1]))
        plan = self.walking.plan(chain.place, chain.rank, chain.kernel)
        fusion = fusion_levels(self.problem, chain.priority) if self.manner.fusing else ints([])
        return plan, fusion, Score(int(chain.score[0]), int(chain.score[1]))

    def walk(self, policy: Policy, temperature: Callable[[], float], seconds: float | None, trials: int) -> Sample:
        """Draws under one policy: so many, or as many as go into the seconds."""
        each = self.expected(seconds) if seconds is not None else trials // CHAINS
        for log in self.logs:
            log.filled[0], log.every[0] = 0, max(1, each // (ROWS // 2))
        if seconds is None:
            self._cool(policy, temperature(), trials)
            return self._sample()
        begun = time.perf_counter()
        while not self.search.spent and time.perf_counter() - begun < seconds and self.walking.weights.any():
            left = min(SLICE_S, seconds - (time.perf_counter() - begun))
            self._cool(policy, temperature(), CHAINS * max(1, self.expected(left)))
        return self._sample()

    def _cool(self, policy: Policy, temperature: float, draws: int) -> None:
        self.walking.cool(draws, temperature, temperature, policy, self.logs)

    @property
    def draw_s(self) -> float:
        """Seconds that a draw takes, by the last round."""
        return self.walking.pace.one_s / CHAINS

    def expected(self, seconds: float) -> int:
        """Draws of one chain in that time, by the last round."""
        return int(seconds / max(1e-6, self.walking.pace.one_s)) if self.walking.pace.one_s else FEWEST

    def _sample(self) -> Sample:
        parts = [(log, int(log.filled[0])) for log in self.logs]
        columns = ("kind", "share", "pick", "chance", "gain")
        return Sample(*(np.concatenate([getattr(log, name)[:rows] for log, rows in parts]) for name in columns))


def fusion_levels(problem: Problem, priority: NDArray[np.float64]) -> Ints:
    """[ops] as the network says them: the highest priority of each producer's merges, 0 for none."""
    level = np.zeros(problem.num_ops)
    np.maximum.at(level, Merges.of(problem).producers, np.floor(priority))
    return ints(np.clip(level, 0, LEVELS - 1))
