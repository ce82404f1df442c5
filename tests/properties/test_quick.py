"""The loop that leaves memory out: the same time as by the slow reference, stopped where the whole loop stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.graph.columns import Ints32, Whole, ints
from loadmaster.methods.annealing.choice import measure_tails
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import state
from loadmaster.simulator.loop import FOREVER, run, step_time, times_alone
from loadmaster.simulator.rules import layout
from loadmaster.simulator.state import NO_RECORD, Layout, RunScratch, make_run_scratch
from tests.problems import ALL
from tests.properties.test_simulator import bus_cluster, wide_graph
from tests.reference import judge
from tests.strategies import plans, problems


def columns(problem: Problem, plan: Plan) -> tuple[Layout, Ints32, Ints32]:
    return layout(problem), plan.device.astype(np.int32), plan.rank.astype(np.int32)


def assert_as_the_reference(problem: Problem, plan: Plan) -> None:
    plain, place, rank = columns(problem, plan)
    scratch, step = make_run_scratch(plain, False), judge(problem, plan).step_ns
    for most, wanted in ((FOREVER, step), (step, step), (step - 1, -1), (FOREVER, step)):
        assert step_time(plain, place, rank, scratch, np.int64(most)) == wanted


def assert_stopped_alike(problem: Problem, plan: Plan, most_ns: Whole) -> None:
    """Where the longest ways to the end are known both stop at the same moment: as many ops have become ready."""
    plain, place, rank = columns(problem, plan)
    took = problem.op_ns[np.arange(problem.num_ops), plan.device]
    load = np.bincount(plan.device, weights=took, minlength=problem.num_devices).astype(np.int64)

    def ready() -> RunScratch:
        scratch = make_run_scratch(plain, True)
        measure_tails(plain, place, problem.num_ops - 1, scratch.tail)
        scratch.ahead[:] = load
        return scratch

    quick, whole, peak = ready(), ready(), np.zeros(problem.num_devices, np.int64)
    steps = (
        step_time(plain, place, rank, quick, most_ns),
        run(plain, place, rank, np.empty(0, np.int64), whole, most_ns, FOREVER, peak, False, NO_RECORD),
    )
    assert steps[0] == steps[1]
    assert quick.tally[1] == whole.tally[1]
    assert quick.ahead.tolist() == whole.ahead.tolist() or steps[0] < 0


@settings(max_examples=400)
@given(st.data())
def test_the_time_is_that_of_the_reference(data: st.DataObject) -> None:
    problem = data.draw(problems(min_ops=data.draw(st.sampled_from([1, 10]))))
    assume(times_alone(layout(problem), problem.with_objective("step-time").goal))
    plan = data.draw(plans(problem, sends=False))
    coarse = coarsen(problem, plan.kernel)
    assert_as_the_reference(coarse.problem, coarse.down(plan))
    most = data.draw(st.integers(0, 3)) * judge(problem, plan).step_ns // 3
    assert_stopped_alike(coarse.problem, coarse.down(plan), np.int64(most))


@pytest.mark.parametrize("seed", range(6))
def test_the_time_is_that_of_the_reference_where_many_wait(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = price(wide_graph(rng), bus_cluster(devices=3, shared=seed % 2 == 0))
    rank = rng.integers(8 if seed < 3 else 2**31, size=problem.num_ops)
    plan = Plan.of(problem, rng.integers(3, size=problem.num_ops), rank)
    assert_as_the_reference(problem, plan)
    step = judge(problem, plan).step_ns
    for share in range(1, 8):
        assert_stopped_alike(problem, plan, np.int64(share * step // 7))


def test_heaps_may_lie_as_close_as_a_placement_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(wide_graph(np.random.default_rng(1)), bus_cluster(devices=3, shared=False))
    monkeypatch.setattr(state, "MOST_HEAPS", 0)
    close = state.layout_of(problem)
    assert close.packed
    scratch, rng = make_run_scratch(close, False), np.random.default_rng(2)
    for _ in range(4):  # one after the other in the same space
        plan = Plan.of(problem, rng.integers(3, size=problem.num_ops), rng.permutation(problem.num_ops))
        _, place, rank = columns(problem, plan)
        assert step_time(close, place, rank, scratch, np.int64(FOREVER)) == judge(problem, plan).step_ns


def test_it_is_not_asked_where_it_cannot_tell() -> None:
    def asked(problem: Problem) -> bool:
        return times_alone(layout(problem), problem.goal)

    plain = ALL["unlike"]()
    assert asked(plain.with_objective("step-time"))
    assert not asked(plain.with_objective("peak-memory")) and not asked(plain.with_objective("throughput"))
    assert not asked(ALL["drawing"]()), "what is drawn while devices compute counts, too"
    each = ints(np.ones(plain.num_ops))
    assert not asked(replace(plain, dispatch_ns=each).with_objective("step-time")), "a host asks for each op"
    free = replace(plain, cluster=replace(plain.cluster, contention=False))
    assert not asked(free.with_objective("step-time")), "links carry all at once"
    assert not asked(replace(plain, rest_ns=each).with_objective("step-time")), "the step goes on after its ops"
