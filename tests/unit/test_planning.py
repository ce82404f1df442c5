"""From a model to a saved plan in Python, and what people get told who give something else."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadmaster as lm
from tests.graphs import GRAPHS, pair
from tests.unit.report.subjects import tiny, training_like

FEW = lm.Budget(None, 20)


def test_one_call_is_load_price_and_solve() -> None:
    graph = training_like(60)
    at_once = lm.plan(graph, on="2xk80", budget=FEW, method="anneal", seed=3, memory_limit="1GiB")
    step_by_step = lm.solve(lm.price(graph, "2xk80", memory_limit=2**30), "anneal", FEW, 3)
    assert at_once.problem.memory_bytes.tolist() == [2**30, 2**30]
    for column in ("device", "rank", "kernel"):
        assert np.array_equal(getattr(at_once.plan, column), getattr(step_by_step.plan, column))
    assert at_once.value == step_by_step.value
    assert (at_once.method, at_once.seed) == ("anneal", 3)


def test_without_a_cluster_the_default_is_taken() -> None:
    assert lm.plan(GRAPHS["diamond"](), budget=FEW, method="heft").problem.cluster.name == "this-machine"


def test_clusters_come_as_files_too(tmp_path: Path) -> None:
    from loadmaster.files import save_cluster

    save_cluster(pair(), tmp_path / "mine.json")
    for given in (tmp_path / "mine.json", str(tmp_path / "mine.json"), pair()):
        assert lm.Cluster.of(given).digest == pair().digest
        assert lm.price(GRAPHS["diamond"](), given).cluster.digest == pair().digest


def test_a_saved_plan_is_read_back_and_says_how_it_was_found(tmp_path: Path) -> None:
    from loadmaster.files.text import read_json

    result = lm.plan(GRAPHS["diamond"](), on=pair(), budget=FEW, method="etf")
    result.save(tmp_path / "plan.json")
    again = lm.load_plan(tmp_path / "plan.json")
    assert lm.simulate(result.problem, again).step_ns == result.timeline.step_ns
    facts = read_json(tmp_path / "plan.json")["result"]
    assert (facts["method"], facts["objective"], facts["step_ns"]) == ("etf", "step-time", result.timeline.step_ns)
    assert "interrupted" not in facts


def test_a_plan_that_does_not_fit_is_not_saved(tmp_path: Path) -> None:
    result = lm.plan(training_like(60), on="2xk80", budget=FEW, method="one-device", memory_limit="1MiB")
    assert not result.fits
    with pytest.raises(lm.DoesNotFit):
        result.save(tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


@dataclass(frozen=True)
class CutShort:
    """Scores two plans, then the user presses Ctrl-C."""

    def optimize(self, search: lm.Search) -> lm.Plan:
        search.score(lm.Plan.of(search.problem, [0, 0, 1, 0]))
        search.score(lm.Plan.of(search.problem, [0, 0, 0, 0]))
        raise KeyboardInterrupt


def test_an_interrupted_result_is_the_best_so_far_and_says_so() -> None:
    from loadmaster.report.summary import method_summary, result_line

    problem = lm.price(GRAPHS["diamond"](), pair())
    result = lm.solve(problem, CutShort(), FEW)
    costs = [lm.simulate(problem, lm.Plan.of(problem, device)).step_ns for device in ([0, 0, 1, 0], [0, 0, 0, 0])]
    assert result.value == min(costs)
    assert result.interrupted
    assert method_summary(result)["interrupted"] is True
    assert "interrupted" in result_line(result)
    assert not lm.solve(problem, "etf", FEW).interrupted


def test_methods_and_searches_are_public() -> None:
    assert isinstance(CutShort(), lm.Method)
    assert not isinstance(object(), lm.Method)
    assert lm.Score(0, 5) < lm.Score(1, 1)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda graph, problem: lm.solve(graph), "price it first"),
        (lambda graph, problem: lm.solve(problem, 7), "give a name"),
        (lambda graph, problem: lm.solve(problem, "etf", "2"), "give seconds"),
        (lambda graph, problem: lm.solve(problem, "etf", True), "give seconds"),
        (lambda graph, problem: lm.solve(problem, "etf", -1), "more than 0 seconds"),
        (lambda graph, problem: lm.solve(problem, "etf", float("nan")), "more than 0 seconds"),
        (lambda graph, problem: lm.solve(problem, "etf", FEW, -1), "at least 0"),
        (lambda graph, problem: lm.solve(problem, "etf", FEW, 1.5), "at least 0"),
        (lambda graph, problem: lm.Budget("2"), "more than 0 seconds"),
        (lambda graph, problem: lm.Budget(None, 2.5), "whole number"),
        (lambda graph, problem: lm.price("zoo:gnmt-4", "2xk80"), "load('zoo:gnmt-4')"),
        (lambda graph, problem: lm.price(7, "2xk80"), "give a Graph"),
        (lambda graph, problem: lm.price(graph, 7), "preset"),
        (lambda graph, problem: lm.price(graph, "2xk80", memory_limit="16 gigs"), "16GiB"),
    ],
)
def test_wrong_types_get_an_error_of_ours(call: Any, told: str) -> None:
    graph = GRAPHS["diamond"]()
    with pytest.raises(lm.InvalidSetting) as caught:
        call(graph, lm.price(graph, pair()))
    assert told in caught.value.fix


def test_a_number_is_a_budget_of_seconds() -> None:
    from loadmaster.search import as_budget

    assert as_budget(2) == lm.Budget(2.0)
    assert as_budget(np.float64(0.5)) == lm.Budget(0.5)
    assert as_budget(None) == lm.Budget()
    assert as_budget(FEW) is FEW


def test_reprs_are_short() -> None:
    result = tiny()
    problem = result.problem
    search = lm.Search(problem, FEW)
    shown = [result, result.plan, result.timeline, problem, problem.graph, problem.cluster, search, result.explain()]
    for value in shown:
        text = repr(value)
        assert text.startswith(type(value).__name__ + "(") and len(text) < 160 and "array" not in text, text


def test_nothing_is_printed() -> None:
    heard = io.StringIO()
    with redirect_stdout(heard):
        lm.plan(GRAPHS["diamond"](), on=pair(), budget=FEW, method="etf")
    assert heard.getvalue() == ""
