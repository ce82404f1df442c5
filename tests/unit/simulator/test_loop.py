"""The loop beside the slow reference on problems that have all there is: hosts, links without contention, updated
weights, tensors of no bytes, ops of no time. What it stops early, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.graph.columns import Ints, ints
from loadmaster.methods.annealing.choice import measure_tails
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate, simulate_fused, simulate_many, state
from loadmaster.simulator.loop import FOREVER, run, stops_at, value_of
from loadmaster.simulator.rules import layout
from loadmaster.simulator.state import make_record, make_run_scratch
from tests.graphs.tiny import pair
from tests.problems import ALL
from tests.properties.test_simulator import assert_equal_to_reference

NAMES = ("unlike", "tight", "halves", "tasks", "odd", "held", "hosted", "apart", "zero", "brisk")


def named(name: str) -> Problem:
    return drawing(ALL[name]())


def drawing(problem: Problem) -> Problem:
    """The same on devices of which it is known what they draw."""
    watts = [replace(device, watts=9.0 - at, idle_watts=1.0 + at) for at, device in enumerate(problem.cluster.devices)]
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(watts)))


def placed(problem: Problem, rng: np.random.Generator) -> Ints:
    chosen = np.array([rng.choice(np.flatnonzero(able)) for able in problem.able])
    return ints(chosen[problem.leader])


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_the_reference(name: str) -> None:
    problem, rng = named(name), np.random.default_rng(len(name))
    for turn in range(2):
        rank = rng.permutation(problem.num_ops) // (1 + 3 * turn)
        plan = Plan.of(problem, placed(problem, rng), rank)
        if turn:
            sends = rng.integers(-1, 9, (problem.graph.num_tensors, problem.num_devices))
            plan = replace(plan, send_rank=ints(sends))
        assert_equal_to_reference(problem, plan)


def test_a_run_that_was_stopped_leaves_nothing_behind_for_the_next() -> None:
    """All runs of a thread on a problem share their scratch space, whichever problems take turns."""
    rng, some, stopped = np.random.default_rng(8), [named(name) for name in NAMES], 0
    for turn in range(3):
        for problem in some:
            device = np.stack([placed(problem, rng) for _ in range(2)])
            limit = int(simulate_many(problem, device, workers=1).step_ns.max()) * turn // 3
            steps = simulate_many(problem, device, most_ns=limit, workers=1).step_ns
            assert steps.max() <= limit
            stopped += int((steps == -1).sum())
            assert_equal_to_reference(problem, Plan.of(problem, device[0]))
    assert stopped > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_stopped_once_it_passes_a_limit_and_not_before(name: str) -> None:
    problem, rng = ALL[name](), np.random.default_rng(3)
    plans = [Plan.of(problem, placed(problem, rng)) for _ in range(3)]
    lines = [simulate(problem, plan) for plan in plans]
    device = np.stack([plan.device for plan in plans])
    for line in lines:
        step, peak = line.step_ns, int(line.peak_bytes.max())
        for limit in (step - 1, step, step + 1):
            wanted = [each.step_ns if each.step_ns <= limit else -1 for each in lines]
            assert simulate_many(problem, device, most_ns=limit).step_ns.tolist() == wanted
        for limit in (peak - 1, peak, peak + 1):
            wanted = [each.step_ns if each.peak_bytes.max() <= limit else -1 for each in lines]
            assert simulate_many(problem, device, most_bytes=limit).step_ns.tolist() == wanted


@pytest.mark.parametrize("name", ["unlike", "tight", "odd", "zero", "apart"])
def test_a_run_with_what_is_left_to_do_is_stopped_only_where_it_must_pass_the_limit(name: str) -> None:
    """From the start of an op its own time is left at least, and on a device that of all that it has yet to start."""
    problem, rng = ALL[name](), np.random.default_rng(5)
    device, rank = placed(problem, rng), ints(rng.permutation(problem.num_ops))
    plain, line = layout(problem), simulate(problem, Plan.of(problem, device, rank))
    scratch, record = make_run_scratch(plain, True), make_record(0, 0, 0)
    took = problem.op_ns[np.arange(problem.num_ops), device]
    load = np.bincount(device, weights=took, minlength=problem.num_devices).astype(np.int64)
    given = (plain, device.astype(np.int32), rank.astype(np.int32), np.empty(0, np.int64), scratch)

    def step(most_ns: int) -> int:
        scratch.tail[:], scratch.ahead[:] = took, load
        peak = np.zeros(problem.num_devices, np.int64)
        return int(run(*given, most_ns, FOREVER, peak, False, record))

    assert [step(line.step_ns + more) for more in (-1, 0, 1)] == [-1, line.step_ns, line.step_ns]
    assert scratch.ahead.tolist() == [0] * problem.num_devices  # all has been started
    assert step(int(load.max()) - 1) == step(int(took.max()) - 1) == -1


@pytest.mark.parametrize("name", ["unlike", "small", "drawing", "held"])
def test_a_stopped_step_would_have_been_worth_more(name: str) -> None:
    problem, rng = ALL[name](), np.random.default_rng(9)
    for _ in range(4):
        device = placed(problem, rng)
        line = simulate(problem, Plan.of(problem, device))
        value = int(value_of(problem.goal, np.int64(line.step_ns), line.peak_bytes, line.busy_ns))
        assert value == problem.value(line)
        for most, may_stop in ((value, False), (value // 2, True)):
            most_ns, most_bytes = stops_at(problem.goal, np.int64(most))
            found = simulate_many(problem, device[None], most_ns=int(most_ns), most_bytes=int(most_bytes))
            assert found.step_ns[0] == line.step_ns or (may_stop and found.step_ns[0] == -1)
        limits = [stops_at(problem.goal, np.int64(most)) for most in (0, value)]
        assert (limits[0] == limits[1]) == (name == "held"), "how long a step takes says nothing of its throughput"


def test_kernels_of_many_plans_score_as_those_of_each() -> None:
    for name in ("halves", "brisk", "hosted"):
        problem, rng = named(name), np.random.default_rng(2)
        device = np.stack([placed(problem, rng) for _ in range(4)])
        kernel = np.tile(np.arange(problem.num_ops), (4, 1))
        reads, start = problem.graph.reads, problem.graph.read_start
        for row in range(4):
            for op in rng.permutation(problem.num_ops)[: 4 * row].tolist():
                makers = problem.graph.producer[reads[start[op] : start[op + 1]]]
                together = [m for m in makers[makers >= 0].tolist() if device[row, m] == device[row, op]]
                if problem.graph.kind[op] == "aten.relu.default" and len(makers) == 1 and together:
                    kernel[row, op] = kernel[row, together[0]]
        rank = np.stack([rng.permutation(problem.num_ops) for _ in range(4)])
        scores = simulate_fused(problem, device, rank, kernel)
        for row in range(4):
            plan = Plan.of(problem, device[row], rank[row], kernel[row])
            line = simulate(problem, plan)
            assert (scores.step_ns[row], scores.over_bytes[row]) == (line.step_ns, line.over_bytes)
            assert scores.peak_bytes[row].tolist() == line.peak_bytes.tolist()
            assert scores.busy_ns[row].tolist() == line.busy_ns.tolist()
            assert_equal_to_reference(problem, plan)


def test_what_the_first_op_writes_in_place_has_no_bytes_of_its_own() -> None:
    """Tensor 0 is a weight that op 0 updates; op 1 writes over what it made itself, and is updated so, too."""
    build = GraphBuilder("in place")
    weight, x = build.tensor(100, "weight"), build.tensor(10, "input")
    new, made = build.tensor(100, "weight", alias_of=weight), build.tensor(30)
    over = build.tensor(30, alias_of=made)
    build.op("update", "any", [weight, x], [new], time_ns=5)
    build.op("make", "any", [new], [made], time_ns=5)
    build.op("change", "any", [made], [over], time_ns=5)
    build.op("use", "any", [over], [build.tensor(7, "output")], time_ns=5)
    problem = drawing(price(build.build(), pair()))
    for device in ([0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]):
        assert_equal_to_reference(problem, Plan.of(problem, device))


@pytest.mark.parametrize("rest", [0, 7])
def test_what_goes_on_after_the_only_op_counts(rest: int) -> None:
    build = GraphBuilder("one")
    build.op("one", "any", [], [], time_ns=5)
    problem = replace(price(build.build(), pair()), rest_ns=ints([rest]))
    assert simulate(problem, Plan.of(problem, [0])).step_ns == 5 + rest
    tail = np.zeros(1, np.int64)
    measure_tails(layout(problem), np.zeros(1, np.int32), 0, tail)
    assert tail.tolist() == [5 + rest]


def test_a_host_asks_for_what_waits_for_others_without_reading_them() -> None:
    problem = named("odd")
    rng = np.random.default_rng(4)
    problem = replace(problem, dispatch_ns=ints(rng.integers(0, 7, problem.num_ops)))
    for _ in range(3):
        assert_equal_to_reference(problem, Plan.of(problem, placed(problem, rng), rng.permutation(problem.num_ops)))


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ([0, 2, 2, 3], "op1"),
        ([0, 0, 1, 3], "op2"),
        ([0, 1, -1, 3], "op2"),
        ([1, 1, 2, 3], "op0"),
        ([0, 1, 1, 2], "op3"),
    ],
)
def test_kernels_that_are_none_are_refused_by_the_first_op_that_is_wrong(kernel: list[int], op: str) -> None:
    build = GraphBuilder("four")
    for at in range(4):
        build.op(f"op{at}", "any", [], [], time_ns=5)
    problem = price(build.build(), pair())
    device, rank = np.zeros((1, 4), np.int64), np.arange(4)[None]
    with pytest.raises(InvalidPlan, match=f"'{op}'"):
        simulate_fused(problem, device, rank, np.array([kernel]))


def test_more_tensors_on_devices_than_have_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send is queued by a number of 32 bits; one of more would be sent in the wrong order, or somewhere else."""
    problem = named("small")
    slots = problem.graph.num_tensors * 2
    assert problem.num_devices == 2
    monkeypatch.setattr(state, "KEY", slots)
    state.layout_of(problem)
    monkeypatch.setattr(state, "KEY", slots - 1)
    with pytest.raises(InvalidSetting, match="more than can be simulated"):
        state.layout_of(problem)
