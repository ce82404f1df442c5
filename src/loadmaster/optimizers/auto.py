"""Auto: a portfolio under one budget. Cheap methods first, then search from the best of them.

In comes a problem without fusion to decide, out comes the best placement and order that was met. Plans by rules
(`starts`) are scored, the best of each family begin a race, and annealing goes on from each in epochs that grow
(`Epochs`); a runner that is beaten drops out, others join when they are due (`Race`). Beside the race, small problems
are closed by exact methods where that is possible (`closing`). Nothing depends on the budget but when it stops, so that
more of it is never worse. `joint` runs the same race for plans that fuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any, ClassVar, Protocol

import numpy as np

from loadmaster.graph.columns import ints
from loadmaster.optimizers.annealing.chains import CHAINS, Chains, Decisions, Reheating, compile_walk, start_of
from loadmaster.optimizers.exact import closing
from loadmaster.optimizers.experience.trying import stands_out, suited
from loadmaster.optimizers.genetic.brkga import Brkga
from loadmaster.optimizers.multilevel.multilevel import Multilevel, too_large
from loadmaster.optimizers.starts import (
    VERY_FAR,
    Scored,
    StartRecipe,
    far,
    made,
    of_another,
    of_each_family,
    ordered,
    starts,
    unlike,
)
from loadmaster.passes import Coarse, coarsen
from loadmaster.passes.chaining import chain_small_ops
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import WORST, Optimizer, Score, Search
from loadmaster.simulator import cores

# Where no reason is given, chosen by hand.
EVOLVING = Brkga(by="edges", blocks=24, sends=False, evaluations=10**9)  # few large groups
EVOLVED, EVOLVED_AFTER = 400, 2_000  # simulations for it, and how many there must have been before

# Where the clock decides, a part waits until it costs little beside what the search has done.
AT_ONCE = 100  # simulations' worth of starts before the search begins
BESIDE = 0.25  # of the simulations so far, that all starts together may cost later on
LITTLE = 0.1  # of the same, where a plan that came with the problem stands out
LATE = 0.25  # of the time that is left: a start that may take more is not made
BOUND = 500  # simulations' worth: the bound of a large problem, which says when to stop
SMALL = 2_000  # ops up to which it is had at once

# The epochs of search: how long they are depends on no budget, so that more is never worse.
RACING = 3  # starts that run against each other at first; better than 4 where there are few simulations, 300 to 1,000
FIRST = 32  # simulations from each start, cold: which one is best shows soon
NEXT, NEXT_OF_FEW = 64, 192  # of the second epoch; where that could look at every op a few times
WARMTH = (0.0, 1.0, 2.0, 3.0)  # of the temperature, for the epochs in turn
WARMER = 2.0  # times that on smaller graphs: 0.4 % better there, 0.5 % worse on larger ones, at 3,000 simulations
HOTTER, HOTTEST = 5.0, 20.0  # simulations per op in an epoch, for which it is the temperature itself; most times it
# Of the first 100 simulations 39 to 46 went into moves of order, and 0.1 to 1.5 % of what was gained came from them: at
# first they have this part of their usual share; the whole of it after so many simulations for each op. Not on larger
# graphs: GNMT-8 (31,940 ops, 1,500 simulations) takes 323 ms with them and 353 without.
LEAST_ORDER, ORDERED = 0.05, 4.0
# Epochs from a plan that came with the problem and stands out, before there are others; simulations of each, and the
# part of the temperature that they begin with. Three of them gain 4.2 % in the mean of eight changed problems and four
# seeds, cold ones 4.1 %, as many simulations in epochs as others have them 3.8 %. Few moves of order: 3.6 % for 3.2 on
# eight problems of 2,700 to 5,900 ops, three seeds.
GIVEN, GIVEN_EACH, GIVEN_WARM = 3, 192, 0.5
EXPECT = 0.25  # of the gain of an epoch, that may be looked for in the next
OTHERS = 0.2  # of all simulations, for starts other than the one that leads
APART = 1.02  # times the plan op by op: one of the smaller problem that is worse is given up
BEHIND = 0.02  # as a share: another one that is behind by more is given up
AGAIN = 8  # simulations for each op that another one then has at least
STUCK = 2  # epochs without a gain, after which others are tried
MORE, TRIED = 6, 100  # starts besides the first ones, for then; simulations that each of them has at least
SETTLED = 0.6  # of all simulations for others, once the leader has had many for each op


@dataclass(frozen=True)
class Auto:
    """The portfolio. What it does with N simulations is the beginning of what it does with more, so more is never
    worse; the clock only says when it ends.

    Plans by rules, the best of them under the usual orders; then epochs of annealing, the first ones from several good
    starts, the later and longer ones mostly from the plan that leads. Other starts may run against it: one that has
    done no worse than the leader had after as many simulations goes on.

    Attributes:
        temperature: first temperature, as a share of the value.
        cold: last temperature.
        follow: chance that ranks follow the critical path after a change of placement.
        also: another method whose plan joins the starts.
    """

    temperature: float = 0.001
    cold: float = 1e-4
    follow: float = 0.5
    also: Optimizer | None = None

    RENAMED: ClassVar = {"heat": "temperature"}  # until version 0.3

    def optimize(self, search: Search) -> Plan:
        if too_large(search.problem):
            return self._in_parts(search)
        given = suited(search)
        ahead = bool(given) and stands_out(search, given[0].score)
        epochs, waiting = Epochs(self, search), Waiting(search, ahead)
        if ahead:
            given = [epochs.improve_given(given[0])]
        first = ordered(search, [*given, *of_another(search, self.also), *made(search, waiting.due())])
        if search.spent and search.best is not None:
            return search.best
        race = Race(epochs, waiting, first)
        if not search.spent:
            if search.counts_simulations or search.problem.num_ops <= SMALL:
                with closing(search):
                    race.run()
            else:
                race.run()
        return search.best if search.best is not None else first[0].plan

    def compile_late(self, search: Search) -> None:
        """The walk, before which bounds are made: the starts leave them time."""
        lower_bound(search.problem, fitting=True)
        compile_walk(search)

    def _in_parts(self, search: Search) -> Plan:
        list(of_another(search, self.also))  # the search keeps it
        return Multilevel().optimize(search)


class Waiting:
    """Starts that have not been made. Where simulations are counted all are due at once, for each takes but one; where
    the clock counts, those that take long are due when the search has done much more. Beside a plan that came with the
    problem and stands out, all of them wait for that."""

    @property
    def at_first(self) -> int:
        """Simulations' worth of starts before the search begins, where the clock counts."""
        return AT_ONCE

    def __init__(self, search: Search, stands_out: bool = False) -> None:
        self.search, self.stands_out, self.cost, self.bounded = search, stands_out, 0, False

    @cached_property
    def left(self) -> list[StartRecipe]:
        return starts(self.search)

    def due(self) -> list[StartRecipe]:
        search, some = self.search, list[StartRecipe]()
        at_once = search.counts_simulations and not self.stands_out
        allowed = LITTLE * search.simulations if self.stands_out else max(self.at_first, BESIDE * search.simulations)
        while self.left and (at_once or self.cost + self.left[0].price <= allowed):
            if self.cost and search.simulations and self._too_late(self.left[0]):  # there is one at least
                break
            some.append(self.left.pop(0))
            self.cost += some[-1].price
        return some

    def _too_late(self, start: StartRecipe) -> bool:
        """Whether it could take much of the time that is left."""
        search = self.search
        return start.price * search.seconds / search.simulations > LATE * search.seconds_left

    def bound_is_due(self) -> bool:
        """Once, when it costs little beside what the search has done."""
        due = not self.bounded and not self.left and self.search.simulations * BESIDE / 4 >= BOUND
        self.bounded = self.bounded or due
        return due


