"""diff: worths add up to the difference exactly, on any two plans; single changes are right by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.plans import Plan
from loadmaster.plans.expansion import expand, whole
from loadmaster.report.diff import diff
from loadmaster.search import Budget, solve
from tests.graphs import GRAPHS, pair
from tests.reference import judge
from tests.strategies import additions, plans, problems
from tests.unit.report.subjects import training_like


@given(data=st.data())
def test_worths_add_up_to_the_difference(data: Any) -> None:
    problem = data.draw(problems())
    one, other = data.draw(plans(problem)), data.draw(plans(problem))
    found = diff(problem, one, other)
    value = [judge(problem, plan).score(problem.objective)[1] for plan in (one, other)]
    assert found.worth == value[1] - value[0]
    assert found.text()
    assert found.to_json()["worth"] == found.worth


@given(data=st.data())
def test_worths_add_up_where_plans_add_ops_to_the_graph(data: Any) -> None:
    problem = data.draw(problems())
    both = []
    for _ in range(2):
        added = data.draw(additions(problem))
        expanded = problem if added is None else expand(problem, added)
        both.append(data.draw(plans(expanded, fuse=added is None or not added.num_stays)))
    found = diff(problem, *both)
    value = [judge(whole(problem, plan), plan).score(problem.objective)[1] for plan in both]
    assert found.worth == value[1] - value[0]
    assert found.text()


@given(data=st.data())
def test_a_plan_does_not_differ_from_itself(data: Any) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem))
    assert diff(problem, plan, plan).changes == ()
    assert "the same" in diff(problem, plan, plan).text()


def test_a_move_by_hand() -> None:
    problem = price(GRAPHS["chain"](), pair())
    found = diff(problem, Plan.of(problem, [0, 0, 0]), Plan.of(problem, [0, 0, 1]))
    # B (50 bytes) travels 10 ns
    (change,) = found.changes
    assert (change.kind, change.name, change.source, change.target) == ("moved", "c", "d0", "d1")
    assert (change.worth, change.alone, change.ops, change.after.step_ns) == (10, 10, 1, 45)


def test_fusing_and_order_have_a_worth_of_their_own() -> None:
    g = GraphBuilder("mixed")
    x, y = g.tensor(4), g.tensor(4)
    g.op("a", "any", [], [x], time_ns=10)
    g.op("b", "any", [x], [y], time_ns=10)
    g.op("long", "any", [], [], time_ns=100)
    g.op("end", "any", [y], [g.tensor(1, "output")], time_ns=[500, 50])
    problem = price(g.build(), pair(launch_ns=3))
    before = Plan.of(problem, [0, 0, 0, 1], rank=[1, 2, 0, 3])
    after = Plan.of(problem, [0, 0, 0, 1], rank=[0, 1, 2, 3], kernel=[0, 0, 2, 3])
    found = diff(problem, before, after)
    # long first: 100 + 20 + 6 to send + 50 = 176; a and b fused save a launch: 173; fused and first: 17 + 6 + 50,
    # long ends at 117
    assert [(change.kind, change.worth) for change in found.changes] == [("kernels fused", -3), ("order", -56)]
    assert (found.before.step_ns, found.after.step_ns) == (176, 117)
    back = diff(problem, after, before)
    assert [change.kind for change in back.changes] == ["kernels split", "order"]


def test_plans_of_another_graph_are_refused() -> None:
    problem, other = (price(GRAPHS[name](), pair()) for name in ("chain", "diamond"))
    with pytest.raises(InvalidPlan, match="another graph"):
        diff(problem, Plan.of(problem, [0, 0, 0]), Plan.of(other, [0, 0, 0, 0]))


def test_two_methods_on_a_training_step() -> None:
    problem = price(training_like(400), "4xp100-pcie")
    one, other = (solve(problem, name, Budget(None, 4)) for name in ("expert", "greedy-fusion"))
    found = diff(problem, one.plan, other.plan)
    assert found.worth == other.timeline.step_ns - one.timeline.step_ns
    assert {change.kind for change in found.changes} >= {"kernels fused", "moved"}
