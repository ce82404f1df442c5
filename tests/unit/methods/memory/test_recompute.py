"""Recompute and what it is compared with: plans that fit where none did, in which nothing changes but time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.methods.memory.cutting import saved_by_cut, turning_point
from loadmaster.methods.memory.draft import Draft, draft_of
from loadmaster.methods.memory.drafted import plan_of
from loadmaster.methods.memory.dropping import Dropping
from loadmaster.methods.memory.recompute import Recompute
from loadmaster.planning import fitted
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.report.added import added_of
from loadmaster.report.explain import explain
from loadmaster.search import Budget, Search, solve
from loadmaster.simulator import simulate

MB = 2**20


def layers(count: int = 12, big: int = 64 * MB) -> Graph:
    """Layers of a product and two light ops, and back: each reads its input and what its product made."""
    g = GraphBuilder("layers")
    x, kept = g.tensor(big, "input"), []
    for i in range(count):
        weight, made, shifted, out = g.tensor(MB, "weight"), g.tensor(big), g.tensor(big), g.tensor(big)
        scope = f"net.{i}"
        g.op(f"mm{i}", "aten.mm.default", [x, weight], [made], flops=2 * 10**11, bytes_moved=2 * big, scope=scope)
        g.op(f"add{i}", "aten.add.Tensor", [made], [shifted], flops=big, bytes_moved=2 * big, scope=scope)
        g.op(f"gelu{i}", "aten.gelu.default", [shifted], [out], flops=big, bytes_moved=2 * big, scope=scope)
        kept.append((x, weight, shifted))
        x = out
    grad = g.tensor(big)
    g.op("loss", "aten.mul.Tensor", [x], [grad], flops=big, bytes_moved=2 * big)
    for i in reversed(range(count)):
        came, weight, shifted = kept[i]
        back, down, of_weight = g.tensor(big), g.tensor(big), g.tensor(MB, "output")
        g.op(f"gelu{i}.back", "aten.gelu_backward.default", [grad, shifted], [back], flops=big, bytes_moved=3 * big)
        g.op(f"mm{i}.weight", "aten.mm.default", [back, came], [of_weight], flops=2 * 10**11, bytes_moved=2 * big)
        g.op(f"mm{i}.down", "aten.mm.default", [back, weight], [down], flops=2 * 10**11, bytes_moved=2 * big)
        grad = down
    return g.build()


def with_host(link: float = 25e9) -> Cluster:
    gpu, host = Device("gpu", "gpu", 80 * 2**30, 1e13, 1e12, 4000), Device("host", "cpu", 2**40, 1e11, 1e11, 1000)
    pairs = {(0, 1): Link(link, 5000), (1, 0): Link(link, 5000)}
    return Cluster("one GPU and its host", (gpu, host), pairs, ints([[-1, 0], [1, -1]]))


def one() -> Cluster:
    return Cluster("one", (Device("gpu", "gpu", 80 * 2**30, 1e13, 1e12, 4000),), {}, ints([[-1]]))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(layers(), one())


def limited(problem: Problem, nbytes: int) -> Problem:
    return replace(problem, memory_bytes=ints([nbytes, *problem.memory_bytes[1:]]))


def fused_peak(problem: Problem) -> tuple[int, int]:
    found = solve(problem, "greedy-fusion:inner=one-device", Budget(None, 1))
    return int(found.timeline.peak_bytes[0]), found.timeline.step_ns


@pytest.mark.parametrize("share", [0.7, 0.45])
def test_a_plan_that_fits_where_none_did(problem: Problem, share: float) -> None:
    peak, step = fused_peak(problem)
    small = limited(problem, int(peak * share))
    assert not solve(small, "greedy-fusion:inner=one-device", Budget(None, 1)).fits
    found = solve(small, "recompute", Budget(None, 40))
    assert found.fits and found.plan.added is not None and found.plan.added.num_again > 0
    check(found.plan, small)
    assert found.timeline.step_ns <= 1.3 * step
    assert found.value >= found.lower_bound


def test_nothing_is_added_where_all_fits(problem: Problem) -> None:
    assert solve(problem, "recompute", Budget(None, 20)).plan.added is None


def test_a_search_counts_what_a_draft_simulates(problem: Problem) -> None:
    """Once for each plan, however often it is drafted; never more than the budget."""
    search, one = Search(problem, Budget(None, 2)), np.zeros(problem.num_ops, np.int64)
    for rank in (None, None, one[::-1], np.arange(len(one))[::-1]):
        draft_of(problem, Plan.of(problem, one, rank), search)
    assert search.simulations == 2


def test_the_draft_has_the_memory_that_is_simulated(problem: Problem) -> None:
    """Of one device, before and after tensors were dropped."""
    plan = solve(problem, "greedy-fusion:inner=one-device", Budget(None, 1)).plan
    draft = draft_of(problem, plan)
    line = simulate(problem, plan)
    held = [int(line.curve(0)[1][np.searchsorted(line.curve(0)[0], at, "right") - 1]) for at in draft.start_ns]
    assert draft.memory[0].tolist() == held
    limit = int(draft.memory.max() * 0.6)
    Dropping(Recompute(), draft, ints([limit]), set(), None, 0.0).run()
    made = plan_of(draft)
    assert simulate(problem, made).peak_bytes[0] <= draft.memory.max() <= limit


def test_a_kernel_that_needs_too_much_is_taken_apart() -> None:
    """A sum of many products in one kernel: they must all be there, or are added one by one."""
    g, x = GraphBuilder("sums"), None
    given = g.tensor(MB, "input")
    total = g.tensor(64 * MB)
    g.op("first", "aten.mm.default", [given], [total], flops=10**9)
    for i in range(12):
        x, added = g.tensor(64 * MB), g.tensor(64 * MB)
        g.op(f"mm{i}", "aten.mm.default", [given], [x], flops=10**11)
        g.op(f"add{i}", "aten.add.Tensor", [total, x], [added], flops=10**6, bytes_moved=192 * MB)
        total = added
    g.op("last", "aten.sum.default", [total], [g.tensor(8, "output")], flops=10**6)
    problem = price(g.build(), one())
    peak, _ = fused_peak(problem)
    small = limited(problem, peak // 2)
    found = solve(small, "recompute:fuse=no", Budget(None, 20))
    assert found.fits and found.plan.num_kernels > solve(problem, "greedy-fusion", Budget(None, 1)).plan.num_kernels


def test_offload_costs_little_where_links_are_idle() -> None:
    problem = price(layers(), with_host())
    plan = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    line = simulate(problem, plan)
    small = limited(problem, int(line.peak_bytes[0] * 0.6))
    host_only = Recompute(OnePlan(plan), again=False)
    found = solve(small, host_only, Budget(None, 30))
    assert found.fits and found.plan.added is not None
    assert found.plan.added.num_stays > 0 and found.plan.added.num_again == 0
    assert found.timeline.step_ns <= 1.1 * line.step_ns
    stays = [op for op, kind in enumerate(found.problem.graph.kind) if kind == "stay"]
    assert set(found.plan.device[stays].tolist()) == {1}


class OnePlan:
    """Gives a plan that it was given."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def optimize(self, search: object) -> Plan:
        return self.plan


