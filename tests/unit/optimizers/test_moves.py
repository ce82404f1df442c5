"""What annealing knows of a plan before it simulates it, and of the ops that a step waited for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from loadmaster import _kernel
from loadmaster.columns import Ints
from loadmaster.optimizers import _moves
from loadmaster.optimizers.descent import ground_of
from loadmaster.optimizers.simple import legal
from loadmaster.plan import Plan
from loadmaster.problem import Problem
from loadmaster.simulate import layout, simulate
from tests.unit.optimizers.test_search_methods import problem_of

NO_LIMIT = np.iinfo(np.int64).max
NO_SENDS = np.empty(0, np.int64)


def plan_of(seed: int, layers: int = 10) -> tuple[Problem, Plan]:
    problem, rng = problem_of(layers, "4xp100-pcie"), np.random.default_rng(seed)
    device = legal(problem, rng.integers(0, 4, problem.num_ops))
    return problem, Plan.of(problem, device, rng.permutation(problem.num_ops))


def tails(problem: Problem, device: Ints) -> Ints:
    tail = np.zeros(problem.num_ops, np.int64)
    _moves.measure_tails(layout(problem), device.astype(np.int32), problem.num_ops - 1, tail)
    return tail


def longest_path(problem: Problem, device: Ints, op: int) -> int:
    """The same by plain recursion over what reads what."""
    graph, ways = problem.graph, [0]
    for tensor in graph.makes_of(op).tolist():
        for reader in graph.readers_of(tensor).tolist():
            link = problem.send_class[device[op], device[reader]]
            send = 0 if device[reader] == device[op] else int(problem.send_ns[tensor, link])
            ways.append(send + longest_path(problem, device, reader))
    ways += [longest_path(problem, device, later) for later in range(problem.num_ops) if op in graph.after_of(later)]
    return int(problem.op_ns[op, device[op]]) + max(ways)


def test_a_tail_is_the_longest_path_to_the_end() -> None:
    problem, plan = plan_of(1, 4)
    expected = [longest_path(problem, plan.device, op) for op in range(problem.num_ops)]
    assert tails(problem, plan.device).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_tails_of_ops_up_to_the_last_that_moved_are_all_that_changes(seed: int) -> None:
    problem, plan = plan_of(seed)
    tail, device = tails(problem, plan.device), plan.device.copy()
    moved = np.flatnonzero(problem.graph.colocate < 0)[seed]
    device[moved] = (device[moved] + 1) % 4
    _moves.measure_tails(layout(problem), device.astype(np.int32), int(moved), tail)
    assert tail.tolist() == tails(problem, device).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_bounded_run_is_stopped_only_when_it_is_too_long(seed: int) -> None:
    problem, plan = plan_of(seed)
    plain, step = layout(problem), simulate(problem, plan).step_ns
    place, rank = plan.device.astype(np.int32), plan.rank.astype(np.int32)
    room, record = _kernel.make_room(plain, True), _kernel.make_record(0, 0, 0)
    room.tail[:] = tails(problem, plan.device)
    load = np.bincount(place, problem.op_ns[np.arange(problem.num_ops), place], 4).astype(np.int64)
    for most_ns, expected in ((step, step), (step + 1, step), (step - 1, -1), (NO_LIMIT, step)):
        room.ahead[:] = load
        peak = np.zeros(4, np.int64)
        given = (plain, place, rank, NO_SENDS, room, most_ns, NO_LIMIT, peak, False, record)
        assert _kernel.run(*given) == expected


@pytest.mark.parametrize("seed", range(5))
def test_critical_ops_lead_from_the_start_to_the_end_of_the_step(seed: int) -> None:
    problem, plan = plan_of(seed)
    line, plain = simulate(problem, plan), layout(problem)
    record = _kernel.make_record(problem.num_ops, 0, 0)
    record.start_ns[:], record.end_ns[:], record.turn[:] = line.start_ns, line.end_ns, line.turn
    turns, found = np.empty(problem.num_ops, np.int64), np.empty(problem.num_ops, np.int64)
    ground, place = ground_of(problem), plan.device.astype(np.int32)
    chain = found[: _moves.critical_ops(plain, ground, place, record, turns, found)].tolist()
    assert line.end_ns[chain[0]] == line.step_ns
    assert all(line.end_ns[earlier] <= line.start_ns[op] for op, earlier in pairwise(chain))
    assert not any(problem.graph.producer[tensor] >= 0 for tensor in problem.graph.reads_of(chain[-1]).tolist())
    assert line.turn[turns].tolist() == list(range(problem.num_ops))
