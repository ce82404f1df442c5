"""How many chains annealing and local search walk with, and how many simulations a cooling has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import anneal
from loadmaster.optimizers.annealing.chains import EPOCH
from loadmaster.optimizers.simple import OneDevice
from loadmaster.search import Budget, Score, Search
from tests.unit.optimizers.test_search_methods import problem_of


class Walking:
    """Chains that only note what they are asked for, and end the search with their second cooling."""

    score, weights = Score(0, 5), np.ones(1)

    def __init__(self, search: Search, plan: Any, score: Score, decisions: Any, chains: int) -> None:
        self.search, self.problem, self.chains = search, search.problem, chains
        self.cooled = list[int]()

    def cool(self, simulations: int, hot: float, cold: float) -> None:
        self.cooled.append(simulations)
        if len(self.cooled) == 2:
            self.search.halt()

    def return_to_best(self) -> None:
        assert len(self.cooled) <= 2


@pytest.mark.parametrize(
    ("chains", "seconds", "cores", "walk", "times"),
    [
        (None, None, 9, 2, 1),
        (None, 600.0, 9, 9, 3),  # each has a third of what one alone would have
        (None, 600.0, 1, 2, 1),
        (1, 600.0, 9, 1, 1),
        (5, 600.0, 9, 5, 1),
    ],
)
def test_by_the_clock_a_chain_walks_on_each_core_unless_told_otherwise(
    chains: int | None, seconds: float | None, cores: int, walk: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Walking]()

    def walkers(*given: Any) -> Walking:
        made.append(Walking(*given))
        return made[-1]

    monkeypatch.setenv("LOADMASTER_THREADS", str(cores))
    monkeypatch.setattr(anneal, "walkers", walkers)
    search = Search(problem_of(6), Budget(seconds, 10**6))
    anneal.Anneal(OneDevice(), chains=chains).optimize(search)
    assert [walking.chains for walking in made] == [walk]
    assert made[0].cooled == [times * EPOCH] * 2, "the first gained nothing"
