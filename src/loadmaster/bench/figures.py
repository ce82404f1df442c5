"""Figures from records: means over seeds, then pooled over graphs. Plain numbers; tables are made of them elsewhere.

Speed-ups are pooled by the geometric mean, differences of methods are paired by graph, with Student's interval; what
does not fit or failed is counted and told, never averaged in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.bench.records import Place, RunRecord

OOM = "OOM"


@dataclass(frozen=True)
class SeedMeans:
    """What one method gave on one problem: means over its seeds.

    Attributes:
        fits: under every seed.
        fuses: under any seed; its bound is then one for plans that fuse.
        paths: per seed: (simulations, value) of improvements and the end.
    """

    value: float
    fits: bool
    bound: int
    fuses: bool
    seconds: float
    simulations: float
    runs: int
    paths: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def of(records: Sequence[RunRecord]) -> SeedMeans:
        def mean(values: Iterable[float]) -> float:
            return float(np.mean(list(values)))

        return SeedMeans(
            mean(r.value for r in records),
            all(r.fits for r in records),
            max(r.bound for r in records),
            any(r.fuses for r in records),
            mean(r.seconds for r in records),
            mean(r.simulations for r in records),
            len(records),
            tuple((*r.history, (r.simulations, r.value)) for r in records),
        )


@dataclass(frozen=True)
class BudgetedMethod:
    """A column: a spec under a budget.

    Attributes:
        spec: of the method.
        budget: in words.
    """

    spec: str
    budget: str


@dataclass(frozen=True, eq=False)
class MeansGrid:
    """Cells by method and place, places in the order in which they were first met.

    Attributes:
        names, ops: of each place.
        cells: what a method gave there.
        methods: in the order of the columns.
        failed: why a method gave nothing there.
    """

    names: Mapping[Place, str]
    ops: Mapping[Place, int]
    cells: Mapping[tuple[BudgetedMethod, Place], SeedMeans]
    methods: tuple[BudgetedMethod, ...]
    failed: Mapping[tuple[BudgetedMethod, Place], str]

    @staticmethod
    def of(records: Iterable[RunRecord], methods: Sequence[BudgetedMethod] | None = None) -> MeansGrid:
        """`methods`: these columns alone, in that order; else all there are."""
        runs: dict[tuple[BudgetedMethod, Place], list[RunRecord]] = {}
        failed: dict[tuple[BudgetedMethod, Place], str] = {}
        names: dict[Place, str] = {}
        ops: dict[Place, int] = {}
        for record in records:
            column = BudgetedMethod(record.spec, record.budget)
            if methods is not None and column not in methods:
                continue
            names.setdefault(record.place, record.row)
            if record.error:
                failed[column, record.place] = record.error
                continue
            ops[record.place] = record.ops
            runs.setdefault((column, record.place), []).append(record)
        cells = {at: SeedMeans.of(sorted(found, key=lambda r: r.seed)) for at, found in runs.items()}
        found_methods = tuple(dict.fromkeys(column for column, _ in runs))
        columns = found_methods if methods is None else tuple(m for m in methods if m in found_methods)
        return MeansGrid(names, ops, cells, columns, failed)

    @property
    def places(self) -> list[Place]:
        return list(self.names)

    def cell(self, method: BudgetedMethod, place: Place) -> SeedMeans | None:
        return self.cells.get((method, place))

    def label(self, method: BudgetedMethod) -> str:
        """The spec, with its budget where the same spec stands there under another one too."""
        twins = [other for other in self.methods if other.spec == method.spec]
        return method.spec if len(twins) == 1 else f"{method.spec} ({method.budget})"

    def shown(self, method: BudgetedMethod, place: Place) -> float | str | None:
        """The value, OOM, or what went wrong."""
        cell = self.cell(method, place)
        if cell is None:
            return "failed" if (method, place) in self.failed else None
        return cell.value if cell.fits else OOM

    def pairs(self, method: BudgetedMethod, baseline: BudgetedMethod) -> list[tuple[Place, SeedMeans, SeedMeans]]:
        """(place, the method's cell, the baseline's) wherever both have a plan that fits."""
        found = ((place, self.cell(method, place), self.cell(baseline, place)) for place in self.places)
        return [(place, a, b) for place, a, b in found if a is not None and b is not None and a.fits and b.fits]

    def misfits(self, method: BudgetedMethod) -> int:
        return sum(1 for (column, _), cell in self.cells.items() if column == method and not cell.fits)


@dataclass(frozen=True)
class Interval:
    """A mean and a confidence interval around it."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean, of 95 %; of no width for fewer than two values."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Pooled:
    """One method over all graphs, beside the baseline.

    Attributes:
        improvement: (baseline - method) ÷ baseline.
        gap: method ÷ best known - 1, mean.
        share: of the headroom to the best known: Σ(baseline - method) ÷ Σ(baseline - best known)
        share_of_bound: of the headroom to the lower bound.
        reach: median share of the baseline's simulations until its value was met; inf where it never was.
    """

    method: BudgetedMethod
    graphs: int
    misfits: int
    improvement: Interval
    gap: float
    share: float
    share_of_bound: float
    reach: float
    seconds: float
    simulations: float


