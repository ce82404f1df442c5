"""Racing: which start a search goes on from, one epoch after another, and which others may overtake it.

`auto` runs it over placement and order, `joint` over plans that fuse. What an epoch does is theirs (`Going`); here is
whose turn it is, who drops out, and when starts are made that take long (`Waiting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any, Protocol

from loadmaster.optimizers.annealing.chains import Reheating
from loadmaster.optimizers.crossing import Crossing
from loadmaster.optimizers.genetic.brkga import Brkga
from loadmaster.optimizers.starts import (
    VERY_FAR,
    Scored,
    StartRecipe,
    far,
    made,
    of_each_family,
    ordered,
    starts,
    unlike,
)
from loadmaster.plans import Plan
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import WORST, Score, Search

# Where no reason is given, docs/constants.md has what half and twice of it do.
EVOLVING = Brkga(by="edges", blocks=24, sends=False, evaluations=10**9)  # few large groups
EVOLVED, EVOLVED_AFTER = 400, 2_000  # simulations for it, and how many there must have been before

# Where the clock decides, a part waits until it costs little beside what the search has done.
AT_ONCE = 200  # simulations' worth of starts before the search begins: the expert's, cuts and some groups
# Of the simulations so far, that all starts together may cost later on: 0.25 is 1.002 after 1 and 5 s (14 rows of GO
# and Placeto, eight seeds).
BESIDE = 0.1
LATE = 0.25  # of the time that is left: a start that may take more is not made
BOUND = 8_000  # simulations before the bound of a large problem, which says when to stop and takes as long as 500
SMALL = 2_000  # ops up to which it is had at once

RACING = 3  # starts that run against each other at first; better than 4 where there are few simulations, 300 to 1,000
NEXT, NEXT_OF_FEW = 64, 192  # of the second epoch; where that could look at every op a few times
EXPECT = 0.25  # of the gain of an epoch, that may be looked for in the next
OTHERS = 0.2  # of all simulations, for starts other than the one that leads
BEHIND = 0.02  # as a share: another one that is behind by more is given up
AGAIN = 8  # simulations for each op that another one then has at least
# A leader that gained less, as a share, since it had had half of its simulations, and has had so many: others are
# tried, too. 0.997 of what it was after 10,000 simulations (`auto`, 13 rows of GO and Placeto, five seeds; the worst
# row 1.005, NMT on four devices 0.986), with 0.003 0.998, with 0.003 from 3,000 on 0.999. `placement` is level.
SLOW, SLOW_AFTER = 0.005, 1_000
STUCK = 2  # epochs without a gain, after which others are tried
MORE, TRIED = 6, 100  # starts besides the first ones, for then; simulations that each of them has at least
SETTLED = 0.6  # of all simulations for others, once the leader has had many for each op


class Waiting:
    """Starts that have not been made. Where simulations are counted all are due at once, for each takes but one; where
    the clock counts, those that take long are due when the search has done much more. Beside a plan that came with the
    problem and stands out, all of them wait for that."""

    def __init__(self, search: Search, stands_out: bool = False) -> None:
        self.search, self.stands_out, self.cost, self.bounded = search, stands_out, 0, False

    @cached_property
    def left(self) -> list[StartRecipe]:
        """All that have not been made, cheap ones first."""
        return starts(self.search)

    def due(self) -> list[StartRecipe]:
        """Those that are to be made now; they are then no longer left."""
        search, some = self.search, list[StartRecipe]()
        at_once = search.counts_simulations and not self.stands_out
        allowed = max(0 if self.stands_out else AT_ONCE, BESIDE * search.in_turn)
        while self.left and (at_once or self.cost + self.left[0].price <= allowed):
            if self.cost and search.in_turn and self._too_late(self.left[0]):  # there is one at least
                break
            some.append(self.left.pop(0))
            self.cost += some[-1].price
        return some

    def _too_late(self, start: StartRecipe) -> bool:
        """Whether it could take much of the time that is left."""
        search = self.search
        return start.price * search.seconds / search.in_turn > LATE * search.seconds_left

    def bound_is_due(self) -> bool:
        """Once, when it costs little beside what the search has done."""
        due = not self.bounded and not self.left and self.search.in_turn >= BOUND
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
    def slow(self) -> bool:
        """It gained little since it had had half as many simulations."""
        before = self.after(self.used // 2)
        same = before.over_bytes == self.score.over_bytes
        return self.used >= SLOW_AFTER and same and self.score.value > (1 - SLOW) * before.value

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
        self.crossing = Crossing(self.search)
        self.evolved = False

    def run(self) -> None:
        """Turn after turn, to the end of the budget."""
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
            before = search.in_turn
            self._take_in()
            self._cross()
            other = self._other()
            self.epochs.go_on(other or self.leader)
            if other is not None:
                self._compare(other)
            if search.in_turn == before:
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
        if self.evolved or search.in_turn < EVOLVED_AFTER:
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
        stopped = self.leader.pace.settled or self.leader.stuck or self.leader.slow
        share = SETTLED if stopped else OTHERS
        if self.search.in_turn - self.leader.used > share * self.search.in_turn:
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

    def _cross(self) -> None:
        """Stretches of plans that were given up, for the leader once it has had many simulations for each op."""
        leader, before = self.leader, self.search.in_turn
        if not leader.pace.settled:
            return
        found = self.crossing.improve(Scored(leader.score, leader.plan))
        if self.search.in_turn == before:  # nothing was due
            return
        leader.used += self.search.in_turn - before
        if found.score < leader.score:
            leader.score, leader.plan, leader.joined = found.score, found.plan, None
        leader.marks[-1] = (leader.used, leader.score)

    def _part_with_the_beaten(self) -> None:
        going = list[Runner]()
        for runner in self.others:
            if self._beaten(runner):
                self.crossing.keep(runner.plan, runner.used)
            else:
                going.append(runner)
        self.others = going

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
