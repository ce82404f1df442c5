"""Why each group is where it is: what moving it to each other device would cost, simulated.

Each move is tried alone, with the rest of the plan held still (`trials`), as many as the given seconds allow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.graph.columns import Ints
from loadmaster.problem import Problem
from loadmaster.report.modules import Group, can_run, groups_of
from loadmaster.report.schedule import Schedule
from loadmaster.report.trials import Trials, affordable
from loadmaster.simulator import Scores

Verdict = Literal["matters", "does not matter", "better elsewhere", "nowhere else", "not tried"]
SLIGHT = 1e-3  # a change under this share of the objective does not matter
BATCH = 64  # trials between two looks at the clock
LATE = 3.0  # a machine this many times slower than thought stops early


@dataclass(frozen=True)
class MoveCost:
    """The step if one group alone were elsewhere, all else in the same order.

    Attributes:
        device: where the group would be.
        step_ns: of the step then.
        peak_bytes: largest of any device.
        over_bytes: over the memory of the devices then.
        change: of the objective: ns, or bytes of the largest peak; positive is worse.
    """

    device: str
    step_ns: int
    peak_bytes: int
    over_bytes: int
    change: int


@dataclass(frozen=True)
class Decision:
    """One group and its alternatives, the best first.

    Attributes:
        group: module.
        device: where it is.
        ops, compute_ns: how many it has, and what they take there.
        moves: what each other device would cost.
        margin: the change of the best one that fits, or None.
        verdict: what that says of the decision, in a word.
    """

    group: str
    device: str
    ops: int
    compute_ns: int
    moves: tuple[MoveCost, ...]
    margin: int | None
    verdict: Verdict


@dataclass(frozen=True)
class GroupDecisions:
    """All groups: those that would be better elsewhere first, then those that cost most to move.

    Attributes:
        rows: a decision each.
        simulations: that were run to find out.
    """

    rows: tuple[Decision, ...]
    simulations: int

    def count(self, verdict: Verdict) -> int:
        return sum(1 for row in self.rows if row.verdict == verdict)


def decisions(schedule: Schedule, seconds: float = 2.5) -> GroupDecisions:
    """What each group of ops would cost elsewhere, simulated, for as many groups as there is time for."""
    problem, time_ns = schedule.problem, schedule.end_ns - schedule.start_ns
    groups = groups_of(problem, schedule.device, time_ns)
    tries = _tries(problem, groups, time_ns, affordable(problem, seconds))
    costs: dict[int, list[MoveCost]] = {}
    trials, late = Trials.of(schedule), time.perf_counter() + LATE * seconds
    for low in range(0, len(tries), BATCH):
        batch = tries[low : low + BATCH]
        scores = trials.score(schedule.device, [[(groups[g].kernels, device)] for g, device in batch])
        _add_costs(costs, schedule, batch, scores)
        if time.perf_counter() > late:
            break
    rows = [_decision(schedule, group, costs.get(number)) for number, group in enumerate(groups)]
    return GroupDecisions(tuple(sorted(rows, key=_weight)), sum(len(moves) for moves in costs.values()))


def _tries(problem: Problem, groups: Sequence[Group], time_ns: Ints, most: int) -> list[tuple[int, int]]:
    """(group, device) to simulate: all, or as many as there is time for, the groups with most work first."""
    heavy = sorted(range(len(groups)), key=lambda g: -int(time_ns[groups[g].kernels].sum()))
    others = [(g, d) for g in heavy for d in range(problem.num_devices) if d != groups[g].device]
    return [(g, d) for g, d in others[:most] if can_run(problem, groups[g], d)]


def _add_costs(
    costs: dict[int, list[MoveCost]], schedule: Schedule, tries: list[tuple[int, int]], scores: Scores
) -> None:
    names, problem = schedule.problem.cluster.device_names, schedule.problem
    value = scores.objective(problem)
    line = schedule.timeline
    base = problem.value(line)
    for row, (group, device) in enumerate(tries):
        peak, over = int(scores.peak_bytes[row].max()), int(scores.over_bytes[row])
        cost = MoveCost(names[device], int(scores.step_ns[row]), peak, over, int(value[row]) - base)
        costs.setdefault(group, []).append(cost)


def _decision(schedule: Schedule, group: Group, costs: list[MoveCost] | None) -> Decision:
    line, problem = schedule.timeline, schedule.problem
    movable = any(can_run(problem, group, d) for d in range(problem.num_devices) if d != group.device)
    ranked = sorted(costs or [], key=lambda cost: (cost.over_bytes, cost.change))
    fitting = [cost for cost in ranked if cost.over_bytes <= line.over_bytes]
    base = problem.value(line)
    verdict: Verdict = "nowhere else" if not movable else "not tried"
    if ranked:
        verdict = _verdict(fitting[0], line.over_bytes, base) if fitting else "matters"
    time_ns = int((schedule.end_ns - schedule.start_ns)[group.kernels].sum())
    return Decision(
        group.name,
        problem.cluster.device_names[group.device],
        int(schedule.members[group.kernels].sum()),
        time_ns,
        tuple(ranked),
        fitting[0].change if fitting else None,
        verdict,
    )


def _verdict(best: MoveCost, over_bytes: int, base: int) -> Verdict:
    if best.over_bytes < over_bytes or best.change < 0:
        return "better elsewhere"
    return "matters" if best.change > SLIGHT * base else "does not matter"


_ORDER: tuple[Verdict, ...] = ("better elsewhere", "matters", "does not matter", "nowhere else", "not tried")


def _weight(row: Decision) -> tuple[int, float, int]:
    """What can be improved first, most gain first; then what costs most to move."""
    gains = row.verdict == "better elsewhere"
    change = np.inf if row.margin is None else float(row.margin)
    return _ORDER.index(row.verdict), change if gains else -change, -row.compute_ns
