"""Which runner of a race goes on: one that promises more than the leader, else the leader or another for its share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.optimizers import racing


def race(leader: float, others: list[float], *, used: int = 90, simulations: int = 100) -> Any:
    made: Any = racing.Race.__new__(racing.Race)
    pace = SimpleNamespace(settled=False)
    made.leader = SimpleNamespace(promise=leader, pace=pace, stuck=False, used=used)
    made.others = [SimpleNamespace(promise=promise, pace=pace, stuck=False, used=1) for promise in others]
    made.search = SimpleNamespace(simulations=simulations)
    return made


@pytest.mark.parametrize(("others", "chosen"), [([5.0, 3.0, 9.0], 1), ([3.5, 3.0], 1), ([1.0], 0)])
def test_who_promises_most_goes_on_before_the_leader(others: list[float], chosen: int) -> None:
    racing = race(4.0, others, used=0)
    assert racing._other() is racing.others[chosen]


def test_nobody_goes_on_before_a_leader_that_promises_most_when_others_have_had_their_share() -> None:
    assert race(1.0, [2.0, 3.0], used=0)._other() is None
