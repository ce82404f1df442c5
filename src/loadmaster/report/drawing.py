"""The drawing of a step: lanes of devices with their memory, and of links, cut into columns of equal time.

What is drawn, in which colour and in which order is decided here once; terminal, notebook and figures only say how a
lane looks there. The page has the same lanes, groups and colours, op by op. Of a pipeline colours are phases and cells
have the number of their microbatch; of any other plan colours are modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints
from loadmaster.pipelines.microbatches import parse_action
from loadmaster.pipelines.stages import BACKWARD, FORWARD, REDUCE, UPDATE, WEIGHT
from loadmaster.report.modules import COLOURS, MOST_MODULES, colour_of, coloured, module_labels, paths_of
from loadmaster.report.occupancy import wire_name
from loadmaster.report.plot import WIDTH_IN, blank_figure, save_figure
from loadmaster.report.schedule import Schedule
from loadmaster.report.units import size_text, time_text

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TERMINAL = ("blue", "red", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_red")
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
MOST_DEVICES, MOST_LINKS = 16, 8  # what is seen without scrolling
LEAST_WIDTH = 24  # columns: narrower, bars say nothing
PHASES = {
    FORWARD: "forward pass",
    BACKWARD: "backward pass",
    WEIGHT: "gradients of weights",
    UPDATE: "update",
    REDUCE: "sum over replicas",
}


ACTIONS = dict(zip(PHASES.values(), ("0123456789", "abcdefghij", "+" * 10, "#" * 10, "=" * 10), strict=True))


@dataclass(frozen=True, eq=False)
class Cells:
    """A step cut into columns of equal time.

    Attributes:
        busy: [rows, columns] share of the time that is used.
        main: [rows, columns] the label that takes most of it, or -1.
    """

    busy: NDArray[np.float64]  # [rows, columns]
    main: Ints  # [rows, columns]


@dataclass(frozen=True, eq=False)
class LaneDrawing:
    """A device or a link over the step.

    Attributes:
        title: its name.
        busy: [columns] share of the time that it works.
        main: [columns] number of the module or phase that takes most of it, or -1.
        held, peak, limit: of a device: [columns] the most bytes held, over the step, and what it has.
        marks: [columns] of a pipeline: number of the microbatch, or -1.
    """

    title: str
    busy: NDArray[np.float64]  # [columns]
    main: Ints  # [columns]
    held: Ints | None = None  # [columns]
    peak: int = 0
    limit: int = 0
    marks: Ints | None = None  # [columns]

    @property
    def tail(self) -> str:
        return f"{size_text(self.peak)} of {size_text(self.limit)}"


@dataclass(frozen=True, eq=False)
class Drawing:
    """A step to be drawn.

    Attributes:
        lanes: devices, then links, the busiest first.
        names: of modules or phases, by number.
        more: devices that are left out.
    """

    lanes: tuple[LaneDrawing, ...]
    names: tuple[str, ...]
    step_ns: int
    more: int = 0

    @property
    def devices(self) -> tuple[LaneDrawing, ...]:
        return tuple(lane for lane in self.lanes if lane.held is not None)


def cells(row: Ints, start: Ints, end: Ints, label: Ints, rows: int, step_ns: int, columns: int) -> Cells:
    """How much of each column each label takes. Shares are exact: a long op fills many columns, short ones add up."""
    kinds = int(label.max(initial=-1)) + 1
    edges = np.linspace(0.0, max(1, step_ns), columns + 1)
    taken = np.zeros((rows, columns, max(1, kinds)))
    first = np.minimum((start * columns) // max(1, step_ns), columns - 1)
    last = np.minimum((end * columns) // max(1, step_ns), columns - 1)
    for at in np.flatnonzero((row < rows) & (end > start)).tolist():
        part = slice(int(first[at]), int(last[at]) + 1)
        low, high = np.maximum(edges[part], start[at]), np.minimum(edges[1:][part], end[at])
        taken[row[at], part, label[at]] += np.maximum(high - low, 0.0)
    busy = taken.sum(axis=2) * columns / max(1, step_ns)
    main = np.where(busy > 1e-9, taken.argmax(axis=2), -1)
    return Cells(busy, main)


def held_in_columns(times: Ints, sizes: Ints, step_ns: int, columns: int) -> Ints:
    """[columns] the most that is held at any time in it."""
    edge = np.arange(columns) * max(1, step_ns) // columns
    held = sizes[np.maximum(np.searchsorted(times, edge, side="right") - 1, 0)].copy()
    np.maximum.at(held, np.minimum(times * columns // max(1, step_ns), columns - 1), sizes)
    return held


def is_pipeline(schedule: Schedule) -> bool:
    """Whether the plan is one of microbatches in stages."""
    return bool(schedule.problem.num_ops) and all(kind.startswith("stage.") for kind in schedule.problem.graph.kind)


def numbered(schedule: Schedule, like: Schedule | None = None) -> tuple[Ints, tuple[str, ...]]:
    """([kernels] number of its module or phase, names): what has a colour of its own. `like`: another plan of the
    model, whose modules have the same colours."""
    if is_pipeline(schedule):
        phases = [parse_action(name).phase for name in schedule.problem.graph.op_name]
        used = [phase for phase in PHASES if phase in phases]
        return ints([used.index(phase) for phase in phases]), tuple(PHASES[phase] for phase in used)
    if like is not None and not is_pipeline(like):
        known, theirs = numbered(like)
        number_of = dict(zip(paths_of(like.problem.graph), known.tolist(), strict=True))
        return ints([number_of.get(path, len(theirs)) for path in paths_of(schedule.problem.graph)]), theirs
    number, names = coloured(module_labels(schedule, MOST_MODULES), schedule.end_ns - schedule.start_ns)
    return number, tuple(names)


def drawing_of(schedule: Schedule, columns: int, like: Schedule | None = None) -> Drawing:
    """The lanes of a step. `like`: another plan of the model, whose modules have the same colours."""
    number, names = numbered(schedule, like)
    shown, step = min(schedule.num_devices, MOST_DEVICES), schedule.step_ns
    when = (schedule.device, schedule.start_ns, schedule.end_ns)
    work = cells(*when, number, shown, step, columns)
    marks = None
    if is_pipeline(schedule):
        batch = ints([max(0, parse_action(name).microbatch) for name in schedule.problem.graph.op_name])
        marks = cells(*when, batch, shown, step, columns).main
    line, limits = schedule.timeline, schedule.problem.memory_bytes
    lanes = [
        LaneDrawing(
            schedule.problem.cluster.device_names[device],
            work.busy[device],
            work.main[device],
            held_in_columns(*line.curve(device), step, columns),
            int(line.peak_bytes[device]),
            int(limits[device]),
            None if marks is None else marks[device],
        )
        for device in range(shown)
    ]
    return Drawing((*lanes, *_links(schedule, columns)), names, step, schedule.num_devices - shown)


def _links(schedule: Schedule, columns: int) -> Iterator[LaneDrawing]:
    line, used = schedule.timeline, np.unique(schedule.send_channel)
    length = line.send_end_ns - line.send_start_ns
    busy = {int(channel): int(length[schedule.send_channel == channel].sum()) for channel in used}
    for channel in sorted(busy, key=lambda number: -busy[number])[:MOST_LINKS]:
        mine = np.flatnonzero(schedule.send_channel == channel)
        nothing, when = ints(np.zeros(len(mine))), (line.send_start_ns[mine], line.send_end_ns[mine])
        load = cells(nothing, *when, nothing, 1, schedule.step_ns, columns)
        yield LaneDrawing(wire_name(schedule, channel), load.busy[0], load.main[0])


# In a terminal


def print_timeline(screen: Console, schedule: Schedule) -> None:
    """As wide as the screen; plain where there are no block characters."""
    plain = not (screen.encoding or "").lower().replace("-", "").startswith("utf")
    *rows, legend = text_lines(schedule, screen.width, plain)
    for row in rows:
        screen.print(row, no_wrap=True, overflow="crop")
    screen.print(legend)


def text_lines(schedule: Schedule, width: int, plain: bool = False) -> list[Text]:
    """A letter is the module that keeps the device busiest, a digit the microbatch; small: for less than half the time.

    The last line says which module each letter is.
    """
    titles = [*schedule.problem.cluster.device_names[:MOST_DEVICES], "memory"]
    titles += [wire_name(schedule, int(channel)) for channel in np.unique(schedule.send_channel)]
    margin = min(24, max(map(len, titles)) + 2)
    tail = max(
        len(f"{size_text(int(peak))} of {size_text(int(limit))}")
        for peak, limit in zip(schedule.timeline.peak_bytes, schedule.problem.memory_bytes, strict=True)
    )
    columns = max(LEAST_WIDTH, width - margin - 2 - tail)
    drawing = drawing_of(schedule, columns)
    lane_marks = is_pipeline(schedule)
    end = time_text(drawing.step_ns)
    lines = [Text("0".rjust(margin + 1) + end.rjust(columns - 1), "dim")]
    for lane in drawing.lanes:
        title = lane.title[: margin - 1].ljust(margin)
        bars = Text(_bars(lane.busy, plain), "blue") if lane.held is None else _letters(lane, drawing.names)
        lines.append(Text.assemble(title, bars, (f" {100 * lane.busy.mean():.0f} % busy", "dim")))
        if lane.held is not None:
            lines.append(_memory_line(lane, margin, plain))
    if drawing.more:
        lines.append(Text(f"… and {drawing.more} more devices", "dim"))
    keys = [_key(name) if lane_marks else LETTERS[at] for at, name in enumerate(drawing.names)]
    parts = [((key, _style(at)), f" {name}   ") for at, (key, name) in enumerate(zip(keys, drawing.names, strict=True))]
    legend = Text.assemble(*(piece for pair in parts for piece in pair))
    legend.rstrip()
    return [*lines, legend]


def _key(name: str) -> str:
    """What stands for a phase: "0-9", "a-j", "+"."""
    letters = ACTIONS[name]
    return letters[0] if letters[0] == letters[9] else f"{letters[0]}-{letters[9]}"


def _letters(lane: LaneDrawing, names: Sequence[str]) -> Text:
    """Of a pipeline: 0 to 9 forward passes, a to j backward, + gradients of weights, = sums, # updates."""
    line = Text()
    marks = [-1] * len(lane.main) if lane.marks is None else lane.marks.tolist()
    for share, main, mark in zip(lane.busy.tolist(), lane.main.tolist(), marks, strict=True):
        letter = "." if main < 0 else LETTERS[main] if mark < 0 else ACTIONS[names[main]][mark % 10]
        line.append(letter if share >= 0.5 or mark >= 0 else letter.lower(), _style(main))
    return line


