"""Pooled figures against what a person computes with a pencil."""

from __future__ import annotations

import math

import pytest

from loadmaster.bench.figures import (
    BudgetedMethod,
    MeansGrid,
    differences,
    geometric_speed_up,
    improvements,
    interval,
    pooled,
    speed_up,
)
from tests.unit.bench.made import BASE, record

BUDGET = "100 simulations"
BASELINE, MINE, OTHER = (BudgetedMethod(spec, BUDGET) for spec in (BASE, "mine", "other"))

# Two graphs, two seeds. Means of a: base 100, mine 80, other 90; of b: base 200, mine 190, other 220.
RUNS = [
    *(record("a", BASE, value, seed) for seed, value in enumerate((90, 110))),
    *(record("a", "mine", value, seed) for seed, value in enumerate((70, 90))),
    record("a", "other", 90),
    *(record("b", BASE, value, seed, bound=100) for seed, value in enumerate((200, 200))),
    *(record("b", "mine", value, seed, bound=100) for seed, value in enumerate((180, 200))),
    record("b", "other", 220, bound=100),
]
BEST = {RUNS[0].place: 60, RUNS[5].place: 150}


def of(method: BudgetedMethod) -> int:
    return MeansGrid.of(RUNS).methods.index(method)


def test_improvement_is_the_mean_over_graphs_of_means_over_seeds() -> None:
    grid = MeansGrid.of(RUNS)
    assert improvements(grid, MINE, BASELINE) == pytest.approx([0.20, 0.05])  # (100-80)/100, (200-190)/200
    assert improvements(grid, OTHER, BASELINE) == pytest.approx([0.10, -0.10])
    assert pooled(grid, BASELINE, BEST)[of(MINE)].improvement.mean == pytest.approx(0.125)


def test_the_interval_is_students() -> None:
    # Mean 0.125, deviation 0.106066 of two values; t(0.975, 1) = 12.7062; half width 12.7062 x 0.106066 / sqrt 2.
    found = pooled(MeansGrid.of(RUNS), BASELINE, BEST)[of(MINE)].improvement
    assert found.high - found.mean == pytest.approx(0.95297, rel=1e-4)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    # Five values of deviation sqrt 2.5 around 3: t(0.975, 4) = 2.7764, so 3 ± 2.7764 x 1.58114 / 2.23607.
    five = interval([1, 2, 3, 4, 5])
    assert (five.mean, five.low, five.high) == pytest.approx((3, 3 - 1.96325, 3 + 1.96325), rel=1e-4)
    assert math.isnan(interval([]).mean) and math.isnan(interval([1.0]).low)


def test_shares_of_the_headroom_are_pooled_not_averaged() -> None:
    mine = pooled(MeansGrid.of(RUNS), BASELINE, BEST)[of(MINE)]
    assert mine.share == pytest.approx((20 + 10) / (40 + 50))
    assert mine.share_of_bound == pytest.approx((20 + 10) / (50 + 100))
    assert pooled(MeansGrid.of(RUNS), BASELINE, BEST)[of(BASELINE)].share == 0


def test_gap_seconds_and_graphs() -> None:
    mine = pooled(MeansGrid.of(RUNS), BASELINE, BEST)[of(MINE)]
    assert mine.gap == pytest.approx(((80 / 60 - 1) + (190 / 150 - 1)) / 2)
    assert (mine.graphs, mine.misfits, mine.seconds, mine.simulations) == (2, 0, 0.5, 100)


def test_a_graph_without_a_best_known_value_counts_for_improvement_only() -> None:
    mine = pooled(MeansGrid.of(RUNS), BASELINE, {RUNS[0].place: 60})[of(MINE)]
    assert mine.graphs == 2
    assert mine.share == pytest.approx(20 / 40)
    assert mine.gap == pytest.approx(80 / 60 - 1)


def test_no_headroom_gives_no_share() -> None:
    runs = [record("a", BASE, 50), record("a", "mine", 50)]
    assert math.isnan(pooled(MeansGrid.of(runs), BASELINE, {runs[0].place: 50})[1].share)


def test_simulations_until_the_baseline_is_met() -> None:
    paths = (((10, 120), (30, 100)), ((50, 90),))  # 30 and 50 of the baseline's 100
    runs = [
        record("a", BASE, 100),
        *(record("a", "mine", 90, seed, history=path) for seed, path in enumerate(paths)),
        record("b", BASE, 100),
        record("b", "mine", 101, history=((1, 101),)),
    ]
    assert math.isinf(pooled(MeansGrid.of(runs), BASELINE, {})[1].reach)  # the median of 0.4 and never
    assert pooled(MeansGrid.of(runs[:3]), BASELINE, {})[1].reach == pytest.approx(0.4)


def test_differences_are_paired_by_graph() -> None:
    found = {method.spec: (count, gain.mean) for method, count, gain in differences(MeansGrid.of(RUNS), MINE, BASELINE)}
    assert found["other"] == (2, pytest.approx(((90 - 80) / 100 + (220 - 190) / 200) / 2))
    assert found[BASE] == (2, pytest.approx(0.125))


def test_speed_up_is_other_over_method_and_its_mean_geometric() -> None:
    grid = MeansGrid.of(RUNS)
    assert speed_up(grid, MINE, BASELINE, RUNS[0].place) == pytest.approx(100 / 80 - 1)
    mean, count = geometric_speed_up(grid, MINE, BASELINE)
    assert (mean, count) == (pytest.approx(math.sqrt((100 / 80) * (200 / 190)) - 1), 2)


def test_what_does_not_fit_is_left_out_of_every_mean() -> None:
    runs = [*RUNS, record("c", BASE, 100), record("c", "mine", 1, over_bytes=7)]
    grid = MeansGrid.of(runs)
    mine = pooled(grid, BASELINE, BEST)[of(MINE)]
    assert (mine.graphs, mine.misfits) == (2, 1)
    assert mine.improvement.mean == pytest.approx(0.125)
    assert geometric_speed_up(grid, MINE, BASELINE)[1] == 2
    assert speed_up(grid, MINE, BASELINE, runs[-1].place) == "OOM"
    assert speed_up(grid, BASELINE, MINE, runs[-1].place) == "OOM of mine"


def test_one_seed_that_does_not_fit_makes_the_cell_not_fit() -> None:
    runs = [record("a", "mine", 80, 0), record("a", "mine", 80, 1, over_bytes=1)]
    assert MeansGrid.of(runs).shown(MINE, runs[0].place) == "OOM"


def test_a_failed_run_is_shown_and_not_averaged() -> None:
    runs = [record("a", BASE, 100), record("a", "mine", 0, error="ValueError: no")]
    grid = MeansGrid.of(runs)
    assert grid.shown(MINE, runs[0].place) == "failed"
    assert grid.pairs(MINE, BASELINE) == []


def test_twins_of_one_spec_are_told_apart_by_their_budget() -> None:
    runs = [record("a", BASE, 100), record("a", "mine", 90)]
    longer = BudgetedMethod("mine", "10 s")
    grid = MeansGrid.of([*runs, runs[1].__class__(**{**runs[1].__dict__, "budget": "10 s"})])
    assert [grid.label(method) for method in grid.methods] == [BASE, "mine (100 simulations)", "mine (10 s)"]
    assert MeansGrid.of(runs, [BASELINE, longer]).methods == (BASELINE,)
