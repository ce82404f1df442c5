"""Small ops in a row joined: groups that are safe to join, and a step that stands for that of the whole."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from loadmaster.baselines.cuts import cuts
from loadmaster.cost import price
from loadmaster.passes.chaining import chain_small_ops, groups_in_a_row
from loadmaster.plans import Plan, check
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate
from loadmaster.zoo.shelf import load_zoo
from loadmaster.zoo.synthetic import generate


def dependencies(problem: Problem) -> nx.DiGraph:
    graph, found = problem.graph, nx.DiGraph()
    found.add_nodes_from(range(problem.num_ops))
    for op in range(problem.num_ops):
        makers = graph.producer[graph.reads_of(op)]
        found.add_edges_from((int(maker), op) for maker in makers if maker >= 0)
        found.add_edges_from((int(earlier), op) for earlier in graph.after_of(op))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["layered", "erdos-renyi", "watts-strogatz"])
def test_no_way_leads_out_of_a_group_and_back(kind: str, seed: int) -> None:
    problem = price(next(generate(kind, 1, seed, (80, 80))), "2xp100-pcie+1xcpu")
    label = groups_in_a_row(problem, 0.05)
    whole = dependencies(problem)
    joined = nx.DiGraph(
        (int(label[one]), int(label[other])) for one, other in whole.edges if label[one] != label[other]
    )
    assert nx.is_directed_acyclic_graph(joined)
    for head in np.unique(label).tolist():
        members = np.flatnonzero(label == head)
        assert members.min() == head
        assert len({tuple(row) for row in (problem.op_ns[members] == CANNOT).tolist()}) == 1
        assert len(members) == 1 or problem.best_ns[members].sum() <= 0.05 * problem.best_ns.sum() / 3


def test_something_is_joined_and_a_step_stands_for_the_whole() -> None:
    problem = price(load_zoo("rnnlm-2/train"), "2xp100-pcie")
    small = chain_small_ops(problem)
    assert small is not None and small.problem.num_ops < 0.75 * problem.num_ops
    for device in cuts(problem):
        given = Plan.of(problem, device)
        plan = small.down(given)
        lifted = small.up(plan)
        check(lifted, problem)
        ratio = simulate(small.problem, plan).step_ns / simulate(problem, lifted).step_ns
        assert 0.8 < ratio < 1.25


def test_all_work_is_still_there() -> None:
    problem = price(load_zoo("rnnlm-2/train"), "2xp100-pcie")
    small = chain_small_ops(problem)
    assert small is not None
    assert small.problem.op_ns.sum(axis=0).tolist() == problem.op_ns.sum(axis=0).tolist()
    on_one = Plan.of(small.problem, np.zeros(small.problem.num_ops, np.int64))
    assert simulate(small.problem, on_one).step_ns == problem.op_ns[:, 0].sum()


def test_where_nothing_can_be_joined_there_is_no_smaller_problem() -> None:
    problem = price(load_zoo("inception-v3-b32/train"), "2xp100-pcie")
    assert chain_small_ops(problem) is None


def test_auto_with_a_clock_returns_a_plan_of_the_whole() -> None:
    problem = price(load_zoo("rnnlm-2/train"), "2xp100-pcie")
    result = solve(problem, "auto", Budget(2.0))
    assert result.plan.device.shape == (problem.num_ops,)
    assert result.value <= solve(problem, "expert", Budget(None, 10)).value
