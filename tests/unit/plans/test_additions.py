"""Additions: what may not be added is refused by name."""

from __future__ import annotations

import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import Additions, repeatable
from loadmaster.plans.expansion import expand, whole
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from tests.graphs import pair


def overwriting() -> Graph:
    """x -> a -> A -> b -> B; c overwrites A once b has read it; r draws random numbers; d reads all."""
    g = GraphBuilder("overwriting")
    x, w = g.tensor(10, "input"), g.tensor(7, "weight")
    a, b, r = g.tensor(100, name="A"), g.tensor(50, name="B"), g.tensor(20, name="R")
    changed, updated = g.tensor(100, name="A2", alias_of=a), g.tensor(7, "state", name="w2", alias_of=w)
    g.op("a", "relu", [x], [a], flops=10)
    g.op("b", "mm", [a, w], [b], flops=10)
    g.op("r", "aten.bernoulli.p", [b], [r], flops=10)
    g.op("c", "relu_", [a], [changed], flops=10, after=["b"])
    g.op("u", "optim.sgd", [w, r], [updated], flops=10, after=["b"])
    g.op("d", "add", [changed, b, r], [g.tensor(8, "output", name="D")], flops=10)
    return g.build()


@pytest.fixture
def problem() -> Problem:
    return price(overwriting(), pair())


def added(
    op: int = -1, tensor: int = -1, reader: int = 5, read: int = 3, after: int = -1, source: int = 0
) -> Additions:
    return Additions(*(ints([value]) for value in (op, tensor, after, reader, read, source)))


def named(problem: Problem, tensor: str) -> int:
    return problem.graph.tensor_name.index(tensor)


def test_only_what_gives_the_same_again_may_run_again(problem: Problem) -> None:
    able = dict(zip(problem.graph.op_name, repeatable(problem.graph).tolist(), strict=True))
    assert able == {"a": False, "b": True, "r": True, "c": False, "u": False, "d": True}


def test_a_copy_reads_before_its_weight_is_overwritten(problem: Problem) -> None:
    op = problem.graph.op_name.index("b")
    whole_problem = expand(problem, added(op, reader=problem.graph.op_name.index("d"), read=named(problem, "B")))
    names = whole_problem.graph.op_name
    again = names.index("b.again")
    for writer in ("c", "u"):
        assert again in whole_problem.graph.after_of(names.index(writer)).tolist()
    plan = Plan.of(whole_problem, [0] * 7, rank=[0, 1, 6, 2, 3, 4, 5])
    check(plan, problem)
    line = simulate(problem, plan)
    assert line.end_ns[again] <= line.start_ns[[names.index("c"), names.index("u")]].min()
    assert whole(problem, plan) is whole_problem and whole(whole_problem, plan) is whole_problem


def test_a_batch_norm_runs_again_without_its_running_statistics() -> None:
    g = GraphBuilder("normed")
    x, mean = g.tensor(100, "input", name="X"), g.tensor(4, "state", name="mean")
    new, out, kept = g.tensor(4, "state", name="new", alias_of=mean), g.tensor(100, name="Y"), g.tensor(4, name="kept")
    g.op("norm", "aten.native_batch_norm.default", [x, mean], [new, out, kept], flops=10)
    g.op("late", "add", [out, kept], [g.tensor(8, "output")], flops=10)
    problem = price(g.build(), pair())
    assert repeatable(problem.graph).tolist() == [True, True]
    graph = expand(problem, added(0, reader=1, read=out)).graph
    again = graph.op_name.index("norm.again")
    assert [graph.tensor_name[t] for t in graph.reads_of(again)] == ["X"]
    assert [graph.tensor_name[t] for t in graph.makes_of(again)] == ["Y.again", "kept.again"]
    with pytest.raises(InvalidPlan, match="makes no copy of tensor 'new'"):
        expand(problem, added(0, reader=1, read=new))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"op": 0, "read": "A", "reader": 1}, "op 'a' cannot run again"),
        ({"op": 3, "read": "A2"}, "op 'c' cannot run again"),
        ({"tensor": "A", "read": "A", "reader": 1}, "tensor 'A' cannot be offloaded"),
        ({"op": 1, "read": "R"}, "makes no copy of tensor 'R'"),
        ({"op": 1, "read": "B", "reader": 0}, "does not read it"),
        ({"op": 1, "tensor": "B", "read": "B"}, "neither"),
        ({"op": 9, "read": "B"}, "'op' out of range"),
        ({"op": 1, "read": "B", "source": 1}, "'source' out of range"),
        ({"op": 1, "read": "B", "after": 5}, "would wait for itself"),
    ],
)
def test_refusals(problem: Problem, settings: dict[str, int | str], words: str) -> None:
    numbers = {key: named(problem, value) if isinstance(value, str) else value for key, value in settings.items()}
    with pytest.raises(InvalidPlan, match=words) as caught:
        expand(problem, added(**numbers))
    assert caught.value.fix


def test_a_stay_is_no_part_of_a_kernel(problem: Problem) -> None:
    whole_problem = expand(problem, added(tensor=named(problem, "B"), read=named(problem, "B")))
    stay = whole_problem.graph.kind.index("stay")
    plan = Plan.of(whole_problem, [0] * 7, kernel=[0, 1, 2, 3, 4, 5, 5] if stay in (5, 6) else range(7))
    with pytest.raises(InvalidPlan, match="fused with others"):
        check(plan, problem)
