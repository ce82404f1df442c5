"""diff: what changed between two plans of one problem, and what each change is worth.

A difference of two whole plans says little: hundreds of ops moved and the step is shorter. So the way from one to the
other is walked in a fixed order (kernels apart, groups of ops moved, kernels fused, order taken over) and simulated
after each step; the worths add up to the whole difference exactly. A change is worth what it brings there, after those
before it; of moves it is also told what each would bring alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.plans import Plan, check, without_additions
from loadmaster.plans.additions import same_additions
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.problem.objective import Objective
from loadmaster.report.grids import Grid, grid_text, share_text, signed
from loadmaster.report.groups import Group, groups_of
from loadmaster.report.schedule import Schedule
from loadmaster.report.trials import Trials
from loadmaster.report.units import size_text, value_text
from loadmaster.simulator import Scores, simulate

MOST_MOVES = 60  # each is simulated, and more are no help to a reader
ADDED = "recomputed ops, offloaded tensors"
Kind = Literal["taken back", "kernels split", "moved", "kernels fused", "order", "added"]


@dataclass(frozen=True)
class PlanCost:
    """What a plan costs, in the numbers that a diff compares.

    Attributes:
        step_ns: of the step.
        peak_bytes: largest of any device.
        over_bytes: over the memory of the devices.
        value: of the objective.
    """

    step_ns: int
    peak_bytes: int
    over_bytes: int
    value: int


@dataclass(frozen=True)
class Change:
    """One change, made after those before it.

    Attributes:
        kind: "taken back" or "added" (ops that a plan adds), "kernels split", "moved", "kernels fused" or "order".
        name: of the group of ops, or what changes.
        ops: how many it is about.
        source, target: devices, for a move; "" otherwise.
        worth: what the objective then changes by: negative is better.
        alone: of a move: what the objective changes by if this move alone is made; None otherwise.
        after: what the plan costs with all changes so far.
    """

    kind: Kind
    name: str
    ops: int
    source: str
    target: str
    worth: int
    alone: int | None
    after: PlanCost


@dataclass(frozen=True)
class Difference:
    """From `before` to `after`, change by change; what they are worth adds up to the difference exactly.

    Attributes:
        objective: that worths are of.
        before, after: what the two plans cost.
        changes: in the order in which they are made; none where the plans are the same.
    """

    objective: Objective
    before: PlanCost
    after: PlanCost
    changes: tuple[Change, ...]

    @property
    def worth(self) -> int:
        """What the objective changes by from the first plan to the second, in its unit; negative is better."""
        return sum(change.worth for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """As plain data (schema loadmaster.difference/1)."""
        return {
            "schema": "loadmaster.difference/1",
            **asdict(self),
            "objective": self.objective.name,
            "worth": self.worth,
        }

    def text(self) -> str:
        """In words, a line a change."""
        return _in_words(self)


def diff(problem: Problem, plan_a: Plan, plan_b: Plan) -> Difference:
    """What each difference between two plans is worth: takes kernels of a apart, moves groups of ops, fuses as b does,
    and last takes over b's order, and simulates after each. Where plans add other ops to the graph, what a adds is
    taken back first, and what b adds comes last.

    >>> from loadmaster import GraphBuilder, Plan, price
    >>> g = GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(2)]
    >>> problem = price(g.build(), "2xp100-pcie")
    >>> found = diff(problem, Plan.of(problem, [0, 0]), Plan.of(problem, [0, 1]))
    >>> found.worth, [(change.kind, change.source, change.target) for change in found.changes]
    (-100, [('moved', 'p100-pcie:0', 'p100-pcie:1')])

    Args:
        problem: of which both are plans: InvalidPlan otherwise.
        plan_a, plan_b: from, to. At most 60 groups of moved ops are told apart, each simulated twice.
    """
    for plan in (plan_a, plan_b):
        check(plan, problem)
    if same_additions(plan_a.added, plan_b.added):
        return _same_ops(whole(problem, plan_a), plan_a, plan_b)
    bare_a, bare_b = (without_additions(problem, plan) for plan in (plan_a, plan_b))
    trail = _Trail(problem, _cost(problem, plan_a))
    if plan_a.added is not None:
        trail.add("taken back", ADDED, np.ones(len(plan_a.added)), _cost(problem, bare_a))
    trail.changes += _same_ops(whole(problem, bare_a), bare_a, bare_b).changes
    trail.cost, last = _cost(problem, bare_b), _cost(problem, plan_b)
    if plan_b.added is not None:
        trail.add("added", ADDED, np.ones(len(plan_b.added)), last)
    return Difference(problem.objective, trail.first, last, tuple(trail.changes))


def _same_ops(problem: Problem, plan_a: Plan, plan_b: Plan) -> Difference:
    meet = _meet(plan_a.kernel, plan_b.kernel)
    split = replace(plan_a, kernel=meet)
    trail = _Trail(problem, _cost(problem, plan_a))
    if not np.array_equal(meet, plan_a.kernel):
        trail.add(
            "kernels split",
            "kernels of the first plan only",
            _in_other_kernels(plan_a.kernel, meet),
            _cost(problem, split),
        )
    _add_moves(trail, problem, split, plan_b.device)
    if not np.array_equal(meet, plan_b.kernel):
        fused = replace(split, device=plan_b.device, kernel=plan_b.kernel)
        trail.add(
            "kernels fused",
            "kernels of the second plan only",
            _in_other_kernels(plan_b.kernel, meet),
            _cost(problem, fused),
        )
    last = _cost(problem, plan_b)
    if trail.cost != last or not _same_order(plan_a, plan_b):
        trail.add("order", "order of ops and transfers", plan_a.rank != plan_b.rank, last)
    return Difference(problem.objective, trail.first, last, tuple(trail.changes))


class _Trail:
    """The costs on the way from one plan to the other."""

    def __init__(self, problem: Problem, first: PlanCost) -> None:
        self.problem, self.first, self.cost = problem, first, first
        self.changes: list[Change] = []

    def add(
        self,
        kind: Kind,
        name: str,
        ops: Any,
        cost: PlanCost,
        ends: tuple[str, str] = ("", ""),
        alone: int | None = None,
    ) -> None:
        worth = cost.value - self.cost.value
        self.changes.append(Change(kind, name, int(np.sum(ops)), *ends, worth, alone, cost))
        self.cost = cost


def _add_moves(trail: _Trail, problem: Problem, plan: Plan, target: Ints) -> None:
    """Groups with the same way from device to device; those that gain most alone go first."""
    schedule = Schedule.of(problem, plan, simulate(problem, plan))
    trials, devices, names = Trials.of(schedule), problem.num_devices, problem.cluster.device_names
    time_ns = ints(schedule.end_ns - schedule.start_ns)
    ways = ints(schedule.device * devices + target[schedule.heads])
    groups = [
        g for g in groups_of(schedule.problem, ways, time_ns, MOST_MOVES) if g.device // devices != g.device % devices
    ]
    moves = [(group.kernels, group.device % devices) for group in groups]
    if not groups:
        return
    alone = _costs(trials.problem, trials.score(schedule.device, [[move] for move in moves]))
    order = sorted(range(len(groups)), key=lambda g: (alone[g].over_bytes, alone[g].value))
    ahead = _costs(
        trials.problem, trials.score(schedule.device, [[moves[g] for g in order[: n + 1]] for n in range(len(order))])
    )
    start = trail.cost.value
    for g, cost in zip(order, ahead, strict=True):
        group: Group = groups[g]
        ends = names[group.device // devices], names[group.device % devices]
        ops = schedule.members[group.kernels].sum()
        trail.add("moved", group.name, ops, cost, ends, alone[g].value - start)


def _costs(problem: Problem, scores: Scores) -> list[PlanCost]:
    columns = (scores.step_ns, scores.peak_bytes.max(axis=1), scores.over_bytes, scores.objective(problem))
    return [PlanCost(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _cost(problem: Problem, plan: Plan) -> PlanCost:
    line = simulate(problem, plan)
    return PlanCost(line.step_ns, int(line.peak_bytes.max()), line.over_bytes, problem.value(line))


def _meet(one: Ints, other: Ints) -> Ints:
    """Ops that are one kernel in both plans. No kernel of these waits for itself: a loop would be one in both plans."""
    _, first, which = np.unique(one * len(one) + other, return_index=True, return_inverse=True)
    return ints(first[which])


def _in_other_kernels(kernel: Ints, meet: Ints) -> Ints:
    """[ops] 1 for every op of a kernel that is not one in both plans."""
    return ints(np.isin(kernel, kernel[kernel != meet]))


def _same_order(one: Plan, other: Plan) -> bool:
    if not np.array_equal(one.rank, other.rank) or (one.send_rank is None) != (other.send_rank is None):
        return False
    return one.send_rank is None or other.send_rank is None or np.array_equal(one.send_rank, other.send_rank)


def _in_words(found: Difference) -> str:
    shown, was, now = value_text(found.objective), found.before.value, found.after.value
    change = f"{signed(now - was, shown)} ({share_text(now - was, was)})"
    lines = [f"{found.objective.subject} goes from {shown(was)} to {shown(now)}: {change}."]
    if found.before.over_bytes or found.after.over_bytes:
        over = [size_text(cost.over_bytes) for cost in (found.before, found.after)]
        lines.append(f"Bytes over the memory of the devices: {over[0]} before, {over[1]} after.")
    if not found.changes:
        return "\n".join([*lines, "The plans are the same."]) + "\n"
    rows = tuple(
        (
            change.kind,
            change.name,
            f"{change.ops:,}",
            f"{change.source} > {change.target}" if change.source else "",
            signed(change.worth, shown),
            "" if change.alone is None else signed(change.alone, shown),
        )
        for change in found.changes
    )
    head = ("change", "what", "ops", "from > to", "worth", "alone")
    grid = Grid("Changes, each made after those above it; negative is better", head, rows, frozenset((2, 4, 5)))
    return "\n".join([*lines, "", grid_text(grid, most=len(rows))]) + "\n"
