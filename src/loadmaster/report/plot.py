"""Figures for papers: timeline, memory curve and comparison of methods, as PNG, SVG or PDF. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.files.writing import writing
from loadmaster.report.cells import cells
from loadmaster.report.occupancy import wire_name
from loadmaster.report.schedule import Schedule
from loadmaster.report.scopes import folded, paths_of

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito (2008): eight colours that stay apart for colour-blind readers, and greys for what is left.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999", "#444444", "#bbbbbb")
MOST_MODULES = 9  # as many as there are colours, less one for the rest
COLUMNS = 1200  # of the timeline: finer than print
WIDTH_IN = 7.0  # of a page


def plot_timeline(path: str | Path, schedule: Schedule) -> None:
    """Devices and links over time, coloured by module, with the memory of each device under them."""
    figure, axes = _figure(path, 2, (WIDTH_IN, 1.2 + 0.32 * (schedule.num_devices + _wires(schedule).size) + 1.8))
    scale, unit = _scale(schedule.step_ns)
    _draw_rows(axes[0], schedule, scale)
    _draw_memory(axes[1], schedule, scale)
    axes[1].set_xlabel(f"time ({unit})", fontsize=8)
    save_figure(figure, path)


def plot_memory(path: str | Path, schedule: Schedule) -> None:
    """What each device holds over the step, and what it has."""
    figure, axes = _figure(path, 1, (WIDTH_IN, 2.6))
    scale, unit = _scale(schedule.step_ns)
    _draw_memory(axes[0], schedule, scale)
    axes[0].set_xlabel(f"time ({unit})", fontsize=8)
    save_figure(figure, path)


def plot_methods(path: str | Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Bars of comparisons (what `loadmaster compare --json` prints), a group per model: step over the lower bound."""
    for document in documents:
        _check_comparison(document, str(path))
    models = [str(document["graph"]["name"]) for document in documents]
    methods = list(dict.fromkeys(_method_of(row) for document in documents for row in document["methods"]))
    if not methods:
        raise InvalidSetting(
            "there is nothing to plot", str(path), "give the JSON that 'loadmaster compare --json' prints"
        )
    figure, axes = _figure(path, 1, (WIDTH_IN, 2.8))
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        heights = [_ratio(document, method) for document in documents]
        where = np.arange(len(models)) + (number - (len(methods) - 1) / 2) * width
        axes[0].bar(where, heights, width * 0.92, label=method, color=PALETTE[number % len(PALETTE)])
    axes[0].axhline(1.0, color="black", linewidth=0.8)
    axes[0].set_xticks(range(len(models)), models)
    axes[0].set_ylabel("step over the lower bound", fontsize=8)
    axes[0].legend(frameon=False, fontsize=7, ncols=min(4, len(methods)))
    save_figure(figure, path)


def _check_comparison(document: Mapping[str, Any], where: str) -> None:
    """Refuses what `compare --json` cannot have printed."""
    fix = "give the JSON that 'loadmaster compare --json' prints, as it was printed"
    graph, rows = document.get("graph"), document.get("methods")
    if not isinstance(graph, dict) or not isinstance(graph.get("name"), str) or not isinstance(rows, list):
        raise InvalidSetting("a comparison has no graph with a name, or no list of methods", where, fix)
    for row in rows:
        sound = isinstance(row, dict) and isinstance(_method_of(row), str)
        if not sound or not all(_is_number(row.get(key)) for key in ("lower_bound", "gap")):
            raise InvalidSetting("a method of a comparison has no name, lower_bound or gap", where, fix)


def _method_of(row: Mapping[str, Any]) -> Any:
    """The name in a row, which once was under "optimizer"."""
    return row.get("method", row.get("optimizer"))


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 1e300)


def _ratio(document: Mapping[str, Any], method: str) -> float:
    """Not a number for a method that was not run, or whose plan does not fit."""
    for row in document["methods"]:
        if _method_of(row) == method and row.get("fits", True) and row.get("lower_bound"):
            return float("nan") if row.get("gap") is None else float(row["gap"]) + 1
    return float("nan")