def _style(number: int) -> str:
    return "dim" if number < 0 else TERMINAL[number % len(TERMINAL)]


def _memory_line(lane: LaneDrawing, margin: int, plain: bool) -> Text:
    """The most held in each column, against the memory there is where that is half used, else against the peak."""
    held = np.zeros(0) if lane.held is None else lane.held / _full(lane)
    style = "red" if lane.peak > lane.limit else "dim"
    return Text.assemble(
        ("memory".rjust(margin - 2) + "  ", "dim"), (_bars(held, plain), style), (f" {lane.tail}", style)
    )


def _full(lane: LaneDrawing) -> int:
    """What a full bar of memory stands for."""
    return max(1, lane.peak if lane.peak > lane.limit or 2 * lane.peak < lane.limit else lane.limit)


def _bars(shares: NDArray[np.float64], plain: bool) -> str:
    bars = PLAIN_BARS if plain else BARS
    most = len(bars) - 1
    return "".join(bars[min(most, int(np.ceil(share * most)))] for share in shares.tolist())


# As SVG, without script


def svg(drawing: Drawing, width: int = 900, lane: int = 22, memory: int = 14, legend: bool = True) -> str:
    """Bars of each device, and under them what it holds; as wide as the page lets it."""
    margin = min(180, 12 + 7 * max(len(one.title) for one in drawing.lanes))
    scale = (width - margin) / max(1, len(drawing.lanes[0].main))
    parts, top = [_patterns()], 0
    for one in drawing.lanes:
        tall = lane if one.held is not None else 14
        parts.append(f"<text x='0' y='{top + tall - 7}'>{escape(one.title[:24])}</text>")
        parts += _runs(one, top, tall, margin, scale)
        top += tall
        if one.held is not None:
            parts.append(_held(one, top, memory, margin, width))
            top += memory
    axis = f"<text x='{margin}' y='{top + 13}'>0</text>"
    axis += f"<text x='{width}' y='{top + 13}' text-anchor='end'>{time_text(drawing.step_ns)}</text>"
    style = "font:11px sans-serif;max-width:100%;fill:currentColor"
    label = f"timeline of {len(drawing.devices)} devices"
    return (
        f"<svg viewBox='0 0 {width} {top + 16}' width='{width}' style='{style}' role='img' "
        f"aria-label='{label}'>{''.join(parts)}{axis}</svg>{_legend(drawing) if legend else ''}"
    )


