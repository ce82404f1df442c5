"""The tables of a suite, from its records.

Which tables a suite has is part of the suite: improvements over a baseline, speed-ups, values beside peers'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loadmaster.bench import peers
from loadmaster.bench.figures import (
    BudgetedMethod,
    MeansGrid,
    Pooled,
    differences,
    geometric_speed_up,
    pooled,
    speed_up,
)
from loadmaster.bench.methods import PEERS
from loadmaster.bench.records import Place, RunRecord
from loadmaster.bench.suite import Shape, Suite
from loadmaster.bench.table import Column, Kind, Table
from loadmaster.problem.objective import objective_named


def tables_of(
    suite: Suite,
    records: Iterable[RunRecord],
    best: Mapping[Place, int],
    methods: Sequence[BudgetedMethod] | None = None,
) -> list[Table]:
    """What the suite shows; `methods`: these columns and the baseline alone."""
    baseline = baseline_of(suite)
    columns = None if methods is None else list(dict.fromkeys([baseline, *methods]))
    grid = MeansGrid.of(records, columns)
    if baseline not in grid.methods:
        return [Table(suite.title, (Column(f"no run of {suite.baseline} yet"),), [])]
    return _SHAPES[suite.shape](suite, grid, baseline, with_records(best, grid))


def baseline_of(suite: Suite) -> BudgetedMethod:
    """The method that a suite compares with, and its allowance."""
    return BudgetedMethod(suite.baseline, suite.baseline_allowance.text)


def with_records(best: Mapping[Place, int], grid: MeansGrid) -> dict[Place, int]:
    """Best-known values; a problem that the file does not have yet takes the best of the records at hand."""
    known = {place: best[place] for place in grid.places if place in best}
    for (_, place), cell in grid.cells.items():
        if place not in best and cell.fits and not cell.fuses:
            known[place] = min(known.get(place, math.ceil(cell.value)), math.ceil(cell.value))
    return known


def improvement_tables(
    suite: Suite, grid: MeansGrid, baseline: BudgetedMethod, best: Mapping[Place, int]
) -> list[Table]:
    base = suite.baseline
    columns = (
        Column("method"),
        Column("graphs", "count"),
        Column("OOM", "count"),
        Column(f"over {base}", "percent"),
        Column("95 % from", "percent"),
        Column("to", "percent"),
        Column("gap from best known", "percent"),
        Column("headroom taken", "share"),
        Column("of the bound's", "share"),
        Column("reaches it in", "share"),
        Column("simulations", "count"),
        Column("s", "seconds"),
    )
    rows = [_pooled_row(grid, figures, figures.method == baseline) for figures in pooled(grid, baseline, best)]
    notes = (
        f"over {base}: mean over graphs of ({base} - method) ÷ {base}, with Student's 95 % interval over graphs; "
        "values are means over seeds",
        f"headroom taken: sum of ({base} - method) ÷ sum of ({base} - best known); of the bound's: the same with the "
        "lower bound in place of the best known",
        f"reaches it in: median share of {base}'s simulations after which its value was met",
    )
    tables = [Table(suite.title, columns, rows, notes)]
    focus = next((method for method in reversed(grid.methods) if method.spec == suite.focus), None)
    if focus is not None and len(grid.methods) > 2:
        tables.append(_differences_table(grid, focus, baseline))
    return [*tables, _per_graph(suite, grid, baseline, best)]


def _pooled_row(grid: MeansGrid, figures: Pooled, is_baseline: bool) -> tuple[Any, ...]:
    better = figures.improvement
    reach: Any = None if is_baseline else "never" if math.isinf(figures.reach) else figures.reach
    return (
        grid.label(figures.method),
        figures.graphs,
        figures.misfits,
        better.mean,
        better.low,
        better.high,
        figures.gap,
        figures.share,
        figures.share_of_bound,
        reach,
        figures.simulations,
        figures.seconds,
    )


def _differences_table(grid: MeansGrid, focus: BudgetedMethod, baseline: BudgetedMethod) -> Table:
    columns = (
        Column("than"),
        Column("graphs", "count"),
        Column("better by", "percent"),
        Column("95 % from", "percent"),
        Column("to", "percent"),
    )
    rows = [
        (grid.label(other), count, gain.mean, gain.low, gain.high)
        for other, count, gain in differences(grid, focus, baseline)
    ]
    note = f"paired by graph, as a share of {baseline.spec}'s value"
    return Table(f"How much better {grid.label(focus)} is", columns, rows, (note,))


def _per_graph(suite: Suite, grid: MeansGrid, baseline: BudgetedMethod, best: Mapping[Place, int]) -> Table:
    """What there is to win on each graph, by the best known and by the bound, and what each method wins."""
    unit = _unit(grid)
    others = [method for method in grid.methods if method != baseline]
    columns = (
        Column("graph"),
        Column("ops", "count"),
        Column(f"{suite.baseline}, {unit}", unit),
        Column(f"best known, {unit}", unit),
        Column(f"bound, {unit}", unit),
        Column("best known leaves", "share"),
        Column("bound leaves", "share"),
        *(Column(grid.label(method), "percent") for method in others),
    )
    rows = []
    for place in grid.places:
        base = grid.cell(baseline, place)
        if base is None:
            continue
        known, value = best.get(place), base.value
        rows.append(
            (
                grid.names[place],
                grid.ops.get(place),
                grid.shown(baseline, place),
                known,
                base.bound,
                None if known is None or not value else 1 - known / value,
                1 - base.bound / value if value else None,
                *(_improvement(grid, method, baseline, place) for method in others),
            )
        )
    return Table(f"{suite.title}: graph by graph", columns, rows)


def _improvement(grid: MeansGrid, method: BudgetedMethod, baseline: BudgetedMethod, place: Place) -> float | str | None:
    mine, theirs = grid.shown(method, place), grid.shown(baseline, place)
    if not isinstance(mine, float) or not isinstance(theirs, float):
        return mine if isinstance(mine, str) else None
    return (theirs - mine) / theirs if theirs else None


def speed_up_tables(suite: Suite, grid: MeansGrid, baseline: BudgetedMethod, best: Mapping[Place, int]) -> list[Table]:
    """Step times, then percent over the baseline with the geometric mean."""
    unit = _unit(grid)
    names = [grid.label(method) for method in grid.methods]
    timed = (Column("workload"), Column("ops", "count"), *(Column(name, unit) for name in names))
    ends = (Column("best known", unit), Column("bound", unit))
    fused = any(cell.fuses for cell in grid.cells.values())
    steps = [
        (
            grid.names[place],
            grid.ops.get(place),
            *(grid.shown(method, place) for method in grid.methods),
            None if fused else best.get(place),  # best-known values are of plans that do not fuse
            _bound(grid, place),
        )
        for place in grid.places
    ]
    others = [method for method in grid.methods if method != baseline]
    over = (Column("workload"), *(Column(grid.label(method), "percent") for method in others))
    shares: list[tuple[Any, ...]] = [
        (grid.names[place], *(speed_up(grid, method, baseline, place) for method in others)) for place in grid.places
    ]
    means = [geometric_speed_up(grid, method, baseline) for method in others]
    shares.append(("geometric mean", *(mean for mean, _ in means)))
    shares.append(("over workloads", *(f"{count} of {len(grid.places)}" for _, count in means)))
    took = ("mean seconds of search", *(f"{_seconds(grid, method):.1f}" for method in others))
    note = f"{suite.baseline} ÷ method - 1; OOM: the plan needs more memory than a device has"
    return [
        Table(f"{suite.title}: {unit} a step", (*timed, *ends), steps),
        Table(f"{suite.title}: percent over {suite.baseline}", over, [*shares, took], (note,)),
    ]


def _seconds(grid: MeansGrid, method: BudgetedMethod) -> float:
    found = [cell.seconds for (column, _), cell in grid.cells.items() if column == method]
    return sum(found) / max(1, len(found))


def _bound(grid: MeansGrid, place: Place) -> int | None:
    """One that holds for every plan in the row: where some fuse, that is the lower one."""
    cells = (grid.cell(method, place) for method in grid.methods)
    return min((cell.bound for cell in cells if cell is not None), default=None)


def peer_tables(suite: Suite, grid: MeansGrid, baseline: BudgetedMethod, best: Mapping[Place, int]) -> list[Table]:
    """Values of every method, and what the last of ours is beside the best peer: optimal, or so much below."""
    unit = _unit(grid)
    ours = [method for method in grid.methods if method.spec not in PEERS]
    focus = next((method for method in reversed(ours) if method.spec == suite.focus), ours[-1])
    columns = (
        Column("graph"),
        Column("ops", "count"),
        *(Column(f"{grid.label(method)}, {unit}", unit) for method in grid.methods),
        Column(f"bound, {unit}", unit),
        Column(f"{grid.label(focus)} is"),
    )
    rows = [
        (
            grid.names[place],
            grid.ops.get(place),
            *(grid.shown(method, place) for method in grid.methods),
            _bound(grid, place),
            _verdict(grid, focus, place),
        )
        for place in grid.places
    ]
    return [Table(suite.title, columns, rows, (peers.NOTE,))]


def _verdict(grid: MeansGrid, focus: BudgetedMethod, place: Place) -> str:
    mine = grid.cell(focus, place)
    rivals = [grid.cell(method, place) for method in grid.methods if method.spec in PEERS]
    values = [rival.value for rival in rivals if rival is not None and rival.fits]
    if mine is None or not mine.fits:
        return "-"
    fused = "fused" if mine.fuses else "unfused"
    words = [f"optimal {fused}: it meets the bound"] if mine.value <= mine.bound else []
    if values:
        below = 1 - mine.value / min(values)
        words.append(f"{abs(100 * below):.1f} % {'below' if below >= 0 else 'above'} the best peer")
    return ", ".join(words) or "not compared: no peer was run"


def _unit(grid: MeansGrid) -> Kind:
    """Small graphs of tests and examples have nanoseconds and bytes."""
    most = max((cell.value for cell in grid.cells.values()), default=0)
    if all(objective_named(name).unit == "ns" for _, _, name in grid.places):
        return "ms" if most >= 1e5 else "ns"
    return "MB" if most >= 1e5 else "bytes"


_SHAPES: Mapping[Shape, Callable[[Suite, MeansGrid, BudgetedMethod, Mapping[Place, int]], list[Table]]] = {
    "improvement": improvement_tables,
    "speed-up": speed_up_tables,
    "peers": peer_tables,
}
