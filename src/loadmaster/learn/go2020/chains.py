"""Chains of draws between two passes of GO's network: each draw starts from what the one before it left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadmaster.columns import Ints, ints, inverse, rows_of
from loadmaster.learn.go2020 import draws
from loadmaster.learn.go2020.fusing import Kernels, fusing_for, fusion_levels, simple_fusions
from loadmaster.learn.go2020.input import Floats, GoInput
from loadmaster.optimizers.annealing.anneal import ground_of, spread_ranks
from loadmaster.optimizers.annealing.walk import Ground
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Score, Search
from loadmaster.simulator import first_come, layout, spread

if TYPE_CHECKING:
    from loadmaster.learn.go2020.optimizer import Go

# How often each kind of draw is made: window, scope, slice, neighbourhood, single op, border, shift, beside, fuse.
PLACING = (4.0, 3.0, 3.0, 2.0, 2.0, 4.0, 0.0, 0.0, 0.0)
ORDERING = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 2.0, 0.0)
FUSING = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0)
CHAINS = 2
ROWS = 192  # draws of each chain that are written down between two passes
COLD = 0.01  # the last heat, as a share of the first
FUSING_HEAT = 0.06
ROUND = 64  # draws of each chain between two looks at the budget, where answers must not depend on the clock
ROUND_S = 0.1  # where the clock counts
DEAR, DEAR_SHARE = 200, 0.9  # draws that a step of learning costs, from which on draws get that share of the time
Places = NDArray[np.int32]
BEHIND = 0.97  # a chain that is so much slower than the best plan goes on from there


class Pace:
    """How much is drawn between two passes of the network: a fixed number where the budget is one of simulations; else
    so much that simulating takes a share of the time, and a given number of steps all of it."""

    def __init__(self, search: Search, settings: Go, steps: int | None, hot: float) -> None:
        self.search, self.share, self.hot, self.steps = search, settings.share, hot, steps
        self.trials = min(settings.rollouts, max(16, search.room // 8))
        self.begun, self.clock = search.progress, 0.0
        self.network_s: list[float] = []

    def __enter__(self) -> None:
        self.clock = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.network_s = [*self.network_s, time.perf_counter() - self.clock][-2:]

    def next(self, step: int, draw_s: float) -> tuple[float | None, int]:
        """Seconds, or none and the number of draws, of which one takes `draw_s`."""
        if self.search.counts_simulations:
            return None, self.trials
        # Of the first step, learning is not known yet; it takes about twice as long as the rest.
        network_s = sum(self.network_s) if len(self.network_s) == 2 else 3 * sum(self.network_s)
        left = self.search.seconds_left
        dear = self.steps is None and network_s > DEAR * draw_s  # with a number of steps, these are wanted
        share = max(self.share, DEAR_SHARE) if dear else self.share
        seconds = network_s * share / (1 - share)
        if self.steps is not None:
            seconds = max(seconds, left / (self.steps - step) - network_s)
        return (left if left < seconds + 2 * network_s else seconds), 2**31

    def heat(self, step: int) -> float:
        """How much worse a plan may be and still be gone on from: less and less as the budget is spent."""
        share = (self.search.progress - self.begun) / max(1e-9, 1 - self.begun)
        if self.steps is not None:
            share = max(share, step / self.steps)
        return float(self.hot * COLD**share)


@dataclass(frozen=True, eq=False)
class Sample:
    """Some of what was drawn between two passes, each row one decision."""

    kind: Ints  # [rows]
    share: Floats  # [rows, groups] of the drawn ops; of a decision on fusion, [rows, ops]
    pick: Ints  # [rows] device, level or fusion priority
    chance: NDArray[np.float64]  # [rows] logarithm
    gain: NDArray[np.float64]  # [rows] share of the value saved, 0 where nothing was


@dataclass(frozen=True)
class Manner:
    """How chains walk."""

    placing: bool
    ordering: bool
    fusing: bool
    fifo: bool
    uniform: float
    aim: float = 0.5

    def weights(self, problem: Problem, fusing: bool) -> NDArray[np.float64]:
        """How often each kind of draw is made; none of a kind of which there is nothing to draw."""
        placing = self.placing and problem.num_devices > 1
        kinds = ((PLACING, placing), (ORDERING, self.ordering), (FUSING, fusing))
        return np.asarray(np.sum([np.array(weights) * wanted for weights, wanted in kinds], axis=0))

    @property
    def warmth(self) -> float:
        """The first heat as a share of what is set: kernels alone change a plan less than devices and order do."""
        return 1.0 if self.placing or self.ordering else FUSING_HEAT

    @property
    def follow(self) -> float:
        """Chance that the order becomes the critical path's after a change of devices; always, if it is not drawn."""
        return 0.0 if self.fifo else 0.5 if self.ordering else 1.0