@dataclass
class Runner:
    """A plan that search goes on from, and how good it was after each of its epochs.

    Attributes:
        joined: where it stands on the smaller problem, if that is about as good.
        gain: of the last epoch.
    """

    score: Score
    plan: Plan
    pace: Reheating
    joined: Plan | None = None
    used: int = 0
    marks: list[tuple[int, Score]] = field(default_factory=list)
    gain: int = 0

    @property
    def stuck(self) -> bool:
        """Its last epochs brought nothing."""
        return len(self.marks) > STUCK and self.marks[-1][1] == self.marks[-1 - STUCK][1]

    @property
    def promise(self) -> Score:
        """What it may be after its next epoch, if that gains a part of what the last one did."""
        return Score(self.score.over_bytes, self.score.value - int(EXPECT * self.gain))

    def after(self, simulations: int) -> Score:
        """How good it was after so many simulations of its own."""
        return min((score for used, score in self.marks if used <= simulations), default=WORST)


class Going(Protocol):
    """What lets a runner go on for an epoch. `Epochs` is one for placement and order, `JointEpochs` one that fuses,
    too.

    Attributes:
        search: whose budget the epochs use.
    """

    search: Search

    def go_on(self, runner: Any) -> None:
        """One epoch more for the runner: writes what it has found, and what that took, into it."""
        ...


