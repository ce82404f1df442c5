"""How far policies that learn on one graph have come, and that a larger budget goes on where a smaller one ends."""

from __future__ import annotations

import pytest

from loadmaster import Budget, price, solve
from loadmaster.learn.cooling import HALF_WAY, Cooling
from loadmaster.search import Search
from loadmaster.zoo.synthetic import generate
from tests.graphs.tiny import diamond, pair


def test_by_simulations_it_depends_on_how_many_there_were_alone() -> None:
    shares = []
    for budget in (5 * HALF_WAY, 50 * HALF_WAY):
        search = Search(price(diamond(), pair()), Budget(None, budget))
        search.count(7)
        cooling = Cooling(search)
        assert cooling.share == 0
        seen = []
        for _ in range(3):
            search.count(HALF_WAY)
            seen.append(cooling.share)
        shares.append(seen)
    assert shares[0] == shares[1] == [1 / 2, 2 / 3, 3 / 4]


def test_by_the_clock_it_is_the_share_of_the_time_that_was_left() -> None:
    search = Search(price(diamond(), pair()), Budget(100.0, None))
    cooling = Cooling(search)
    cooling.begun = 0.0
    assert cooling.share == pytest.approx(search.progress, abs=1e-3)
    cooling.begun = search.progress - 1.0  # as if it had begun long ago
    assert cooling.share == pytest.approx(1.0 / (2.0 - search.progress), abs=1e-3)


@pytest.mark.parametrize("name", ["rnn:hidden=8", "hdp:hidden=8", "placeto:tune=yes"])
def test_a_larger_budget_goes_on_where_a_smaller_one_ends(name: str) -> None:
    """Improvement by improvement, also where a budget ends within a batch of draws."""
    problem = price(next(generate("layered", 1, 3, (60, 60))), "2xp100-pcie")
    few, many = (solve(problem, name, Budget(None, count), seed=2).history for count in (75, 190))
    assert [(m.simulations, m.score) for m in few] == [(m.simulations, m.score) for m in many if m.simulations <= 75]
    assert len(few) > 1
