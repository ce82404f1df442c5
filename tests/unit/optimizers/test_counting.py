"""Every plan that a method has simulated counts towards its budget."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from loadmaster.catalog.specs import make_optimizer
from loadmaster.optimizers.annealing.chains import spread_ranks
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import Timeline, simulate
from tests.problems import halves


def test_ranks_are_spread_by_a_simulation_that_counts_once() -> None:
    problem = halves()
    search = Search(problem, Budget(None, 10))
    plan, other = (Plan.of(problem, np.full(problem.num_ops, device)) for device in (0, 1))
    for _ in range(2):
        ranks = spread_ranks(search, plan)
        assert search.simulations == 1
    assert (np.argsort(ranks) == np.argsort(simulate(problem, plan).turn)).all()
    search.score(other)
    spread_ranks(search, other)
    assert search.simulations == 2


@pytest.mark.parametrize("method", ["placement", "joint", "separate", "anneal", "anneal-fusion", "sqrt-checkpointing"])
def test_methods_simulate_by_their_search_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = list[str]()
    optimizer, search = make_optimizer(method), Search(halves(), Budget(None, 120))
    optimizer.optimize(Search(halves(), Budget(None, 120)))  # what it needs is imported

    def watched(name: str) -> Any:
        def call(problem: Problem, plan: Plan) -> Timeline:
            aside.append(name)
            return simulate(problem, plan)

        return call

    for name, module in list(sys.modules.items()):
        if name.startswith("loadmaster.optimizers") and getattr(module, "simulate", None) is simulate:
            monkeypatch.setattr(module, "simulate", watched(name))
    optimizer.optimize(search)
    assert not aside and 0 < search.simulations <= 120
