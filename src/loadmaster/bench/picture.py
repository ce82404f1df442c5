"""A picture of a suite's main figures, beside its tables. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.bench.figures import BudgetedMethod, MeansGrid, pooled, speed_up
from loadmaster.bench.records import Place, RunRecord
from loadmaster.bench.suite import Shape, Suite
from loadmaster.bench.views import baseline_of, with_records
from loadmaster.errors import MissingExtra
from loadmaster.files.writing import writing
from loadmaster.report.plot import PALETTE, WIDTH_IN


def draw(
    suite: Suite,
    records: Iterable[RunRecord],
    best: Mapping[Place, int],
    path: Path,
    methods: Sequence[BudgetedMethod] | None = None,
) -> bool:
    """Writes the picture; False where there is nothing to draw yet."""
    baseline = baseline_of(suite)
    columns = None if methods is None else list(dict.fromkeys([baseline, *methods]))
    grid = MeansGrid.of(records, columns)
    others = [method for method in grid.methods if method != baseline]
    if baseline not in grid.methods or not others:
        return False
    figure = _figure(0.45 * len(others) + 1.3 if suite.shape == "improvement" else 3.2)
    if suite.shape == "improvement":
        _draw_pooled(figure, grid, baseline, with_records(best, grid))
    else:
        _draw_rows(figure, suite, grid, baseline, others)
    with writing(path) as part:
        figure.savefig(part, dpi=160)
    return True


def _figure(height_in: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("matplotlib", "plot", "drawing a benchmark") from None
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def _plain(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)


def _draw_pooled(figure: Any, grid: MeansGrid, baseline: BudgetedMethod, best: Mapping[Place, int]) -> None:
    """Mean improvement with its interval, and the share of the headroom that was taken."""
    found = [each for each in pooled(grid, baseline, best) if each.method != baseline]
    left, right = figure.subplots(1, 2, sharey=True)
    where = range(len(found))
    mean = [100 * each.improvement.mean for each in found]
    reach = [100 * (each.improvement.high - each.improvement.mean) for each in found]
    reach = [0.0 if math.isnan(each) else each for each in reach]
    left.barh(where, mean, xerr=reach, color=PALETTE[0], height=0.6, error_kw={"linewidth": 0.8})
    left.set_yticks(where, [grid.label(each.method) for each in found])
    left.invert_yaxis()
    left.axvline(0, color="black", linewidth=0.8)
    left.set_xlabel(f"% better than {baseline.spec}, 95 % interval", fontsize=8)
    right.barh(where, [100 * max(each.share, -1.0) for each in found], color=PALETTE[1], height=0.6)
    for at, each in enumerate(found):
        if each.share < -1:
            right.text(-98, at, f"{100 * each.share:,.0f} %", fontsize=6, va="center")
    right.axvline(0, color="black", linewidth=0.8)
    right.axvline(100, color="black", linewidth=0.8, linestyle="--")
    right.set_xlabel("% of the headroom to the best known", fontsize=8)
    for axis in (left, right):
        _plain(axis)


def _draw_rows(
    figure: Any, suite: Suite, grid: MeansGrid, baseline: BudgetedMethod, others: Sequence[BudgetedMethod]
) -> None:
    """A group of bars per problem, one bar per method; what does not fit has none."""
    axis = figure.subplots()
    shown = others if suite.shape == "speed-up" else grid.methods
    width = 0.8 / len(shown)
    for number, method in enumerate(shown):
        heights = [_height(suite.shape, grid, method, baseline, place) for place in grid.places]
        where = [at + (number - (len(shown) - 1) / 2) * width for at in range(len(heights))]
        axis.bar(where, heights, width * 0.92, label=grid.label(method), color=PALETTE[number % len(PALETTE)])
    axis.axhline(_FLOOR[suite.shape], color="black", linewidth=0.8)
    names = grid.clusters if suite.shape == "load" else grid.names
    axis.set_xticks(range(len(grid.places)), [names[place] for place in grid.places], rotation=30, ha="right")
    axis.set_ylabel(_LABEL[suite.shape].format(suite.baseline), fontsize=8)
    axis.legend(frameon=False, fontsize=6, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    _plain(axis)


_FLOOR: Mapping[Shape, float] = {"speed-up": 0.0, "peers": 1.0, "load": 1.0}
_LABEL: Mapping[Shape, str] = {
    "speed-up": "{} ÷ method - 1, %",
    "peers": "over the lower bound",
    "load": "largest load over the ideal",
}


def _height(shape: Shape, grid: MeansGrid, method: BudgetedMethod, baseline: BudgetedMethod, place: Place) -> float:
    cell = grid.cell(method, place)
    if cell is None or not cell.fits:
        return math.nan
    if shape == "load":
        return cell.load
    if shape == "peers":
        return cell.value / cell.bound if cell.bound else math.nan
    share = speed_up(grid, method, baseline, place)
    return 100 * share if isinstance(share, float) else math.nan
