"""The model of CP-SAT: timelines of the simulator are solutions of it, nothing in them can come sooner, and memory is
what the simulator counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster import price
from loadmaster.baselines.simple import legal
from loadmaster.graph.columns import ints
from loadmaster.methods.exact import cp_sat
from loadmaster.methods.exact.cp_model import CpModel
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from tests.graphs.tiny import pair
from tests.problems import drawn
from tests.unit.methods.memory.test_orders import random_graph

pytest.importorskip("ortools")


def planned(count: int, room: int) -> Iterator[tuple[Problem, Plan]]:
    """Small problems with so many bytes more than their plan needs."""
    for seed in range(count):
        rng, problem = np.random.default_rng(seed), drawn(seed, 6)
        # What takes no time holds nothing in the model, which is a bound.
        problem = replace(problem, op_ns=ints(np.where(problem.op_ns == 0, 1, problem.op_ns)))
        device = legal(problem, ints(rng.integers(0, problem.num_devices, problem.num_ops)))
        plan = Plan.of(problem, device, ints(rng.permutation(problem.num_ops)))
        peak = simulate(problem, plan).peak_bytes
        yield replace(problem, memory_bytes=ints(np.full(problem.num_devices, int(peak.max()) + room))), plan


def fixed(problem: Problem, plan: Plan, *, free: Any = None, least: int = 0) -> CpModel:
    """The model with every decision as the simulator has it, but for one op or send."""
    made = CpModel(cp_sat.cp_model(), problem, plan, simulate(problem, plan), least)
    line, model = made.line, made.model
    for op in range(problem.num_ops):
        for device in range(problem.num_devices):
            model.add(made.on[op][device] == int(plan.device[op] == device))
        if op != free:
            model.add(made.start[op] == int(line.start_ns[op]) // made.scale)
            model.add(made.end[op] == int(line.end_ns[op]) // made.scale)
    for tensor, to, begin in zip(
        line.send_tensor.tolist(), line.send_dst.tolist(), line.send_start_ns.tolist(), strict=True
    ):
        if (tensor, to) in made.sent and (tensor, to) != free:
            model.add(made.sent[tensor, to] == begin // made.scale)
    return made


def solved(made: CpModel) -> tuple[bool, int]:
    """(whether there is a solution, its value)."""
    library = cp_sat.cp_model()
    solver = library.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(made.model)
    found = status in (library.OPTIMAL, library.FEASIBLE)
    return found, round(solver.objective_value) if found else -1


def test_timelines_are_solutions_of_the_same_value() -> None:
    for problem, plan in planned(21, 0):
        made = fixed(problem, plan)
        assert made.model.validate() == "", "ops that cannot run everywhere, too"
        assert solved(made) == (True, made.line.step_ns // made.unit)
        too_much = fixed(problem, plan, least=made.line.step_ns + made.unit)
        assert solved(too_much)[0], "a bound over the plan's own value is not held to it"


def test_nothing_of_a_timeline_can_come_sooner() -> None:
    """Each op begins when its device and all it waits for allow it, and each send when its wire does."""
    shifted = 0
    for problem, plan in planned(6, 50):
        line = simulate(problem, plan)
        begun = {op: int(line.start_ns[op]) for op in range(problem.num_ops)}
        for op, begin in begun.items():
            if begin and line.end_ns[op] > begin:
                made = fixed(problem, plan, free=op)
                made.model.add(made.start[op] < begin // made.scale)
                assert not solved(made)[0], (problem.graph.name, op)
                shifted += 1
        for tensor, to, begin in zip(
            line.send_tensor.tolist(), line.send_dst.tolist(), line.send_start_ns.tolist(), strict=True
        ):
            if (
                begin
                and (tensor, to) in CpModel(cp_sat.cp_model(), problem, plan, simulate(problem, plan), 0).sent
                and line.step_ns > begin
            ):
                made = fixed(problem, plan, free=(tensor, to))
                made.model.add(made.sent[tensor, to] < begin // made.scale)
                time = [int(made.sends[tensor, c]) for c in np.unique(problem.send_class)]
                if problem.cluster.contention and min(time) > 0:
                    assert not solved(made)[0], (problem.graph.name, tensor, to)
                    shifted += 1
    assert shifted > 25


def test_memory_is_what_the_simulator_counts() -> None:
    for problem, plan in planned(16, 5):
        made = fixed(problem, plan)
        if not made.counts_memory:
            continue
        made.model.minimize(made.peak)
        assert solved(made) == (True, int(made.line.peak_bytes.max())), problem.graph.name
    counted = 0
    for problem, plan in planned(16, -1):
        assert simulate(problem, plan).over_bytes > 0
        made = fixed(problem, plan)
        counted += made.counts_memory
        assert solved(made)[0] == (not made.counts_memory), "a byte too few"
    assert counted > 8


@pytest.mark.parametrize("devices", [1, 2])
def test_orders_for_the_least_peak(devices: int) -> None:
    """Of one device only the order counts, so that every op takes one unit of time."""
    for seed in range(6):
        graph = random_graph(seed, 9)
        problem = price(graph, "1xcpu" if devices == 1 else pair(), objective="peak-memory")
        plan = Plan.of(problem, legal(problem, np.zeros(problem.num_ops, np.int64)))
        made, line = CpModel(cp_sat.cp_model(), problem, plan, simulate(problem, plan), 0), simulate(problem, plan)
        assert made.by_order == (devices == 1) and made.unit == 1
        turn = np.argsort(np.argsort(line.turn))
        for op in range(problem.num_ops):
            made.model.add(made.start[op] == int(turn[op] if devices == 1 else line.start_ns[op] // made.scale))
            for device in range(problem.num_devices):
                made.model.add(made.on[op][device] == int(plan.device[op] == device))
        assert solved(made) == (True, int(line.peak_bytes.max()))
        over = CpModel(cp_sat.cp_model(), problem, plan, line, int(line.peak_bytes.max()) + 7)
        assert solved(over) == (True, int(line.peak_bytes.max()) + 7), "no less than what is known of all plans"


def test_what_is_not_yet_in_memory_has_as_long_as_all_would_take_one_after_the_other() -> None:
    """Where the plan at hand does not fit, better ones may be longer than it."""
    for problem, plan in planned(5, -1):
        made = CpModel(cp_sat.cp_model(), problem, plan, simulate(problem, plan), 0)
        sends = int(made.sends.max(axis=1).sum()) * (problem.num_devices - 1)
        assert made.horizon == int(made.times.max(axis=1).sum()) + sends
    for problem, plan in planned(5, 0):
        made = CpModel(cp_sat.cp_model(), problem, plan, simulate(problem, plan), 0)
        assert made.horizon * made.scale == made.line.step_ns
