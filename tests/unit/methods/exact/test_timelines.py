"""How many timelines placements of tiny graphs have, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadmaster import price
from loadmaster.graph.columns import ints
from loadmaster.methods.exact.timelines import every_timeline
from loadmaster.plans import check
from loadmaster.simulator import simulate
from tests.graphs.tiny import chain, diamond, fork, join, pair


@pytest.mark.parametrize(
    ("graph", "device", "contention", "steps"),
    [
        (chain(), [0, 0, 0], True, [35]),
        (chain(), [1, 0, 1], True, [10 + 15 + 20 + 10 + 5]),
        (diamond(), [0, 0, 0, 0], True, [70, 70]),  # b and c wait from the same moment on
        (diamond(), [0, 0, 1, 0], True, [74]),
        (join(), [0, 0, 0, 0, 0], True, [105] * 24),  # a, b, c and e in any order
        (fork(), [0, 0, 0, 0], True, [40] * 6),
        # Two tensors over one link: 11 and 8 ns; whichever comes first is read first.
        (fork(), [0, 1, 0, 1], True, [39, 41]),
        (fork(), [0, 1, 0, 1], False, [38]),
    ],
)
def test_each_timeline_is_met_once(graph: Any, device: list[int], contention: bool, steps: list[int]) -> None:
    problem = price(graph, replace(pair(), contention=contention))
    found = list(every_timeline(problem, ints(device)))
    assert sorted(line.step_ns for _, line in found) == steps
    assert len({(line.start_ns.tobytes(), line.send_start_ns.tobytes()) for _, line in found}) == len(found)
    for plan, line in found:
        check(plan, problem)
        assert simulate(problem, plan).step_ns == line.step_ns


def test_it_ends_where_nothing_is_simulated_any_more() -> None:
    problem = price(join(), pair())
    left = [3]

    def run(plan: Any) -> Any:
        left[0] -= 1
        return simulate(problem, plan) if left[0] >= 0 else None

    assert len(list(every_timeline(problem, ints([0] * 5), run))) == 3
