"""The compiled simulator against the slow reference, and what must not change a timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import catalog
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.passes import fuse
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import Timeline, run_first_come, settle, simulate, simulate_fused, simulate_many, state
from loadmaster.simulator.loop import stops_at, value_of
from tests.graphs.tiny import diamond, pair
from tests.reference import Judged, judge
from tests.strategies import equal_problems, kernels, plans, problems


def sends_of(line: Timeline) -> list[tuple[int, ...]]:
    columns = (line.send_tensor, line.send_src, line.send_dst, line.send_start_ns, line.send_end_ns)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def assert_equal_to_reference(problem: Problem, plan: Plan) -> None:
    line, judged = simulate(problem, plan), judge(problem, plan)
    assert line.start_ns.tolist() == judged.start
    assert line.end_ns.tolist() == judged.end
    assert line.step_ns == judged.step_ns
    assert sends_of(line) == judged.sends
    for device in range(problem.num_devices):
        ns, held = line.curve(device)
        assert list(zip(ns.tolist(), held.tolist(), strict=True)) == judged.curve(device)
    assert line.peak_bytes.tolist() == judged.peak
    assert line.over_bytes == judged.over_bytes
    carried = [judged.carried.get(wire, 0) for wire in range(wires_of(problem))]
    shipping = [judged.shipping(device) for device in range(problem.num_devices)]
    assert line.busy_ns.tolist() == [*judged.busy, *carried, *shipping]
    for name in catalog.OBJECTIVES:
        assert_valued(problem.with_objective(name), line, judged)


def wires_of(problem: Problem) -> int:
    return int(problem.cluster.channel.max(initial=-1)) + 1


def assert_valued(problem: Problem, line: Timeline, judged: Judged) -> None:
    """The value, and its compiled form with the bars at which a run may be stopped."""
    value = judged.score(problem.objective)[1]
    assert problem.value(line) == value
    assert value_of(problem.goal, np.int64(line.step_ns), line.peak_bytes, line.busy_ns) == value
    most_ns, most_bytes = stops_at(problem.goal, np.int64(value))
    assert line.step_ns <= most_ns and line.peak_bytes.max() <= most_bytes, "a plan that is no worse is not stopped"


def assert_same(one: Timeline, other: Timeline) -> None:
    assert one.step_ns == other.step_ns
    assert one.start_ns.tolist() == other.start_ns.tolist()
    assert one.end_ns.tolist() == other.end_ns.tolist()
    assert sends_of(one) == sends_of(other)
    assert one.peak_bytes.tolist() == other.peak_bytes.tolist()
    assert one.over_bytes == other.over_bytes
    assert one.curve_start.tolist() == other.curve_start.tolist()
    assert one.curve_ns.tolist() == other.curve_ns.tolist()
    assert one.curve_bytes.tolist() == other.curve_bytes.tolist()


@settings(max_examples=1000)
@given(st.data())
def test_compiled_equals_reference(data: st.DataObject) -> None:
    problem = data.draw(problems(hosts=True))
    plan = data.draw(plans(problem))
    check(plan, problem)
    assert_equal_to_reference(problem, plan)


@settings(max_examples=300)
@given(st.data())
def test_compiled_equals_reference_on_larger_graphs(data: st.DataObject) -> None:
    problem = data.draw(problems(min_ops=10, hosts=True))
    assert_equal_to_reference(problem, data.draw(plans(problem)))


@pytest.mark.parametrize("seed", range(6))
def test_compiled_equals_reference_on_deep_queues(seed: int) -> None:
    """Dozens of ops and sends wait at once, which small graphs never show."""
    rng = np.random.default_rng(seed)
    problem = price(wide_graph(rng), bus_cluster(devices=3, shared=seed % 2 == 0))
    device = rng.integers(3, size=problem.num_ops)
    assert_equal_to_reference(
        problem, Plan.of(problem, device, rng.integers(8 if seed < 3 else 2**31, size=problem.num_ops))
    )


def wide_graph(rng: np.random.Generator) -> Graph:
    g = GraphBuilder("wide")
    made: list[int] = []
    for index in range(100):
        new = [g.tensor(int(size)) for size in rng.integers(0, 60, rng.integers(1, 4))]
        reads = rng.choice(made, min(len(made), int(rng.integers(1, 4))), replace=False).tolist() if index > 5 else []
        g.op(f"op{index}", "any", reads, new, time_ns=int(rng.integers(0, 12)))
        made = (made + new)[-60:]
    return g.build()


def bus_cluster(devices: int, shared: bool) -> Cluster:
    all_devices = tuple(Device(f"d{index}", "toy", 500, 1e9, 1e9, watts=3, idle_watts=1) for index in range(devices))
    pairs = [(src, dst) for src in range(devices) for dst in range(devices) if src != dst]
    channel = np.where(np.eye(devices), -1, 0 if shared else np.arange(devices)[:, None])
    return Cluster("buses", all_devices, dict.fromkeys(pairs, Link(5e9, 1)), ints(channel))


@settings(max_examples=200)
@given(st.data())
def test_plans_with_kernels_of_their_own_score_as_one_by_one(data: st.DataObject) -> None:
    problem = data.draw(problems(min_ops=4))
    some = [data.draw(plans(problem, sends=False)) for _ in range(4)]
    device, rank, kernel = (np.stack([getattr(plan, name) for plan in some]) for name in ("device", "rank", "kernel"))
    lines = [simulate(problem, plan) for plan in some]
    scores = simulate_fused(problem, device, rank, kernel)
    assert scores.step_ns.tolist() == [line.step_ns for line in lines]
    assert scores.peak_bytes.tolist() == [line.peak_bytes.tolist() for line in lines]
    assert scores.over_bytes.tolist() == [line.over_bytes for line in lines]
    assert scores.busy_ns.tolist() == [line.busy_ns.tolist() for line in lines]
    search = Search(problem, Budget(None, 3))
    over, value = search.score_fused(device, rank, kernel)
    one_by_one = [Search(problem, Budget(None, 1)).score(plan) for plan in some[:3]]
    assert list(zip(over[:3].tolist(), value[:3].tolist(), strict=True)) == one_by_one
    assert (search.simulations, search.best_score) == (3, min(one_by_one))
    assert over[3] == value[3] == np.iinfo(np.int64).max


@settings(max_examples=100)
@given(st.data())
def test_kernels_of_kernels_score_as_one_by_one(data: st.DataObject) -> None:
    """Ties of a problem that is itself a fused one do not go by its ops."""
    fine = data.draw(problems(min_ops=6))
    problem = fuse(fine, ints(data.draw(kernels(fine))))
    plan = data.draw(plans(problem, sends=False))
    score = simulate_fused(problem, plan.device[None], plan.rank[None], plan.kernel[None])
    line = simulate(problem, plan)
    assert (score.step_ns[0], score.peak_bytes[0].tolist()) == (line.step_ns, line.peak_bytes.tolist())


@pytest.mark.parametrize("kernel", [[0, 0, 2, 0], [0, 1, 1, 2], [0, 1, 2, 4], [-1, 1, 2, 3]])
def test_what_is_no_kernel_is_refused_among_many(kernel: list[int]) -> None:
    problem = price(diamond(), pair())
    plain = np.arange(4)
    with pytest.raises(InvalidPlan):
        simulate_fused(problem, np.zeros((2, 4), np.int64), plain, np.stack([plain, kernel]))


@settings(max_examples=150)
@given(st.data())
def test_settled_plan_gives_the_same_timeline(data: st.DataObject) -> None:
    problem = data.draw(problems(hosts=True))
    plan = data.draw(plans(problem))
    line = simulate(problem, plan)
    settled = settle(problem, plan, line)
    check(settled, problem)
    assert_same(simulate(problem, settled), line)


@settings(max_examples=60)
@given(st.data())
def test_what_came_first_is_a_plan_with_the_timeline_that_it_was_taken_from(data: st.DataObject) -> None:
    problem = data.draw(problems(hosts=True))
    drawn = data.draw(plans(problem))
    plan, line = run_first_come(problem, drawn.device, drawn.kernel)
    check(plan, problem)
    assert_same(simulate(problem, plan), line)


@settings(max_examples=150)
@given(st.data())
def test_settled_ranks_follow_the_starts(data: st.DataObject) -> None:
    problem = data.draw(problems(hosts=True))
    plan = data.draw(plans(problem))
    line = simulate(problem, plan)
    settled = settle(problem, plan, line)
    by_rank = np.argsort(settled.rank, kind="stable")
    if not len(problem.dispatch_ns):
        assert (np.diff(line.start_ns[by_rank]) >= 0).all()
    for device in range(problem.num_devices):  # a host asks in the order of ranks: starts follow it on each device
        here = by_rank[plan.device[by_rank] == device]
        assert (np.diff(line.start_ns[here]) >= 0).all()
    kernels_of = {(int(rank), int(kernel)) for rank, kernel in zip(settled.rank, settled.kernel, strict=True)}
    assert len(kernels_of) == plan.num_kernels == len({rank for rank, _ in kernels_of})


@settings(max_examples=150)
@given(st.data())
def test_relabelling_equal_devices_relabels_the_result(data: st.DataObject) -> None:
    problem = data.draw(equal_problems())
    plan = data.draw(plans(problem, ties=False, sends=False))
    label = np.array(data.draw(st.permutations(range(problem.num_devices))))
    line, other = simulate(problem, plan), simulate(problem, replace(plan, device=ints(label[plan.device])))
    assert other.step_ns == line.step_ns
    assert other.start_ns.tolist() == line.start_ns.tolist()
    assert other.peak_bytes[label].tolist() == line.peak_bytes.tolist()
    moved = [(t, int(label[src]), int(label[dst]), start, end) for t, src, dst, start, end in sends_of(line)]
    assert sends_of(other) == sorted(moved)


@settings(max_examples=100)
@given(st.data())
def test_fusing_all_is_one_kernel(data: st.DataObject) -> None:
    problem = data.draw(problems(plain=True))
    everything = np.zeros(problem.num_ops, np.int64)
    device = data.draw(st.integers(0, problem.num_devices - 1))
    plan = Plan.of(problem, everything + device, kernel=everything)
    check(plan, problem)
    line = simulate(problem, plan)
    small = fuse(problem, ints(everything))
    assert small.num_ops == 1
    assert line.step_ns == small.op_ns[0, device]
    assert line.num_sends == 0
    assert set(line.start_ns.tolist()) == {0} and set(line.end_ns.tolist()) == {line.step_ns}
    assert_equal_to_reference(problem, plan)


def coarsen(small: Problem, problem: Problem, plan: Plan) -> Plan:
    """The plan as one for the coarser problem: a kernel's device, and the lowest rank of its members."""
    head = [int(np.flatnonzero(problem.source_ops == source)[0]) for source in small.source_ops]
    rank = [int(plan.rank[plan.kernel == lowest].min()) for lowest in head]
    return Plan.of(small, plan.device[head], rank)


