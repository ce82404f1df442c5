"""Auto: a portfolio under one budget. Cheap methods first, then search from the best of them.

In comes a problem without fusion to decide, out comes the best placement and order that was met. Plans by rules
(`starts`) are scored, the best of each family begin a race, and annealing goes on from each in epochs that grow
(`Epochs`), for peak memory in turn with moves along the order in which a plan ran (`rebalancing`); a runner that is
beaten drops out, others join when they are due (`racing`). Beside the race, small problems are closed by exact methods
where that is possible (`closing`). Nothing depends on the budget but when it stops, so that more of it is never worse.
`joint` runs the same race for plans that fuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from loadmaster.graph.columns import ints
from loadmaster.optimizers.annealing.chains import (
    Chains,
    Decisions,
    Reheating,
    chains_for,
    compile_walk,
    start_of,
)
from loadmaster.optimizers.exact import closing
from loadmaster.optimizers.experience.trying import stands_out, suited
from loadmaster.optimizers.multilevel.multilevel import Multilevel, too_large
from loadmaster.optimizers.racing import SMALL, Race, Runner, Waiting
from loadmaster.optimizers.rebalancing import Rebalancer
from loadmaster.optimizers.starts import (
    Scored,
    far,
    made,
    of_another,
    ordered,
)
from loadmaster.passes import Coarse, coarsen
from loadmaster.passes.chaining import chain_small_ops
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import Optimizer, Score, Search

# Where no reason is given, docs/constants.md has what half and twice of it do. How long epochs are depends on no
# budget, so that more is never worse.
FIRST = 32  # simulations from each start, cold: which one is best shows soon
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
# Plans in a row along the order of the last that are no better, after which a runner anneals: at its beginning, later.
PATIENT, LESS_PATIENT = 8, 4
APART = 1.02  # times the plan op by op: one of the smaller problem that is worse is given up


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


class Epochs:
    """Annealing in epochs that do not depend on the budget: short and cold at first, then longer and longer. Two of
    three are on a smaller problem where small ops can be joined: moves go farther there, and faster."""

    def __init__(self, settings: Auto, search: Search) -> None:
        self.settings, self.search, self.problem = settings, search, search.problem
        self.whole = coarsen(self.problem, ints(np.arange(self.problem.num_ops)))
        several = self.problem.num_devices > 1
        self.rebalancing = Rebalancer(search) if several and self.problem.objective.of_memory else None
        self.walking: Chains | None = None
        self.small = None if self.problem.objective.of_memory else chain_small_ops(self.problem)
        self.small_walking: Chains | None = None

    def go_on(self, runner: Runner) -> None:
        """One epoch more from the best that it has found. For peak memory the first of them moves along the order in
        which plans ran and no farther: annealing gains less there for a simulation."""
        if self.search.spent:
            return
        turn, before, begun = len(runner.marks), self.search.in_turn, runner.score
        if self.rebalancing is not None:
            patience = LESS_PATIENT if turn else PATIENT
            runner.score, runner.plan = self.rebalancing.improve(runner.score, runner.plan, patience)
        if turn > 0 or self.search.in_turn == before:
            self._anneal(runner, turn, begun)
        same = runner.score.over_bytes == begun.over_bytes
        runner.gain = begun.value - runner.score.value if same else 0
        runner.used += self.search.in_turn - before
        runner.marks.append((runner.used, runner.score))

    def _anneal(self, runner: Runner, turn: int, begun: Score) -> None:
        """A cooling from where the runner stands, whose epoch began with that score."""
        if self.search.spent:
            return
        pace = runner.pace
        length = FIRST if turn == 0 else int(pace.length)
        warm = self.settings.temperature * self._warmer(length)
        small = self.small is not None and turn % 3 > 0
        often = WARMER if self.problem.num_ops <= SMALL and runner.score.over_bytes == 0 else 1.0
        times = pace.times if pace.times > 1.0 else often * WARMTH[(turn - 1) % len(WARMTH)]
        hot = warm * times if turn > 0 else 0.0
        few = LEAST_ORDER if self.problem.num_ops <= SMALL else 1.0
        share = float(np.clip(runner.used / (ORDERED * self.problem.num_ops), few, 1.0))
        found = self._walk(runner, length, hot, small, share)
        if found.score < runner.score:
            runner.score, runner.plan = found.score, found.plan
        if turn > 0:
            pace.ended(warm, runner.score < begun)

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
            self.walking = Chains(
                self.search, self.whole, decisions, [start] * chains_for(self.search, self.problem.num_ops)
            )
        else:
            self.walking.restart(start)
        self.walking.cool(self._set(self.walking, simulations, share), hot, self.settings.cold)
        return Scored(*self.walking.found)

    def _set(self, walking: Chains, simulations: int, order: float) -> int:
        """Simulations of all chains together. Without cores for several one alone gets twice as far as two, until
        there are so many simulations for each op that it pays to be in two places."""
        walking.weigh_order(order)
        return walking.enlist(simulations, Reheating(self.problem.num_ops, simulations).settled)

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
            begun = [start] * chains_for(part, small.problem.num_ops)
            walking = self.small_walking = Chains(part, _same(small.problem), decisions, begun)
        else:
            walking.search = walking.pace.search = part
            walking.restart(start)
        try:
            walking.cool(self._set(walking, simulations, share), hot, self.settings.cold)
        finally:  # an interrupt keeps what the part has found
            found = Scored(runner.score, runner.plan)
            if part.best is not None and part.best is not given:
                plan = small.up(part.best)
                found = Scored(search.score(plan), plan)
        runner.joined = None if far(found.score, runner.score, APART) else part.best
        return found


def _same(problem: Problem) -> Coarse:
    return coarsen(problem, ints(np.arange(problem.num_ops)))
