"""What no way on from a moment can beat, and moments that are met again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import ints
from loadmaster.methods.exact.branching import least, moments
from loadmaster.methods.exact.branching.branch_and_bound import SearchTree
from loadmaster.methods.exact.branching.moments import ENDED, ON_ITS_WAY, RUNS, WAITS
from loadmaster.plans import Plan
from loadmaster.search import Score
from loadmaster.simulator import simulate
from tests.problems import drawn


def met(seed: int, ops: int = 7) -> tuple[Any, list[np.ndarray]]:
    """A problem's facts, and moments that its tree comes through."""
    problem = drawn(seed, ops)
    problem = replace(problem, memory_bytes=ints(problem.memory_bytes + 2**30))
    tree = SearchTree(problem, Plan.of(problem, legal(problem, np.zeros(problem.num_ops, np.int64))))
    rows, found = tree.tree.rows, list[np.ndarray]()
    for _ in range(6):
        moments_more = tree.looked_at + 15
        plan = Plan.of(problem, legal(problem, np.zeros(problem.num_ops, np.int64)))
        tree.go_on(Score.of(problem, simulate(problem, plan)), 15)
        found += [row.copy() for row in rows[1 : int(tree.tree.depth[0])]]
        if tree.looked_at < moments_more:
            break
    return tree.facts, found


def told(facts: Any, row: np.ndarray) -> tuple[int, int]:
    one, two = least.digest(facts, row)
    return int(one), int(two)


def test_a_moment_is_the_same_at_another_time_and_no_other_moment_is() -> None:
    seen: dict[tuple[Any, ...], tuple[int, int]] = {}
    for seed in range(8):
        facts, rows = met(seed)
        for row in rows:
            here = told(facts, row)
            later = row.copy()
            _, status, end, copy, copy_end, *_ = moments.parts(facts, later)
            later[0] += 1_000
            end[status == RUNS] += 1_000
            copy_end[copy == ON_ITS_WAY] += 1_000
            later[1] += 3  # how many things were started does not matter
            assert told(facts, later) == here
            assert here[0] != here[1]
            assert all(here[part] != other[part] for other in _others(facts, row) for part in (0, 1))
            assert seen.setdefault((seed, tuple(_future(facts, row))), here) == here, "what is over does not matter"
    assert len({(seed, here) for (seed, _), here in seen.items()}) == len(seen) > 60


def _future(facts: Any, row: np.ndarray) -> list[int]:
    """All that what follows depends on, in numbers: times from now of what goes on, where what is yet needed lies."""
    place, status, end, copy, copy_end, *_ = moments.parts(facts, row)
    needed = _needed(facts, place, status)
    future = [int(each) for each in status]
    future += [int(end[op] - row[0]) if status[op] == RUNS else -1 for op in range(len(status))]
    future += [int(place[op]) if op in needed else -2 for op in range(len(status))]
    for slot, state in enumerate(copy.tolist()):
        tensor, device = divmod(slot, facts.devices)
        readers = facts.readers[facts.readers[tensor] : facts.readers[tensor + 1]].tolist()
        used = any(status[one] == WAITS and place[one] == device for one in readers)
        future.append(state if used else -1)
        future.append(int(copy_end[slot] - row[0]) if used and state == ON_ITS_WAY else -1)
    return future


def _needed(facts: Any, place: np.ndarray, status: np.ndarray) -> set[int]:
    """Ops whose device matters yet."""
    found = set[int]()
    for op in range(len(status)):
        makes = facts.makes[facts.makes[op] : facts.makes[op + 1]].tolist()
        readers = [one for t in makes for one in facts.readers[facts.readers[t] : facts.readers[t + 1]].tolist()]
        if status[op] != ENDED or facts.ops[op, moments.UPDATES] or any(status[one] == WAITS for one in readers):
            found.add(op)
    return found


def _others(facts: Any, row: np.ndarray) -> list[tuple[int, int]]:
    """Of moments that differ in one thing that matters."""
    found = []
    place, status, *_ = moments.parts(facts, row)
    for op in _needed(facts, place, status):
        other = row.copy()
        moments.parts(facts, other)[0][op] = (place[op] + 2) % (facts.devices + 1) - 1
        found.append(told(facts, other))
        if status[op] == RUNS:
            other = row.copy()
            moments.parts(facts, other)[2][op] += 1
            found.append(told(facts, other))
    return found


@pytest.mark.parametrize("entries", [1, 2, 3, 64])
def test_a_moment_that_is_met_again_no_sooner_is_given_up(entries: int) -> None:
    facts, rows = met(1)
    memory = np.zeros((entries, 3), np.uint64)

    def seen(row: np.ndarray, at: int) -> bool:
        moved = row.copy()
        _, status, end, copy, copy_end, *_ = moments.parts(facts, moved)
        end[status == RUNS] += at - moved[0]
        copy_end[copy == ON_ITS_WAY] += at - moved[0]
        moved[0] = at
        return bool(least.was_seen(memory, facts, moved))

    one = rows[0]
    assert [seen(one, at) for at in (50, 50, 60, 40, 45, 40, 39)] == [False, True, True, False, True, True, False]
    if entries > 4:
        unlike = list({told(facts, row): row for row in rows}.values())[1:6]
        assert [seen(row, 7) for row in unlike] == [False] * len(unlike)
        assert [seen(row, 7) for row in (one, *unlike)] == [False] + [True] * len(unlike)
    elif entries == 1:
        other = next(row for row in rows if told(facts, row) != told(facts, one))
        assert not seen(other, 90) and not seen(one, 90) and seen(one, 90), "there is room for one"


def test_no_moment_is_forgotten_while_there_is_room() -> None:
    """Two that would be at the same place of two."""
    facts, rows = met(1)
    one = rows[0]
    other = next(
        row
        for row in rows
        if told(facts, row) != told(facts, one) and (told(facts, row)[0] - told(facts, one)[0]) % 2 == 0
    )
    memory = np.zeros((2, 3), np.uint64)
    assert [bool(least.was_seen(memory, facts, row)) for row in (one, other, one, other)] == [False, False, True, True]


def test_moments_of_which_half_the_bits_are_the_same_are_not_the_same() -> None:
    facts, rows = met(1)
    one, two = least.digest(facts, rows[0])
    for known in ((one, two ^ np.uint64(1)), (one ^ np.uint64(1), two)):
        memory = np.array([[*known, 0]], np.uint64)
        assert not least.was_seen(memory, facts, rows[0])
        assert memory[0].tolist() == [int(one), int(two), int(rows[0][0])]
