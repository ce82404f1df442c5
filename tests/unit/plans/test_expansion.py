"""What added ops take over from the ops they are made of, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import expand, whole
from loadmaster.plans.plan import without_additions
from loadmaster.problem import Problem
from loadmaster.problem.objective import PeakMemory
from tests.graphs import pair
from tests.unit.plans.test_additions_of_the_first import additions


def grouped() -> Problem:
    """f reads the weight W and makes A, of which g and h make theirs; u overwrites W after f and g; k follows f. f and
    k belong together."""
    g = GraphBuilder("grouped")
    w, a = g.tensor(100, "weight", name="W"), g.tensor(20, name="A")
    b, c = g.tensor(30, name="B"), g.tensor(40, name="C")
    g.op("f", "mm", [w], [a], flops=50, bytes_moved=70, workspace_bytes=9, colocate="pair")
    g.op("g", "mm", [a], [b], flops=60)
    g.op("h", "mm", [a, b], [c], flops=70)
    g.op("u", "optim.sgd", [w, c], [g.tensor(100, "state", name="W2", alias_of=w)], flops=10, after=["f", "g"])
    g.op("k", "mm", [c], [g.tensor(8, "output", name="D")], flops=30, after=["f"], colocate="pair")
    return price(g.build(), pair(launch_ns=7))


def test_a_copy_costs_what_its_op_does_and_a_stay_nothing() -> None:
    base = grouped()
    problem = expand(base, additions((0, -1, -1), (-1, 2, 1), reads=[(2, 1, 0), (2, 2, 1)]))
    names = problem.graph.op_name
    assert names == ("f", "g", "f.again", "B.stay", "h", "u", "k")
    again, stay = names.index("f.again"), names.index("B.stay")
    for column in (problem.op_ns, problem.compute_ns, problem.fixed_ns, problem.traffic_bytes):
        assert column[again].tolist() == column[0].tolist() and not np.any(column[stay])
    graph = problem.graph
    for numbers in (graph.flops, graph.bytes_moved, graph.workspace_bytes):
        assert numbers[again] == numbers[0] > 0
    assert graph.bytes_moved[stay] == graph.workspace_bytes[stay] == 0
    assert graph.kind[again] == "mm" and graph.kind[stay] == "stay"
    assert graph.colocate.tolist() == [0, -1, 0, -1, -1, -1, 0]
    assert problem.expansion is not None and problem.expansion.addition.tolist() == [-1, -1, 0, 1, -1, -1, -1]
    assert problem.expansion.op.tolist() == [0, 1, 0, -1, 2, 3, 4]


def test_a_copy_of_the_first_op_comes_before_what_overwrites_and_after_its_own() -> None:
    """u overwrites after f, so it follows the copy of f too; k follows f, but writes over nothing."""
    base = grouped()
    graph = expand(base, additions((0, -1, 1), reads=[(2, 1, 0)])).graph
    follows = {name: {graph.op_name[e] for e in graph.after_of(op)} for op, name in enumerate(graph.op_name)}
    assert follows == {"f": set(), "f.again": {"g"}, "g": set(), "h": set(), "u": {"f", "g", "f.again"}, "k": {"f"}}


def test_copies_wait_for_what_their_op_waits_for() -> None:
    """b comes after a, and so does b once more; c after b, but not after that."""
    g = GraphBuilder("after")
    x, made = g.tensor(8, "input"), g.tensor(8)
    g.op("a", "any", [x], [g.tensor(8, "output")], flops=1)
    g.op("b", "any", [x], [made], flops=1, after=["a"])
    g.op("c", "any", [made], [g.tensor(8, "output")], flops=1, after=["b"])
    graph = expand(price(g.build(), pair()), additions((1, -1, -1), reads=[(2, made, 0)])).graph
    assert graph.op_name == ("a", "b", "b.again", "c")
    assert [graph.after_of(op).tolist() for op in range(4)] == [[], [0], [0], [1]]
    assert [graph.makes_of(op).tolist() for op in range(4)] == [[2], [made], [4], [3]]


def test_who_waits_for_itself_is_named() -> None:
    """A stay that is to follow the one op that reads it; and the highest of several that wait in a circle."""
    base = grouped()
    with pytest.raises(InvalidPlan, match=r"^addition 0 would wait for itself"):
        expand(base, additions((-1, 2, 2), reads=[(2, 2, 0)]))
    with pytest.raises(InvalidPlan, match=r"^addition 1 would wait for itself"):
        expand(base, additions((-1, 3, -1), (-1, 2, 4), reads=[(3, 3, 0), (2, 2, 1)]))


def test_the_whole_problem_keeps_what_it_is_judged_by() -> None:
    base = grouped()
    one, two = additions((0, -1, -1), reads=[(2, 1, 0)]), additions((1, -1, -1), reads=[(2, 2, 0)])
    tight = replace(expand(base, one), objective=PeakMemory(), memory_bytes=ints([5, 6]))
    plan = Plan.of(expand(base, two), [0] * 6)
    found = whole(tight, plan)
    assert found.graph.op_name == ("f", "g", "g.again", "h", "u", "k")
    assert isinstance(found.objective, PeakMemory) and found.memory_bytes.tolist() == [5, 6]
    bare = whole(tight, Plan.of(base, [0] * 5))
    assert bare.expansion is None and bare.memory_bytes.tolist() == [5, 6] and bare.num_ops == 5
    assert expand(base, additions(reads=[])) is base
    assert expand(expand(base, one), two).graph.op_name == found.graph.op_name


def test_a_plan_without_what_it_adds() -> None:
    """Ranks 4 of f, 5 of its copy, and so on, are those of f, g, h, u and k among themselves; the kernel of f and g
    stays, that of the copy and h leaves h alone."""
    base = grouped()
    problem = expand(base, additions((0, -1, -1), reads=[(2, 1, 0)]))
    assert problem.graph.op_name == ("f", "g", "f.again", "h", "u", "k")
    plan = Plan.of(problem, [1, 1, 1, 1, 0, 1], rank=[4, 4, 5, 3, 9, 0], kernel=[0, 0, 2, 2, 4, 5])
    check(plan, base)
    bare = without_additions(base, plan)
    assert bare.device.tolist() == [1, 1, 1, 0, 1] and bare.rank.tolist() == [2, 3, 1, 4, 0]
    assert bare.kernel.tolist() == [0, 0, 2, 3, 4] and bare.added is None
    assert without_additions(base, bare) is bare


def test_kernels_that_only_a_copy_made_possible_are_undone() -> None:
    """f and h are one kernel, with g between them on a copy of f: without the copy the kernel would wait for itself."""
    g = GraphBuilder("between")
    x, a, b = g.tensor(8, "input"), g.tensor(8, name="A"), g.tensor(8, name="B")
    g.op("f", "mm", [x], [a], flops=5)
    g.op("g", "mm", [a], [b], flops=5)
    g.op("h", "mm", [a, b], [g.tensor(8, "output")], flops=5)
    base = price(g.build(), pair())
    problem = expand(base, additions((0, -1, -1), reads=[(1, a, 0)]))
    assert problem.graph.op_name == ("f", "f.again", "g", "h")
    plan = Plan.of(problem, [0] * 4, kernel=[0, 1, 2, 0])
    check(plan, base)
    bare = without_additions(base, plan)
    assert not bare.fuses and bare.rank.tolist() == [0, 1, 2]