def _patterns() -> str:
    """Stripes for the colours that come a second time."""
    lines = "<path d='M0 6L6 0' stroke='#fff' stroke-width='2'/>"
    made = [
        f"<pattern id='lm-stripe{at}' width='6' height='6' patternUnits='userSpaceOnUse'>"
        f"<rect width='6' height='6' fill='{colour_of(at)}'/>{lines}</pattern>"
        for at in range(len(COLOURS), MOST_MODULES)
    ]
    return f"<defs>{''.join(made)}</defs>"


def _fill(number: int) -> str:
    return colour_of(number) if number < len(COLOURS) else f"url(#lm-stripe{number})"


def _runs(one: LaneDrawing, top: int, tall: int, margin: float, scale: float) -> Iterator[str]:
    """Neighbours with one label as a bar; idle columns are left out."""
    for main, run in groupby(range(len(one.main)), key=lambda at: int(one.main[at])):
        at = list(run)
        if main < 0:
            continue
        full = 0.25 + 0.75 * min(1.0, float(one.busy[at].mean()))
        tone = _fill(main) if one.held is not None else "currentColor"
        box = f"x='{margin + at[0] * scale:.1f}' y='{top + 2}' width='{len(at) * scale:.1f}' height='{tall - 4}'"
        yield f"<rect {box} fill='{tone}' fill-opacity='{full:.2f}'/>"


