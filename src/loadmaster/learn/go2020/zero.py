"""Zero-shot: some hints that the network favours are simulated, then what it would change of the best plan so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from loadmaster.columns import Ints, ints
from loadmaster.learn.go2020.input import GoInput
from loadmaster.learn.go2020.moves import tried_moves
from loadmaster.learn.go2020.network import Decisions, GoBatch, GoNetwork, decisions_of
from loadmaster.learn.go2020.policy import Decided, Stand, decided_key, middle_levels, stand_of
from loadmaster.learn.go2020.timeline import Seen, seen_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score
from loadmaster.simulator import Timeline


@dataclass(frozen=True, eq=False)
class Outcome:
    """Decisions that were simulated, and what that showed."""

    score: Score
    decided: Decided
    seen: Seen | None = None


Judge: TypeAlias = Callable[[list[list[Decided]]], list[list[Outcome]]]


@dataclass
class Trial:
    """Where one problem stands."""

    one: GoInput
    levels: bool = True  # whether the order is to be decided too
    outcomes: list[Outcome] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)

    @property
    def best(self) -> Outcome:
        return min(self.outcomes, key=lambda outcome: outcome.score)

    def take(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes += outcomes

    def changes(self, stand: Stand, most: int) -> list[Decided]:
        """What the next tries are: none of them was tried before."""
        found: list[Decided] = []
        for decided in tried_moves(self.one, stand, self.levels, np.random.default_rng([7, len(self.outcomes)])):
            if len(found) < most and decided_key(decided) not in self.keys:
                self.keys.add(decided_key(decided))
                found.append(decided)
        return found


def tries(samples: int, chosen: int, passes: int) -> list[int]:
    """How many plans each pass has simulated: hints in the first, changes in the others."""
    first = samples if passes <= 1 else min(chosen, samples)
    rest, more = samples - first, max(1, passes - 1)
    return [first, *(rest // more + (turn < rest % more) for turn in range(more if rest else 0))]


def zero_shot(
    network: GoNetwork,
    many: Sequence[GoInput],
    batch: GoBatch,
    counts: Sequence[int],
    judge: Judge,
    levels: bool = True,
) -> list[list[Outcome]]:
    """For each problem, all that was simulated."""
    trials = [Trial(one, levels) for one in many]
    with torch.no_grad():
        chosen = favoured(network, many, batch)
        _simulate(trials, [order[: counts[0]] for order in chosen], judge)
        for count in counts[1:]:
            bests = [trial.best for trial in trials]
            outputs = network(batch, seen_decisions(batch, bests))
            wanted = []
            for row, trial in enumerate(trials):
                stand = stand_of(outputs, batch, row, trial.one, trial.best.decided)
                wanted.append(trial.changes(stand, count))
            _simulate(trials, wanted, judge)
    return [trial.outcomes for trial in trials]


def _simulate(trials: Sequence[Trial], wanted: list[list[Decided]], judge: Judge) -> None:
    for trial, decided in zip(trials, wanted, strict=True):
        trial.keys |= {decided_key(each) for each in decided}
    for trial, outcomes in zip(trials, judge(wanted), strict=True):
        trial.take(outcomes)


def favoured(network: GoNetwork, many: Sequence[GoInput], batch: GoBatch) -> list[list[Decided]]:
    """The hints of each problem, the most promising first."""
    parts = torch.split(network.choose(batch).cpu(), list(batch.num_hints))
    orders = [part.argsort(descending=True, stable=True).tolist() for part in parts]
    return [[hint_decided(one, hint) for hint in order] for one, order in zip(many, orders, strict=True)]


def hint_decided(one: GoInput, hint: int, exact: bool = True) -> Decided:
    """A hint as decisions; op by op, or as far as groups can say it."""
    count = one.num_groups
    base = ints(one.hints.device[hint]) if exact else ints([])
    return Decided(ints(one.hint_groups[hint]), middle_levels(count), middle_levels(len(one.single)), base)


def seen_decisions(batch: GoBatch, outcomes: Sequence[Outcome]) -> Decisions:
    decided = [outcome.decided for outcome in outcomes]
    seen = [outcome.seen for outcome in outcomes]
    return decisions_of(batch, [each.device for each in decided], [each.level for each in decided], seen)


def outcome_of(problem: Problem, label: Ints, decided: Decided, plan: Plan, line: Timeline) -> Outcome:
    return Outcome(Score.of(problem, line), decided, seen_of(problem, label, plan.device, line))
