"""Counterfactuals equal what `simulate` says of the moved plan; groups cover all ops and never part a colocation
group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.report.modules import NO_SCOPE, folded, groups_of
from loadmaster.report.moves import decisions
from loadmaster.report.schedule import Schedule
from loadmaster.report.trials import Trials
from loadmaster.simulator import settle, simulate
from tests.graphs import GRAPHS, pair
from tests.reference import judge
from tests.strategies import plans, problems


def settled(problem: Any, plan: Plan) -> Schedule:
    plan = settle(problem, plan, simulate(problem, plan))
    return Schedule.of(problem, plan, simulate(problem, plan))


@given(data=st.data())
def test_moving_nothing_changes_nothing(data: Any) -> None:
    problem = data.draw(problems())
    schedule = settled(problem, data.draw(plans(problem)))
    scores = Trials.of(schedule).score(schedule.device, [[], []])
    for row in range(2):
        assert scores.step_ns[row] == schedule.step_ns
        assert np.array_equal(scores.peak_bytes[row], schedule.timeline.peak_bytes)
        assert scores.over_bytes[row] == schedule.timeline.over_bytes


@given(data=st.data())
def test_a_move_costs_what_the_reference_says(data: Any) -> None:
    problem = data.draw(problems(max_devices=3))
    schedule = settled(problem, data.draw(plans(problem, fuse=False)))
    trials = Trials.of(schedule)
    group = data.draw(st.sampled_from(groups_of(problem, schedule.device, problem.best_ns)))
    runs = [d for d in range(problem.num_devices) if (problem.op_ns[group.kernels, d] >= 0).all()]
    target = data.draw(st.sampled_from(runs))
    place = schedule.device.copy()
    place[group.kernels] = target
    table = trials.send_rank.reshape(-1, problem.num_devices)
    judged = judge(problem, replace(Plan.of(problem, place, trials.rank), send_rank=ints(table)))
    scores = trials.score(schedule.device, [[(group.kernels, target)]])
    assert scores.step_ns[0] == judged.step_ns
    assert scores.peak_bytes[0].tolist() == judged.peak


@given(data=st.data())
def test_groups_cover_every_op_once_and_keep_colocated_ops_together(data: Any) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem, fuse=False))
    groups = groups_of(problem, plan.device, problem.best_ns, most=data.draw(st.integers(1, 8)))
    kernels = sorted(op for group in groups for op in group.kernels.tolist())
    assert kernels == list(range(problem.num_ops))
    home = {op: number for number, group in enumerate(groups) for op in group.kernels.tolist()}
    for one in range(problem.num_ops):
        assert plan.device[one] == groups[home[one]].device
        for other in range(problem.num_ops):
            if problem.graph.colocate[one] == problem.graph.colocate[other] >= 0:
                assert home[one] == home[other]


def test_verdicts_by_hand() -> None:
    # All of the chain on d0 takes 35. With a alone on d1, A (100 B) travels 15: 50. b alone: 15 + 10: 60. c alone: B
    # travels 10: 45.
    problem = price(GRAPHS["chain"](), pair())
    schedule = settled(problem, Plan.of(problem, [0, 0, 0]))
    rows = {row.group: row for row in decisions(schedule).rows}
    assert {name: row.margin for name, row in rows.items()} == {"a": 15, "b": 25, "c": 10}
    assert {row.verdict for row in rows.values()} == {"matters"}
    assert rows["b"].moves[0].device == "d1"
    assert rows["b"].moves[0].step_ns == 60


def test_a_decision_that_does_not_matter_and_one_that_is_wrong() -> None:
    problem = price(GRAPHS["join"](), pair())
    # d0 runs a, b, c and d: 65. With a on d1, before e and sent while e runs, both devices are busy until 50: 55.
    schedule = settled(problem, Plan.of(problem, [0, 0, 0, 1, 0]))
    rows = {row.group: row for row in decisions(schedule).rows}
    assert rows["a"].verdict == "better elsewhere"
    assert schedule.step_ns == 65
    assert rows["a"].moves[0].step_ns == 55
    assert rows["a"].margin == -10


def test_a_decision_that_does_not_matter() -> None:
    g = GraphBuilder("apart")
    g.op("long", "any", time_ns=1_000_000)
    g.op("short", "any", time_ns=10)
    problem = price(g.build(), "4xp100-pcie")
    rows = {row.group: row for row in decisions(settled(problem, Plan.of(problem, [0, 1]))).rows}
    assert rows["short"].verdict == "does not matter"
    # beside long, short comes after it and makes the step 10 ns longer
    assert [(move.device, move.change) for move in rows["short"].moves] == [
        ("p100-pcie:2", 0),
        ("p100-pcie:3", 0),
        ("p100-pcie:0", 10),
    ]


def test_a_move_that_does_not_fit_is_no_alternative() -> None:
    problem = price(GRAPHS["chain"](), pair(memory_bytes=150))
    tight = replace(problem, memory_bytes=ints([158, 0]))
    rows = decisions(settled(tight, Plan.of(tight, [0, 0, 0]))).rows
    assert all(row.margin is None and row.verdict == "matters" for row in rows)
    assert all(move.over_bytes > 0 for row in rows for move in row.moves)


def scoped(scopes: list[str]) -> Graph:
    g = GraphBuilder("scoped")
    for number, scope in enumerate(scopes):
        g.op(f"op{number}", "any", time_ns=1, scope=scope)
    return g.build()


def test_scopes_unfold_the_heaviest_first() -> None:
    paths = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ()]
    weight = [5, 5, 1, 1, 1]
    assert folded(paths, weight, 1) == [NO_SCOPE] * 5
    assert folded(paths, weight, 3) == ["a", "a", "b", "b", NO_SCOPE]
    assert folded(paths, weight, 4) == ["a.x", "a.y", "b", "b", NO_SCOPE]
    assert folded(paths, weight, 5) == ["a.x", "a.y", "b.x", "b.y", NO_SCOPE]


def test_many_ops_without_modules_are_grouped_in_runs() -> None:
    problem = price(scoped([""] * 1000), pair())
    groups = groups_of(problem, ints(np.zeros(1000)), problem.best_ns, most=50)
    assert 20 <= len(groups) <= 50
    assert all((np.diff(group.kernels) == 1).all() for group in groups)


def test_groups_of_a_scoped_graph_are_its_modules() -> None:
    problem = price(scoped([f"layer.{i // 100}" for i in range(400)]), pair())
    assert [group.name for group in groups_of(problem, ints(np.zeros(400)), problem.best_ns)] == [
        "layer.0",
        "layer.1",
        "layer.2",
        "layer.3",
    ]