def pooled(grid: MeansGrid, baseline: BudgetedMethod, best: Mapping[Place, int]) -> list[Pooled]:
    """A row for each method: over all graphs, how much it gains on the baseline and how far it is from the best
    known."""
    return [_pool(grid, method, baseline, best) for method in grid.methods]


def _pool(grid: MeansGrid, method: BudgetedMethod, baseline: BudgetedMethod, best: Mapping[Place, int]) -> Pooled:
    pairs = grid.pairs(method, baseline)
    mine, theirs = ([cell.value for cell in column] for column in ([a for _, a, _ in pairs], [b for _, _, b in pairs]))
    known = [float(best.get(place, math.nan)) for place, _, _ in pairs]
    bounds = [float(b.bound) for _, _, b in pairs]
    return Pooled(
        method,
        len(pairs),
        grid.misfits(method),
        interval(improvements(grid, method, baseline)),
        _mean([a / k - 1 if k else 0.0 for a, k in zip(mine, known, strict=True)]),
        share_of(mine, theirs, known),
        share_of(mine, theirs, bounds),
        float(np.median([_reach(a, b) for _, a, b in pairs])) if pairs else math.nan,
        _mean([a.seconds for _, a, _ in pairs]),
        _mean([a.simulations for _, a, _ in pairs]),
    )


def improvements(grid: MeansGrid, method: BudgetedMethod, baseline: BudgetedMethod) -> list[float]:
    """(baseline - method) ÷ baseline of each graph, values being means over seeds."""
    return [(b.value - a.value) / b.value for _, a, b in grid.pairs(method, baseline) if b.value]


def share_of(mine: Sequence[float], theirs: Sequence[float], goal: Sequence[float]) -> float:
    """Σ(theirs - mine) ÷ Σ(theirs - goal), over the graphs whose goal is known; nan where there is no headroom."""
    there = [(a, b, g) for a, b, g in zip(mine, theirs, goal, strict=True) if not math.isnan(g)]
    headroom = sum(b - g for _, b, g in there)
    return sum(b - a for a, b, _ in there) / headroom if headroom > 0 else math.nan


def differences(
    grid: MeansGrid, focus: BudgetedMethod, baseline: BudgetedMethod
) -> list[tuple[BudgetedMethod, int, Interval]]:
    """How much better `focus` is than each other method: paired by graph, in shares of the baseline's value."""
    found = []
    for other in grid.methods:
        if other == focus:
            continue
        theirs = {place: cell for place, cell, _ in grid.pairs(other, baseline)}
        values = [
            (theirs[place].value - cell.value) / base.value
            for place, cell, base in grid.pairs(focus, baseline)
            if place in theirs and base.value
        ]
        found.append((other, len(values), interval(values)))
    return found


def speed_up(grid: MeansGrid, method: BudgetedMethod, baseline: BudgetedMethod, place: Place) -> float | str | None:
    """baseline ÷ method - 1; a text where either does not fit or failed."""
    mine, theirs = grid.shown(method, place), grid.shown(baseline, place)
    if isinstance(mine, str) or mine is None:
        return mine
    return f"{OOM} of {baseline.spec}" if isinstance(theirs, str) else None if theirs is None else theirs / mine - 1


def geometric_speed_up(grid: MeansGrid, method: BudgetedMethod, baseline: BudgetedMethod) -> tuple[float, int]:
    """(geometric mean of baseline ÷ method, less 1; over how many problems)."""
    ratios = [b.value / a.value for _, a, b in grid.pairs(method, baseline) if a.value]
    return (math.exp(_mean([math.log(ratio) for ratio in ratios])) - 1 if ratios else math.nan), len(ratios)


def _reach(mine: SeedMeans, theirs: SeedMeans) -> float:
    """Mean over seeds of the simulations until the baseline's value was met, as a share of the baseline's."""
    first = [next((at for at, value in path if value <= theirs.value), math.inf) for path in mine.paths]
    return _mean(first) / max(1.0, theirs.simulations)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
