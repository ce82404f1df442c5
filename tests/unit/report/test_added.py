"""What reports say of ops that run again and of tensors that wait or live elsewhere, counted by hand."""

from __future__ import annotations

import pytest

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import expand
from loadmaster.report.added import added_of
from loadmaster.report.explain import explain
from loadmaster.search import Result
from loadmaster.simulator import settle, simulate
from tests.graphs import pair


@pytest.fixture
def result() -> Result:
    """The weight W lives elsewhere, comes for f and again for u, and goes back; A waits there between f and h."""
    g = GraphBuilder("weighted")
    x, w = g.tensor(10, "input"), g.tensor(1000, "weight", name="W")
    a, b = g.tensor(200, name="A"), g.tensor(30, name="B")
    g.op("f", "mm", [x, w], [a], flops=10)
    g.op("g", "mm", [a], [b], flops=10)
    g.op("h", "add", [a, b], [g.tensor(8, name="C")], flops=10)
    g.op("u", "optim.sgd", [w, b], [g.tensor(1000, "weight", name="W2", alias_of=w)], flops=10, after=["f", "h"])
    base = price(g.build(), pair())
    at = {name: number for number, name in enumerate(base.graph.tensor_name)}
    rows = [(-1, at["W"], -1), (-1, at["W"], 0), (-1, at["A"], 1), (-1, at["W2"], -1)]
    reads = [(0, at["W"], 0), (3, at["W"], 1), (2, at["A"], 2)]
    added = Additions(*(ints(column) for column in (*zip(*rows, strict=True), *zip(*reads, strict=True))))
    problem = expand(base, added)
    plan = Plan.of(problem, [int(kind == "stay") for kind in problem.graph.kind])
    plan = settle(base, plan, simulate(base, plan))
    return Result(problem, plan, simulate(base, plan), "by hand", 0, (), 0, 1, 0.0)


def test_homes_are_told_from_stays(result: Result) -> None:
    found = added_of(result)
    assert (found.stays, found.stay_bytes) == (1, 200)
    assert (found.homes, found.home_bytes, found.visit_bytes, found.return_bytes) == (1, 1000, 2000, 1000)
    assert found.ops_again == 0


def test_they_are_explained(result: Result) -> None:
    words = " ".join(explain(result, seconds=0.2).text().split())
    assert "1 tensor waits on a host, 200 B, and comes back." in words
    assert "1 weight, state or input lives elsewhere, 1000 B: 1.95 KiB come in a step, 1000 B go back updated." in words