@settings(max_examples=200)
@given(st.data())
def test_fused_plan_equals_plan_of_fused_problem(data: st.DataObject) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem, sends=False))
    small = fuse(problem, plan.kernel)
    own = coarsen(small, problem, plan)
    check(own, small)
    line, coarse = simulate(problem, plan), simulate(small, own)
    head = {int(source): index for index, source in enumerate(small.source_ops)}
    index = [head[int(problem.source_ops[kernel])] for kernel in plan.kernel]
    assert line.start_ns.tolist() == coarse.start_ns[index].tolist()
    assert line.end_ns.tolist() == coarse.end_ns[index].tolist()
    assert line.peak_bytes.tolist() == coarse.peak_bytes.tolist()
    named = [(problem.graph.tensor_name[t], *rest) for t, *rest in sends_of(line)]
    assert named == [(small.graph.tensor_name[t], *rest) for t, *rest in sends_of(coarse)]
    assert_equal_to_reference(small, own)


@settings(max_examples=100)
@given(st.data())
def test_a_fused_problem_is_a_problem_like_any_other(data: st.DataObject) -> None:
    problem = data.draw(problems(min_ops=4))
    first = data.draw(kernels(problem))
    small = fuse(problem, ints(first))
    plan = data.draw(plans(small))
    assert_equal_to_reference(small, plan)


