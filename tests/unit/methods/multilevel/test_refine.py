"""How late ops could start without the step ending later."""

from __future__ import annotations

from typing import Any

from loadmaster import price
from loadmaster.methods.multilevel.slack import latest_starts
from loadmaster.plans import Plan
from loadmaster.simulator import simulate
from tests.graphs.tiny import chain, diamond, fork, pair


def latest(graph: Any, device: list[int]) -> tuple[list[int], list[int]]:
    problem = price(graph, pair())
    plan = Plan.of(problem, device)
    starts, follower = latest_starts(problem, plan.device, simulate(problem, plan))
    return starts.tolist(), follower.tolist()


def test_how_late_each_could_start_by_hand() -> None:
    assert latest(chain(), [0, 0, 1]) == ([0, 10, 40], [1, -1, -1])
    # a 0-10, sent until 25, c 25-55, sent until 64, d 64-74; b has until then.
    assert latest(diamond(), [0, 0, 1, 0]) == ([0, 44, 25, 64], [1, 3, -1, -1])
    # Both tensors of a go over one link, until 21 and 29; b runs 21-31 and d until 41, c whenever.
    assert latest(fork(), [0, 1, 0, 1]) == ([0, 21, 31, 31], [2, 3, -1, -1])
