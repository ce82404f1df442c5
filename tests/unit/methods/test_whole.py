"""Modules in one piece."""

from __future__ import annotations

from dataclasses import replace

from loadmaster import GraphBuilder, price
from loadmaster.methods import whole
from loadmaster.problem import Problem

SCOPES = ("embed", "body.0", "body.0.inner", "body.1", "side.0", "body.2", "body.3", "head", "body.1")


def modules(time_ns: int = 10) -> Problem:
    build = GraphBuilder("modules")
    last = build.tensor(8, "input")
    for at, scope in enumerate(SCOPES):
        last, read = build.tensor(8), last
        group = {"colocate": "pair"} if at in (0, 5) else {}
        build.op(f"op{at}", "any", [read], [last], time_ns=time_ns, scope=scope, **group)
    return price(build.build(), "2xp100-pcie")


def test_a_graph_that_knows_no_modules_is_planned_op_by_op() -> None:
    problem = modules()
    bare = replace(problem, graph=replace(problem.graph, scope=("",) * problem.num_ops))
    assert whole.bound_problem(bare, "module") is bare
    assert whole.bound_problem(problem, "module").graph.colocate.max() >= 0
