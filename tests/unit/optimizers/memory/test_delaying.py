"""Kernels whose results live to the end wait where that holds less; nothing else changes."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, Cluster, GraphBuilder, price, solve
from loadmaster.cluster import Device
from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import delaying
from loadmaster.optimizers.memory.delaying import delayed
from loadmaster.optimizers.memory.draft import Version
from loadmaster.optimizers.memory.recompute import Recompute
from loadmaster.optimizers.simple import OneDevice
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.search import Search
from loadmaster.simulator import simulate, simulate_many
from tests.unit.optimizers.test_recompute import limited


def narrowing(weights: tuple[int, ...], sizes: tuple[int, ...]) -> Problem:
    """Layers back from the last, whose weights are large, to the first, whose tensors are: each makes the gradient of
    its weight, and what the next reads."""
    g = GraphBuilder("narrowing")
    came = g.tensor(sizes[0], "input")
    kept = [came, *(g.tensor(size, "input") for size in sizes[1:])]
    grad = g.tensor(sizes[-1])
    g.op("loss", "aten.mm.default", [kept[-1]], [grad], flops=10, bytes_moved=10)
    for i in reversed(range(len(weights))):
        of_weight, made = g.tensor(weights[i], "output"), g.tensor(sizes[i])
        g.op(f"weight{i}", "aten.mm.default", [grad, kept[i]], [of_weight], flops=10, bytes_moved=10)
        g.op(f"down{i}", "aten.mm.default", [grad], [made], flops=10, bytes_moved=10)
        grad = made
    g.op("end", "aten.mm.default", [grad], [g.tensor(1, "output")], flops=10, bytes_moved=10)
    device = Device("d", "gpu", 2**40, 1e12, 1e12, 100)
    return price(g.build(), Cluster("one", (device,), {}, ints([[-1]])))


def least_peak(problem: Problem) -> int:
    """Of all orders, simulated side by side."""
    ranks = np.array(list(permutations(range(problem.num_ops))))
    scores = simulate_many(problem, np.zeros_like(ranks), ranks)
    return int(scores.objective(problem.with_objective("peak-memory")).min())


def test_no_order_has_a_lower_peak_where_weights_grow_as_tensors_shrink() -> None:
    problem = narrowing((10, 400, 900), (600, 100, 10))
    plain = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    late = delayed(Search(problem, Budget(None, 9)), plain)
    check(late, problem)
    before, after = simulate(problem, plain), simulate(problem, late)
    assert after.step_ns == before.step_ns
    assert int(after.peak_bytes[0]) == least_peak(problem) < int(before.peak_bytes[0])


def test_what_holds_more_than_it_makes_does_not_wait() -> None:
    problem = narrowing((10, 20, 30), (600, 500, 400))
    plain = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    assert delayed(Search(problem, Budget(None, 9)), plain) is plain


def test_recompute_fits_what_only_another_order_can() -> None:
    problem = narrowing((10, 400, 900), (600, 100, 10))
    plain = Plan.of(problem, np.zeros(problem.num_ops, np.int64))
    limit = int(simulate(problem, delayed(Search(problem, Budget(None, 9)), plain)).peak_bytes[0])
    found = solve(limited(problem, limit), Recompute(OneDevice(), offload=False), Budget(None, 20))
    assert found.fits and found.timeline.step_ns == simulate(problem, plain).step_ns


def row(*versions: Version, positions: int = 5, **given: Any) -> Any:
    """A row of kernels; tensors of even number live to the end; sizes are 10 times the number, and 5 of tensor 0."""
    sizes = [5, *(10 * tensor for tensor in range(1, 9))]
    columns = {"lasting": [tensor % 2 == 0 for tensor in range(9)], "overwritten": set[int]()}
    return SimpleNamespace(heads=range(positions), versions=list(versions), nbytes=sizes, **(columns | given))


def test_a_kernel_waits_where_it_makes_more_than_it_holds_up() -> None:
    """Tensors 2 and 4 are results of 20 and 40 bytes; what they are made from has 10, 30 or 50."""
    assert delaying._late(row(Version(1, 0, uses=[(3, 9)]), Version(2, 3))) == {3}
    assert delaying._late(row(Version(3, 0, uses=[(3, 9)]), Version(2, 3))) == set()
    level = row(Version(3, 0, uses=[(3, 9)]), Version(1, 0, uses=[(3, 9)]), Version(4, 3))
    assert delaying._late(level) == set(), "as much is no gain"
    assert delaying._late(row(Version(2, 0), Version(4, 4), Version(1, 2))) == {0, 4}, "the first and the last, too"


def test_only_results_that_nobody_reads_or_overwrites_wait() -> None:
    assert delaying._late(row(Version(2, 3, uses=[(4, 9)]))) == set()
    assert delaying._late(row(Version(3, 3))) == set()
    assert delaying._late(row(Version(2, 3), overwritten={2})) == set()
    assert delaying._late(row(Version(2, 3), Version(3, 3))) == set(), "one of what it makes does not live on"
    assert delaying._late(row(Version(2, 3), Version(3, 3, inner=True))) == {3}, "what stays in the kernel is no matter"
    assert delaying._late(row(Version(5, 0, uses=[(3, 9)]), Version(2, 3, inner=True), Version(4, 3))) == set()


def test_what_is_held_for_another_that_waits_or_lives_on_costs_nothing() -> None:
    both = row(Version(1, 0, uses=[(2, 9), (3, 9)]), Version(0, 2), Version(2, 3))
    assert delaying._late(both) == {2, 3}, "of the last two, the first makes 5 from 10 that the other holds anyway"
    assert delaying._late(row(Version(1, 0, uses=[(2, 9)]), Version(0, 2))) == set()
    assert delaying._late(row(Version(4, 0, uses=[(2, 9)]), Version(0, 2))) == {2}
    assert delaying._late(row(Version(5, 0, uses=[(2, 9)], inner=True), Version(0, 2))) == {2}


def test_nothing_waits_on_several_devices_nor_beside_what_is_added_nor_without_a_simulation(monkeypatch: Any) -> None:
    def drafted(*_: Any) -> None:
        raise LookupError

    monkeypatch.setattr(delaying, "draft_of", drafted)
    for devices, added, spent in ((2, None, False), (1, "added", False), (1, None, True)):
        search: Any = SimpleNamespace(problem=SimpleNamespace(num_devices=devices), spent=spent)
        plan: Any = SimpleNamespace(added=added)
        assert delayed(search, plan) is plan
    with pytest.raises(LookupError):
        delayed(SimpleNamespace(problem=SimpleNamespace(num_devices=1), spent=False), SimpleNamespace(added=None))  # type: ignore[arg-type]
