"""Genes of the genetic search and the plans that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.baselines.genetic import breeding
from loadmaster.baselines.genetic.brkga import Brkga, decoder_of, genes_of
from loadmaster.baselines.simple import legal
from loadmaster.errors import InvalidSetting
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import solve
from loadmaster.simulator import layout
from tests.problems import problem_of


def line(ops: int = 10, scopes: str = "", **given: Any) -> Problem:
    build = GraphBuilder("line")
    last = build.tensor(8, "input")
    for op in range(ops):
        read, last = last, build.tensor(8)
        build.op(f"op{op}", "any", [read], [last], time_ns=100, scope=scopes[op] if scopes else "")
    return price(build.build(), "2xp100-pcie", **given)


def test_genes_of_a_plan_are_high_where_it_is_and_in_its_order() -> None:
    problem = line(4)
    decoder = decoder_of(problem, Brkga())
    plan = Plan.of(problem, [0, 1, 1, 0], [30, 10, 20, 0])
    genes = genes_of(problem, decoder, plan)
    assert genes[:8].reshape(4, 2).argmax(axis=1).tolist() == [0, 1, 1, 0]
    assert np.argsort(genes[8:12]).tolist() == [3, 1, 2, 0] and genes[8:12].tolist()[3] == 0
    sends = genes[12:].reshape(-1, 2)
    read_by = {int(tensor): op for op in range(4) for tensor in problem.graph.reads_of(op)}
    for tensor in range(problem.graph.num_tensors):
        soonest = genes[8 + read_by[tensor]] if tensor in read_by else 65_535
        assert sends[tensor].tolist() == [soonest] * 2


def test_genes_of_a_plan_decode_to_it() -> None:
    problem = problem_of(8, "4xp100-pcie")
    rng = np.random.default_rng(1)
    device = legal(problem, rng.integers(0, 4, problem.num_ops))
    plan = Plan.of(problem, device, rng.permutation(problem.num_ops))
    decoder = decoder_of(problem, Brkga())
    place, rank, _ = breeding.decode_one(layout(problem), decoder, genes_of(problem, decoder, plan))
    assert place.tolist() == device.tolist()
    assert np.argsort(rank, kind="stable").tolist() == np.argsort(plan.rank).tolist()


@pytest.mark.parametrize("method", ["brkga:elites=4", "brkga:mutants=-1"])
def test_shares_of_a_population_are_shares(method: str) -> None:
    with pytest.raises(InvalidSetting, match=r"elites=0\.2"):
        solve(problem_of(6), method, Budget(None, 30))
