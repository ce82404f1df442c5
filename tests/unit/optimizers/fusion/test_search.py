"""Search over fusion, alone and with placement and order: what it finds on graphs whose best kernels are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from loadmaster.catalog.specs import make_optimizer
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import Ints, ints
from loadmaster.optimizers.fusion.greedy import Merges, greedy_kernels, plan_fused
from loadmaster.optimizers.fusion.search import ALONE, fusing_chains, improve_fusion
from loadmaster.optimizers.fusion.starts import kernels_of, pairs_alike, simple_orders
from loadmaster.optimizers.joint import Joint, finalists, simple_kernels
from loadmaster.optimizers.separate import Separate
from loadmaster.optimizers.simple import OneDevice
from loadmaster.passes import coarsen
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import Budget, Score, Search, solve
from loadmaster.simulator import simulate
from tests.strategies import is_acyclic


def tangled(count: int, seed: int, cluster: str = "2xp100-pcie") -> Problem:
    """A graph in which fusing everything is not best: long ops whose readers on the other device wait."""
    rng = np.random.default_rng(seed)
    builder, made = GraphBuilder("tangled"), []
    kinds = ("aten.mm.default", "aten.relu.default", "aten.add.Tensor", "aten.sum.dim_IntList")
    for op in range(count):
        reads = sorted({int(rng.choice(made[-5:])) for _ in range(int(rng.integers(1, 3)))}) if made else []
        made.append(builder.tensor(int(rng.integers(1, 40)) * 100_000))
        flops = int(rng.integers(1, 50)) * 10**7
        builder.op(f"op{op}", kinds[int(rng.integers(0, 4))], reads, [made[-1]], flops=flops)
    return price(builder.build(), Cluster.preset(cluster))


def spread_out(problem: Problem, seed: int = 0) -> Plan:
    device = np.random.default_rng(seed).integers(0, problem.num_devices, problem.num_ops)
    return Plan.of(problem, device)


def best_by_enumeration(problem: Problem, plan: Plan) -> int:
    """The shortest step over all kernels that merges of pairs give, by trying every subset of the pairs."""
    merges = Merges.of(problem)
    pairs = [
        (a, b)
        for a, b in zip(merges.producers.tolist(), merges.consumers.tolist(), strict=True)
        if plan.device[a] == plan.device[b]
    ]
    best = np.iinfo(np.int64).max
    for choice in product((False, True), repeat=len(pairs)):
        kernel = np.arange(problem.num_ops)
        for (a, b), wanted in zip(pairs, choice, strict=True):
            if wanted:
                low, high = sorted((kernel[a], kernel[b]))
                kernel[kernel == high] = low
        if is_acyclic(problem, kernel):
            best = min(best, simulate(problem, Plan.of(problem, plan.device, plan.rank, kernel)).step_ns)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_annealing_finds_the_best_kernels_of_a_small_graph(seed: int) -> None:
    problem = tangled(8, seed)
    plan = spread_out(problem, seed)
    search = Search(problem, Budget(None, 800))
    improve_fusion(search, plan, 2e-2, 1e-4)
    assert search.best_score.value == best_by_enumeration(problem, plan)


def test_searching_is_better_than_merging_at_random() -> None:
    problem = tangled(150, 1)
    random, annealed = (
        solve(problem, spec, Budget(None, 600)) for spec in ("random-fusion:samples=600", "anneal-fusion")
    )
    assert annealed.value < random.value


def test_a_walk_says_what_its_kernels_cost() -> None:
    """What the compiled loop keeps, simulated afresh; kernels stay on one device and wait for none of their own."""
    problem = tangled(60, 2)
    plan = spread_out(problem)
    search = Search(problem, Budget(None, 400))
    improve_fusion(search, plan, 1e-2, 1e-4)
    assert search.best is not None
    line = simulate(problem, search.best)
    assert search.best_score == Score(line.over_bytes, line.step_ns)
    assert is_acyclic(problem, search.best.kernel)
    np.testing.assert_array_equal(search.best.device[search.best.kernel], plan.device)


def test_chains_stand_where_they_say_they_do() -> None:
    problem = tangled(60, 3)
    plan = spread_out(problem)
    search = Search(problem, Budget(None, 10_000))
    walk = fusing_chains(search, Plan.of(problem, plan.device, plan.rank, greedy_on(problem, plan)), ALONE, 1)
    assert walk is not None
    for _ in range(20):
        walk.cool(16, 0.02, 0.02)
        chain = walk.chains[0]
        line = simulate(problem, Plan.of(problem, plan.device, plan.rank, chain.kernel))
        assert chain.score[:2].tolist() == [line.over_bytes, line.step_ns]
        assert chain.score[2:].tolist() <= chain.score[:2].tolist()
        order = [int(head) for head in chain.sequence if head >= 0]
        assert sorted(order) == sorted(set(chain.kernel.tolist()))
        assert_in_order(problem, chain.kernel, order)


def greedy_on(problem: Problem, plan: Plan) -> Ints:
    return Merges.of(problem).greedy(plan.device)


def assert_in_order(problem: Problem, kernel: np.ndarray, order: list[int]) -> None:
    place = {head: at for at, head in enumerate(order)}
    start, before = problem.graph.dependencies
    for op in range(problem.num_ops):
        for earlier in before[start[op] : start[op + 1]]:
            if kernel[op] != kernel[earlier]:
                assert place[int(kernel[earlier])] < place[int(kernel[op])]


def test_under_peak_memory_fusion_saves_what_it_can() -> None:
    builder = GraphBuilder("hourglass")
    here = builder.tensor(1000, "input")
    for op, size in enumerate((50_000, 80_000, 500, 90_000, 400)):
        made = builder.tensor(size, "output" if op == 4 else "activation")
        builder.op(f"op{op}", "aten.relu.default", [here], [made], flops=1000)
        here = made
    problem = price(builder.build(), Cluster.preset("1xp100-pcie"), objective="peak-memory")
    for spec in ("anneal-fusion:inner=one-device", "joint"):
        assert solve(problem, spec, Budget(None, 100)).value == 1000 + 400  # one kernel: input and output


def test_simple_orders_are_priorities_and_differ() -> None:
    problem = tangled(40, 4)
    orders = simple_orders(problem)
    assert all(order.shape == (40,) and order.max() < 1 for order in orders)
    kernels = Merges.of(problem).kernels(np.zeros(40), np.stack(orders))
    assert len({row.tobytes() for row in kernels}) > 3


def test_priorities_of_kernels_keep_apart_what_was_apart() -> None:
    problem = tangled(40, 5)
    merges, kernel = Merges.of(problem), greedy_kernels(problem)
    found = kernels_of(problem, kernel)
    for producer, consumer, priority in zip(merges.producers, merges.consumers, found.priority, strict=True):
        assert (priority >= 1) == (kernel[producer] == kernel[consumer])
    assert 0 < (found.priority >= 0).sum() < len(found.priority)
    assert (kernels_of(problem, ints(np.arange(40))).priority < 0).all()
    assert_in_order(problem, kernel, [int(head) for head in found.sequence if head >= 0])


def test_sets_alike_hold_each_pair_with_its_kind() -> None:
    problem = tangled(60, 6)
    merges = Merges.of(problem)
    pairs = ints(np.arange(0, len(merges.producers), 2))
    sets = pairs_alike(problem, merges, pairs)
    assert {pair for group in sets for pair in group} == set(pairs.tolist())
    assert all(len({problem.graph.kind[merges.producers[pair]] for pair in group}) == 1 for group in sets)


@pytest.mark.parametrize("spec", ["random-fusion:samples=100000", "anneal-fusion", "joint", "separate"])
def test_a_budget_of_seconds_ends_the_search(spec: str) -> None:
    result = solve(tangled(300, 7), spec, Budget(0.3))
    assert result.fits and not result.interrupted


def test_joint_is_at_least_as_good_as_its_parts_in_the_mean() -> None:
    specs = ("joint", "auto", "greedy-fusion:inner=auto", "anneal-fusion:inner=auto")
    values = [[solve(tangled(60, seed), spec, Budget(None, 2000)).value for spec in specs] for seed in range(3)]
    joint, *others = np.log(values).mean(axis=0)
    assert joint <= min(others) + 0.01


def test_joint_fuses_nothing_where_nothing_may_be_fused() -> None:
    builder = GraphBuilder("opaque")
    made = builder.tensor(1000, "input")
    for op in range(6):
        read, made = made, builder.tensor(1000)
        builder.op(f"op{op}", "aten.mm.default", [read], [made], flops=10**6)
    problem = price(builder.build(), Cluster.preset("2xp100-pcie"))
    assert simple_kernels(problem) == []
    result = solve(problem, Joint(), Budget(None, 60))
    assert not result.plan.fuses
    assert result.value == solve(problem, "auto", Budget(None, 60)).value


@pytest.mark.parametrize(
    "spec",
    ["greedy-fusion", "random-fusion", "anneal-fusion", "separate", "joint", "auto", "islands:inner=joint,islands=1"],
)
def test_all_that_fuse_are_held_against_the_bound_of_what_may_be_fused(spec: str) -> None:
    problem = tangled(40, 3)
    found = solve(problem, spec, Budget(None, 60))
    any_kernel, allowed = (lower_bound(problem, fusing=of, fitting=True) for of in (True, Merges.of(problem).sharing))
    assert found.lower_bound == allowed > any_kernel


def test_finalists_are_unlike_and_led_by_the_best() -> None:
    problem = tangled(80, 8)
    search = Search(problem, Budget(None, 2000))
    first, *rest = finalists(search)
    assert len({kernel.tobytes() for kernel in (first, *rest)}) == 1 + len(rest)
    assert search.best is not None
    np.testing.assert_array_equal(search.best.kernel, first)


@pytest.mark.parametrize("spec", ["joint", "separate:start=one-device", "anneal-fusion", "greedy-fusion:inner=auto"])
def test_an_interrupt_keeps_the_best_so_far(spec: str) -> None:
    problem, seen = tangled(80, 11), list[tuple[int, Score]]()

    def listener(search: Search) -> None:
        if search.simulations > 400:
            seen.append((search.simulations, search.history[-1].score))
            raise KeyboardInterrupt

    search_ends = solve(problem, spec, Budget(None, 200_000), listener=listener)
    assert seen and search_ends.interrupted
    (at, _), *again = seen
    assert not again and search_ends.simulations <= at + 100, "nothing is simulated afterwards but the plan itself"
    assert search_ends.score <= solve(problem, "one-device", Budget(None, 1)).score


def test_a_lifted_plan_of_kernels_runs_as_it_did_there() -> None:
    """First come, first served holds for sends too."""
    problem = tangled(60, 12)
    kernel = greedy_kernels(problem)
    small = coarsen(problem, kernel).problem
    metis = make_optimizer("metis:order=fifo")
    there = metis.optimize(Search(small, Budget(None, 50)))
    assert there.send_rank is not None
    here = plan_fused(Search(problem, Budget(None, 50)), kernel, metis)
    assert simulate(problem, here).step_ns == simulate(small, there).step_ns
    assert simulate(problem, here).num_sends == simulate(small, there).num_sends > 0


@pytest.mark.parametrize("task", ["fusion", "placement", "schedule"])
def test_a_task_alone_changes_nothing_else(task: str) -> None:
    problem = tangled(50, 9)
    start = Search(problem, Budget(None, 100))
    given = Plan.of(problem, spread_out(problem).device, None, Merges.of(problem).greedy(spread_out(problem).device))
    search = Search(problem, Budget(None, 600))
    result = Separate(tasks=(task,), start=Given(given)).optimize(search)  # type: ignore[arg-type]
    assert search.best_score < start.score(given)
    if task != "fusion":
        np.testing.assert_array_equal(result.kernel, given.kernel)
    if task != "placement":
        np.testing.assert_array_equal(result.device, given.device)
    if task == "fusion":
        np.testing.assert_array_equal(result.rank, given.rank)


class Given:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def optimize(self, search: Search) -> Plan:
        return self.plan


def test_separate_on_one_device_decides_order_and_kernels() -> None:
    problem = tangled(30, 10, "1xp100-pcie")
    result = solve(problem, Separate(start=OneDevice()), Budget(None, 200))
    assert result.plan.fuses
    assert result.value < solve(problem, "one-device", Budget(None, 1)).value