class Chains:
    """Two walkers on one problem, kept between the passes of the network."""

    def __init__(self, search: Search, one: GoInput, manner: Manner, plans: list[Plan]) -> None:
        self.search, self.problem, self.manner = search, search.problem, manner
        moving = manner.placing or manner.ordering
        self.layout, self.ground = layout(self.problem), ground_of(self.problem) if moving else bare(self.problem)
        self.steps = 16  # of each chain in the next round, where the clock counts
        device = None if manner.placing else plans[0].device
        self.fusing = fusing_for(self.problem, CHAINS, device) if manner.fusing else [None] * CHAINS
        wide = max(one.num_groups, len(one.single))
        self.logs = [draws.make_log(ROWS, wide) for _ in range(CHAINS)]
        fusions = [self._fusions(plan) for plan in plans[:CHAINS]]
        turns = [divmod(number, len(fusions)) for number in range(CHAINS)]
        self.chains = [self._chain(plans[which], fusions[which][turn : turn + 1]) for turn, which in turns]

    def _fusions(self, plan: Plan) -> list[tuple[Kernels, Score]]:
        if not self.manner.fusing or not self.search.room:
            return []
        rank = ints(np.arange(len(plan.device))) if self.manner.fifo else ints(self._rank(plan))
        return simple_fusions(self.search, Plan.of(self.problem, plan.device, rank), self.manner.fifo)

    def _chain(self, plan: Plan, fusion: list[tuple[Kernels, Score]]) -> draws.Chain:
        search, seed = self.search, int(self.search.rng.integers(1, 2**62))
        place, rank = plan.device.astype(np.int32), self._rank(plan)
        kernels, score = Kernels(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32)), WORST
        if fusion:
            kernels, score = fusion[0]
        elif search.room:
            score = search.score(self._plan(place, rank, kernels.kernel))
        random, measured = np.array([seed, seed ^ 0x9E3779B97F4A7C15], np.uint64), np.array((*score, *score))
        wish, kernel, at = kernels
        best = (place.copy(), rank.copy(), wish.copy(), kernel.copy(), at.copy())
        return draws.Chain(place, rank, wish, kernel, at, *best, measured, random, np.zeros(1, np.int64))

    def _rank(self, plan: Plan) -> Places:
        if self.manner.fifo:
            return np.zeros(0, np.int32)
        return (spread_ranks(self.problem, plan) if self.manner.ordering else plan.rank).astype(np.int32)

    def _plan(self, place: Places, rank: Places, kernel: Places) -> Plan:
        kernels = ints(kernel) if len(kernel) else None
        if self.manner.fifo:
            return first_come(self.problem, ints(place), kernels)
        return Plan.of(self.problem, ints(place), ints(rank), kernels)

    @property
    def best(self) -> draws.Chain:
        """The chain that stands best."""
        return min(self.chains, key=lambda chain: (chain.score[0], chain.score[1]))

    def standing(self) -> tuple[Plan, Ints, Score]:
        """Its plan, how ops are fused in it, what it is worth."""
        chain = self.best
        plan = self._plan(chain.place, chain.rank, chain.kernel)
        fusion = fusion_levels(self.problem, chain.wish) if self.manner.fusing else ints([])
        return plan, fusion, Score(int(chain.score[0]), int(chain.score[1]))

    def walk(self, policy: draws.Policy, heat: Callable[[], float], seconds: float | None, trials: int) -> Sample:
        """Draws under one policy: so many, or as many as go into the seconds."""
        for log in self.logs:
            log.filled[0] = 0
        begun, first, before = time.perf_counter(), self.search.simulations, -1
        each = self.expected(seconds) if seconds is not None else trials // CHAINS
        manner, fusing = self.manner, self.fusing[0]
        weights = manner.weights(self.problem, fusing is not None and len(fusing.pairs) > 0)
        rest = (manner.follow, manner.aim, manner.uniform, max(1, each // (ROWS // 2)))
        while weights.any() and not self.search.spent and self.search.simulations > before:
            before, left = self.search.simulations, trials - (self.search.simulations - first)
            if left <= 0 or (seconds is not None and time.perf_counter() - begun >= seconds):
                break
            self._round(policy, draws.Habits(weights, heat(), *rest), left, clocked=seconds is not None)
        return self._sample()

    @property
    def draw_s(self) -> float:
        """Seconds that a draw takes, by the last round."""
        return ROUND_S / (CHAINS * self.steps)

    def expected(self, seconds: float) -> int:
        """Draws of one chain in that time, by the last round."""
        return int(self.steps * seconds / ROUND_S)

    def _round(self, policy: draws.Policy, habits: draws.Habits, most: int, clocked: bool) -> None:
        room = min(most, self.search.room)
        walking = self.chains[: max(1, min(CHAINS, room))]
        steps = max(1, min(self.steps if clocked else ROUND, room // len(walking)))
        clock, before = time.perf_counter(), [int(chain.ran[0]) for chain in walking]

        def part(low: int, high: int) -> None:
            for number in range(low, high):
                given = (walking[number], policy, habits, steps, self.logs[number], self.fusing[number])
                draws.walk(self.layout, self.ground, *given)

        spread(part, len(walking), len(walking))
        self.search.count(sum(int(chain.ran[0]) for chain in walking) - sum(before))
        self._share()
        if clocked:
            goal = min(ROUND_S, max(0.002, self.search.seconds_left / 50))
            took = max(1e-6, time.perf_counter() - clock)
            self.steps = int(np.clip(steps * goal / took, 1, 8 * steps))

    def _share(self) -> None:
        """The best of all chains is kept, and a chain that has fallen far behind goes on from it."""
        best = min(self.chains, key=lambda chain: (chain.score[2], chain.score[3]))
        score = Score(int(best.score[2]), int(best.score[3]))
        if score < self.search.best_score:
            self.search.offer(self._plan(best.best_place, best.best_rank, best.best_kernel), score)
        for chain in self.chains:
            if (chain.score[0], chain.score[1] * BEHIND) > (best.score[2], best.score[3]):
                chain.place[:], chain.rank[:], chain.wish[:] = best.best_place, best.best_rank, best.best_wish
                chain.kernel[:], chain.at[:] = best.best_kernel, best.best_at
                chain.score[:2] = best.score[2:]

    def _sample(self) -> Sample:
        parts = [(log, int(log.filled[0])) for log in self.logs]
        columns = ("kind", "share", "pick", "chance", "gain")
        return Sample(*(np.concatenate([getattr(log, name)[:rows] for log, rows in parts]) for name in columns))


def bare(problem: Problem) -> Ground:
    """For chains that fuse alone: without the groups of ops that others move, which take long to find."""
    graph, none, rows = problem.graph, ints([]), ints([0])
    mates = inverse(rows, none, 0)
    within = inverse(rows, none, problem.num_ops)
    made = (graph.read_start, graph.reads, graph.producer, graph.after_start, graph.after)
    groups = (rows, none, none, none, *within, rows_of(rows), graph.colocate, *mates)
    able = np.ascontiguousarray(problem.able)
    return Ground(*made, *groups, able, problem.memory_bytes, problem.goal)