class Race:
    """The leader, and others that may overtake it.

    Each turn is one epoch of one runner: mostly the leader's, now and then another's, which is compared with where the
    leader stood after as many simulations. One that had as much and is behind is dropped for a start that was not tried
    yet. So a start that is good at once does not hide one that is better later.
    """

    def __init__(self, epochs: Going, waiting: Waiting, first: list[Scored]) -> None:
        self.epochs, self.search, self.waiting = epochs, epochs.search, waiting
        self.first = of_each_family(first, RACING + bool(self.search.starts))  # given plans take nobody's place
        self.best_start = first[0].score
        self.again = self._more(first)
        self.leader = self._runner(first[0])
        self.others = list[Runner]()
        self.evolved = False

    def run(self) -> None:
        for _ in self.turns():
            pass

    def turns(self) -> Iterator[None]:
        """One epoch after another, until the budget is spent, or there is nothing to move."""
        search, runners = self.search, [self._runner(start) for start in self.first]
        for runner in runners:
            self.epochs.go_on(runner)
            yield
        self.leader = min(runners, key=lambda runner: runner.score)
        self.others = [runner for runner in runners if runner is not self.leader]
        self._part_with_the_beaten()
        while not search.spent:
            before = search.simulations
            self._take_in()
            other = self._other()
            self.epochs.go_on(other or self.leader)
            if other is not None:
                self._compare(other)
            if search.simulations == before:
                return
            yield

    def _take_in(self) -> None:
        """Starts that are due now."""
        search, problem = self.search, self.search.problem
        found = ordered(search, list(made(search, self.waiting.due())), 1)[:1]
        if problem.objective.of_memory and problem.num_devices > 1:
            found += self._evolve()
        self.others += [self._runner(start) for start in found if not far(start.score, self.best_start)]
        if not search.counts_simulations and problem.num_ops > SMALL and self.waiting.bound_is_due():
            search.prove(lower_bound(problem, fitting=True, seconds=search.bound_seconds))

    def _evolve(self) -> list[Scored]:
        """What a genetic search over few large groups finds: far from all rules, and on small graphs of no model often
        the best start."""
        search = self.search
        if self.evolved or search.simulations < EVOLVED_AFTER:
            return []
        self.evolved = True
        with search.keeping(simulations=EVOLVED) as part:
            plan = EVOLVING.optimize(part)
        return [Scored(part.best_score, plan if part.best is None else part.best)]

    def _other(self) -> Runner | None:
        """One that is not the leader, if it is time for one."""
        hopeful = min(self.others, key=lambda other: other.promise, default=self.leader)
        if hopeful.promise < self.leader.promise:
            return hopeful
        stopped = self.leader.pace.settled or self.leader.stuck
        share = SETTLED if stopped else OTHERS
        if self.search.simulations - self.leader.used > share * self.search.simulations:
            return None
        if not self.others and stopped:
            self.others.append(self._runner(next(self.again)))
        return min(self.others, key=lambda other: other.used, default=None)

    def _more(self, first: list[Scored]) -> Iterator[Scored]:
        """Starts that have not been tried, then those that have: by other random numbers they end elsewhere."""
        near = [start for start in first if not far(start.score, first[0].score, VERY_FAR)]
        chosen = unlike([*self.first, *near], len(self.first) + MORE)
        yield from chosen[len(self.first) :]
        yield from cycle(chosen)

    def _runner(self, start: Scored) -> Runner:
        ops = self.search.problem.num_ops
        few = Reheating(ops, NEXT_OF_FEW)
        return Runner(start.score, start.plan, few if few.settled else Reheating(ops, NEXT))

    def _compare(self, other: Runner) -> None:
        if other.score < self.leader.score:
            self.others = [runner for runner in (*self.others, self.leader) if runner is not other]
            self.leader = other
        self._part_with_the_beaten()

    def _part_with_the_beaten(self) -> None:
        self.others = [runner for runner in self.others if not self._beaten(runner)]

    def _beaten(self, other: Runner) -> bool:
        """Whether it has had as much as the leader, or was far behind where the leader had had as much; not where it
        may well overtake the leader with its next epoch."""
        if other.promise < self.leader.promise:
            return False
        leader, ops = self.leader, self.search.problem.num_ops
        if other.used < (AGAIN * ops if leader.pace.settled else TRIED if leader.stuck else 0):
            return False
        then = self.leader.after(other.used)
        behind = other.score.over_bytes > then.over_bytes or other.score.value > then.value * (1 + BEHIND)
        return other.used > self.leader.used or behind