@pytest.mark.parametrize("spec", ["sqrt-checkpointing", "layer-checkpointing", "min-cut"])
def test_what_others_do_lowers_the_peak(problem: Problem, spec: str) -> None:
    peak, step = fused_peak(problem)
    found = solve(problem, spec, Budget(None, 4))
    assert found.plan.added is not None
    assert found.timeline.peak_bytes[0] < peak and found.timeline.step_ns > step


def test_layers_keep_their_inputs_alone(problem: Problem) -> None:
    """Backwards a layer holds what it made again; forward, one tensor for each layer."""
    big, count = 64 * MB, 12
    found = solve(problem, "layer-checkpointing:inner=one-device", Budget(None, 4))
    weights = count * MB * 2
    assert found.timeline.peak_bytes[0] <= (count + 6) * big + weights
    again = {name.split(".")[0] for name in found.problem.graph.op_name if name.endswith("again")}
    assert {f"mm{i}" for i in range(count)} <= again


def test_the_cut_is_the_least(problem: Problem) -> None:
    """Products are not run again, so of each layer what its product made is kept, once."""
    draft = Draft(problem, *_planned(problem))
    saved = saved_by_cut(draft, turning_point(draft))
    makers = sorted(problem.graph.op_name[draft.producer[t]] for t in saved)
    assert all(name.startswith("mm") for name in makers) and len(makers) in (11, 12)


def test_what_a_heavy_op_made_is_kept_though_what_it_read_is_smaller() -> None:
    graph = GraphBuilder("cut")
    x, a, b, c = graph.tensor(8 * MB, "input"), graph.tensor(10 * MB), graph.tensor(16 * MB), graph.tensor(20 * MB)
    loss = graph.tensor(4)
    graph.op("before", "aten.relu.default", [x], [a], flops=10)
    graph.op("product", "aten.mm.default", [a], [b], flops=10**9)
    graph.op("after", "aten.relu.default", [b], [c], flops=10)
    graph.op("loss", "aten.sum.default", [c], [loss], flops=10)
    graph.op("back", "aten.mul.Tensor", [loss, c], [graph.tensor(20 * MB, "output")], flops=10)
    problem = price(graph.build(), "1xa100-nvlink")
    assert saved_by_cut(Draft(problem, *_planned(problem)), 3) == {b}


def _planned(problem: Problem) -> tuple[Plan, object]:
    plan = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    return plan, simulate(problem, plan)


def test_a_result_that_does_not_fit_is_fitted(problem: Problem) -> None:
    peak, _ = fused_peak(problem)
    found = solve(limited(problem, int(peak * 0.7)), "one-device", Budget(None, 1))
    assert not found.fits
    better = fitted(found, Budget(None, 30))
    assert better.fits and better.method == "recompute:inner=one-device"
    assert fitted(found, Budget(None, 30), recompute=False, offload=False) is found
    told = added_of(better)
    assert told.ops_again == better.plan.added.num_again > 0 and told.again_bytes >= peak * 0.2  # type: ignore[union-attr]
    assert "run again" in explain(better, seconds=0.2).text()


def test_long_chains_are_cut_short() -> None:
    """Eight hundred light ops in a row, each read again at the end: no chain of all of them is run again."""
    g = GraphBuilder("row")
    x, made = g.tensor(100, "input"), []
    for i in range(800):
        out = g.tensor(100)
        g.op(f"op{i}", "aten.neg.default", [x], [out], flops=1)
        made.append(out)
        x = out
    for i, tensor in enumerate(reversed(made)):
        g.op(f"back{i}", "aten.mm.default", [tensor], [g.tensor(1, "output")], flops=1)
    problem = price(g.build(), one())
    found = solve(limited(problem, 48_000), Recompute(fuse=False), Budget(None, 6))
    assert found.timeline.peak_bytes[0] < 60_000 and found.plan.added is not None
