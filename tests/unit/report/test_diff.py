"""diff: changes add up to the difference of any two plans of a model, whole or split, fused or not, of any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.methods.splitting import solve_split
from loadmaster.pipelines.microbatched import plan_pipeline
from loadmaster.plans import Plan
from loadmaster.report.diff import MOST_LINES, diff
from loadmaster.report.explain import replayed
from loadmaster.search import Budget, Result, solve
from tests.graphs import GRAPHS, pair
from tests.reference import judge
from tests.strategies import plans, problems
from tests.unit.pipelines.lines import problem as pipeline_problem
from tests.unit.report.subjects import training_like


@given(data=st.data())
def test_changes_add_up_to_the_difference_of_the_steps(data: Any) -> None:
    problem = data.draw(problems(hosts=True))
    one, other = data.draw(plans(problem)), data.draw(plans(problem))
    found = diff(replayed(problem, one), replayed(problem, other))
    steps = [judge(problem, plan).step_ns for plan in (one, other)]
    if problem.objective.of_memory:
        steps = [max(judge(problem, plan).peak) for plan in (one, other)]
    assert (found.before, found.after) == tuple(steps)
    assert sum(change.worth for change in found.changes) == steps[1] - steps[0]
    assert len(found.changes) <= MOST_LINES and len(found.lines()) == len(found.changes)


def test_a_plan_does_not_differ_from_itself() -> None:
    problem = price(GRAPHS["diamond"](), pair())
    result = replayed(problem, Plan.of(problem, [0, 0, 1, 0]))
    assert diff(result, result).changes == () and "takes the same" in diff(result, result).text()


def test_a_move_by_hand() -> None:
    problem = price(GRAPHS["chain"](), pair())
    here, away = (replayed(problem, Plan.of(problem, device)) for device in ([0, 0, 0], [0, 0, 1]))
    found = diff(here, away)
    # B (50 bytes) travels 10 ns: 35 becomes 45, and all of it is sending
    assert (found.before, found.after, found.worth) == (35, 45, 10)
    assert [(change.worth, change.part) for change in found.changes] == [(10, "sending")]
    assert "29 % more" in found.headline()
    assert diff(away, here).worth == -10 and "less" in diff(away, here).headline()


def heavy(samples: int = 8) -> Any:
    """A product that keeps one device busy for long, between two quick ops."""
    g = GraphBuilder("heavy")
    x, w = g.tensor(samples * 4096, "input", shape=(samples, 1024)), g.tensor(1024 * 4096, "weight", shape=(1024, 1024))
    a, b = (g.tensor(samples * 4096, shape=(samples, 1024)) for _ in range(2))
    out = g.tensor(samples * 4096, "output", shape=(samples, 1024))
    g.op("before", "aten.relu.default", [x], [a], scope="body")
    g.op("product", "aten.mm.default", [a, w], [b], flops=samples * 10**8, scope="head")
    g.op("after", "aten.relu.default", [b], [out], scope="body")
    return g.build()


def test_split_against_whole_names_the_module_that_was_split() -> None:
    problem = price(heavy(512), "2xa100-nvlink")
    whole = solve(problem, "heft", Budget(None, 1))
    split = solve_split(problem, lambda graph: price(graph, problem.cluster), "heft", Budget(None, 60)).result
    assert split.problem.source.is_split and split.value < whole.value
    found = diff(whole, split)
    assert found.changes[0].name == "head" and found.changes[0].worth < 0
    assert sum(change.worth for change in found.changes) == split.timeline.step_ns - whole.timeline.step_ns
    assert "split" in found.headline()


def test_other_batches_count_for_each_sample_and_pipelines_for_each_microbatch() -> None:
    one, four = (solve(price(heavy(count), "1xp100-pcie"), "one-device", Budget(None, 1)) for count in (8, 32))
    found = diff(one, four)
    assert found.per == "sample"
    assert found.before == pytest.approx(one.timeline.step_ns / 8)
    assert found.after == pytest.approx(four.timeline.step_ns / 32)
    problem = pipeline_problem(4, 2)
    step = solve(problem, "one-device", Budget(None, 1))
    pipeline = plan_pipeline(problem, 4, Budget(None, 8)).result
    found = diff(step, pipeline)
    assert found.per == "microbatch" and found.after == pytest.approx(pipeline.timeline.step_ns / 4)


def explained(result: Result, other: Result) -> float:
    """Share of the difference that the lines hold, by their own numbers."""
    found = diff(result, other)
    return sum(change.worth for change in found.changes) / found.worth


def test_lines_hold_most_of_the_difference_of_two_methods() -> None:
    problem = price(training_like(400), "4xp100-pcie")
    one, other = (solve(problem, name, Budget(None, 4)) for name in ("expert", "greedy-fusion"))
    assert explained(one, other) == pytest.approx(1.0, abs=0.001)
    memory = price(training_like(400), "2xp100-pcie", objective="peak-memory")
    device = np.arange(memory.num_ops) % 2
    apart, together = replayed(memory, Plan.of(memory, device)), replayed(memory, Plan.of(memory, 0 * device))
    found = diff(apart, together)
    assert found.before == int(apart.timeline.peak_bytes.max()) and "peak" in found.headline()
    assert sum(change.worth for change in found.changes) == found.worth