class Epochs:
    """Annealing in epochs that do not depend on the budget: short and cold at first, then longer and longer. Two of
    three are on a smaller problem where small ops can be joined: moves go farther there, and faster."""

    def __init__(self, settings: Auto, search: Search) -> None:
        self.settings, self.search, self.problem = settings, search, search.problem
        self.whole = coarsen(self.problem, ints(np.arange(self.problem.num_ops)))
        self.walking: Chains | None = None
        self.small = None if self.problem.objective.of_memory else chain_small_ops(self.problem)
        self.small_walking: Chains | None = None

    def go_on(self, runner: Runner) -> None:
        """One epoch more from the best that it has found."""
        if self.search.spent:
            return
        turn, before, pace = len(runner.marks), self.search.simulations, runner.pace
        length = FIRST if turn == 0 else int(pace.length)
        warm = self.settings.temperature * self._warmer(length)
        small = self.small is not None and turn % 3 > 0
        often = WARMER if self.problem.num_ops <= SMALL and runner.score.over_bytes == 0 else 1.0
        times = pace.times if pace.times > 1.0 else often * WARMTH[(turn - 1) % len(WARMTH)]
        hot = warm * times if turn > 0 else 0.0
        few = LEAST_ORDER if self.problem.num_ops <= SMALL else 1.0
        share = float(np.clip(runner.used / (ORDERED * self.problem.num_ops), few, 1.0))
        found = self._walk(runner, length, hot, small, share)
        gained = found.score < runner.score
        same = found.score.over_bytes == runner.score.over_bytes
        runner.gain = runner.score.value - found.score.value if gained and same else 0
        if gained:
            runner.score, runner.plan = found.score, found.plan
        if turn > 0:
            pace.ended(warm, gained)
        runner.used += self.search.simulations - before
        runner.marks.append((runner.used, runner.score))

    def improve_given(self, given: Scored) -> Scored:
        """A few cool epochs from a plan that came with the problem: where that is like an earlier one, they are most of
        the way in a fraction of a second."""
        runner = Runner(given.score, given.plan, Reheating(self.problem.num_ops))
        for _ in range(GIVEN):
            if not self.search.spent:
                hot = GIVEN_WARM * self.settings.temperature
                found = self._walk(runner, GIVEN_EACH, hot, self.small is not None, LEAST_ORDER)
                if found.score < runner.score:
                    runner.score, runner.plan = found.score, found.plan
        return Scored(runner.score, runner.plan)

    def _walk(self, runner: Runner, length: int, hot: float, small: bool, share: float) -> Scored:
        """What an epoch finds from where it stands, on the smaller problem or on the whole."""
        if small:
            return self._joined_epoch(runner, length, hot, share)
        return self._epoch(Scored(runner.score, runner.plan), length, hot, share)

    def _warmer(self, length: int) -> float:
        """With many simulations for each op it pays to start hotter: there is time to come back from far away."""
        return float(np.clip(length / self.problem.num_ops / HOTTER, 1.0, HOTTEST))

    def _epoch(self, given: Scored, simulations: int, hot: float, share: float = 1.0) -> Scored:
        start = start_of(self.search, self.whole, given.plan, given.score)
        if self.walking is None:
            decisions = Decisions(follow=self.settings.follow, evict=True)
            self.walking = Chains(self.search, self.whole, decisions, [start] * CHAINS)
        else:
            self.walking.restart(start)
        self._set(self.walking, simulations, share)
        self.walking.cool(simulations, hot, self.settings.cold)
        return Scored(*self.walking.found)

    def _set(self, walking: Chains, simulations: int, order: float) -> None:
        """Two walk in the time of one where there are cores. Where there is one, or simulations are counted, one alone
        gets twice as far, until there are so many for each op that it pays to be in two places."""
        many = Reheating(self.problem.num_ops, simulations).settled
        beside = not self.search.counts_simulations and cores() > 1
        walking.active = CHAINS if many or beside else 1
        walking.weigh_order(order)

    def _joined_epoch(self, runner: Runner, simulations: int, hot: float, share: float) -> Scored:
        """On the smaller problem, whose plans cost about what they cost on the whole; then its best plan is scored."""
        small, search = self.small, self.search
        assert small is not None
        given = runner.joined or small.down(runner.plan)
        part = search.part(problem=small.problem)
        start = start_of(part, _same(small.problem), given, part.score(given))
        walking = self.small_walking
        if walking is None:
            decisions = Decisions(follow=self.settings.follow, evict=True)
            walking = self.small_walking = Chains(part, _same(small.problem), decisions, [start] * CHAINS)
        else:
            walking.search = walking.pace.search = part
            walking.restart(start)
        self._set(walking, simulations, share)
        try:
            walking.cool(simulations, hot, self.settings.cold)
        finally:  # an interrupt keeps what the part has found
            found = Scored(runner.score, runner.plan)
            if part.best is not None and part.best is not given:
                plan = small.up(part.best)
                found = Scored(search.score(plan), plan)
        runner.joined = None if far(found.score, runner.score, APART) else part.best
        return found


def _same(problem: Problem) -> Coarse:
    return coarsen(problem, ints(np.arange(problem.num_ops)))
