"""What every method of the catalog promises. A new one is tested by being listed.

Examples are few and small and drawn once for all, so that the suite stays short as the catalog grows. What a plan is
worth is judged here from its timeline and the problem's own columns, not by `check`.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from loadmaster import Budget, GraphBuilder, MissingExtra, catalog, load, make_method, price, solve
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Result
from tests.graphs.tiny import diamond, pair
from tests.strategies import problems

NAMES = sorted(catalog.methods())
SMALL = Budget(seconds=None, simulations=40)
FOR_START = {"branch-and-bound": Budget(seconds=None, simulations=20)}  # of those that give it less than all

every_method = pytest.mark.parametrize("name", NAMES)


@cache
def drawn() -> list[Problem]:
    """Random problems, the simplest first: the same for every method, and with them their bounds."""
    found: list[Problem] = []

    @settings(max_examples=10)
    @given(problems(max_ops=10, max_devices=3))
    def keep(problem: Problem) -> None:
        found.append(problem)

    keep()
    return found


@cache
def judged_by(objective: str) -> list[Problem]:
    return [problem.with_objective(objective) for problem in drawn()]


def start_of(name: str) -> Any:
    """The method whose plan it starts from, if any."""
    try:
        return getattr(make_method(name), "start", None)
    except MissingExtra:
        return None


@cache
def missing(name: str) -> str:
    """The optional package a method lacks here, or nothing."""
    try:
        solve(price(diamond(), pair()), name, SMALL)
    except MissingExtra as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def _skip_what_is_not_installed(request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["name"] if hasattr(request.node, "callspec") else None
    if name and missing(name):
        pytest.skip(missing(name))


@every_method
def test_plan_is_legal_and_obeys_dependencies_within_the_budget(name: str) -> None:
    for problem in drawn():
        before = _columns(problem)
        result = solve(problem, name, SMALL)
        _assert_placed_legally(result)
        _assert_dependencies(result)
        _assert_one_kernel_at_a_time(result)
        assert result.simulations <= 40
        assert result.value >= result.lower_bound >= 0
        assert _columns(problem) == before, "the problem was written to"


@every_method
def test_throughput_is_an_objective_like_the_others(name: str) -> None:
    for problem in judged_by("throughput")[5:]:
        result = solve(problem, name, SMALL)
        _assert_placed_legally(result)
        assert result.value >= _busiest(result) and result.simulations <= 40
        assert result.value >= result.lower_bound >= 0


def _busiest(result: Result) -> int:
    """All kernels of a device one after another: the busiest device does at least that in a step."""
    line = result.timeline
    ends: dict[tuple[int, int], int] = {}
    for op, device in enumerate(result.plan.device.tolist()):
        key = (device, int(result.plan.kernel[op]))
        ends[key] = max(ends.get(key, 0), int(line.end_ns[op] - line.start_ns[op]))
    work = np.zeros(result.problem.num_devices, np.int64)
    for (device, _), ns in ends.items():
        work[device] += ns
    return int(work.max())


@every_method
def test_same_seed_and_simulations_give_the_same_plan(name: str) -> None:
    for problem in drawn()[5:]:
        one, two = (solve(problem, name, SMALL, seed=7) for _ in range(2))
        for column in ("kernel", "device", "rank"):
            np.testing.assert_array_equal(getattr(one.plan, column), getattr(two.plan, column), column)
        assert one.simulations == two.simulations


@pytest.mark.parametrize("name", [name for name in NAMES if start_of(name) is not None])
def test_never_worse_than_where_it_starts(name: str) -> None:
    """Branch and bound gives a start that searches half of its budget."""
    for problem in drawn()[5:]:
        assert solve(problem, name, SMALL).score <= solve(problem, start_of(name), FOR_START.get(name, SMALL)).score


@every_method
@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_more_simulations_are_never_worse(name: str, objective: str) -> None:
    """What a budget buys is the beginning of what a larger one does."""
    problem = price(load("zoo:transformer-xl-2/infer"), "2xp100-pcie", objective=objective)
    scores = [solve(problem, name, Budget(None, count), seed=2).score for count in (60, 150, 400)]
    assert all(more <= less for less, more in pairwise(scores))


@cache
def _braid() -> Problem:
    """Three lanes of matrix products and an op that joins them: fusing it changes the order of the heads of kernels."""
    graph = GraphBuilder("braid")
    lanes = [graph.tensor(4_000, "input")] * 3
    for layer in range(4):
        made = [graph.tensor(4_000) for _ in lanes]
        for lane, (read, make) in enumerate(zip(lanes, made, strict=True)):
            graph.op(f"mm {layer} {lane}", "mm", [read], [make], flops=2 * 10**6)
        lanes = made
    graph.op("join", "add", lanes, [graph.tensor(4_000, "output")], flops=1_000)
    return price(graph.build(), "2xp100-pcie")


@every_method
def test_plans_kernels_as_well_as_ops(name: str) -> None:
    for problem in (_braid(), *drawn()[8:]):
        result = solve(problem, f"greedy-fusion:inner=[{name}]", SMALL)
        _assert_placed_legally(result)
        _assert_dependencies(result)
        assert result.value >= result.lower_bound


@every_method
def test_a_real_model(name: str) -> None:
    result = solve(_real_model(), name, SMALL)
    _assert_placed_legally(result)
    _assert_dependencies(result)
    assert result.simulations <= 40
    assert result.value >= result.lower_bound > 0


@cache
def _real_model() -> Problem:
    return price(load("zoo:transformer-xl-2"), "2xp100-pcie")


@every_method
def test_a_budget_of_one_simulation_on_one_device(name: str) -> None:
    result = solve(price(diamond(), "1xcpu"), name, Budget(None, 1))
    assert result.simulations == 1
    assert set(result.plan.device) == {0}


def _columns(problem: Problem) -> dict[str, bytes]:
    """All arrays of the problem and its graph, as they are now."""
    parts = {"problem": problem, "graph": problem.graph, "source": problem.source}
    return {
        f"{label}.{field.name}": getattr(part, field.name).tobytes()
        for label, part in parts.items()
        for field in dataclasses.fields(part)
        if isinstance(getattr(part, field.name), np.ndarray)
    }


def _assert_placed_legally(result: Result) -> None:
    problem, plan = result.problem, result.plan
    device = plan.device.tolist()
    assert len(device) == problem.num_ops
    homes: dict[int, int] = {}
    for op, place in enumerate(device):
        assert 0 <= place < problem.num_devices
        assert problem.op_ns[op, place] != CANNOT, f"op {op} cannot run on {place}"
        assert device[plan.kernel[op]] == place, "a kernel on two devices"
        group = int(problem.graph.colocate[op])
        if group >= 0:
            assert homes.setdefault(group, place) == place, f"group {group} is apart"


def _assert_dependencies(result: Result) -> None:
    """Every tensor is there when it is read: made on that device before, or sent there before."""
    problem, plan, line = result.problem, result.plan, result.timeline
    graph, device, start, end = problem.graph, plan.device, line.start_ns, line.end_ns
    arrives = {
        (int(t), int(dst)): (int(begin), int(done))
        for t, dst, begin, done in zip(
            line.send_tensor, line.send_dst, line.send_start_ns, line.send_end_ns, strict=True
        )
    }
    assert len(arrives) == line.num_sends, "a tensor is sent twice to one device"
    assert line.step_ns == max(end)
    for op in range(problem.num_ops):
        assert all(
            end[earlier] <= start[op] for earlier in graph.after_of(op) if plan.kernel[earlier] != plan.kernel[op]
        )
        for tensor in map(int, graph.reads_of(op)):
            maker = int(graph.producer[tensor])
            home = int(problem.updater[tensor]) if maker < 0 else maker
            if home < 0 or plan.kernel[home] == plan.kernel[op]:
                continue
            if device[home] != device[op]:
                begin, done = arrives[tensor, int(device[op])]
                assert begin >= (end[maker] if maker >= 0 else 0)
                assert done <= start[op]
            elif maker >= 0:
                assert end[maker] <= start[op]


def _assert_one_kernel_at_a_time(result: Result) -> None:
    plan, line = result.plan, result.timeline
    for device in range(result.problem.num_devices):
        heads = [op for op in np.flatnonzero(plan.device == device) if plan.kernel[op] == op]
        spans = sorted((int(line.start_ns[op]), int(line.end_ns[op])) for op in heads)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
