"""Zero-shot: the candidates that the network favours are simulated.

One pass of the network scores all candidates, the first `samples` of them are simulated, the best is kept: no search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.go2020.input import GoInput
from loadmaster.learn.go2020.network import GoBatch, GoNetwork, LastDecisions, decisions_of
from loadmaster.learn.go2020.policy import Decided, middle_levels
from loadmaster.learn.go2020.timeline import Seen, seen_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score
from loadmaster.simulator import Timeline


@dataclass(frozen=True, eq=False)
class Judged:
    """Decisions that were simulated, and what that showed."""

    score: Score
    decided: Decided
    seen: Seen | None = None


Judge: TypeAlias = Callable[[list[list[Decided]]], list[list[Judged]]]


def zero_shot(
    network: GoNetwork, many: Sequence[GoInput], batch: GoBatch, samples: int, judge: Judge
) -> list[list[Judged]]:
    """For each problem, all that was simulated."""
    with torch.no_grad():
        return judge([order[:samples] for order in favoured(network, many, batch)])


def favoured(network: GoNetwork, many: Sequence[GoInput], batch: GoBatch) -> list[list[Decided]]:
    """The candidates of each problem, the most promising first."""
    parts = torch.split(network.choose(batch).cpu(), list(batch.num_candidates))
    orders = [part.argsort(descending=True, stable=True).tolist() for part in parts]
    return [[candidate_decided(one, candidate) for candidate in order] for one, order in zip(many, orders, strict=True)]


def candidate_decided(one: GoInput, candidate: int, exact: bool = True) -> Decided:
    """A candidate as decisions; op by op, or as far as groups can say it."""
    count = one.num_groups
    base = ints(one.candidates.device[candidate]) if exact else ints([])
    return Decided(ints(one.candidate_groups[candidate]), middle_levels(count), middle_levels(len(one.single)), base)


def seen_decisions(batch: GoBatch, outcomes: Sequence[Judged]) -> LastDecisions:
    decided = [outcome.decided for outcome in outcomes]
    seen = [outcome.seen for outcome in outcomes]
    return decisions_of(batch, [each.device for each in decided], [each.level for each in decided], seen)


def outcome_of(problem: Problem, label: Ints, decided: Decided, plan: Plan, line: Timeline) -> Judged:
    return Judged(Score.of(problem, line), decided, seen_of(problem, label, plan.device, line))
