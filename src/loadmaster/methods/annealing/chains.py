"""A few annealing chains that walk side by side on one problem and go on from the better one.

Between the compiled walk and the budget: `Chains.cool` runs some simulations of each chain in threads, lets those far
behind go on from the best, and offers what was found; `Reheating` says how long and hot the next cooling is, and `Pace`
how often to look at the clock. The problem may be coarser than that of the search; what is offered has gone up.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.annealing import engine
from loadmaster.methods.annealing.state import (
    KINDS,
    LOOK_AT,
    RAN,
    SHIFT,
    TOP_RANK,
    Chain,
    chain_of,
    make_scratch,
    terrain_of,
)
from loadmaster.passes import Coarse, coarsen
from loadmaster.plans import Plan
from loadmaster.search import Score, Search
from loadmaster.search.xorshift import seeded_by
from loadmaster.simulator import cores, layout, spread

CHAINS = 2  # walks at once, which look at each other
ROOM = 400_000  # ops of all chains together, each of which takes up to a kilobyte
BEHIND = 0.03  # a chain that is worse than the best by this share, and more while hot, goes on from the best
HOT, COLD = 2e-3, 1e-4  # first and last temperature of a cooling, as shares of the value
EPOCH, GROWTH = 48, 1.5  # simulations of the first cooling, and how many times as many each later one has
LONG = 4  # simulations for each op: a cooling of so many that gains nothing shows that a search has come to a stop
RAISE = 8.0  # how many times hotter the next one is then, until the temperature is the whole value
LONGEST_S = 0.1  # between two looks at the clock


@dataclass(frozen=True, eq=False)
class ChainStart:
    """Where a chain begins: devices, ranks and what the plan is worth."""

    device: NDArray[np.integer]
    rank: NDArray[np.integer]
    score: Score


class Chains:
    """Walkers on a problem, which may be coarser than that of the search; kept from one cooling to the next.

    What they do with some simulations does not depend on the budget, nor on the clock: those decide when they stop.
    """

    def __init__(
        self,
        search: Search,
        coarse: Coarse,
        starts: Sequence[ChainStart],
        mirrored: bool = True,
        placing: bool = True,
        ordering: bool = True,
    ) -> None:
        """One chain from each start. `coarse`: from the search's problem to the one that they walk on; `mirrored`:
        backward ops move with their forward ops; `placing`, `ordering`: what moves may change."""
        self.search, self.coarse = search, coarse
        self.problem = problem = coarse.problem
        self.layout = layout(problem)
        self.terrain = terrain_of(problem, mirrored)
        places, orders = placing and problem.num_devices > 1, ordering and problem.objective.of_order
        self.kinds = np.array([places if kind < SHIFT else orders for kind in range(KINDS)])
        self.scratch = [make_scratch(self.layout, self.terrain.goal.step_price > 0) for _ in starts]
        self.chains: list[Chain] = [self._chain(start) for start in starts]
        self.pace = Pace(search)

    def _chain(self, start: ChainStart) -> Chain:
        return chain_of(start.device, start.rank, start.score, seeded_by(self.search.rng))

    def return_to_best(self) -> None:
        """All chains go on from the best that any of them has seen."""
        best = self.best
        place, rank, score = best.best_place.copy(), best.best_rank.copy(), best.score[2:].copy()
        for chain in self.chains:
            for column in (chain.place, chain.best_place):
                column[:] = place
            for column in (chain.rank, chain.best_rank):
                column[:] = rank
            chain.score[:] = (*score, *score)
            chain.counts[LOOK_AT] = chain.counts[RAN]

    def cool(self, simulations: int, hot: float, cold: float) -> None:
        """So many simulations of all chains together, from the one temperature to the other; fewer only where the
        budget ends. Temperatures are shares of a plan's value."""
        if not self.kinds.any():
            return
        each, done = max(1, simulations // len(self.chains)), 0
        begun = [int(chain.counts[RAN]) for chain in self.chains]
        habits = [engine.Habits(self.kinds, float(hot), float(cold), ran, each) for ran in begun]
        while done < each and not self.search.spent:
            goal = min(each, done + max(engine.REFRESH, self.pace.count))
            while done < goal and not self.search.spent:
                done += self._advance(goal - done, habits)
            if done == goal:
                self._share(float(engine.temperature(habits[0], int(self.chains[0].counts[RAN]))))

    def _advance(self, most: int, habits: list[engine.Habits]) -> int:
        """Some simulations of each chain, as many as the pace and the budget allow; how many."""
        walking = range(max(1, min(len(self.chains), self.search.simulations_left)))
        steps = max(1, min(most, self.pace.next(), self.search.simulations_left // len(walking)))

        def part(low: int, high: int) -> None:
            for at in range(low, high):
                engine.walk(self.layout, self.terrain, self.chains[at], self.scratch[at], habits[at], steps)

        clock = time.perf_counter()
        threads = min(len(walking), cores())
        spread(part, len(walking), threads)
        self.pace.took(steps, time.perf_counter() - clock)
        self.search.count(min(self.search.simulations_left, steps * len(walking)), threads)
        if self.score < self.search.best_score:
            score, plan = self.found
            self.search.offer(plan, score)
        return steps

    @property
    def best(self) -> Chain:
        """The chain that has seen the best plan."""
        return min(self.chains, key=lambda chain: (chain.score[2], chain.score[3]))

    @property
    def found(self) -> tuple[Score, Plan]:
        """The best that any of them has seen since they were started."""
        best = self.best
        return self.score, self.coarse.up(Plan.of(self.problem, ints(best.best_place), ints(best.best_rank)))

    @property
    def score(self) -> Score:
        """Of that."""
        return Score(*map(int, self.best.score[2:]))

    def _share(self, temperature: float) -> None:
        """A chain that has fallen far behind goes on from the best: farther than its temperature explains, or a hot
        walk would be called back before it gets anywhere."""
        best, far = self.best, BEHIND * (1 + temperature / HOT)
        for chain in self.chains:
            if (chain.score[0], chain.score[1] / (1 + far)) > (best.score[2], best.score[3]):
                chain.place[:], chain.rank[:] = best.best_place, best.best_rank
                chain.score[:2] = best.score[2:]


class Pace:
    """How many simulations go between two looks at the clock: what a small part of the time that is left allows. Where
    the budget is one of simulations alone there is no need to look."""

    def __init__(self, search: Search) -> None:
        self.search, self.count = search, 1

    def next(self) -> int:
        """Simulations until the next look."""
        return sys.maxsize if self.search.counts_simulations else self.count

    def took(self, count: int, seconds: float) -> None:
        """What the last ones took, which decides how many come next; at most twice as many."""
        if not self.search.counts_simulations:
            goal = LONGEST_S * min(1.0, self.search.seconds_left / 2)
            self.count = max(1, min(2 * count, int(goal * count / seconds)))


@dataclass
class Reheating:
    """How long and how hot one cooling after another is, whatever the budget is: what a search does with some
    simulations is the beginning of what it does with more, and so more are never worse.

    Each is longer than the last. Where one that could look at every op a few times has gained nothing, the search has
    come to a stop: the next ones are as long, and hotter each time, until they gain or are so hot that it begins again.
    """

    ops: int
    length: float = EPOCH
    times: float = 1.0

    def ended(self, temperature: float, gained: bool) -> None:
        """Sets length and heat of the next cooling by whether this one, from that temperature, gained anything."""
        stopped = not gained and self.length >= LONG * self.ops
        self.times = RAISE * self.times if stopped else 1.0
        if not stopped or temperature * self.times > 1.0:
            self.times, self.length = 1.0, self.length * GROWTH


def epochs() -> Iterator[int]:
    """Lengths of one cooling after another, whatever the budget is: what a search does with some simulations is the
    beginning of what it does with more, and so more are never worse."""
    length = float(EPOCH)
    while True:
        yield int(length)
        length *= GROWTH


def side_by_side(search: Search, ops: int) -> int:
    """How many chains walk at once: where the clock counts one for each core, as long as there is room for what each
    needs. Where simulations are counted one, for what comes of them must not depend on the machine."""
    return 1 if search.counts_simulations else max(1, min(cores(), ROOM // max(1, ops)))


def together(simulations: int, chains: int) -> int:
    """Simulations of all chains of a cooling that each walk on a core of their own, where one alone would have so many.
    Of n chains each has a part of 1 / √n: half of the gain is by n draws, half by more coolings after one another."""
    return int(simulations * math.sqrt(chains))


def walkers(search: Search, plan: Plan, score: Score, chains: int) -> Chains:
    """Chains from a plan whose kernels stay as they are."""
    coarse = coarsen(search.problem, plan.kernel)
    start = ChainStart(coarse.first(plan.device), coarse.lowest(spread_ranks(search, plan)), score)
    return Chains(search, coarse, [start] * max(1, chains))


def spread_ranks(search: Search, plan: Plan) -> Ints:
    """Ranks in the order of dispatch, spread over the whole scale so that there is room between them."""
    turn = search.timeline(plan).turn
    return ints(turn * (TOP_RANK // (int(turn.max()) + 1)))