def blank_figure(path: str | Path, size: tuple[float, float]) -> Any:
    """An empty figure; refused where the file is of no kind that can be written."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InvalidSetting(
            f"'{path}' is not a kind of figure that can be written", "", f"end its name in {', '.join(SUFFIXES)}"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("matplotlib", "plot", "plotting") from None
    return Figure(figsize=size, layout="constrained")


def _figure(path: str | Path, rows: int, size: tuple[float, float]) -> tuple[Any, Any]:
    figure = blank_figure(path, size)
    ratios = [3, 1.4] if rows == 2 else [1]
    axes = figure.subplots(rows, 1, squeeze=False, sharex=rows == 2, gridspec_kw={"height_ratios": ratios})[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
    return figure, axes


def save_figure(figure: Any, path: str | Path) -> None:
    """Writes it in the format that the name asks for; the same plan gives the same bytes."""
    import matplotlib

    # Without dates and random names, the same plan gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "loadmaster", "svg.fonttype": "none"}):
        is_svg = Path(path).suffix.lower() == ".svg"
        with writing(path) as part:
            figure.savefig(part, dpi=200, metadata={"Date": None} if is_svg else None)


def _scale(step_ns: int) -> tuple[float, str]:
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if step_ns >= size), (1.0, "ns"))


def _wires(schedule: Schedule) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.unique(schedule.send_channel)


def _draw_rows(axis: Any, schedule: Schedule, scale: float) -> None:
    """Time is cut into columns; each shows the module that takes most of it, as high as it is busy."""
    time_ns = (schedule.end_ns - schedule.start_ns).tolist()
    labels = folded(paths_of(schedule.problem.graph), time_ns, MOST_MODULES)
    names = list(dict.fromkeys(labels))
    number = np.array([names.index(label) for label in labels], np.int64)
    columns = (schedule.device, schedule.start_ns, schedule.end_ns, number)
    work = cells(*columns, schedule.num_devices, schedule.step_ns, COLUMNS)
    wires, line = _wires(schedule), schedule.timeline
    row = np.searchsorted(wires, schedule.send_channel)
    sent = cells(row, line.send_start_ns, line.send_end_ns, row * 0, len(wires), schedule.step_ns, COLUMNS)
    width = schedule.step_ns / COLUMNS / scale
    for device in range(schedule.num_devices):
        colours = [PALETTE[main % len(PALETTE)] for main in work.main[device]]
        _draw_cells(axis, device, work.busy[device], colours, width)
    for wire in range(len(wires)):
        _draw_cells(axis, schedule.num_devices + wire, sent.busy[wire], ["#7f7f7f"] * COLUMNS, width)
    titles = [*schedule.problem.cluster.device_names, *(wire_name(schedule, int(wire)) for wire in wires)]
    axis.set_yticks(range(len(titles)), titles)
    axis.set_ylim(len(titles) - 0.4, -0.6)
    axis.set_xlim(0, schedule.step_ns / scale)
    for at, name in enumerate(names):
        axis.bar(0, 0, color=PALETTE[at % len(PALETTE)], label=name)
    axis.legend(frameon=False, fontsize=6, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _draw_cells(axis: Any, row: int, busy: Any, colours: Sequence[str], width: float) -> None:
    from matplotlib.collections import PolyCollection

    some = np.flatnonzero(busy > 0)
    height = 0.8 * np.minimum(1.0, busy[some])
    left, low = some * width, row - height / 2
    corners = [(left, low), (left + width, low), (left + width, low + height), (left, low + height)]
    # One collection for all of them: a thousand bars take a second, and as long again to write.
    colour = [colours[at] for at in some.tolist()]
    boxes = PolyCollection(list(np.array(corners).transpose(2, 0, 1)), facecolors=colour, linewidths=0)
    axis.add_collection(boxes, autolim=False)


def _draw_memory(axis: Any, schedule: Schedule, scale: float) -> None:
    for device, name in enumerate(schedule.problem.cluster.device_names):
        times, sizes = schedule.timeline.curve(device)
        times, sizes = np.append(times, schedule.step_ns), np.append(sizes, sizes[-1])
        axis.step(
            times / scale, sizes / 2**30, where="post", linewidth=0.9, label=name, color=PALETTE[device % len(PALETTE)]
        )
    limit = int(schedule.problem.memory_bytes.min())
    if limit <= 2 * schedule.timeline.peak_bytes.max():
        axis.axhline(limit / 2**30, color="black", linestyle="--", linewidth=0.8)
    axis.set_xlim(0, schedule.step_ns / scale)
    axis.set_ylim(0)
    axis.set_ylabel("GiB", fontsize=8)
    axis.legend(frameon=False, fontsize=6, ncols=4)
