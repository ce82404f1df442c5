"""What a page says a plan rests on and what to do next: true to the problem, and commands that can be typed."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.plans import Plan, check
from loadmaster.report.advice import basis, model_word, next_steps
from loadmaster.report.explain import better_result, explain, replayed
from loadmaster.search import Budget, Result, solve
from loadmaster.simulator import simulate
from tests.graphs import GRAPHS, pair
from tests.unit.report.subjects import training_like


def mixed(given: bool, modelled: bool) -> Result:
    graph = GraphBuilder("mixed")
    if given:
        graph.op("a", "any", [], [graph.tensor(8)], time_ns=5_000)
    if modelled:
        graph.op("b", "any", [], [graph.tensor(1 << 20)], flops=10**9)
    problem = price(graph.build(), "2xp100-pcie")
    return replayed(problem, Plan.of(problem, [0] * problem.num_ops))


@pytest.mark.parametrize(
    ("given", "modelled", "said"),
    [
        (True, False, "are those given with the graph"),
        (False, True, "Times come from a roofline model of '2xp100-pcie'"),
        (True, True, "Times of 1 of 2 ops are given with the graph; the rest come from a roofline"),
    ],
)
def test_what_it_rests_on(given: bool, modelled: bool, said: str) -> None:
    assert said in basis(mixed(given, modelled).problem)


def test_clusters_with_one_time_for_all_ops_say_so() -> None:
    assert "Every op takes" in basis(price(GRAPHS["diamond"](), replace(pair(), op_ns=7)))


def alone(ops: int = 200) -> Result:
    problem = price(training_like(ops), "2xp100-pcie")
    return replayed(problem, Plan.of(problem, [0] * problem.num_ops))


def test_a_better_plan_is_offered_and_is_one() -> None:
    result = alone()
    found = explain(result, seconds=0.5)
    better = better_result(result, found)
    assert better is not None and better.score < result.score
    check(better.plan, result.problem)
    assert result.value - simulate(result.problem, better.plan).step_ns == found.why_not_faster.control.gain
    first = next_steps(result, found)[0]
    assert shlex.split(first.command)[:2] == ["loadmaster", "explain"] and "--save" in first.command


def test_the_better_plan_of_a_fused_one_keeps_its_kernels() -> None:
    problem = price(training_like(200), "2xp100-pcie")
    fused = solve(problem, "greedy-fusion:inner=[one-device]", Budget(None, 2))
    found = explain(fused, seconds=0.5)
    better = better_result(fused, found)
    assert fused.plan.fuses and better is not None
    assert better.plan.kernel.tolist() == fused.plan.kernel.tolist()
    assert fused.value - better.value == found.why_not_faster.control.gain


def test_what_does_not_fit_comes_first_and_nothing_is_offered_at_the_bound() -> None:
    problem = price(training_like(200), "2xp100-pcie", memory_limit="8MiB")
    tight = replayed(problem, Plan.of(problem, [0] * problem.num_ops))
    assert next_steps(tight, explain(tight, seconds=0.2))[0].what.startswith("Make it fit")
    best = mixed(True, False)
    assert best.gap == 0
    assert "as good as the bound" in next_steps(best, explain(best, seconds=0.2))[0].what


def test_an_interrupted_search_is_to_be_finished() -> None:
    result = replace(alone(), interrupted=True)
    steps = next_steps(result, replace(explain(result, seconds=0.2), better=None))
    assert "interrupted" in steps[0].what and steps[0].command.startswith("loadmaster plan MODEL --on 2xp100-pcie")


def test_models_of_the_zoo_are_named_as_they_are_typed() -> None:
    graph = replace(GRAPHS["diamond"](), name="gnmt-4/train")
    assert model_word(price(graph, pair())) == "zoo:gnmt-4/train"
    assert model_word(price(GRAPHS["diamond"](), pair())) == "MODEL"