def _held(one: LaneDrawing, top: int, tall: int, margin: float, width: int) -> str:
    held = np.zeros(1) if one.held is None else one.held / _full(one)
    low, step = top + tall - 3, (width - margin) / len(held)
    points = " ".join(f"{margin + at * step:.1f},{low - (tall - 4) * share:.1f}" for at, share in enumerate(held))
    tone = "#b3452f" if one.peak > one.limit else "currentColor"
    title = f"<title>{escape(one.title)}: {one.tail}</title>"
    edge = f"{margin},{low} {points} {width},{low}"
    return f"<polygon points='{edge}' fill='{tone}' fill-opacity='.3'>{title}</polygon>"


def _legend(drawing: Drawing) -> str:
    box = "<svg width='10' height='10'><rect width='10' height='10' fill='{}'/></svg> {}"
    marks = " &#160; ".join(box.format(_fill(at), escape(name)) for at, name in enumerate(drawing.names))
    more = f" &#160; … and {drawing.more} more devices" if drawing.more else ""
    return f"<p style='font-size:12px;opacity:.75'>{marks}{more}</p>"


# As a figure


def plot_timeline(path: str | Path, schedule: Schedule) -> None:
    """Devices and links over time, with the memory of each device under them."""
    drawing = drawing_of(schedule, 1200)
    lanes = len(drawing.lanes)
    figure = blank_figure(path, (WIDTH_IN, 1.2 + 0.32 * lanes + 1.8))
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1.4]})
    scale, unit = _scale(drawing.step_ns)
    width = drawing.step_ns / 1200 / scale
    for row, lane in enumerate(drawing.lanes):
        _draw_lane(above, row, lane, width)
    above.set_yticks(range(lanes), [lane.title for lane in drawing.lanes])
    above.set_ylim(lanes - 0.4, -0.6)
    above.set_xlim(0, drawing.step_ns / scale)
    for at, name in enumerate(drawing.names):
        hatch = "////" if at >= len(COLOURS) else None
        above.bar(0, 0, color=colour_of(at), hatch=hatch, edgecolor="white", linewidth=0, label=name)
    above.legend(frameon=False, fontsize=6, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    _draw_memory(below, schedule, scale, unit)
    _save(figure, path, [above, below])


def plot_memory(path: str | Path, schedule: Schedule) -> None:
    """What each device holds over the step, and what it has."""
    figure = blank_figure(path, (WIDTH_IN, 2.6))
    axis = figure.subplots()
    _draw_memory(axis, schedule, *_scale(schedule.step_ns))
    _save(figure, path, [axis])


def plot_pipeline(path: str | Path, schedule: Schedule) -> None:
    """The timeline of a pipeline: colours are phases."""
    if not is_pipeline(schedule):
        raise InvalidSetting("the plan is no pipeline", "--what", "plan with --microbatches, or plot its timeline")
    plot_timeline(path, schedule)


def _save(figure: Any, path: str | Path, axes: Sequence[Any]) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
    save_figure(figure, path)


def _scale(step_ns: int) -> tuple[float, str]:
    return next(((size, unit) for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if step_ns >= size), (1.0, "ns"))


def _draw_lane(axis: Any, row: int, lane: LaneDrawing, width: float) -> None:
    """Each column shows the module that takes most of it, as high as it is busy; one collection of all of them."""
    from matplotlib.collections import PolyCollection

    for main in np.unique(lane.main[lane.main >= 0]).tolist():
        some = np.flatnonzero(lane.main == main)
        height = 0.8 * np.minimum(1.0, lane.busy[some])
        left, low = some * width, row - height / 2
        corners = np.array([(left, low), (left + width, low), (left + width, low + height), (left, low + height)])
        tone = "#7f7f7f" if lane.held is None else colour_of(main)
        hatch = "////" if lane.held is not None and main >= len(COLOURS) else None
        boxes = list(corners.transpose(2, 0, 1))
        axis.add_collection(PolyCollection(boxes, facecolors=tone, linewidths=0, hatch=hatch), autolim=False)
    for mark, left_column, right_column in _marked(lane):
        if right_column - left_column > 14:
            axis.text((left_column + right_column) / 2 * width, row, str(mark), ha="center", va="center", fontsize=5)


def _marked(lane: LaneDrawing) -> Iterator[tuple[int, int, int]]:
    """(microbatch, first column, last column) of each stretch."""
    if lane.marks is None:
        return
    for (mark, _), run in groupby(range(len(lane.main)), key=lambda at: (int(lane.marks[at]), int(lane.main[at]))):  # type: ignore[index]
        at = list(run)
        if mark >= 0:
            yield mark, at[0], at[-1]


def _draw_memory(axis: Any, schedule: Schedule, scale: float, unit: str) -> None:
    for device, name in enumerate(schedule.problem.cluster.device_names):
        times, sizes = schedule.timeline.curve(device)
        times, sizes = np.append(times, schedule.step_ns), np.append(sizes, sizes[-1])
        style = "-" if device < len(COLOURS) else "--"
        tone = COLOURS[device % len(COLOURS)]
        axis.step(times / scale, sizes / 2**30, style, where="post", linewidth=0.9, label=name, color=tone)
    limit = int(schedule.problem.memory_bytes.min())
    if limit <= 2 * schedule.timeline.peak_bytes.max():
        axis.axhline(limit / 2**30, color="black", linestyle="--", linewidth=0.8)
    axis.set_xlim(0, schedule.step_ns / scale)
    axis.set_ylim(0)
    axis.set_ylabel("GiB", fontsize=8)
    axis.set_xlabel(f"time ({unit})", fontsize=8)
    axis.legend(frameon=False, fontsize=6, ncols=4)
