"""Replicated stages: data parallelism by hand, the best split by trying all, and what may not be written."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from loadmaster.baselines.pipeline.replicas import replicated_splits
from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.graph import WEIGHT
from loadmaster.graph.columns import ints
from loadmaster.pipelines.judging import StageCut
from loadmaster.pipelines.microbatched import _Planner, plan_pipeline
from loadmaster.report.pipeline import picture, schedule_csv, stage_rows
from loadmaster.search import Budget
from loadmaster.simulator import simulate
from tests.unit.pipelines.lines import devices, line, problem

LINK = Link(1e9, 50)


def test_data_parallelism_is_one_stage_on_all_devices() -> None:
    """Six microbatches on three devices: each takes two of 4 x 300, adds up gradients of 4 x 90 bytes once, then passes
    a third of them on four times."""
    planner = _Planner(problem(4, 3, LINK, weights=90, saved=10), 6, Budget(None, 10), 0)
    cut = StageCut(planner.layouts[0], (), ((0, 1, 2),), "replicated")
    found = planner.judge("eager", cut, (1,))
    assert found.score.value == 2 * 4 * 300 + 3 * 4 * 90 + 4 * (50 + 120)
    # Weights, gradients and what the microbatches save, on every device.
    assert found.peak_bytes.tolist() == [2 * 4 * 90 + 4 * 20] * 3
    assert not simulate(found.problem, found.plan).num_sends


def test_replicas_of_one_stage_feed_the_next() -> None:
    planner = _Planner(problem(4, 3, LINK, weights=0, sent=30), 4, Budget(None, 10), 0)
    cut = StageCut(planner.layouts[0], (2,), ((0, 1), (2,)), "replicated")
    found = planner.judge("eager", cut, (4, 4))
    names, timeline = found.problem.graph.op_name, simulate(found.problem, found.plan)
    where = dict(zip(names, found.plan.device.tolist(), strict=True))
    assert [where[f"F0.{m}"] for m in range(4)] == [0, 1, 0, 1]
    assert {where[f"F1.{m}"] for m in range(4)} == {2}
    assert {(int(s), int(d)) for s, d in zip(timeline.send_src, timeline.send_dst, strict=True)} == {
        *((0, 2), (1, 2), (2, 0), (2, 1))
    }
    end = dict(zip(names, timeline.end_ns.tolist(), strict=True))
    start = dict(zip(names, timeline.start_ns.tolist(), strict=True))
    for replica in (0, 1):
        assert start[f"R0.{replica}"] >= max(end[f"W0.{m}"] for m in range(4))
        assert start["U0" if not replica else "U0.1"] >= end[f"R0.{replica}"]


def ring_ns(nbytes: float, replicas: int, link: Link) -> float:
    return 2 * (replicas - 1) * (link.latency_ns + nbytes / replicas)


@pytest.mark.parametrize("seed", range(6))
def test_replicated_splits_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    work, gradients = rng.integers(100, 5000, 6), rng.integers(0, 4000, 6)
    found = replicated_splits(ints(work), ints(gradients), 4, 3, LINK)

    def busiest(edges: tuple[int, ...], counts: tuple[int, ...]) -> float:
        ends = [0, *edges, 6]
        parts = zip(ends, ends[1:], counts, strict=False)
        return max(work[a:b].sum() / r + (ring_ns(gradients[a:b].sum(), r, LINK) if r > 1 else 0) for a, b, r in parts)

    for stages in range(1, 5):
        ways = [
            (edges, counts)
            for edges in combinations(range(1, 6), stages - 1)
            for counts in product(range(1, 4), repeat=stages)
            if sum(counts) <= 4
        ]
        mine = next(way for way in found if len(way.replicas) == stages)
        assert mine.busiest == pytest.approx(min(busiest(*way) for way in ways))
        assert mine.busiest == pytest.approx(busiest(mine.edges, mine.replicas))


def test_work_without_weights_is_replicated_and_weights_are_not() -> None:
    """As PipeDream does with VGG: convolutions on most devices, the large layers at the end on one."""
    best = replicated_splits(ints([900] * 7 + [900]), ints([0] * 7 + [10**6]), 8, 8, LINK)[1]
    assert (best.edges, best.replicas) == ((7,), (7, 1))


def test_planning_with_replicas_is_no_worse_and_told() -> None:
    base = price(line(6, weights=200, saved=50, sent=40), devices(4, LINK))
    plain = plan_pipeline(base, 8, Budget(None, 60))
    found = plan_pipeline(base, 8, Budget(None, 60), replicate=True)
    assert found.best.score <= plain.best.score and found.best.cut.replicated
    assert sum(len(row["devices"]) for row in stage_rows(found)) >= 4
    assert any("=" in row for row in picture(found, 120)[:-1])
    with pytest.raises(InvalidSetting, match="replicated"):
        schedule_csv(found)


def test_unlike_devices_are_not_replicated() -> None:
    from dataclasses import replace

    graph = line(4)
    times = [[100, 200] if graph.time_ns[op, 0] else [0, 0] for op in range(graph.num_ops)]
    base = price(replace(graph, time_ns=ints(times)), devices(2))
    assert not plan_pipeline(base, 4, Budget(None, 20), replicate=True).best.cut.replicated


@pytest.mark.parametrize("count", [4, 8])
def test_both_ways_at_once_has_smaller_bubbles_and_twice_the_weights(count: int) -> None:
    planner = _Planner(problem(4, 4, weights=90, saved=10), count, Budget(None, 10), 0)
    (found,) = planner.bidirectional()
    names = found.problem.graph.op_name
    where = dict(zip(names, found.plan.device.tolist(), strict=True))
    for m in range(count):
        assert [where[f"F{stage}.{m}"] for stage in range(4)] == ([3, 2, 1, 0] if m % 2 else [0, 1, 2, 3])
    cut = next(cut for cut in planner.cuts(4) if cut.name == "balanced")
    one_way = planner.judge("1f1b", cut)
    assert found.bubble < one_way.bubble and found.score.value < one_way.score.value
    held = sum(int(found.problem.graph.nbytes[t]) for t in np.flatnonzero(found.problem.graph.role == WEIGHT))
    once = sum(int(one_way.problem.graph.nbytes[t]) for t in np.flatnonzero(one_way.problem.graph.role == WEIGHT))
    assert held == 2 * once
    assert not list(_Planner(problem(3, 3), count, Budget(None, 10), 0).bidirectional())
