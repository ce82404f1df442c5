"""What GO sees of a timeline: the diamond with b on the other device, and a few arrivals, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import timeline
from loadmaster.learn.go2020.slack import arrivals
from loadmaster.plans import Plan
from loadmaster.simulator import simulate
from tests.graphs.tiny import diamond, pair

DEVICE = ints([0, 1, 0, 0])  # a 0-10, c 10-40 and d 55-65 on d0; b 25-45 on d1; sends of 15 and 10 ns
MADE, THERE, LATE = [0, 10, 10, 45], [0, 25, 10, 55], [10, 45, 55, 65]


def line() -> tuple[Any, Any]:
    problem = price(diamond(), pair())
    made = simulate(problem, Plan.of(problem, DEVICE))
    assert made.start_ns.tolist() == [0, 25, 10, 55] and made.step_ns == 65
    return problem, made


def test_arrivals_of_the_diamond() -> None:
    found = timeline._arrivals(line()[0], DEVICE, line()[1])
    assert [column.tolist() for column in found] == [MADE, THERE, LATE]


def ran(reads: list[list[int]], after: list[list[int]], device: list[int], times: list[tuple[int, int]]) -> Any:
    """Arrivals of ops that each make the tensor of their own number, over sends of 5 ns, dispatched as named."""

    def ragged(rows: list[list[int]]) -> tuple[Any, Any]:
        return ints(np.cumsum([0, *map(len, rows)])), ints([each for row in rows for each in row])

    count = len(times)
    start, end = (ints(column) for column in zip(*times, strict=True))
    send, kind = ints(np.full((count, 1), 5)), ints(np.zeros((2, 2)))
    made, there, late = arrivals(
        *ragged(reads), ints(range(count)), *ragged(after), ints(device), start, end, send, kind, ints(range(count))
    )
    return made.tolist(), there.tolist(), late.tolist()


def test_an_op_is_late_by_who_follows_on_its_device() -> None:
    found = ran([[], [], [1]], [[], [], []], [0, 0, 1], [(0, 10), (10, 20), (25, 35)])
    assert found == ([0, 0, 20], [0, 0, 25], [10, 20, 35])


def test_an_op_waits_for_others_without_reading_them() -> None:
    found = ran([[], [], []], [[], [], [0, 1]], [0, 1, 0], [(0, 10), (0, 12), (14, 20)])
    assert found == ([0, 0, 12], [0, 0, 12], [14, 14, 20])
    found = ran([[], [], []], [[], [], [1, 0]], [0, 1, 1], [(0, 10), (0, 12), (14, 20)])
    assert found == ([0, 0, 12], [0, 0, 12], [14, 14, 20])


def test_what_is_made_when_its_reader_has_ended_is_not_waited_for() -> None:
    found = ran([[1], []], [[], []], [0, 1], [(0, 10), (10, 30)])
    assert found == ([0, 0], [0, 0], [30, 30])
    found = ran([[1], []], [[], []], [0, 1], [(0, 10), (9, 30)])
    assert found == ([30, 0], [35, 0], [30, 15])


def test_groups_see_when_they_run_and_what_they_wait_for() -> None:
    problem, made = line()
    seen = timeline.seen_of(problem, ints(range(4)), DEVICE, made)
    wait = np.sqrt(np.array([10, 15, 25]) / 65)
    wanted = [
        [0, 10 / 65, 0, 1, 0, 0, 0, 1],
        [25 / 65, 45 / 65, 0, 1, wait[1], 0, wait[2], 1],
        [10 / 65, 40 / 65, 4 * 15 / 65, 0, 0, 0, 0, 1],
        [55 / 65, 1, 0, 1, wait[0], 0, wait[1], 1],
    ]
    np.testing.assert_allclose(seen.groups, wanted, atol=1e-6)
    both = timeline.seen_of(problem, ints([0, 1, 1, 0]), DEVICE, made)
    np.testing.assert_allclose(both.groups[1, 0], (21 * 25 + 31 * 10) / 52 / 65, atol=1e-6)  # b and c, by their times
    assert both.pairs.shape == (2, 2, timeline.SEEN_PAIRS)


def test_waits_that_others_cause_are_queues() -> None:
    problem, made = line()
    late = SimpleNamespace(**{name: getattr(made, name) for name in ("end_ns", "step_ns", "turn")})
    late.start_ns = made.start_ns + np.array([0, 0, 5, 0])
    seen = timeline.seen_of(problem, ints(range(4)), DEVICE, late)  # type: ignore[arg-type]
    assert seen.groups[2, 5] == pytest.approx(np.sqrt(5 / 65))


def test_pairs_see_how_busy_a_device_is() -> None:
    problem, made = line()

    def of(device: int, late: Any = LATE) -> Any:
        return timeline._pair(problem, DEVICE, made, device, ints(MADE), ints(late))

    free = np.log2(0.1 + 5 / 20) / 4  # of 35 ns between a and d's need, c takes 30
    np.testing.assert_allclose(of(0)[1], [15 / 20, 30 / 35, free, 25 / 65, 50 / 65])
    np.testing.assert_allclose(of(1)[0], [0, 0, np.log2(0.1 + 1) / 4, 0, 20 / 65])
    np.testing.assert_allclose(of(1)[3], [0, 0, np.log2(0.1 + 2) / 4, 20 / 65, 20 / 65])
    assert of(1, [10**6] * 4)[0, 2] == 2, "no column is beyond two"
    nobody: Any = SimpleNamespace(op_ns=np.full((4, 3), 10))
    empty = timeline._pair(nobody, DEVICE, made, 2, ints(MADE), ints(LATE))
    np.testing.assert_allclose(empty[1], [0, 0, np.log2(0.1 + 35 / 10) / 4, 0, 0])


def test_ops_that_take_no_time_are_seen() -> None:
    problem: Any = SimpleNamespace(op_ns=np.zeros((4, 2)))
    made = SimpleNamespace(start_ns=np.zeros(4, int), end_ns=np.zeros(4, int), step_ns=0)
    found = timeline._pair(problem, DEVICE, made, 0, ints([0] * 4), ints([0] * 4))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, np.tile([0, 0, np.log2(0.1) / 4, 0, 0], (4, 1)))
