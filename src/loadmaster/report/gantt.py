"""A step in the terminal: a row of cells per device and link, and a line of memory under each device.

A letter is the module that keeps a device busiest in that cell; the last line says which module each letter is. As wide
as the screen, plain where there are no colours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from loadmaster.graph.columns import Ints
from loadmaster.report.cells import Cells, cells, held_in_columns
from loadmaster.report.occupancy import wire_name
from loadmaster.report.schedule import Schedule
from loadmaster.report.scopes import folded, paths_of
from loadmaster.report.units import size_text, time_text

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "red")
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
MOST_MODULES, MOST_ROWS = 12, 16  # what a screen shows
LEAST_WIDTH = 24  # columns: narrower, bars say nothing


def print_gantt(screen: Console, schedule: Schedule) -> None:
    """Devices and the busiest links, as wide as the screen."""
    *rows, legend = gantt(schedule, screen.width, plain=not _has_blocks(screen))
    for row in rows:
        screen.print(row, no_wrap=True, overflow="crop")
    screen.print(legend)


def _has_blocks(screen: Console) -> bool:
    return (screen.encoding or "").lower().replace("-", "").startswith("utf")


def gantt(schedule: Schedule, width: int, plain: bool = False) -> list[Text]:
    """A letter is the module that keeps the device busiest; a small one: for less than half the time; a dot: idle.

    The last line says which module each letter is.
    """
    labels, names = _modules(schedule)
    titles = list(schedule.problem.cluster.device_names[:MOST_ROWS])
    wires = _busy_wires(schedule)
    links = [wire_name(schedule, channel) for channel in wires]
    margin = max(len(title) for title in [*titles, *links, "memory"]) + 2
    columns = max(LEAST_WIDTH, width - margin - 1 - _tail_width(schedule))
    work = cells(schedule.device, schedule.start_ns, schedule.end_ns, labels, len(titles), schedule.step_ns, columns)
    lines = [_ruler(schedule.step_ns, margin, columns)]
    for device, title in enumerate(titles):
        lines.append(_work_row(title.ljust(margin), work, device))
        lines.append(_memory_row(schedule, device, margin, columns, plain))
    lines += _link_rows(schedule, wires, links, margin, columns, plain)
    more = schedule.num_devices - len(titles)
    if more > 0:
        lines.append(Text(f"… and {more} more devices", "dim"))
    return [*lines, _legend(names)]


def _modules(schedule: Schedule) -> tuple[Ints, list[str]]:
    """([kernels] number of its module, names): few enough to have a letter each."""
    time_ns = (schedule.end_ns - schedule.start_ns).tolist()
    labels = folded(paths_of(schedule.problem.graph), time_ns, MOST_MODULES)
    names = list(dict.fromkeys(labels))
    return np.array([names.index(label) for label in labels], np.int64), names


def _tail_width(schedule: Schedule) -> int:
    return max(len(_memory_tail(schedule, device)) for device in range(schedule.num_devices)) + 1


def _memory_tail(schedule: Schedule, device: int) -> str:
    peak, limit = int(schedule.timeline.peak_bytes[device]), int(schedule.problem.memory_bytes[device])
    return f"{size_text(peak)} of {size_text(limit)}"


def _ruler(step_ns: int, margin: int, columns: int) -> Text:
    end = time_text(step_ns)
    return Text("0".rjust(margin + 1) + end.rjust(columns - 1), "dim")


def _work_row(title: str, work: Cells, row: int) -> Text:
    line = Text(title)
    for share, main in zip(work.busy[row].tolist(), work.main[row].tolist(), strict=True):
        if main < 0:
            line.append(".", "dim")
            continue
        letter = LETTERS[main % len(LETTERS)]
        line.append(letter if share >= 0.5 else letter.lower(), COLOURS[main % len(COLOURS)])
    return line.append(f" {100 * work.busy[row].mean():.0f} % busy", "dim")


def _memory_row(schedule: Schedule, device: int, margin: int, columns: int, plain: bool) -> Text:
    """The most held in each column, against the memory there is where that is half used, else against the peak."""
    held = held_in_columns(*schedule.timeline.curve(device), schedule.step_ns, columns)
    peak, limit = int(schedule.timeline.peak_bytes[device]), int(schedule.problem.memory_bytes[device])
    full, over = max(1, peak if peak > limit or 2 * peak < limit else limit), peak > limit
    line = Text("memory".rjust(margin - 2) + "  ", "dim")
    line.append(_bars(held / full, plain), "red" if over else "dim")
    return line.append(f" {_memory_tail(schedule, device)}", "red" if over else "dim")


def _bars(shares: NDArray[np.float64], plain: bool) -> str:
    bars = PLAIN_BARS if plain else BARS
    most = len(bars) - 1
    return "".join(bars[min(most, int(np.ceil(share * most)))] for share in shares.tolist())


def _busy_wires(schedule: Schedule) -> list[int]:
    line = schedule.timeline
    channels = np.unique(schedule.send_channel)
    busy = np.bincount(schedule.send_channel, line.send_end_ns - line.send_start_ns) if len(channels) else np.zeros(1)
    return sorted(channels.tolist(), key=lambda channel: -busy[channel])[:8]


def _link_rows(
    schedule: Schedule, wires: list[int], names: list[str], margin: int, columns: int, plain: bool
) -> list[Text]:
    line, lines = schedule.timeline, []
    for channel, name in zip(wires, names, strict=True):
        mine = np.flatnonzero(schedule.send_channel == channel)
        nothing = np.zeros(len(mine), np.int64)
        load = cells(nothing, line.send_start_ns[mine], line.send_end_ns[mine], nothing, 1, schedule.step_ns, columns)
        row = Text(name.ljust(margin)).append(_bars(load.busy[0], plain), "blue")
        lines.append(row.append(f" {100 * load.busy[0].mean():.0f} % busy", "dim"))
    return lines


def _legend(names: list[str]) -> Text:
    line = Text()
    for number, name in enumerate(names):
        line.append(LETTERS[number % len(LETTERS)], COLOURS[number % len(COLOURS)]).append(f" {name}   ")
    line.rstrip()
    return line
