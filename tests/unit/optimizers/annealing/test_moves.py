"""What annealing knows of a plan before it simulates it, of the ops that a step waited for, and of what paid."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from loadmaster.graph.columns import Bools, Ints
from loadmaster.optimizers.annealing import choice, critical
from loadmaster.optimizers.annealing.moves import fusion as moves
from loadmaster.optimizers.annealing.state import ARMS, FUSE_ONE, KINDS, LEVELS, make_scratch, terrain_of
from loadmaster.optimizers.annealing.xorshift import seeded
from loadmaster.optimizers.simple import legal
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import layout, loop, simulate
from loadmaster.simulator.state import Record, make_record, make_run_scratch
from tests.unit.optimizers.test_search_methods import problem_of

NO_LIMIT = np.iinfo(np.int64).max
NO_SENDS = np.empty(0, np.int64)


def plan_of(seed: int, layers: int = 10) -> tuple[Problem, Plan]:
    problem, rng = problem_of(layers, "4xp100-pcie"), np.random.default_rng(seed)
    device = legal(problem, rng.integers(0, 4, problem.num_ops))
    return problem, Plan.of(problem, device, rng.permutation(problem.num_ops))


def tails(problem: Problem, device: Ints) -> Ints:
    tail = np.zeros(problem.num_ops, np.int64)
    critical.measure_tails(layout(problem), device.astype(np.int32), problem.num_ops - 1, tail)
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
    critical.measure_tails(layout(problem), device.astype(np.int32), int(moved), tail)
    assert tail.tolist() == tails(problem, device).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_bounded_run_is_stopped_only_when_it_is_too_long(seed: int) -> None:
    problem, plan = plan_of(seed)
    plain, step = layout(problem), simulate(problem, plan).step_ns
    place, rank = plan.device.astype(np.int32), plan.rank.astype(np.int32)
    scratch, record = make_run_scratch(plain, True), make_record(0, 0, 0)
    scratch.tail[:] = tails(problem, plan.device)
    load = np.bincount(place, problem.op_ns[np.arange(problem.num_ops), place], 4).astype(np.int64)
    for most_ns, expected in ((step, step), (step + 1, step), (step - 1, -1), (NO_LIMIT, step)):
        scratch.ahead[:] = load
        peak = np.zeros(4, np.int64)
        given = (plain, place, rank, NO_SENDS, scratch, most_ns, NO_LIMIT, peak, False, record)
        assert loop.run(*given) == expected


class Chain(NamedTuple):
    """The ops that a step waited for, last one first, and which of them waited for their device."""

    record: Record
    turns: Ints
    found: Ints
    queued: Bools
    count: int


def chain_of(problem: Problem, plan: Plan) -> Chain:
    line, scratch = simulate(problem, plan), make_scratch(layout(problem), False, True)
    record, place = scratch.record, plan.device.astype(np.int32)
    record.start_ns[:], record.end_ns[:], record.turn[:] = line.start_ns, line.end_ns, line.turn
    count = critical.critical_ops(layout(problem), terrain_of(problem), place, scratch)
    return Chain(record, scratch.turns, scratch.critical, scratch.queued, count)


@pytest.mark.parametrize("seed", range(5))
def test_critical_ops_lead_from_the_start_to_the_end_of_the_step(seed: int) -> None:
    problem, plan = plan_of(seed)
    line, chain = simulate(problem, plan), chain_of(problem, plan)
    ops = chain.found[: chain.count].tolist()
    assert line.end_ns[ops[0]] == line.step_ns
    assert all(line.end_ns[earlier] <= line.start_ns[op] for op, earlier in pairwise(ops))
    assert not any(problem.graph.producer[tensor] >= 0 for tensor in problem.graph.reads_of(ops[-1]).tolist())
    assert line.turn[chain.turns].tolist() == list(range(problem.num_ops))
    for op, earlier, waited in zip(ops, ops[1:], chain.queued.tolist(), strict=False):
        assert not waited or (plan.device[op] == plan.device[earlier] and line.end_ns[earlier] == line.start_ns[op])


def test_an_op_overtakes_what_its_device_ran_while_it_was_ready() -> None:
    met = 0
    for seed in range(5):
        problem, plan = plan_of(seed)
        chain, graph = chain_of(problem, plan), problem.graph
        given = (plan.device.astype(np.int32), chain.record, chain.found, chain.queued, chain.count)
        state = np.array([seed + 1, seed + 99], np.uint64)
        for _ in range(50):
            op, other = critical.overtaking(layout(problem), terrain_of(problem), *given, state)
            if op < 0:
                continue
            met += 1
            assert plan.device[op] == plan.device[other]
            assert chain.record.start_ns[other] < chain.record.start_ns[op]
            makers = graph.producer[graph.reads_of(int(op))]
            assert all(chain.record.end_ns[maker] <= chain.record.start_ns[other] for maker in makers[makers >= 0])
    assert met > 20


def test_kinds_of_moves_that_paid_are_tried_more_often() -> None:
    spent, gained, first, later = np.full(ARMS, 50.0), np.zeros(ARMS), np.zeros(ARMS), np.zeros(ARMS)
    choice.choose(np.ones(KINDS), 0.5, 0.5, False, np.zeros(ARMS), gained, first)
    gained[0] = 25.0
    choice.choose(np.ones(KINDS), 0.5, 0.5, False, spent, gained, later)
    share, before = later / later.sum(), first / first.sum()
    assert share[0] > 4 * before[0]
    assert (share[1:][before[1:] > 0] > 0).all()
    assert ((later > 0) == (first > 0)).all()
    choice.fade(spent, gained, 10_000)
    assert 0 < gained[0] < 5


def test_a_pair_to_join_has_the_highest_level_and_one_to_part_none() -> None:
    """Or, one time in five, any: below 0, or from 1 up to the highest."""
    new = getattr(moves.apply, "py_func", moves.apply)
    state = seeded(5)
    for toward, low, high in ((moves.JOIN, LEVELS - 1, LEVELS), (moves.PART, -1, -1)):
        seen = []
        for _ in range(300):
            chain = SimpleNamespace(priority=np.full(3, 2.5))
            fusing = SimpleNamespace(drawn=np.array([1, 2]), old_priority=np.zeros(3))
            new(fusing, chain, FUSE_ONE, 1, toward, state)
            assert fusing.old_priority.tolist() == [2.5] * 3 and chain.priority[[0, 2]].tolist() == [2.5] * 2
            seen.append(float(chain.priority[1]))
        assert all(value == -1 or 1 <= value < LEVELS for value in seen)
        assert 220 < sum(low <= value <= high for value in seen) < 290