@settings(max_examples=100)
@given(st.data(), st.booleans(), st.booleans())
def test_many_equals_one_by_one(data: st.DataObject, fused: bool, own_ranks: bool) -> None:
    problem = data.draw(problems())
    first = data.draw(plans(problem, fuse=fused, sends=False))
    count = data.draw(st.integers(1, 4))
    others = [data.draw(plans(problem, sends=False, kernel=first.kernel)) for _ in range(count)]
    rank = np.stack([plan.rank for plan in others]) if own_ranks else first.rank
    scores = simulate_many(problem, np.stack([plan.device for plan in others]), rank, first.kernel)
    for index, plan in enumerate(others):
        line = simulate(problem, plan if own_ranks else replace(plan, rank=first.rank))
        assert scores.step_ns[index] == line.step_ns
        assert scores.peak_bytes[index].tolist() == line.peak_bytes.tolist()
        assert scores.over_bytes[index] == line.over_bytes


@settings(max_examples=40)
@given(data=st.data())
def test_heaps_that_lie_close_change_nothing(data: st.DataObject) -> None:
    """Where room for every placement would be too much, each run lays its heaps out anew."""
    problem = data.draw(problems(max_ops=8, max_devices=4))
    plan = data.draw(plans(problem))
    before = state.MOST_HEAPS
    state.MOST_HEAPS = 0
    try:
        close = replace(problem)  # another problem to the cache of layouts
        assert_equal_to_reference(close, plan)
    finally:
        state.MOST_HEAPS = before
