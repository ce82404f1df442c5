"""Coarsening: every op in one group, colocated ops together, few enough groups, and heavy tensors inside them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from loadmaster.cost import price
from loadmaster.errors import UnknownName
from loadmaster.graph import GraphBuilder
from loadmaster.passes.groups import GROUPERS, Grouper, group_ops, turning_point
from loadmaster.problem import Problem
from loadmaster.zoo.synthetic import generate
from tests.strategies import problems


@given(problem=problems())
@settings(max_examples=40, deadline=None)
def test_groups_are_dense_few_and_keep_colocated_ops_together(problem: Problem) -> None:
    for by in GROUPERS:
        for most in (1, 3, 100):
            label = group_ops(problem, most, by)
            assert len(label) == problem.num_ops
            assert set(label.tolist()) == set(range(label.max() + 1))
            if by != "op":
                assert label.max() < most
            colocate = problem.graph.colocate
            for group in set(colocate[colocate >= 0].tolist()):
                assert len(set(label[colocate == group].tolist())) == 1
            mean = [float(np.flatnonzero(label == group).mean()) for group in range(label.max() + 1)]
            assert mean == sorted(mean)


def _two_chains() -> Problem:
    """a -big-> b -small-> c -big-> d: two groups should cut the small tensor."""
    builder = GraphBuilder("chain")
    last = builder.tensor(8, "input")
    for name, nbytes in (("a", 10**9), ("b", 8), ("c", 10**9), ("d", 8)):
        made = builder.tensor(nbytes, "activation")
        builder.op(name, "any", [last], [made], flops=10**12, bytes_moved=8)
        last = made
    return price(builder.build(), "2xp100-pcie")


def test_edges_cut_small_tensors() -> None:
    label = group_ops(_two_chains(), 2, "edges")
    assert label.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("by", ["edge", ""])
def test_an_unknown_grouping_is_told(by: Grouper) -> None:
    with pytest.raises(UnknownName, match="grouping"):
        group_ops(_two_chains(), 2, by)


def test_too_many_groups_are_joined_no_further_than_asked(problem_of_many: Problem) -> None:
    for most in (5, 17, 40):
        label = group_ops(problem_of_many, most, "readers")
        assert label.max() + 1 == most
        time = np.bincount(label, problem_of_many.best_ns)
        assert time.max() < 0.6 * time.sum()


@pytest.fixture(scope="module")
def problem_of_many() -> Problem:
    return price(next(iter(generate("layered", 1, 3, (400, 400)))), "2xp100-pcie")


@settings(max_examples=80)
@given(problem=problems())
def test_the_turning_point_is_where_most_made_bytes_are_alive(problem: Problem) -> None:
    """Counted op by op: what was made so far and is read now or later."""
    graph, alive = problem.graph, []
    for now in range(problem.num_ops):
        here = 0
        for tensor in range(graph.num_tensors):
            maker = int(graph.producer[tensor])
            if maker < 0 or graph.alias_of[tensor] >= 0 or problem.stays[tensor]:
                continue
            here += int(graph.nbytes[tensor]) if maker <= now <= max([maker, *graph.readers_of(tensor).tolist()]) else 0
        alive.append(here)
    assert turning_point(problem) == alive.index(max(alive))


@pytest.mark.parametrize("seed", range(8))
def test_the_turning_point_is_where_most_of_what_is_made_is_alive(seed: int) -> None:
    """Tensors that nobody reads are alive while their op runs; weights, outputs and what is written in place do not
    count."""
    build, rng = GraphBuilder("turning"), np.random.default_rng(seed)
    made, ends = [build.tensor(5_000, "weight")], dict[int, tuple[int, int, int]]()
    for op in range(12):
        reads = sorted({int(one) for one in rng.choice(made, min(len(made), 2))} if op % 4 else {made[0]})
        size, role = int(rng.integers(1, 60)), "output" if op % 5 == 4 else "activation"
        new = build.tensor(size, role)
        build.op(f"op{op}", "any", reads, [new], time_ns=1)
        for tensor in reads:
            if tensor in ends:
                ends[tensor] = (*ends[tensor][:2], op)
        if role == "activation":
            ends[new] = size, op, op
        if op % 3:
            made.append(new)
    problem = price(build.build(), "2xp100-pcie")
    alive = [sum(size for size, first, last in ends.values() if first <= op <= last) for op in range(12)]
    assert turning_point(problem) == alive.index(max(alive))
